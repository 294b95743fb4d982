"""Every statement of the log, each run in a thread of the database; what writes, as a transaction.

Statements that run for every delta, task or request are `Prepared`, because SQLAlchemy takes
longer to build and pass on a statement than SQLite takes to run it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import orjson
import structlog
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from ..domain.limits import StepUsage
from ..domain.nodes import Node
from ..domain.phrases import node_lost, queueing, waiting
from ..domain.ports import EarlierTask, Key, TaskPage, TaskRow
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    LogEntry,
    MessageAdded,
    NodeLost,
    NodeReturned,
    Queued,
    SessionTitled,
    Started,
    Update,
)
from ..domain.values import (
    Failure,
    OutputModes,
    Problem,
    SessionRef,
    TaskQuery,
    TaskState,
)
from . import codec, interrupts, usage
from .database import Conflict
from .holder import Lease
from .prepared import Prepared, RowsInsert
from .schema import touch
from .tables import (
    CLEARED,
    CLEARING,
    IS_OPEN,
    OPEN_STATES,
    contexts,
    entries,
    keys,
    nodes,
    push_configs,
    push_dead,
    sessions,
    tasks,
    totals,
)
from .wakeups import CHANNEL, notify, notify_each

logger = structlog.get_logger()

_ENTRIES = select(entries.c.seq, entries.c.at, entries.c.kind, entries.c.body).order_by(
    entries.c.seq
)
UNREADABLE = Problem(
    Failure.INTERNAL,
    "What is stored of this task was damaged. Nobody can go on with it: send the request again in "
    "the same context.",
)
ABANDONED = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "The node that worked on this task has gone, and has not come back in time. Send the next "
    "message in the same context: another node goes on with it, in a new session that is told what "
    "was said so far.",
)
PAGE_ENTRIES = 256  # that a cursor reads at once
IDS_PER_QUERY = 256
PUSH_KEPT_MS = 14 * 86_400_000  # after its end, what is owed of a task to a receiver
EARLIER_TASKS = 50  # of a context, that a new session is told of
ADOPTION_MS = 30_000  # for another node to take up what a lost one has not begun
LOST = "lost"  # holds a task whose readers were told that it waits for a node
SWEEP_ROWS = 20  # that one transaction deletes: commits wait meanwhile
SWEEP_ENTRIES = 2_000  # of these tasks that one transaction deletes
SHRINK_PAGES = 16  # that one transaction frees, for the same reason


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction writes about one task."""

    task: Task  # as committed so far
    is_new: bool
    entries: list[LogEntry]
    encoded: Sequence[codec.Encoded]  # the update of each entry
    keys: Sequence[Key] = ()
    root: str = ""  # where a new task belongs
    opencode: str | None = None  # which OpenCode works on a new task
    counted: list[StepUsage] = field(default_factory=list)  # steps that its commit counts
    followers: Collection[str] = ()  # the channels of other processes that follow the task


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was written: keys of the batch are taken or, with none, the task is not writable."""

    taken: frozenset[str] = frozenset()


NOT_WRITABLE = Refusal()  # it has ended, is held by another process, or cannot be stored


def commit(db: Connection, batches: Sequence[Batch], lease: Lease) -> dict[str, Refusal]:
    """Write everything at once; returns the tasks that were refused.

    A task is refused if it has ended, if another process holds it, or if a key of its batch
    is taken. If the database itself refuses a row, nothing is written (`Conflict`).
    """
    try:
        refused = _commit_together(db, batches, lease)
    except (IntegrityError, DataError) as exc:
        raise Conflict from exc
    _notify(db, batches, refused)
    return refused


def _notify(db: Connection, batches: Sequence[Batch], refused: Collection[str]) -> None:
    """Let all processes know which states have changed, and those that follow a task of its news.

    Text comes many times a second, so that is not for everybody.
    """
    words: dict[str, list[str]] = {}
    for batch in batches:
        if batch.entries and batch.task.head.id not in refused:
            where = f"{batch.task.head.id}:{batch.entries[-1].seq}"
            for channel in batch.followers:
                words.setdefault(channel, []).append(f"task:{where}")
            if any(entry.state is not None for entry in batch.entries):
                words.setdefault(CHANNEL, []).append(f"state:{where}")
    notify_each(db, words)


def commit_apart(db: Connection, batches: Sequence[Batch], lease: Lease) -> dict[str, Refusal]:
    """The same after a failure of one of them, each in its savepoint: only that one is refused."""
    refused: dict[str, Refusal] = {}
    # By owner: so processes that lock sums of each other seldom wait for one another for ever. The
    # server ends that, and what it refuses then is tried again.
    for batch in sorted(batches, key=lambda each: each.task.head.owner):
        task_id = batch.task.head.id
        try:
            with db.begin_nested():
                refused |= _commit_together(db, [batch], lease)
            continue
        except (IntegrityError, DataError):
            pass
        except SQLAlchemyError:  # the database cannot be used, whatever the task
            raise
        except Exception:
            logger.exception("store.internal_error", task=task_id, advice="report it")
        refused[task_id] = NOT_WRITABLE
        batch.counted.clear()
    _notify(db, batches, refused)
    return refused


def _commit_together(db: Connection, batches: Sequence[Batch], lease: Lease) -> dict[str, Refusal]:
    known = [batch.task.head.id for batch in batches if not batch.is_new]
    refused = dict.fromkeys(set(known) - _held(db, known, lease.holder), NOT_WRITABLE)
    for batch in batches:
        if batch.task.head.id not in refused and (taken := _claim(db, batch)):
            refused[batch.task.head.id] = Refusal(taken)
    fresh = [
        _new_task(batch, lease)
        for batch in batches
        if batch.is_new and batch.task.head.id not in refused
    ]
    if fresh:
        _INSERT_TASK.change(db, *fresh)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        task_id = batch.task.head.id
        batch.counted.clear()  # of an attempt that was undone
        if task_id in refused:
            continue
        if not _update_row(db, batch):
            refused[task_id] = NOT_WRITABLE
            continue
        interrupts.follow(db, batch.task, batch.entries)
        progress: list[LogEntry] = []
        for entry, (kind, body) in zip(batch.entries, batch.encoded, strict=True):
            row = {"seq": entry.seq, "at": entry.at, "kind": kind, "body": body}
            rows.append({"task_id": task_id, **row})
            if kind == "Progress":
                progress.append(entry)
        if progress:
            batch.counted.extend(usage.note_steps(db, batch.task.head, progress))
    if rows:
        _INSERT_ENTRIES.add(db, rows)
    usage.add_to_sums(db, [step for batch in batches for step in batch.counted])
    return refused


def find_stored(db: Connection, batches: Sequence[Batch], lease: Lease) -> set[str]:
    """The tasks whose batch is stored, after a commit that was not answered.

    The answer is final. If a server still commits that transaction, this one waits for it, because
    it locks the same rows. If SQLite kept parts of a failed commit in its write-ahead log, the
    write here overwrites them.
    """
    stored: set[str] = set()
    for batch in batches:
        head, first = batch.task.head, batch.entries[0]
        if batch.is_new:
            with suppress(IntegrityError, DataError), db.begin_nested() as attempt:
                _INSERT_TASK.change(db, _new_task(batch, lease))
                attempt.rollback()
        else:
            db.execute(select(tasks.c.id).where(tasks.c.id == head.id).with_for_update())
        entry = (entries.c.task_id == head.id, entries.c.seq == first.seq, entries.c.at == first.at)
        found = db.execute(select(entries.c.kind, entries.c.body).where(*entry)).first()
        if found is not None and tuple(found) == batch.encoded[0]:
            stored.add(head.id)
    touch(db)
    return stored


_NEW_TASK = (
    "id",
    "owner",
    "context_id",
    "state",
    "status_at",
    "created_at",
    "modes",
    "root",
    "opencode",
)
_INSERT_TASK = Prepared(insert(tasks), (*_NEW_TASK, "holder", "held_until"))
_INSERT_ENTRIES = RowsInsert(entries, ("task_id", "seq", "at", "kind", "body"))
_INSERT_KEY = Prepared(insert(keys), ("owner", "name", "digest", "at", "task_id"))


@cache
def _held_query(size: int) -> Prepared:
    """Finds which of `size` tasks are open and held by a holder, and locks them."""
    ids: list[BindParameter[str]] = [bindparam(f"id{i}") for i in range(size)]
    ours = (tasks.c.id.in_(ids), tasks.c.holder == bindparam("holder"), IS_OPEN)
    return Prepared(select(tasks.c.id).where(*ours).with_for_update())


def _held(db: Connection, task_ids: Sequence[str], holder: str) -> set[str]:
    """Which of these are open and ours to write, and stay so for this transaction."""
    found: set[str] = set()
    for start in range(0, len(task_ids), IDS_PER_QUERY):
        some = _padded(task_ids[start : start + IDS_PER_QUERY])
        ids = {f"id{i}": task_id for i, task_id in enumerate(some)}
        held = _held_query(len(some)).rows(db, {**ids, "holder": holder})
        found.update(row.id for row in held)
    return found


def _padded(task_ids: Sequence[str]) -> list[str]:
    """The last id repeated until their number is a power of two, so that statements are few."""
    size = 1 << (len(task_ids) - 1).bit_length()
    return [*task_ids, *[task_ids[-1]] * (size - len(task_ids))]


def _claim(db: Connection, batch: Batch) -> frozenset[str]:
    """Store the keys of a batch. If some are taken, store none and return those."""
    owner, task_id = batch.task.head.owner, batch.task.head.id
    taken = frozenset(k.name for k in batch.keys if find_key(db, owner, k.name) is not None)
    for key in batch.keys if not taken else ():
        row = {"owner": owner, "name": key.name, "digest": key.digest, "at": key.at}
        _INSERT_KEY.change(db, {**row, "task_id": task_id})
    return taken


_FIND_KEY = Prepared(
    select(keys.c.task_id, keys.c.digest).where(
        keys.c.owner == bindparam("owner"), keys.c.name == bindparam("name")
    )
)


def find_key(db: Connection, owner: str, name: str) -> tuple[str, str] | None:
    """The task and the content a key stands for."""
    row = _FIND_KEY.first(db, {"owner": owner, "name": name})
    return (row.task_id, row.digest) if row else None


@cache
def _state_update(columns: tuple[str, ...]) -> Prepared:
    return Prepared(update(tasks).where(tasks.c.id == bindparam("moved"), IS_OPEN), columns)


def _update_row(db: Connection, batch: Batch) -> bool:
    """Write the task's new state into its row. False if it has ended: the first end wins."""
    values: dict[str, Any] = {}
    for entry in batch.entries:
        state = entry.state
        if state is not None:
            values |= {"state": state.value, "status_at": entry.at, "message": None}
        match entry.update:
            case Queued():
                values["message"] = queueing(entry.update)
            case NodeLost() if batch.task.state is not TaskState.INPUT_REQUIRED:
                values["message"] = node_lost(entry.update)
            case NodeReturned() if batch.task.state is not TaskState.INPUT_REQUIRED:
                queued = batch.task.queued
                values["message"] = queueing(queued) if queued is not None else None
            case Started(session=session, title=title):
                values |= {"session_id": session, "title": title}
            case SessionTitled(session=session, title=title):
                values["title"] = title
                _retitle(db, session, title)  # the next task of the context begins with it
            case InterruptOpened() | InterruptUnclear() | InterruptAnswered() | InterruptResolved():
                values["message"] = _waiting_message(batch)
            case Ended(message=message, session=session, title=title):
                values |= {"message": message, "folded": codec.fold(_task_after(batch))}
                if session:
                    values |= {"session_id": session, "title": title}
            case _:
                pass
    if not values:
        return True
    for column in ("message", "title"):
        if text := values.get(column):
            values[column] = text.replace("\0", "")  # PostgreSQL cannot store it
    return _state_update(tuple(values)).change(db, {**values, "moved": batch.task.head.id}) == 1


