"""Every statement of the log, each run in a thread of the database, in one transaction.

What is run for every delta, task or request is `Prepared`: to build a statement and
to pass it on is more work for SQLAlchemy than it is for SQLite to run it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import orjson
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError

from ..domain.phrases import waiting
from ..domain.ports import Key, TaskPage, TaskRow
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    LogEntry,
    Started,
)
from ..domain.values import (
    Failure,
    OutputModes,
    Problem,
    Root,
    SessionRef,
    TaskQuery,
    TaskState,
)
from . import asked, codec
from .database import Conflict
from .holder import Holder
from .migrate import touch
from .prepared import Prepared
from .roots import adopt
from .tables import IS_OPEN, OPEN_STATES, contexts, entries, keys, sessions, tasks, totals

_ENTRIES = select(entries.c.seq, entries.c.at, entries.c.kind, entries.c.body).order_by(
    entries.c.seq
)
UNREADABLE = Problem(
    Failure.INTERNAL,
    "What is stored of this task was damaged, or written by a newer version of this service. "
    "Nobody can go on with it: send the request again in the same context.",
)
UNPLACED = Problem(
    Failure.OTHER_WORKSPACE,
    "An earlier version of this service left this task waiting and did not note which directory it "
    "was for. Nothing of it was done. Send the request again where it belongs.",
)
PAGE = 256  # entries a cursor takes at once
SWEEP = 20  # tasks at once: commits wait while entries are deleted
HELD = 256  # tasks asked for at once
SHRINK = 16  # pages at once, for the same reason


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction writes about one task."""

    task: Task  # as committed so far
    is_new: bool
    entries: list[LogEntry]
    keys: Sequence[Key] = ()
    root: str = ""  # where a new task belongs


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was written about a task: these of its keys are taken, or it is not ours to write."""

    taken: frozenset[str] = frozenset()


GONE = Refusal()  # it has ended, is held by another process, or cannot be stored


def commit(db: Connection, batches: Sequence[Batch], holder: str, until: int) -> dict[str, Refusal]:
    """Write everything at once; returns the tasks that were refused.

    Refused is what has ended or is held by another process, and what came with a key
    that is taken. Where the database itself refuses a row, nothing is written (`Conflict`).
    """
    try:
        return _commit_together(db, batches, holder, until)
    except (IntegrityError, DataError) as exc:
        raise Conflict from exc


def commit_apart(
    db: Connection, batches: Sequence[Batch], holder: str, until: int
) -> dict[str, Refusal]:
    """The same after a conflict, task by task: only the one concerned is refused."""
    refused: dict[str, Refusal] = {}
    for batch in batches:
        try:
            with db.begin_nested():
                refused |= _commit_together(db, [batch], holder, until)
        except (IntegrityError, DataError):
            refused[batch.task.head.id] = GONE
    return refused


def _commit_together(
    db: Connection, batches: Sequence[Batch], holder: str, until: int
) -> dict[str, Refusal]:
    known = [batch.task.head.id for batch in batches if not batch.is_new]
    refused = dict.fromkeys(set(known) - _held(db, known, holder), GONE)
    for batch in batches:
        if batch.task.head.id not in refused and (taken := _claim(db, batch)):
            refused[batch.task.head.id] = Refusal(taken)
    fresh = [
        _new_task(batch, holder, until)
        for batch in batches
        if batch.is_new and batch.task.head.id not in refused
    ]
    if fresh:
        _NEW_TASKS.change(db, *fresh)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        task_id = batch.task.head.id
        if task_id in refused:
            continue
        if not _move(db, batch):
            refused[task_id] = GONE
            continue
        asked.follow(db, batch.task, batch.entries)
        for entry in batch.entries:
            kind, body = codec.encode(entry.update)
            row = {"seq": entry.seq, "at": entry.at, "kind": kind, "body": body}
            rows.append({"task_id": task_id, **row})
    if rows:
        _NEW_ENTRIES.change(db, *rows)
    return refused


def find_stored(db: Connection, batches: Sequence[Batch], holder: str, until: int) -> set[str]:
    """Of which tasks a batch was stored by a transaction whose commit was never answered.

    This is final. A transaction that the server still commits is waited for, because it holds the
    rows that are asked for here. And what SQLite may have kept of a failed one in its write-ahead
    log is overwritten by what is written here.
    """
    stored: set[str] = set()
    for batch in batches:
        head, first = batch.task.head, batch.entries[0]
        if batch.is_new:
            with suppress(IntegrityError, DataError), db.begin_nested() as attempt:
                _NEW_TASKS.change(db, _new_task(batch, holder, until))
                attempt.rollback()
        else:
            db.execute(select(tasks.c.id).where(tasks.c.id == head.id).with_for_update())
        entry = (entries.c.task_id == head.id, entries.c.seq == first.seq, entries.c.at == first.at)
        found = db.execute(select(entries.c.kind, entries.c.body).where(*entry)).first()
        if found is not None and tuple(found) == codec.encode(first.update):
            stored.add(head.id)
    touch(db)
    return stored


_NEW_TASK = ("id", "owner", "context_id", "state", "status_at", "created_at", "modes", "root")
_NEW_TASKS = Prepared(insert(tasks), (*_NEW_TASK, "holder", "held_until"))
_NEW_ENTRIES = Prepared(insert(entries), ("task_id", "seq", "at", "kind", "body"))
_NEW_KEY = Prepared(insert(keys), ("owner", "name", "digest", "at", "task_id"))


@cache
def _holding(size: int) -> Prepared:
    """The question which of so many tasks are open and held by somebody."""
    ids: list[BindParameter[str]] = [bindparam(f"id{i}") for i in range(size)]
    ours = (tasks.c.id.in_(ids), tasks.c.holder == bindparam("holder"), IS_OPEN)
    return Prepared(select(tasks.c.id).where(*ours).with_for_update())


def _held(db: Connection, task_ids: Sequence[str], holder: str) -> set[str]:
    """Which of these are open and ours to write, and stay so for this transaction."""
    found: set[str] = set()
    for start in range(0, len(task_ids), HELD):
        some = task_ids[start : start + HELD]
        # Asked in few sizes, each prepared once; the last id fills it up.
        size = 1 << (len(some) - 1).bit_length()
        asked = {f"id{i}": some[min(i, len(some) - 1)] for i in range(size)}
        held = _holding(size).rows(db, {**asked, "holder": holder})
        found.update(row.id for row in held)
    return found


def _claim(db: Connection, batch: Batch) -> frozenset[str]:
    """Note the keys that requests came with, or say which were used before and note none."""
    owner, task_id = batch.task.head.owner, batch.task.head.id
    taken = frozenset(k.name for k in batch.keys if find_key(db, owner, k.name) is not None)
    for key in batch.keys if not taken else ():
        row = {"owner": owner, "name": key.name, "digest": key.digest, "at": key.at}
        _NEW_KEY.change(db, {**row, "task_id": task_id})
    return taken


_KEY = Prepared(
    select(keys.c.task_id, keys.c.digest).where(
        keys.c.owner == bindparam("owner"), keys.c.name == bindparam("name")
    )
)


def find_key(db: Connection, owner: str, name: str) -> tuple[str, str] | None:
    """The task and the content a key stands for."""
    row = _KEY.first(db, {"owner": owner, "name": name})
    return (row.task_id, row.digest) if row else None


@cache
def _moving(columns: tuple[str, ...]) -> Prepared:
    return Prepared(update(tasks).where(tasks.c.id == bindparam("moved"), IS_OPEN), columns)


def _move(db: Connection, batch: Batch) -> bool:
    """Carry the task's state into its row. False when it had ended: the first end wins."""
    values: dict[str, Any] = {}
    for entry in batch.entries:
        state = entry.state
        if state is not None:
            values |= {"state": state.value, "status_at": entry.at, "message": None}
        match entry.update:
            case Started(session=session, title=title):
                values |= {"session_id": session, "title": title}
            case InterruptOpened() | InterruptUnclear() | InterruptAnswered() | InterruptResolved():
                values["message"] = _waiting(batch)
            case Ended(message=message, session=session, title=title):
                values |= {"message": message, "folded": codec.fold(_whole(batch))}
                if session:
                    values |= {"session_id": session, "title": title}
            case _:
                pass
    if not values:
        return True
    for column in ("message", "title"):
        if text := values.get(column):
            values[column] = text.replace("\0", "")  # PostgreSQL has no place for it
    return _moving(tuple(values)).change(db, {**values, "moved": batch.task.head.id}) == 1


