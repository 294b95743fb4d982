"""The task log: numbered entries, committed before anyone sees them.

One writer collects what all turns have said while the previous commit ran and
commits it as one transaction, so batches grow under load and the first word of
an idle service is committed at once. Readers hold a cursor, not a queue: they
read the in-memory tail of a running task, or the table when they are behind.

    append ──► waiting ──► commit (writer thread) ──► tail + fold ──► cursors
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import structlog
from sqlalchemy import Connection, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import DataError, IntegrityError

from ..domain.phrases import asking
from ..domain.ports import TaskPage, TaskRow
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    Ended,
    InterruptOpened,
    LogEntry,
    Started,
    Update,
    coalesce,
    state_after,
)
from ..domain.values import OutputModes, SessionRef, TaskQuery, TaskState
from ..errors import ServiceError, StoreUnavailable, TaskNotFound, UnsupportedOperation
from . import codec
from .database import Database
from .tables import OPEN_STATES, entries, tasks

logger = structlog.get_logger()

TAIL = 2_048  # entries of a running task kept in memory; older ones are read from the table
PAGE = 256  # entries a cursor takes at once
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts while the disk refuses
GOODBYE_SECONDS = 5.0  # for what still waits when the service stops
SWEEP_SECONDS = 60.0
SWEEP_TASKS = 20  # at once: commits wait while entries are deleted

ABANDONED = Ended(TaskState.CANCELED, "The caller left before the task could begin.")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Saying:
    """Updates for the writer. Whoever waits for them to be committed holds `done`."""

    updates: Sequence[Update]
    done: asyncio.Future[None] | None = None

    @property
    def ends(self) -> bool:
        return any(isinstance(update, Ended) for update in self.updates)

    def answer(self, refusal: ServiceError | None = None) -> None:
        if self.done is None or self.done.done():
            return
        if refusal is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(refusal)


@dataclass(slots=True)
class _Live:
    """A task this process is writing: its fold, the tail of its log, and what waits."""

    task: Task
    is_new: bool = True
    ending: bool = False  # its end waits, or is committed: nothing more can be said
    superseded: bool = False  # somebody else ended it
    waiting: list[_Saying] = field(default_factory=list)
    being_written: list[_Saying] = field(default_factory=list)
    tail: list[LogEntry] = field(default_factory=list)
    tail_start: int = 0  # the number before the first entry of the tail
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        return self.task.ended is not None or self.superseded

    def publish(self, committed: Sequence[LogEntry]) -> None:
        for entry in committed:
            self.task.apply(entry)
        self.tail.extend(committed)
        if len(self.tail) > 2 * TAIL:
            self.tail_start += len(self.tail) - TAIL
            del self.tail[:-TAIL]
        self.is_new = False

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(slots=True)
class _Batch:
    """What one transaction writes about one task."""

    live: _Live
    entries: list[LogEntry]


class SqlTaskLog:
    """Implements `domain.ports.TaskLog`."""

    def __init__(self, database: Database, clock: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock = clock
        self._live: dict[str, _Live] = {}
        self._dirty: dict[str, _Live] = {}
        self._wake = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, replay_seconds: float = 900, clock: Callable[[], int] = now_ms
    ) -> AsyncIterator[SqlTaskLog]:
        """The log at work. Ended tasks keep their deltas `replay_seconds` for those who return."""
        self = cls(database, clock)
        writing = asyncio.create_task(self._write_forever())
        sweeping = asyncio.create_task(self._sweep_forever(replay_seconds))
        try:
            yield self
        finally:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        for task_id in list(self._live):
                            await self.flushed(task_id)
            finally:
                sweeping.cancel()
                writing.cancel()
                await asyncio.gather(sweeping, writing, return_exceptions=True)
                for live in self._live.values():
                    for saying in (*live.being_written, *live.waiting):
                        saying.answer(StoreUnavailable("The service is stopping."))

    # -- saying things

    async def create(self, head: TaskHead, updates: Sequence[Update]) -> Task:
        live = _Live(Task(head, status_at=head.created_at))
        committed = self._promise(live, updates)
        self._live[head.id] = live
        try:
            await committed
        except asyncio.CancelledError:
            self._say(live, [ABANDONED])  # should it come to be, nobody would work on it
            raise
        return live.task

    async def write(self, task_id: str, updates: Sequence[Update]) -> None:
        live = self._live.get(task_id)
        if live is None or live.ending:
            raise _has_ended(task_id)
        await self._promise(live, updates)

    def append(self, task_id: str, updates: Sequence[Update]) -> None:
        live = self._live.get(task_id)
        if live is not None and updates:
            self._say(live, updates)

    async def flushed(self, task_id: str) -> None:
        live = self._live.get(task_id)
        while live is not None and (live.waiting or live.being_written):
            await live.changed.wait()

    def _say(
        self, live: _Live, updates: Sequence[Update], done: asyncio.Future[None] | None = None
    ) -> None:
        if live.ending:
            return
        said: list[Update] = []
        for saying in updates:
            # What cannot be stored is refused here: in the writer it would be in everybody's way.
            codec.encode(saying)
            said.append(saying)
            if isinstance(saying, Ended):
                live.ending = True
                break
        live.waiting.append(_Saying(said, done))
        self._dirty[live.task.head.id] = live
        self._wake.set()

    def _promise(self, live: _Live, updates: Sequence[Update]) -> asyncio.Future[None]:
        """Say it; what is returned is done when it is committed, or tells why it is not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._say(live, updates, done)
        return done

    # -- the writer

    async def _write_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            dirty, self._dirty = self._dirty, {}
            batches = [self._take(live) for live in dirty.values() if live.waiting]
            try:
                refused = await self._database.write(_commit, batches)
            except Exception as exc:
                self._give_back(batches, exc)
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1
            else:
                failures = 0
                self._publish(batches, refused)

    def _take(self, live: _Live) -> _Batch:
        """Number what waits. Numbers are final only once committed, and only then used up."""
        live.being_written, live.waiting = live.waiting, []
        updates = coalesce([u for saying in live.being_written for u in saying.updates])
        first, at = live.task.last_seq + 1, self._clock()
        return _Batch(live, [LogEntry(first + i, at, u) for i, u in enumerate(updates)])

    def _publish(self, batches: list[_Batch], refused: set[str]) -> None:
        for batch in batches:
            live, task_id = batch.live, batch.live.task.head.id
            written, live.being_written = live.being_written, []
            if task_id in refused:
                live.superseded = live.ending = True
                unheard, live.waiting = [*written, *live.waiting], []
                for saying in unheard:
                    saying.answer(_has_ended(task_id))
            else:
                live.publish(batch.entries)
                for saying in written:
                    saying.answer()
            if live.over:
                self._live.pop(task_id, None)
            live.wake()

    def _give_back(self, batches: list[_Batch], exc: Exception) -> None:
        """Who waits is told no, and was not heard; the rest is kept and tried again."""
        if not isinstance(exc, StoreUnavailable):
            logger.error("store.broken", exc_info=exc)
            exc = StoreUnavailable("The task store does not work. Nothing was changed.")
        for batch in batches:
            live, task_id = batch.live, batch.live.task.head.id
            written, live.being_written = live.being_written, []
            for saying in written:
                saying.answer(exc)
            if live.is_new:
                live.waiting.clear()  # without its beginning there is nothing to say about it
                self._live.pop(task_id, None)
            else:
                live.waiting[:0] = [saying for saying in written if saying.done is None]
            live.ending = any(saying.ends for saying in live.waiting)
            if live.waiting:
                self._dirty[task_id] = live
                self._wake.set()
            live.wake()

    async def _sweep_forever(self, replay_seconds: float) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            with suppress(StoreUnavailable):  # already logged; the next round tries again
                ended_before = self._clock() - int(replay_seconds * 1000)
                while await self.sweep(ended_before) == SWEEP_TASKS:
                    pass

    async def sweep(self, ended_before: int) -> int:
        """Drop the deltas of some tasks that ended long ago; their folded result stays."""
        return await self._database.write(_sweep, ended_before)

    # -- reading

    async def get(self, owner: str, task_id: str) -> Task:
        """As of now: read it before the next await, while nothing can be added."""
        live = self._live.get(task_id)
        if live is not None and not live.is_new:
            if live.task.head.owner == owner:
                return live.task
            raise TaskNotFound(task_id)
        task = await self._database.read(_load, task_id)
        if task is None or task.head.owner != owner:
            raise TaskNotFound(task_id)
        return task

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._database.read(_list, query)

    def follow(self, task_id: str, after: int) -> SqlCursor:
        return SqlCursor(self._database, task_id, self._live.get(task_id), after)

    async def unfinished(self) -> Sequence[TaskHead]:
        return await self._database.read(_unfinished)

    async def adopt(self, head: TaskHead) -> Task:
        """Take up the writing of a task that an earlier process began."""
        task = await self._database.read(_load, head.id)
        if task is None:
            raise TaskNotFound(head.id)
        if task.ended is not None:
            return task
        live = _Live(task, is_new=False, tail_start=task.last_seq)
        return self._live.setdefault(head.id, live).task