def _retitle(db: Connection, session_id: str, title: str) -> None:
    this = update(sessions).where(sessions.c.session_id == session_id)
    db.execute(this.values(title=title.replace("\0", "")))


def _waiting_message(batch: Batch) -> str | None:
    """The status message about open interrupts, as of this batch."""
    task = batch.task
    after = Task(task.head, interrupts={**task.interrupts}, unclear=task.unclear)
    for entry in batch.entries:
        after.apply(entry)
    return waiting(after.open_interrupts, after.unclear) if after.interrupts else None


def _task_after(batch: Batch) -> Task:
    """The task with this batch. Nothing changes the task itself until the batch is committed."""
    after = batch.task.snapshot()
    for entry in batch.entries:
        after.apply(entry)
    return after


def _new_task(batch: Batch, lease: Lease) -> dict[str, Any]:
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
        "opencode": batch.opencode,
        "holder": lease.holder,
        "held_until": lease.until,
    }


def head_of(row: Any) -> TaskHead:
    modes = OutputModes(tuple(orjson.loads(row.modes)))
    return TaskHead(
        id=row.id,
        context_id=row.context_id,
        owner=row.owner,
        created_at=row.created_at,
        modes=modes,
    )


_FIND_TASK = Prepared(select(tasks).where(tasks.c.id == bindparam("id")))
_HEAD_COLUMNS = (
    *(tasks.c.id, tasks.c.owner, tasks.c.context_id),
    *(tasks.c.created_at, tasks.c.modes),
)
_FIND_HEAD = Prepared(select(*_HEAD_COLUMNS).where(tasks.c.id == bindparam("id")))