def _waiting(batch: Batch) -> str | None:
    """What is asked of people once this batch is committed."""
    task = batch.task
    asked = Task(task.head, interrupts={**task.interrupts}, unclear=task.unclear)
    for entry in batch.entries:
        asked.apply(entry)
    return waiting(asked.open_interrupts, asked.unclear) if asked.interrupts else None


def _whole(batch: Batch) -> Task:
    """The task with this batch; its fold itself changes only once that is committed."""
    task = batch.task
    whole = replace(
        task,
        history=[*task.history],
        blocks={id: replace(block, pieces=[block.text]) for id, block in task.blocks.items()},
        interrupts={**task.interrupts},
        answered={**task.answered},
        steps={**task.steps},
        reported={*task.reported},
    )
    for entry in batch.entries:
        whole.apply(entry)
    return whole


def _new_task(batch: Batch, holder: str, until: int) -> dict[str, Any]:
    """The row of a new task, leased to a holder."""
    head = batch.task.head
    return {
        "id": head.id,
        "owner": head.owner,
        "context_id": head.context_id,
        "state": TaskState.SUBMITTED.value,
        "status_at": head.created_at,
        "created_at": head.created_at,
        "modes": orjson.dumps(head.modes.accepted).decode(),
        "root": batch.root,
        "holder": holder,
        "held_until": until,
    }