class SqlCursor:
    """Implements `domain.ports.Cursor`."""

    def __init__(self, database: Database, task_id: str, live: _Live | None, after: int) -> None:
        self._database = database
        self._task_id = task_id
        self._live = live
        self._after = after

    async def read(self) -> Sequence[LogEntry]:
        while True:
            live = self._live
            if live is None or live.superseded or self._after < live.tail_start:
                found = await self._database.read(_next, self._task_id, self._after)
            else:
                first = self._after - live.tail_start
                found = live.tail[first : first + PAGE]
            if found:
                self._after = found[-1].seq
                return found
            if live is None or live.over:
                return ()
            await live.changed.wait()


# -- statements, each run in a thread of the database


def _commit(db: Connection, batches: list[_Batch]) -> set[str]:
    """Write everything at once; returns the tasks that were refused.

    Refused is what had ended before. A number that is taken means another process
    writes that task, and some databases do not take every text: then the tasks are
    written one by one, so that only the one concerned is refused.
    """
    try:
        with db.begin_nested():
            return _commit_together(db, batches)
    except (IntegrityError, DataError):
        refused: set[str] = set()
        for batch in batches:
            try:
                with db.begin_nested():
                    refused |= _commit_together(db, [batch])
            except (IntegrityError, DataError):
                refused.add(batch.live.task.head.id)
        return refused