def head(db: Connection, task_id: str) -> TaskHead | None:
    row = _FIND_HEAD.first(db, {"id": task_id})
    return head_of(row) if row is not None else None


def load(db: Connection, task_id: str) -> Task | None:
    row = _FIND_TASK.first(db, {"id": task_id})
    if row is None:
        return None
    if row.folded is not None:
        return codec.unfold(head_of(row), row.folded)
    return codec.task_of(head_of(row), entries_after(db, task_id, after=0))


def load_several(db: Connection, task_ids: Sequence[str], max_bytes: int) -> dict[str, Task | None]:
    """The first of these tasks, as many as have so many bytes together, but at least one.

    None for those that are not there any more, or cannot be read.
    """
    sizes: dict[str, int | None] = {}
    folded_size = func.length(tasks.c.folded)
    for row in db.execute(select(tasks.c.id, folded_size).where(tasks.c.id.in_(task_ids))).all():
        sizes[row.id] = row[1]
    unfolded = [task_id for task_id, each in sizes.items() if each is None]
    logs = select(entries.c.task_id, func.sum(func.length(entries.c.body)))
    logs = logs.where(entries.c.task_id.in_(unfolded)).group_by(entries.c.task_id)
    sizes |= {row.task_id: int(row[1]) for row in db.execute(logs).all()} if unfolded else {}
    wanted: dict[str, Task | None] = {}
    total, is_first = 0, True
    for task_id in task_ids:
        total += sizes.get(task_id) or 0
        if total > max_bytes and not is_first:
            break
        wanted[task_id] = None
        is_first &= task_id not in sizes
    rows = db.execute(select(tasks).where(tasks.c.id.in_(wanted))).all()
    without = [row.id for row in rows if row.folded is None]
    its_entries: dict[str, list[tuple[int, int, str, bytes]]] = {each: [] for each in without}
    if without:
        statement = select(entries.c.task_id, *_ENTRIES.selected_columns)
        in_order = statement.order_by(entries.c.task_id, entries.c.seq)
        for row in db.execute(in_order.where(entries.c.task_id.in_(without))).all():
            its_entries[row.task_id].append((row.seq, row.at, row.kind, row.body))
    for row in rows:
        head = head_of(row)
        try:
            if row.folded is not None:
                wanted[row.id] = codec.unfold(head, row.folded)
            else:
                log = [codec.decode(*each) for each in its_entries[row.id]]
                wanted[row.id] = codec.task_of(head, log)
        except codec.Unreadable:
            logger.warning("task.unreadable", task=row.id, advice="it is not in the list")
    return wanted


