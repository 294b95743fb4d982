"""Looks for damage in a database, and for rows that contradict each other. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select
from sqlalchemy.exc import DatabaseError

from ..domain.task import Task
from ..domain.updates import InterruptOpened
from ..domain.values import TaskState
from ..store import codec
from ..store.statements import head_of
from ..store.tables import (
    CLEARING,
    OPEN_STATES,
    contexts,
    entries,
    interrupts,
    keys,
    sessions,
    tasks,
    totals,
)

ROWS = 100  # that are fetched at once


@dataclass(slots=True)
class Report:
    """What was looked at, and what is wrong."""

    tasks: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)


def check(db: Connection) -> Report:
    """Everything that must be true of a database of this version."""
    report = Report()
    if db.dialect.name == "sqlite":
        report.problems += _file_problems(db)
        if report.problems:
            return report  # what the rows of a damaged file say means nothing
    report.problems += _task_problems(db, report)
    report.problems += _reference_problems(db)
    return report


def _file_problems(db: Connection) -> Iterator[str]:
    try:
        for (found,) in db.exec_driver_sql("PRAGMA integrity_check"):
            if found != "ok":
                yield f"file: {found}"
    except DatabaseError as exc:  # SQLite gives up where it cannot even read the schema
        yield f"file: {exc.orig}"
        return
    for row in db.exec_driver_sql("PRAGMA foreign_key_check"):
        yield f"file: foreign key {tuple(row)}"


def _task_problems(db: Connection, report: Report) -> Iterator[str]:
    """Whether the events of each task are all there, and add up to its row."""
    asked = _open_requests(db)
    all_entries = _stream(db, select(entries), entries.c.task_id, entries.c.seq)
    by_task = groupby(all_entries, key=lambda row: row.task_id)
    group = next(by_task, None)
    for row in _stream(db, select(tasks), tasks.c.id):
        report.tasks += 1
        while group is not None and group[0] < row.id:
            yield f"task {group[0]}: has events, and no task"
            group = next(by_task, None)
        log: list[Any] = []
        if group is not None and group[0] == row.id:
            log = list(group[1])
            group = next(by_task, None)
        report.entries += len(log)
        found = _contradictions(row, log, asked.pop(row.id, ()))
        yield from (f"task {row.id}: {each}" for each in found)
    while group is not None:
        yield f"task {group[0]}: has events, and no task"
        group = next(by_task, None)
    for task_id in asked:
        yield f"task {task_id}: has open requests, and no task"


def _stream(db: Connection, statement: Select[Any], *order: ColumnElement[Any]) -> Iterator[Any]:
    """Rows in the order of the bytes of the first column: so both tables are read side by side."""
    first, *others = order
    if db.dialect.name == "postgresql":
        first = first.collate("C")
    ordered = statement.order_by(first, *others)
    for some in db.execute(ordered, execution_options={"yield_per": ROWS}).partitions():
        yield from some


def _contradictions(row: Any, log: list[Any], asked: Sequence[str]) -> Iterator[str]:
    is_open = row.state in OPEN_STATES
    if row.state not in {state.value for state in TaskState}:
        yield f"has the unknown state {row.state}"
        return
    if is_open == (row.folded is not None):
        yield f"is {row.state}, and its result is {'stored' if row.folded else 'missing'}"
    if row.cleared:
        if row.cleared == CLEARING:  # what is left of them says nothing
            log = []
        if log:
            yield f"its events were removed, and {len(log)} are there"
        if is_open:
            yield f"its events were removed, and it is {row.state}"
    elif [entry.seq for entry in log] != list(range(1, len(log) + 1)) or not log:
        yield f"its {len(log)} events are not numbered 1 to {len(log) or 'n'}"
        return
    try:
        yield from _fold_problems(row, log)
        yield from _request_problems(row, log, asked)
    except codec.Unreadable as exc:
        yield f"cannot be read: {exc.__cause__}"


def _fold_problems(row: Any, log: list[Any]) -> Iterator[str]:
    head = head_of(row)
    told = Task.of(head, [codec.decode(e.seq, e.at, e.kind, e.body) for e in log]) if log else None
    kept = codec.unfold(head, row.folded) if row.folded is not None else None
    for name, task in (("events", told), ("result", kept)):
        if task is None:
            continue
        if task.state.value != row.state:
            yield f"is {row.state}, and its {name} say {task.state.value}"
        if (session := task.session.id if task.session else None) != row.session_id:
            yield f"has session {row.session_id}, and its {name} say {session}"
    if told is not None and kept is not None and codec.fold(told) != codec.fold(kept):
        yield "its stored result is not what its events add up to"


def _open_requests(db: Connection) -> dict[str, list[str]]:
    found = defaultdict(list)
    statement = select(interrupts.c.task_id, interrupts.c.request_id)
    for row in db.execute(statement.where(interrupts.c.closed_at.is_(None))):
        found[row.task_id].append(row.request_id)
    return dict(found)


def _request_problems(row: Any, log: list[Any], asked: Sequence[str]) -> Iterator[str]:
    if asked and row.state not in OPEN_STATES:
        yield f"is {row.state}, and requests are open: {', '.join(sorted(asked))}"
    elif asked:
        opened = {
            entry.update.interrupt.request_id
            for entry in (codec.decode(e.seq, e.at, e.kind, e.body) for e in log)
            if isinstance(entry.update, InterruptOpened)
        }
        if missing := set(asked) - opened:
            yield f"no event opened the requests {', '.join(sorted(missing))}"


def _reference_problems(db: Connection) -> Iterator[str]:
    lost = select(keys.c.name).outerjoin(tasks, tasks.c.id == keys.c.task_id)
    for name in db.execute(lost.where(tasks.c.id.is_(None))).scalars():
        yield f"key {name}: its task is not there"
    owned = and_(
        sessions.c.session_id == contexts.c.session_id, sessions.c.owner == contexts.c.owner
    )
    unbound = select(contexts.c.context_id, contexts.c.session_id).outerjoin(sessions, owned)
    for row in db.execute(unbound.where(sessions.c.session_id.is_(None))):
        yield f"context {row.context_id}: its session {row.session_id} does not belong to its owner"
    if db.dialect.name == "sqlite":
        counted = select(tasks.c.owner, tasks.c.state, func.count()).group_by("owner", "state")
        really = {(row[0], row[1]): row[2] for row in db.execute(counted)}
        for owner, state, count in db.execute(select(totals)):
            if (there := really.pop((owner, state), 0)) != count:
                yield f"totals: {count} tasks of {owner} are {state}, and there are {there}"
        for (owner, state), count in really.items():
            yield f"totals: none of {owner} is {state}, and there are {count}"
