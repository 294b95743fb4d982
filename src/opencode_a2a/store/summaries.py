"""Tasks without their output and history, for those who watch many of them.

What is read does not grow with the length of a task: of an ended task its last entry, of an open
one the entries that are not output, each of them once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, func, or_, select, tuple_

from ..domain.ports import TaskVersion
from ..domain.task import Task
from ..domain.updates import Ended
from ..domain.values import SessionRef, TaskState
from . import codec
from .statements import head_of
from .tables import CLEARED, CLEARING, IS_OPEN, OPEN_STATES, entries, tasks

_OUTPUT = ("BlockText", "BlockTool", "BlockOutput", "BlockFile", "BlockPhase", "ChangesMade")
_ANY_CLEARED = (0, CLEARED, CLEARING)
_HISTORY = ("MessageAdded", "RequestRecord", "DecisionRecord")
_ENTRIES = select(entries.c.seq, entries.c.at, entries.c.kind, entries.c.body)
_LAST_SEQ = (
    select(func.max(entries.c.seq))
    .where(entries.c.task_id == tasks.c.id)
    .scalar_subquery()
    .label("seq")
)
_VERSION = (tasks.c.id, tasks.c.owner, tasks.c.state)


def open_versions(db: Connection, owner: str | None) -> list[TaskVersion]:
    """The open tasks of an owner, or of everybody, oldest first."""
    # Without the owner: the index of open tasks is small, and that of an owner's tasks is not.
    found = db.execute(select(*_VERSION, _LAST_SEQ, tasks.c.created_at).where(IS_OPEN)).all()
    wanted = [row for row in found if owner is None or row.owner == owner]
    return [_version(row) for row in sorted(wanted, key=lambda row: (row.created_at, row.id))]


def held_by_others(db: Connection, holder: str, since: int) -> list[TaskVersion]:
    others = or_(tasks.c.holder.is_(None), tasks.c.holder != holder)
    found = [
        _version(row) for row in db.execute(select(*_VERSION, _LAST_SEQ).where(IS_OPEN, others))
    ]
    # `cleared` has all of its values, so that the index on it and the time is used.
    recent = (tasks.c.cleared.in_(_ANY_CLEARED), tasks.c.status_at >= since)
    ended = select(*_VERSION).where(*recent, tasks.c.state.not_in(OPEN_STATES))
    return [
        *found,
        *(TaskVersion(row.id, row.owner, state=row.state, seq=0) for row in db.execute(ended)),
    ]


def _version(row: Any) -> TaskVersion:
    return TaskVersion(row.id, row.owner, state=row.state, seq=row.seq or 0)


def ended(db: Connection, owner: str | None, *, after: tuple[int, str], limit: int) -> list[Task]:
    since = tuple_(tasks.c.status_at, tasks.c.id) > after
    wanted = [since, tasks.c.state.not_in(OPEN_STATES)]
    if owner is not None:
        wanted.append(tasks.c.owner == owner)
    else:
        wanted += [tasks.c.cleared.in_(_ANY_CLEARED), tasks.c.status_at >= after[0]]
    oldest_first = select(*_ROW).where(*wanted).order_by(tasks.c.status_at, tasks.c.id)
    return [_ended(db, row) for row in db.execute(oldest_first.limit(limit)).all()]


_ROW = [column for column in tasks.c if column is not tasks.c.folded]


def read(db: Connection, version: TaskVersion, base: Task | None = None) -> Task | None:
    row = db.execute(select(*_ROW).where(tasks.c.id == version.task_id)).first()
    if row is None:
        return None
    if row.state not in OPEN_STATES:
        return _ended(db, row)
    task = base or Task(head_of(row), status_at=row.created_at)
    _apply(db, task, until=version.seq)
    task.last_seq = version.seq  # what lies between is output, and need not be looked at again
    return task


def _apply(db: Connection, task: Task, *, until: int | None = None) -> None:
    """Apply the next entries that are not output."""
    statement = _ENTRIES.where(
        entries.c.task_id == task.head.id,
        entries.c.seq > task.last_seq,
        entries.c.kind.not_in((*_OUTPUT, *_HISTORY)),
    )
    if until is not None:
        statement = statement.where(entries.c.seq <= until)
    for entry in db.execute(statement.order_by(entries.c.seq)).all():
        task.apply(codec.decode(*entry))


def _ended(db: Connection, row: Any) -> Task:
    head = head_of(row)
    task = Task(head, state=TaskState(row.state), status_at=row.status_at)
    with suppress(codec.Unreadable):  # the row says the most important
        last = None
        if not row.cleared:
            of_task = _ENTRIES.where(entries.c.task_id == row.id)
            last = db.execute(of_task.order_by(entries.c.seq.desc()).limit(1)).first()
        if last is None:  # also if the entries were deleted since the row was read
            folded = db.execute(select(tasks.c.folded).where(tasks.c.id == row.id)).scalar()
            task = codec.unfold_end(head, folded) if folded is not None else task
        else:
            end = codec.decode(*last)
            if not isinstance(end.update, Ended) or end.update.usage is None:
                _apply(db, task)  # what it has used is said by its steps, if at all
            else:
                task.apply(end)
    if task.session is None and row.session_id:
        task.session = SessionRef(row.session_id, row.title or "")
    return task.summary()