class Page(NamedTuple):
    """The next entries for a cursor."""

    entries: Sequence[LogEntry]
    caught_up: bool  # these are all that are known
    more: bool  # others may follow, now or later


def next_entries(db: Connection, after: Mapping[str, int]) -> dict[str, Page]:
    """What follows in each of these tasks, each after its own number.

    If the entries of a task were swept, the cursor gets each block as one entry.
    """
    pages = dict.fromkeys(after, Page((), caught_up=True, more=False))
    ids = _padded(list(after))
    values: dict[str, Any] = {f"id{i}": task_id for i, task_id in enumerate(ids)}
    numbers = {f"after{i}": after[task_id] for i, task_id in enumerate(ids)}
    rows = _next_query(len(ids)).rows(db, {**values, **numbers, "most": PAGE_ENTRIES + 1})
    for task_id, some in groupby(rows, key=lambda row: str(row.id)):
        first, *others = some
        more = first.state in OPEN_STATES
        if first.cleared:
            compacted = _compacted(db, task_id, after[task_id])
            pages[task_id] = Page(compacted, caught_up=True, more=more)
        else:
            found = [codec.decode(*row[3:]) for row in (first, *others) if row.seq is not None]
            caught_up = len(found) <= PAGE_ENTRIES
            pages[task_id] = Page(found[:PAGE_ENTRIES], caught_up=caught_up, more=more)
    return pages


@cache
def _next_query(size: int) -> Prepared:
    """Finds what follows in each of `size` tasks; one row for a task in which nothing does.

    Numbers have no gaps, so they bound how many entries of a task are read. A limit would not: all
    that follows would be read, and sorted.
    """
    ids: list[BindParameter[str]] = [bindparam(f"id{i}") for i in range(size)]
    number = entries.c.seq.type
    after = case(
        *((each, bindparam(f"after{i}", type_=number)) for i, each in enumerate(ids)),
        value=tasks.c.id,
    )
    follows = and_(
        entries.c.task_id == tasks.c.id,
        entries.c.seq > after,
        entries.c.seq <= after + bindparam("most", type_=number),
    )
    return Prepared(
        select(tasks.c.id, tasks.c.state, tasks.c.cleared, *_ENTRIES.selected_columns)
        .select_from(tasks.outerjoin(entries, follows))
        .where(tasks.c.id.in_(ids))
        .order_by(tasks.c.id, entries.c.seq)
    )


def _compacted(db: Connection, task_id: str, after: int) -> Sequence[LogEntry]:
    whole = load(db, task_id)
    compacted = whole.compacted() if whole is not None else []
    return sorted((entry for entry in compacted if entry.seq > after), key=lambda entry: entry.seq)


def entries_after(
    db: Connection,
    task_id: str,
    *,
    after: int,
    limit: int | None = None,
    until: int | None = None,
) -> list[LogEntry]:
    statement = _ENTRIES.where(entries.c.task_id == task_id, entries.c.seq > after).limit(limit)
    if until is not None:
        statement = statement.where(entries.c.seq <= until)
    # All rows first: a statement that is left in the middle would keep SQLite's connection at what
    # was committed by then.
    return [codec.decode(*row) for row in db.execute(statement).all()]


def entries_of_kinds(
    db: Connection, task_id: str, *, kinds: Sequence[str], after: int, limit: int
) -> list[LogEntry]:
    """The next entries of these kinds, or of all; of a task without entries, its end."""
    statement = _ENTRIES.where(entries.c.task_id == task_id, entries.c.seq > after).limit(limit)
    if kinds:
        statement = statement.where(entries.c.kind.in_(kinds))
    found = [codec.decode(*row) for row in db.execute(statement).all()]
    if not found:
        task = load(db, task_id) if _is_cleared(db, task_id) else None
        compacted = task.compacted() if task is not None else []
        return [e for e in compacted if e.seq > after and isinstance(e.update, Ended)]
    return found


def _is_cleared(db: Connection, task_id: str) -> bool:
    return bool(db.execute(select(tasks.c.cleared).where(tasks.c.id == task_id)).scalar())