def _head(row: Any) -> TaskHead:
    modes = OutputModes(tuple(orjson.loads(row.modes)))
    return TaskHead(row.id, row.context_id, row.owner, row.created_at, modes)


_TASK = Prepared(select(tasks).where(tasks.c.id == bindparam("id")))


def load(db: Connection, task_id: str) -> Task | None:
    row = _TASK.first(db, {"id": task_id})
    if row is None:
        return None
    if row.folded is not None:
        return codec.unfold(_head(row), row.folded)
    return Task.of(_head(row), entries_after(db, task_id, 0, None))


def next_entries(db: Connection, task_id: str, after: int) -> tuple[list[LogEntry], bool]:
    """What a cursor reads next, and whether there may be more.

    Of a task that was swept it gets the blocks, each in one piece.
    """
    row = db.execute(select(tasks.c.state, tasks.c.cleared).where(tasks.c.id == task_id)).first()
    if row is None:
        return [], False
    more = row.state in OPEN_STATES
    if not row.cleared:
        return entries_after(db, task_id, after, PAGE), more
    whole = load(db, task_id)
    told = whole.compacted() if whole is not None else []
    left = [entry for entry in told if entry.seq > after]
    return sorted(left, key=lambda entry: entry.seq), more


def entries_after(
    db: Connection, task_id: str, after: int, limit: int | None, until: int | None = None
) -> list[LogEntry]:
    statement = _ENTRIES.where(entries.c.task_id == task_id, entries.c.seq > after).limit(limit)
    if until is not None:
        statement = statement.where(entries.c.seq <= until)
    return [codec.decode(*row) for row in db.execute(statement)]


_ROW = (
    tasks.c.id,
    tasks.c.owner,
    tasks.c.context_id,
    tasks.c.state,
    tasks.c.status_at,
    tasks.c.created_at,
    tasks.c.modes,
    tasks.c.message,
    tasks.c.session_id,
    tasks.c.title,
)


def page(db: Connection, query: TaskQuery) -> TaskPage:
    wanted = [tasks.c.owner == query.owner]
    if query.context_id is not None:
        wanted.append(tasks.c.context_id == query.context_id)
    if query.state is not None:
        wanted.append(tasks.c.state == query.state.value)
    if query.since is not None:
        wanted.append(tasks.c.status_at >= query.since)
    total = _total(db, query, wanted)
    page: Select[Any] = select(*_ROW).where(*wanted)
    if query.after is not None:
        # Compared as a pair, which the index answers; said with OR, it would be read up to here.
        page = page.where(tuple_(tasks.c.status_at, tasks.c.id) < query.after)
    newest_first = page.order_by(tasks.c.status_at.desc(), tasks.c.id.desc())
    found = db.execute(newest_first.limit(query.limit + 1)).all()
    rows = [
        TaskRow(
            _head(row),
            TaskState(row.state),
            row.status_at,
            row.message,
            SessionRef(row.session_id, row.title or "") if row.session_id else None,
        )
        for row in found[: query.limit]
    ]
    more = len(found) > query.limit
    return TaskPage(tuple(rows), total, (rows[-1].status_at, rows[-1].head.id) if more else None)


def _total(db: Connection, query: TaskQuery, wanted: Sequence[ColumnElement[bool]]) -> int:
    """How many tasks are wanted; known without counting where owner and state say which."""
    counted: Select[int] = select(func.count()).select_from(tasks).where(*wanted)
    if db.dialect.name == "sqlite" and query.context_id is None and query.since is None:
        counted = select(func.coalesce(func.sum(totals.c.tasks), 0))
        counted = counted.where(totals.c.owner == query.owner)
        if query.state is not None:
            counted = counted.where(totals.c.state == query.state.value)
    return db.execute(counted).scalar_one()