def _commit_together(db: Connection, batches: list[_Batch]) -> set[str]:
    fresh = [_task_row(batch.live.task.head) for batch in batches if batch.live.is_new]
    if fresh:
        db.execute(insert(tasks), fresh)
    refused = {batch.live.task.head.id for batch in batches if not _move(db, batch)}
    rows = []
    for batch in batches:
        task_id = batch.live.task.head.id
        if task_id not in refused:
            for entry in batch.entries:
                kind, body = codec.encode(entry.update)
                rows.append(
                    {
                        "task_id": task_id,
                        "seq": entry.seq,
                        "at": entry.at,
                        "kind": kind,
                        "body": body,
                    }
                )
    if rows:
        db.execute(insert(entries), rows)
    return refused


def _move(db: Connection, batch: _Batch) -> bool:
    """Carry the task's state into its row. False when it had ended: the first end wins."""
    values: dict[str, Any] = {}
    for entry in batch.entries:
        state = state_after(entry.update)
        if state is not None:
            values |= {"state": state.value, "status_at": entry.at, "message": None}
        match entry.update:
            case Started(session=session, title=title):
                values |= {"session_id": session, "title": title}
            case InterruptOpened(interrupt=interrupt):
                values["message"] = asking(interrupt)
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
    statement = (
        update(tasks)
        .where(tasks.c.id == batch.live.task.head.id, tasks.c.state.in_(OPEN_STATES))
        .values(values)
    )
    return db.execute(statement).rowcount == 1