_LIST_COLUMNS = (
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
    wanted = [tasks.c.owner == query.owner] if query.owner is not None else []
    if query.context_id is not None:
        wanted.append(tasks.c.context_id == query.context_id)
    if query.state is not None:
        wanted.append(tasks.c.state == query.state.value)
    if query.since is not None:
        wanted.append(tasks.c.status_at >= query.since)
    total = _total(db, query, wanted)
    if query.after is not None:
        # The index answers a comparison of pairs; with OR, all rows up to here would be read.
        wanted.append(tuple_(tasks.c.status_at, tasks.c.id) < query.after)
    if query.owner is None and query.context_id is None and query.state is None:
        newest = _newest_of_every_state(wanted, query.limit + 1)
    else:
        newest = _newest(wanted, query.limit + 1)
    found = db.execute(newest).all()
    rows = [
        TaskRow(
            head=head_of(row),
            state=TaskState(row.state),
            status_at=row.status_at,
            message=row.message,
            session=SessionRef(row.session_id, row.title or "") if row.session_id else None,
        )
        for row in found[: query.limit]
    ]
    more = len(found) > query.limit
    return TaskPage(tuple(rows), total, (rows[-1].status_at, rows[-1].head.id) if more else None)


def _newest(wanted: Sequence[ColumnElement[bool]], limit: int) -> Select[Any]:
    newest_first = (tasks.c.status_at.desc(), tasks.c.id.desc())
    return select(*_LIST_COLUMNS).where(*wanted).order_by(*newest_first).limit(limit)


def _newest_of_every_state(wanted: Sequence[ColumnElement[bool]], limit: int) -> Select[Any]:
    """The newest of everybody's tasks. `ix_tasks_state` finds those of each state."""
    found = union_all(
        *(
            select(_newest((*wanted, tasks.c.state == state.value), limit).subquery())
            for state in TaskState
        )
    ).subquery()
    return select(found).order_by(found.c.status_at.desc(), found.c.id.desc()).limit(limit)


def _total(db: Connection, query: TaskQuery, wanted: Sequence[ColumnElement[bool]]) -> int:
    """How many tasks match. SQLite keeps totals by owner and state, so they need no counting."""
    counted: Select[int] = select(func.count()).select_from(tasks).where(*wanted)
    if db.dialect.name == "sqlite" and query.context_id is None and query.since is None:
        counted = select(func.coalesce(func.sum(totals.c.tasks), 0))
        if query.owner is not None:
            counted = counted.where(totals.c.owner == query.owner)
        if query.state is not None:
            counted = counted.where(totals.c.state == query.state.value)
    return db.execute(counted).scalar_one()


_OLDER_HELD_BY_OTHER = (
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


def older_held_by_other(db: Connection, head: TaskHead, holder: str) -> str | None:
    """An older task of the same context that is open and not ours (yet), if there is one."""
    older_than = {"at": head.created_at, "id": head.id, "holder": holder}
    context = {"owner": head.owner, "context": head.context_id}
    found: str | None = db.execute(_OLDER_HELD_BY_OTHER, context | older_than).scalar()
    return found


def _claimable(*, holder: str, now: int, root: str, opencode: str | None) -> ColumnElement[bool]:
    """Whose lease ran out, or that nobody holds, or this holder itself.

    It may hold tasks that it has not opened, such as after a claim that was not answered.
    """
    theirs = and_(tasks.c.root == root, IS_OPEN)
    if opencode is not None:
        theirs &= or_(tasks.c.opencode == opencode, tasks.c.opencode.is_(None))
    return theirs & or_(
        tasks.c.holder.is_(None), tasks.c.holder == holder, tasks.c.held_until < now
    )


def find_expired(
    db: Connection, holder: str, *, now: int, root: str, opencode: str | None
) -> list[str]:
    """The tasks that can be claimed, in the order in which to continue.

    Started ones come first, then waiting ones, the oldest first.
    """
    order = (tasks.c.state == TaskState.SUBMITTED.value, tasks.c.created_at, tasks.c.id)
    claimable = _claimable(holder=holder, now=now, root=root, opencode=opencode)
    return list(db.execute(select(tasks.c.id).where(claimable).order_by(*order)).scalars())


def claim(
    db: Connection,
    lease: Lease,
    task_ids: Collection[str],
    *,
    now: int,
    root: str,
    opencode: str | None,
) -> set[str]:
    """Claim those of these tasks that can still be claimed."""
    claimable = _claimable(holder=lease.holder, now=now, root=root, opencode=opencode)
    statement = (
        select(tasks.c.id)
        .where(tasks.c.id.in_(task_ids), claimable)
        .order_by(tasks.c.id)
        # Of two processes each claims what the other is not claiming already.
        .with_for_update(skip_locked=True)
    )
    ours = set(db.execute(statement).scalars())
    if ours:
        taken = update(tasks).where(tasks.c.id.in_(ours))
        held: dict[str, Any] = {"holder": lease.holder, "held_until": lease.until}
        db.execute(taken.values(held | ({"opencode": opencode} if opencode is not None else {})))
        notify(db, [f"claimed:{task_id}:0" for task_id in ours])
    return ours


def release_one(db: Connection, task_id: str, holder: str) -> None:
    """Let others claim a task."""
    held = (tasks.c.id == task_id, tasks.c.holder == holder, IS_OPEN)
    db.execute(update(tasks).where(*held).values(holder=None, held_until=0))


def give_up(db: Connection, task_id: str, holder: str, *, now: int) -> bool:
    """Fail a task of this holder that cannot be read. False if it has another holder by now."""
    if not _held(db, [task_id], holder):
        return False
    _give_up(db, task_id, now=now)
    return True


def owner_of_task(db: Connection, task_id: str) -> str | None:
    return db.execute(select(tasks.c.owner).where(tasks.c.id == task_id)).scalar()


def root_of_task(db: Connection, owner: str, task_id: str) -> str | None:
    """The root of somebody's task; None if there is no such task."""
    this = (tasks.c.id == task_id, tasks.c.owner == owner)
    return db.execute(select(tasks.c.root).where(*this)).scalar()


_CONTEXT_SESSION = Prepared(
    select(sessions.c.root, sessions.c.opencode)
    .join(contexts, contexts.c.session_id == sessions.c.session_id)
    .where(contexts.c.owner == bindparam("owner"), contexts.c.context_id == bindparam("context"))
)
_CONTEXT_TASK = Prepared(
    select(tasks.c.root, tasks.c.opencode)
    .where(tasks.c.owner == bindparam("owner"), tasks.c.context_id == bindparam("context"))
    .where(IS_OPEN)
)


def home_of_context(db: Connection, owner: str, context_id: str) -> tuple[str | None, str | None]:
    """The root and the OpenCode of a context: of its session or, before it has one, its tasks."""
    context = {"owner": owner, "context": context_id}
    found = _CONTEXT_SESSION.first(db, context) or _CONTEXT_TASK.first(db, context)
    return (found.root, found.opencode) if found is not None else (None, None)


def _give_up(db: Connection, task_id: str, *, now: int) -> None:
    """Fail a task that cannot be read; keep the entries that can be read."""
    row = db.execute(select(tasks).where(tasks.c.id == task_id)).one()
    task = Task(head_of(row), status_at=row.status_at)
    for entry in db.execute(_ENTRIES.where(entries.c.task_id == task_id)):
        with suppress(Exception):  # damaged: it cannot be decoded, or does not fit the others
            task.apply(codec.decode(*entry))
        task.last_seq = entry.seq
    ended = Ended(TaskState.FAILED, UNREADABLE.message, UNREADABLE)
    task.apply(LogEntry(task.last_seq + 1, now, ended))
    end = {"state": task.state.value, "status_at": now, "message": UNREADABLE.message}
    given_up = update(tasks).where(tasks.c.id == task_id).values(end)
    db.execute(given_up.values(folded=codec.fold(task), cleared=CLEARED))
    db.execute(delete(entries).where(entries.c.task_id == task_id))


def fail_abandoned(db: Connection, lease: Lease, *, before: int, now: int) -> list[str]:
    """Fail the tasks of an OpenCode that no node has used since then; returns them."""
    is_used = select(nodes.c.holder).where(nodes.c.opencode == tasks.c.opencode)
    # What has not begun is for others to adopt. It fails if nobody does.
    adoptable = is_used.where(nodes.c.seen_at >= before - ADOPTION_MS).exists()
    statement = (
        select(tasks.c.id)
        .where(IS_OPEN, tasks.c.opencode.is_not(None), tasks.c.held_until < before)
        .where(~is_used.where(nodes.c.seen_at >= before).exists())
        .where(or_(tasks.c.state != TaskState.SUBMITTED.value, ~adoptable))
        .limit(SWEEP_ROWS)
        .with_for_update(skip_locked=True)
    )
    ended = Ended(TaskState.FAILED, ABANDONED.message, ABANDONED)
    abandoned: list[str] = []
    for task_id in db.execute(statement).scalars().all():
        try:
            _append(db, task_id, ended, lease=lease, now=now)
        except codec.Unreadable:
            _give_up(db, task_id, now=now)
        abandoned.append(task_id)
    return abandoned


def note_lost(db: Connection, *, since: int, return_ms: int, now: int) -> list[str]:
    """Say in the tasks of an OpenCode that no node has used since then that they wait for one.

    `LOST` becomes their holder: who held them cannot write any more, and nobody says it twice.
    """
    its_nodes = nodes.c.opencode == tasks.c.opencode
    newest = select(func.coalesce(func.max(nodes.c.seen_at), 0)).where(its_nodes)
    last_seen = newest.scalar_subquery()
    statement = (
        select(tasks.c.id, tasks.c.opencode, tasks.c.held_until, last_seen.label("seen_at"))
        .where(IS_OPEN, tasks.c.opencode.is_not(None), tasks.c.held_until < now)
        .where(or_(tasks.c.holder.is_(None), tasks.c.holder != LOST), last_seen < since)
        .limit(SWEEP_ROWS)
        .with_for_update(skip_locked=True)
    )
    lost = db.execute(statement).all()
    for row in lost:
        until = max(row.held_until, row.seen_at) + return_ms
        try:
            lost_entry = NodeLost(row.opencode, until)
            _append(db, row.id, lost_entry, lease=Lease(LOST, row.held_until), now=now)
        except codec.Unreadable:  # whoever claims it finds out
            db.execute(update(tasks).where(tasks.c.id == row.id).values(holder=LOST))
    return [row.id for row in lost]


def _append(db: Connection, task_id: str, added: Update, *, lease: Lease, now: int) -> None:
    """Add an entry to a task that this transaction has locked, and let `lease` have it."""
    task = load(db, task_id)
    assert task is not None, "its row is locked"
    held = {"holder": lease.holder, "held_until": lease.until}
    db.execute(update(tasks).where(tasks.c.id == task_id).values(held))
    entry, encoded = LogEntry(task.last_seq + 1, now, added), [codec.encode(added)]
    batch = Batch(task, is_new=False, entries=[entry], encoded=encoded, followers=(CHANNEL,))
    _notify(db, [batch], _commit_together(db, [batch], lease))


class AdoptionRound(NamedTuple):
    """Up to which task a node has looked for some to adopt. What cannot move is passed by."""

    created_at: int = 0
    task_id: str = ""


def adopt_unstarted(
    db: Connection,
    mine: Node,
    *,
    after: AdoptionRound,
    alive_since: int,
    return_since: int,
    now: int,
) -> tuple[list[str], AdoptionRound]:
    """Let a node have the tasks that wait for a lost one, and of which nothing was done yet.

    A prompt is sent only after `Started` is stored, by the holder. So nothing was done of a task
    that has no such entry, and nobody does it once it has another OpenCode. If something was said
    in its context before, it waits for the node to return, like what has begun. The open tasks of
    a context move together, with the oldest: two nodes cannot get some of them each.
    """
    other = tasks.alias()
    same = (other.c.owner == tasks.c.owner, other.c.context_id == tasks.c.context_id)
    begun = select(other.c.id).where(*same, other.c.session_id.is_not(None))
    running = begun.where(other.c.state.in_(OPEN_STATES))
    still_open = select(other.c.id).where(*same, other.c.state.in_(OPEN_STATES))
    order, others = (tuple_(each.c.created_at, each.c.id) for each in (tasks, other))
    is_used = select(nodes.c.holder).where(nodes.c.opencode == tasks.c.opencode)
    given_up = ~is_used.where(nodes.c.seen_at >= return_since).exists()
    statement = (
        select(tasks.c.id, tasks.c.owner, tasks.c.context_id, tasks.c.opencode, tasks.c.created_at)
        .where(tasks.c.state == TaskState.SUBMITTED.value, tasks.c.root == mine.root)
        .where(order > tuple_(after.created_at, after.task_id))
        .where(tasks.c.opencode.is_not(None), tasks.c.opencode != mine.opencode)
        .where(tasks.c.held_until < now, ~is_used.where(nodes.c.seen_at >= alive_since).exists())
        .where(~running.exists(), ~still_open.where(others < order).exists())
        .where(~still_open.where(other.c.opencode != tasks.c.opencode).exists())
        .where(or_(~begun.exists(), and_(given_up, tasks.c.held_until < return_since)))
        .order_by(tasks.c.created_at, tasks.c.id)
        .limit(SWEEP_ROWS)
        .with_for_update(skip_locked=True)
    )
    found = db.execute(statement).all()
    adopted = [task_id for row in found for task_id in _adopt_context(db, row, mine)]
    if len(found) < SWEEP_ROWS:
        return adopted, AdoptionRound()
    return adopted, AdoptionRound(found[-1].created_at, found[-1].id)


def _adopt_context(db: Connection, oldest: Any, mine: Node) -> list[str]:
    """Let a node have the open tasks of a context; none of them if one cannot move."""
    its = (tasks.c.owner == oldest.owner, tasks.c.context_id == oldest.context_id, IS_OPEN)
    found = select(tasks.c.id).where(*its).order_by(tasks.c.created_at, tasks.c.id)
    task_ids = list(db.execute(found.with_for_update()).scalars())
    if not all(_can_move(db, task_id, mine) for task_id in task_ids):
        return []
    unbind_context(db, oldest.owner, context_id=oldest.context_id, opencode=oldest.opencode)
    free = {"opencode": mine.opencode, "holder": None, "held_until": 0}
    db.execute(update(tasks).where(tasks.c.id.in_(task_ids)).values(free))
    return task_ids


def _can_move(db: Connection, task_id: str, to: Node) -> bool:
    """Whether the first message asks for nothing that another node has."""
    try:
        task = load(db, task_id)
    except codec.Unreadable:
        return False
    first = task.history[0].update if task is not None and task.history else None
    if not isinstance(first, MessageAdded):
        return False
    if first.selection.isolation is not None or first.selection.session is not None:
        return False
    label = first.selection.node
    return label is None or to.is_called(label)


def unbind_context(db: Connection, owner: str, context_id: str, opencode: str) -> None:
    """Take a context from its session, which stays its owner's, if it is in that OpenCode."""
    there = select(sessions.c.session_id).where(sessions.c.opencode == opencode)
    its = (contexts.c.owner == owner, contexts.c.context_id == context_id)
    db.execute(delete(contexts).where(*its, contexts.c.session_id.in_(there)))


def earlier_tasks(db: Connection, head: TaskHead, opencode: str) -> list[EarlierTask]:
    """The newest tasks of the same context that were there before this one, oldest first."""
    its = (tasks.c.owner == head.owner, tasks.c.context_id == head.context_id)
    before = tuple_(tasks.c.created_at, tasks.c.id) < (head.created_at, head.id)
    newest = (
        select(tasks.c.id, tasks.c.session_id, tasks.c.opencode)
        .where(*its, before)
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(EARLIER_TASKS)
    )
    found = db.execute(newest).all()
    return [
        EarlierTask(row.id, row.session_id, elsewhere=row.opencode not in (None, opencode))
        for row in reversed(found)
    ]


def renew_leases(
    db: Connection, lease: Lease, *, ours: Collection[str], root: str
) -> tuple[list[str], set[str]]:
    """Renew the leases of a holder. Returns the tasks to stop, and those it has lost."""
    held = (tasks.c.root == root, tasks.c.holder == lease.holder, IS_OPEN)
    db.execute(update(tasks).where(*held).values(held_until=lease.until))
    to_stop = list(db.execute(select(tasks.c.id).where(*held, tasks.c.stop_asked == 1)).scalars())
    still = select(tasks.c.id).where(tasks.c.id.in_(ours), tasks.c.holder == lease.holder)
    return to_stop, set(ours) - set(db.execute(still).scalars())


def is_held(db: Connection, task_id: str, holder: str) -> bool:
    held = (tasks.c.id == task_id, tasks.c.holder == holder, IS_OPEN)
    return db.execute(select(tasks.c.id).where(*held)).first() is not None


def release(db: Connection, holder: str, root: str) -> None:
    ours = (tasks.c.root == root, tasks.c.holder == holder, IS_OPEN)
    db.execute(update(tasks).where(*ours).values(holder=None, held_until=0))


def release_all(db: Connection) -> None:
    """Whatever is held is free at once: for the only process that uses the database."""
    db.execute(update(tasks).where(IS_OPEN).values(holder=None, held_until=0))
    db.execute(update(push_configs).where(push_configs.c.is_over == 0).values(holder=None))


def ask_to_stop(db: Connection, task_id: str) -> None:
    open_one = (tasks.c.id == task_id, tasks.c.state.in_(OPEN_STATES))
    db.execute(update(tasks).where(*open_one).values(stop_asked=1))


def as_of(db: Connection, task_id: str, seq: int) -> Task | None:
    """The task as it was after an entry; None when its single entries are gone."""
    row = _FIND_TASK.first(db, {"id": task_id})
    if row is None or row.cleared:
        return None
    return codec.task_of(head_of(row), entries_after(db, task_id, after=0, until=seq))


def sweep(db: Connection, cleared_before: int) -> int:
    """Delete the entries of tasks that ended before then; their folded result stays.

    What receivers of push notifications have not taken is kept for longer.
    """
    told = (push_configs.c.task_id == tasks.c.id, push_configs.c.is_over == 0)
    owed = or_(
        select(push_configs.c.id).where(*told).exists(),
        select(push_dead.c.seq).where(push_dead.c.task_id == tasks.c.id).exists(),
    )
    begun = select(tasks.c.id).where(tasks.c.cleared == CLEARING).limit(SWEEP_ROWS)
    statement = (
        select(tasks.c.id)
        .where(tasks.c.cleared == 0, tasks.c.status_at < cleared_before)
        .where(tasks.c.state.not_in(OPEN_STATES))
        .where(or_(tasks.c.status_at < cleared_before - PUSH_KEPT_MS, ~owed))
        .limit(SWEEP_ROWS)
    )
    done = list(db.execute(begun).scalars()) or list(db.execute(statement).scalars())
    if not done:
        return 0
    is_complete = _delete_entries(db, done)
    db.execute(delete(push_dead).where(push_dead.c.task_id.in_(done)))
    cleared = CLEARED if is_complete else CLEARING
    db.execute(update(tasks).where(tasks.c.id.in_(done)).values(cleared=cleared))
    return len(done) if is_complete else SWEEP_ROWS


def _delete_entries(db: Connection, task_ids: Sequence[str]) -> bool:
    """Delete entries of these tasks, but not too many at once. Whether all are deleted."""
    theirs = entries.c.task_id.in_(task_ids)
    some = select(entries.c.task_id, entries.c.seq).where(theirs).limit(SWEEP_ENTRIES + 1)
    there: int = db.execute(select(func.count()).select_from(some.subquery())).scalar_one()
    if there <= SWEEP_ENTRIES:
        db.execute(delete(entries).where(theirs))
        return True
    these = tuple_(entries.c.task_id, entries.c.seq).in_(some.limit(SWEEP_ENTRIES))
    db.execute(delete(entries).where(these))
    return False


def forget(db: Connection, ended_before: int) -> int:
    """Delete tasks that ended before then, with the keys and push configs of their requests."""
    statement = (
        select(tasks.c.id)
        .where(tasks.c.cleared == CLEARED, tasks.c.status_at < ended_before)
        .limit(SWEEP_ROWS)
    )
    done = list(db.execute(statement).scalars())
    if done:
        db.execute(delete(tasks).where(tasks.c.id.in_(done)))
        db.execute(delete(keys).where(keys.c.task_id.in_(done)))
        for table in (push_configs, push_dead):
            db.execute(delete(table).where(table.c.task_id.in_(done)))
    return len(done)


def forget_keys(db: Connection, before: int) -> int:
    stale = select(keys.c.owner, keys.c.name).where(keys.c.at < before).limit(SWEEP_ROWS).subquery()
    same = and_(keys.c.owner == stale.c.owner, keys.c.name == stale.c.name)
    return db.execute(delete(keys).where(select(stale).where(same).exists())).rowcount


def forget_claims(db: Connection, before: int) -> int:
    """Delete claims of sessions that ran out before then."""
    over = sessions.c.claimed_until <= before
    done = list(db.execute(select(sessions.c.session_id).where(over).limit(SWEEP_ROWS)).scalars())
    if done:  # `over` again: another process may have made a claim permanent meanwhile
        db.execute(delete(sessions).where(sessions.c.session_id.in_(done), over))
    return len(done)


def shrink(db: Connection) -> bool:
    """Give some freed pages back to the file system. Whether there are more."""
    if db.dialect.name != "sqlite":
        return False
    for _ in range(SHRINK_PAGES):  # with a larger argument, Python 3.11 frees one, and 3.12 all
        db.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    free: int = db.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return free >= SHRINK_PAGES