_ELSEWHERE = (
    select(tasks.c.id)
    .where(tasks.c.owner == bindparam("owner"), tasks.c.context_id == bindparam("context"), IS_OPEN)
    .where(
        or_(
            tasks.c.created_at < bindparam("at"),
            and_(tasks.c.created_at == bindparam("at"), tasks.c.id < bindparam("id")),
        )
    )
    .where(or_(tasks.c.holder.is_(None), tasks.c.holder != bindparam("holder")))
    .limit(1)
)


def elsewhere(db: Connection, head: TaskHead, holder: str) -> bool:
    """Whether an older task of the same context is open and not ours (yet)."""
    older_than = {"at": head.created_at, "id": head.id, "holder": holder}
    lane = {"owner": head.owner, "context": head.context_id}
    return db.execute(_ELSEWHERE, lane | older_than).first() is not None


def take_orphans(
    db: Connection, holder: str, now: int, until: int, but: Collection[str], root: Root
) -> tuple[list[Task], dict[str, Problem]]:
    """Hold what nobody holds any more: released, run out, or its holder is dead.

    In the order they must go on: what has begun, then what waited, oldest first.
    And those that were ended instead, because nobody could go on with them.
    Tasks of another root are left to the process that serves it.
    """
    statement = (
        select(tasks.c.id, tasks.c.holder, tasks.c.held_until, tasks.c.root)
        .where(or_(tasks.c.root == root.path, tasks.c.root.is_(None)), IS_OPEN)
        .order_by(tasks.c.state == TaskState.SUBMITTED.value, tasks.c.created_at, tasks.c.id)
        .with_for_update()  # where two look at once, the second sees what the first took
    )
    orphans = [
        row
        for row in db.execute(statement)
        if row.id not in but
        and (row.holder in (None, holder) or row.held_until < now or Holder.is_dead(row.holder))
    ]
    given_up: dict[str, Problem] = {}
    ours: list[str] = []
    for row in orphans:
        home = row.root if row.root is not None else _home(db, row.id, root)
        if home is None:
            _give_up(db, row.id, now, UNPLACED)
            given_up[row.id] = UNPLACED
        elif home == root.path:
            ours.append(row.id)
    if ours:
        taken = update(tasks).where(tasks.c.id.in_(ours))
        db.execute(taken.values(holder=holder, held_until=until, root=root.path))
    # In the same transaction: what is held but could not be read would be nobody's.
    loaded: list[Task] = []
    for task_id in ours:
        try:
            loaded += filter(None, [load(db, task_id)])
        except codec.Unreadable:
            _give_up(db, task_id, now, UNREADABLE)
            given_up[task_id] = UNREADABLE
    return loaded, given_up


def _home(db: Connection, task_id: str, root: Root) -> str | None:
    """The root of a task that an earlier version wrote: that of its session, if it has one.

    A directory that lies in another root, which nobody has served yet, is returned as it is.
    """
    session = _session_of_task(db, task_id)
    if session is None:
        return None
    return adopt(db, [session.session_id], root)[session.session_id] or session.directory


def _session_of_task(db: Connection, task_id: str) -> Any:
    """Where the task works or, if it has not begun, where its context does."""
    session = select(sessions.c.session_id, sessions.c.directory).where(tasks.c.id == task_id)
    own = session.join(tasks, tasks.c.session_id == sessions.c.session_id)
    served = and_(contexts.c.owner == tasks.c.owner, contexts.c.context_id == tasks.c.context_id)
    bound = session.join(contexts, contexts.c.session_id == sessions.c.session_id)
    return db.execute(own).first() or db.execute(bound.join(tasks, served)).first()


def root_of_task(db: Connection, owner: str, task_id: str) -> str | None:
    """The root of somebody's task, where it is known."""
    this = (tasks.c.id == task_id, tasks.c.owner == owner)
    return db.execute(select(tasks.c.root).where(*this)).scalar()


_BOUND = Prepared(
    select(sessions.c.root, sessions.c.directory)
    .join(contexts, contexts.c.session_id == sessions.c.session_id)
    .where(contexts.c.owner == bindparam("owner"), contexts.c.context_id == bindparam("context"))
)
_WAITING = Prepared(
    select(tasks.c.root)
    .where(tasks.c.owner == bindparam("owner"), tasks.c.context_id == bindparam("context"))
    .where(tasks.c.root.is_not(None), IS_OPEN)
)


def root_of_context(db: Connection, owner: str, context_id: str, root: Root) -> str | None:
    """The root of a context: that of its session or, before it has one, that of its tasks."""
    context = {"owner": owner, "context": context_id}
    bound = _BOUND.first(db, context)
    if bound is not None and bound.root is None:
        return root.path if root.contains(bound.directory) else str(bound.directory)
    found = bound or _WAITING.first(db, context)
    return found.root if found is not None else None