def _whole(batch: _Batch) -> Task:
    """The task with this batch; its fold itself changes only once that is committed."""
    task = batch.live.task
    whole = replace(
        task,
        history=[*task.history],
        blocks={id: replace(block, pieces=[block.text]) for id, block in task.blocks.items()},
        interrupts={**task.interrupts},
    )
    for entry in batch.entries:
        whole.apply(entry)
    return whole


def _has_ended(task_id: str) -> UnsupportedOperation:
    return UnsupportedOperation("This task has ended; nothing can be added.", task_id=task_id)


def _task_row(head: TaskHead) -> dict[str, Any]:
    return {
        "id": head.id,
        "owner": head.owner,
        "context_id": head.context_id,
        "state": TaskState.SUBMITTED.value,
        "status_at": head.created_at,
        "created_at": head.created_at,
        "modes": orjson.dumps(head.modes.accepted).decode(),
    }


def _head(row: Any) -> TaskHead:
    modes = OutputModes(tuple(orjson.loads(row.modes)))
    return TaskHead(row.id, row.context_id, row.owner, row.created_at, modes)


def _load(db: Connection, task_id: str) -> Task | None:
    row = db.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None:
        return None
    if row.folded is not None:
        return codec.unfold(_head(row), row.folded)
    return Task.of(_head(row), _entries_after(db, task_id, 0, None))


def _next(db: Connection, task_id: str, after: int) -> list[LogEntry]:
    """What a cursor reads next. Of a task that was swept: its blocks, each in one piece."""
    if found := _entries_after(db, task_id, after, PAGE):
        return found
    swept = select(tasks).where(tasks.c.id == task_id, tasks.c.cleared == 1)
    row = db.execute(swept).first()
    if row is None:
        return []
    told = codec.unfold(_head(row), row.folded).compacted()
    return sorted((entry for entry in told if entry.seq > after), key=lambda entry: entry.seq)


def _entries_after(db: Connection, task_id: str, after: int, limit: int | None) -> list[LogEntry]:
    statement = (
        select(entries.c.seq, entries.c.at, entries.c.kind, entries.c.body)
        .where(entries.c.task_id == task_id, entries.c.seq > after)
        .order_by(entries.c.seq)
        .limit(limit)
    )
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


def _list(db: Connection, query: TaskQuery) -> TaskPage:
    wanted = [tasks.c.owner == query.owner]
    if query.context_id is not None:
        wanted.append(tasks.c.context_id == query.context_id)
    if query.state is not None:
        wanted.append(tasks.c.state == query.state.value)
    if query.since is not None:
        wanted.append(tasks.c.status_at >= query.since)
    total = db.execute(select(func.count()).select_from(tasks).where(*wanted)).scalar_one()
    page: Select[Any] = select(*_ROW).where(*wanted)
    if query.after is not None:
        at, task_id = query.after
        older = tasks.c.status_at < at
        page = page.where(or_(older, and_(tasks.c.status_at == at, tasks.c.id < task_id)))
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


def _unfinished(db: Connection) -> list[TaskHead]:
    statement = select(*_ROW).where(tasks.c.state.in_(OPEN_STATES)).order_by(tasks.c.created_at)
    return [_head(row) for row in db.execute(statement)]


def _sweep(db: Connection, ended_before: int) -> int:
    statement = (
        select(tasks.c.id)
        .where(tasks.c.cleared == 0, tasks.c.status_at < ended_before)
        .where(tasks.c.state.not_in(OPEN_STATES))
        .limit(SWEEP_TASKS)
    )
    done = list(db.execute(statement).scalars())
    if done:
        db.execute(delete(entries).where(entries.c.task_id.in_(done)))
        db.execute(update(tasks).where(tasks.c.id.in_(done)).values(cleared=1))
    return len(done)