def _give_up(db: Connection, task_id: str, now: int, problem: Problem) -> None:
    """End a task with which nobody can go on, with what can be read of it."""
    row = db.execute(select(tasks).where(tasks.c.id == task_id)).one()
    task = Task(_head(row), status_at=row.status_at)
    for entry in db.execute(_ENTRIES.where(entries.c.task_id == task_id)):
        with suppress(codec.Unreadable):
            task.apply(codec.decode(*entry))
        task.last_seq = entry.seq
    ended = Ended(TaskState.FAILED, problem.message, problem)
    task.apply(LogEntry(task.last_seq + 1, now, ended))
    end = {"state": task.state.value, "status_at": now, "message": problem.message}
    given_up = update(tasks).where(tasks.c.id == task_id).values(end)
    db.execute(given_up.values(folded=codec.fold(task), cleared=1))
    db.execute(delete(entries).where(entries.c.task_id == task_id))


def beat(
    db: Connection, holder: str, until: int, ours: Collection[str], root: str
) -> tuple[list[str], set[str]]:
    """Go on holding what is ours: what somebody asked us to stop, and what we have lost."""
    held = (tasks.c.root == root, tasks.c.holder == holder, IS_OPEN)
    db.execute(update(tasks).where(*held).values(held_until=until))
    asked = list(db.execute(select(tasks.c.id).where(*held, tasks.c.stop_asked == 1)).scalars())
    still = select(tasks.c.id).where(tasks.c.id.in_(ours), tasks.c.holder == holder)
    return asked, set(ours) - set(db.execute(still).scalars())


def release(db: Connection, holder: str, root: str) -> None:
    ours = (tasks.c.root == root, tasks.c.holder == holder, IS_OPEN)
    db.execute(update(tasks).where(*ours).values(holder=None, held_until=0))


def ask_to_stop(db: Connection, task_id: str) -> None:
    open_one = (tasks.c.id == task_id, tasks.c.state.in_(OPEN_STATES))
    db.execute(update(tasks).where(*open_one).values(stop_asked=1))


def as_of(db: Connection, task_id: str, seq: int) -> Task | None:
    """The task as it was after an entry; None when its single entries are gone."""
    row = _TASK.first(db, {"id": task_id})
    if row is None or row.cleared:
        return None
    return Task.of(_head(row), entries_after(db, task_id, 0, None, until=seq))


def sweep(db: Connection, cleared_before: int) -> int:
    """Drop the single entries of tasks that ended before then; their folded result stays."""
    statement = (
        select(tasks.c.id)
        .where(tasks.c.cleared == 0, tasks.c.status_at < cleared_before)
        .where(tasks.c.state.not_in(OPEN_STATES))
        .limit(SWEEP)
    )
    done = list(db.execute(statement).scalars())
    if done:
        db.execute(delete(entries).where(entries.c.task_id.in_(done)))
        db.execute(update(tasks).where(tasks.c.id.in_(done)).values(cleared=1))
    return len(done)


def forget(db: Connection, ended_before: int) -> int:
    """Forget tasks that ended before then altogether, and the requests that made them."""
    statement = (
        select(tasks.c.id)
        .where(tasks.c.cleared == 1, tasks.c.status_at < ended_before)
        .limit(SWEEP)
    )
    done = list(db.execute(statement).scalars())
    if done:
        db.execute(delete(tasks).where(tasks.c.id.in_(done)))
        db.execute(delete(keys).where(keys.c.task_id.in_(done)))
    return len(done)


def forget_keys(db: Connection, before: int) -> int:
    stale = select(keys.c.owner, keys.c.name).where(keys.c.at < before).limit(SWEEP).subquery()
    same = and_(keys.c.owner == stale.c.owner, keys.c.name == stale.c.name)
    return db.execute(delete(keys).where(select(stale).where(same).exists())).rowcount


def forget_claims(db: Connection, before: int) -> int:
    """Forget who wanted a session until then: it is nobody's again."""
    over = sessions.c.claimed_until <= before
    done = list(db.execute(select(sessions.c.session_id).where(over).limit(SWEEP)).scalars())
    if done:  # and are still over: another process may have taken one for good meanwhile
        db.execute(delete(sessions).where(sessions.c.session_id.in_(done), over))
    return len(done)


def shrink(db: Connection) -> bool:
    """Give some freed pages back to the file system. Whether there are more."""
    if db.dialect.name != "sqlite":
        return False
    for _ in range(SHRINK):  # asked for more at once, Python 3.11 frees one, and 3.12 all
        db.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    free: int = db.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return free >= SHRINK
