"""The task log: numbered entries, committed before anyone sees them.

One writer collects what all turns have said while the previous commit ran and
commits it as one transaction, so batches grow under load and the first word of
an idle service is committed at once. What can wait is gathered for a moment: a
commit costs as much with one word as with ten. Readers hold a cursor, not a
queue: they read the in-memory tail of a running task, or the table when they
are behind.

    append ──► waiting ──► commit (writer thread) ──► tail + fold ──► cursors

A commit that was not answered may have been done. Before anything else is written, the writer looks
in the table which of its batches are there. Whoever waits for one of them is held for a few seconds
and then told that the outcome is unknown. If it turns out to be stored after that, nobody here
works on it: the task is let go, and taken up again from what the table says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from ..domain.ports import Key, KeyTaken, TaskPage
from ..domain.task import Task, TaskHead
from ..domain.updates import BlockText, Ended, LogEntry, Started, Update, coalesce
from ..domain.values import ANY_ROOT, Root, TaskQuery, TaskState
from ..errors import (
    OtherWorkspace,
    OutcomeUnknown,
    ServiceError,
    StoreUnavailable,
    TaskNotFound,
    UnsupportedOperation,
)
from . import asked, codec
from . import statements as sql
from .database import Conflict, Database
from .holder import LEASE, Holder

logger = structlog.get_logger()

TAIL = 2_048  # entries of a running task kept in memory; older ones are read from the table
GATHER_SECONDS = 0.033  # between two commits, when nothing is to be said that cannot wait
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts while the disk refuses
COMMIT_SECONDS = 8.0  # for the answer to a commit, before its outcome is said to be unknown
DOUBT_SECONDS = 4.0  # the same once the connection was lost
GOODBYE_SECONDS = 5.0  # for what still waits when the service stops
SWEEP_SECONDS = 60.0
WAITERS = 64  # for a change of one task, before it is worth to look which of them are left
POLL_SECONDS = 0.25  # between looks at a task that another process writes

ABANDONED = Ended(TaskState.CANCELED, "The caller left before the task could begin.")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds."""

    replay: float = 900.0  # the single entries of an ended task
    tasks: float = 30 * 86_400.0  # an ended task; 0 means for ever
    keys: float = 86_400.0  # what a repeated request is known by
    requests: float = 600.0  # what the agent asked for, once it is settled


KEPT = Retention()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Saying:
    """Updates for the writer. Whoever waits for them to be committed holds `done`."""

    updates: Sequence[Update]
    done: asyncio.Future[None] | None = None
    keys: Sequence[Key] = ()
    told_unknown: bool = False

    @property
    def ends(self) -> bool:
        return any(isinstance(update, Ended) for update in self.updates)

    def answer(self, refusal: ServiceError | KeyTaken | None = None) -> None:
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
    newest: int = 0  # entries of the tail that came last, together
    waiters: list[asyncio.Future[None]] = field(default_factory=list)  # for a change
    prune_at: int = WAITERS  # this many of them
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def over(self) -> bool:
        return self.task.ended is not None or self.superseded

    def can_wait(self, update: Update) -> bool:
        """Whether nobody misses it for a moment: that work begins, or more of a text that is seen.

        What it begins with is said soon, and the two are committed as one.
        """
        if isinstance(update, BlockText):
            return update.append and update.block_id in self.task.blocks
        return isinstance(update, Started)

    @property
    def told_unknown(self) -> bool:
        """Whether somebody was told that the outcome of what is being written is unknown."""
        return any(saying.told_unknown for saying in self.being_written)

    def claimed(self) -> set[str]:
        """The keys of what waits."""
        return {k.name for saying in (*self.being_written, *self.waiting) for k in saying.keys}

    def publish(self, committed: Sequence[LogEntry]) -> None:
        for entry in self.tail[-self.newest :]:
            entry.encoded.clear()  # readers that keep up have it; the others encode it again
        self.newest = len(committed)
        for entry in committed:
            self.task.apply(entry)
        self.tail.extend(committed)
        if len(self.tail) > 2 * TAIL:
            self.tail_start += len(self.tail) - TAIL
            del self.tail[:-TAIL]
        self.is_new = False

    def changed(self) -> asyncio.Future[None]:
        """Done with the next change. Who stops waiting for it need not say so.

        A thousand may wait: this is run once for each and entry.
        """
        if len(self.waiters) >= self.prune_at:
            self.waiters = [waiter for waiter in self.waiters if not waiter.done()]
            self.prune_at = 2 * len(self.waiters) + WAITERS
        waiter = self.loop.create_future()  # to ask for the loop every time would be a system call
        self.waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class SqlTaskLog:
    """Implements `domain.ports.TaskLog`."""

    def __init__(
        self,
        database: Database,
        holder: Holder,
        clock: Callable[[], int] = now_ms,
        root: Root = ANY_ROOT,
    ) -> None:
        self._database = database
        self._root = root
        self._holder = holder.name
        self._clock = clock
        self._live: dict[str, _Live] = {}
        self._dirty: dict[str, _Live] = {}
        self._unsettled: list[tuple[_Live, sql.Batch]] = []  # their commit was lost
        self._holding: asyncio.TimerHandle | None = None  # until nobody is held any longer
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None  # until the writer is woken
        self._began = 0.0  # the last commit, by the loop's clock
        self._loop = asyncio.get_running_loop()
        self._taking = asyncio.Lock()
        self._debug = structlog.is_configured() and logger.is_enabled_for(logging.DEBUG)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: Database,
        retention: Retention = KEPT,
        clock: Callable[[], int] = now_ms,
        root: Root = ANY_ROOT,
    ) -> AsyncIterator[SqlTaskLog]:
        """The log at work. On the way out, what it holds is released for the next to take up."""
        self = cls(database, Holder.this_process(), clock, root)
        writing = asyncio.create_task(self._write_forever())
        sweeping = asyncio.create_task(self._sweep_forever(retention))
        try:
            yield self
        finally:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        for task_id in list(self._live):
                            await self.flushed(task_id)
                        with suppress(StoreUnavailable):
                            await self._database.write(sql.release, self._holder, self._root.path)
            finally:
                sweeping.cancel()
                writing.cancel()
                await asyncio.gather(sweeping, writing, return_exceptions=True)
                self._hold_no_more()
                for live in self._live.values():
                    for saying in live.being_written:
                        saying.answer(OutcomeUnknown())
                    for saying in live.waiting:
                        saying.answer(StoreUnavailable("The service is stopping."))

    # -- saying things

    async def create(
        self, head: TaskHead, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> Task:
        live = _Live(Task(head, status_at=head.created_at))
        committed = self._promise(live, updates, keys)
        self._live[head.id] = live
        try:
            await committed
        except asyncio.CancelledError:
            self._say(live, [ABANDONED])  # should it come to be, nobody would work on it
            raise
        return live.task

    async def write(
        self, task_id: str, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> None:
        live = self._live.get(task_id)
        if live is None or live.ending:
            raise _has_ended(task_id)
        if live.claimed() & {key.name for key in keys}:
            await self.settled(task_id)
            raise KeyTaken
        await self._promise(live, updates, keys)

    def append(self, task_id: str, updates: Sequence[Update]) -> None:
        live = self._live.get(task_id)
        if live is not None and updates:
            self._say(live, updates)

    async def flushed(self, task_id: str) -> None:
        live = self._live.get(task_id)
        while live is not None and (live.waiting or live.being_written):
            await live.changed()

    async def settled(self, task_id: str) -> None:
        live = self._live.get(task_id)
        try:
            async with asyncio.timeout(DOUBT_SECONDS):
                while live is not None and self._is_unsettled(live):
                    await live.changed()
        except TimeoutError:
            raise OutcomeUnknown from None

    def _is_unsettled(self, live: _Live) -> bool:
        return live.told_unknown or any(live is each for each, _ in self._unsettled)

    def _say(
        self,
        live: _Live,
        updates: Sequence[Update],
        done: asyncio.Future[None] | None = None,
        keys: Sequence[Key] = (),
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
        live.waiting.append(_Saying(said, done, keys))
        self._dirty[live.task.head.id] = live
        if done is None and all(map(live.can_wait, said)):
            self._gather()
        else:
            self._wake.set()

    def _gather(self) -> None:
        """Wake the writer, but not so soon after the last commit."""
        if self._gathering is None and not self._wake.is_set():
            due = self._began + GATHER_SECONDS
            if self._loop.time() >= due:
                self._wake.set()
            else:
                self._gathering = self._loop.call_at(due, self._wake.set)

    def _promise(
        self, live: _Live, updates: Sequence[Update], keys: Sequence[Key]
    ) -> asyncio.Future[None]:
        """Say it; what is returned is done when it is committed, or tells why it is not."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._say(live, updates, done, keys)
        return done

    # -- the writer

    async def _write_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._gathering is not None:
                self._gathering.cancel()
                self._gathering = None
            self._began = self._loop.time()
            if await (self._settle() if self._unsettled else self._write()):
                failures = 0
            else:
                pauses = RETRY_SECONDS[:3] if self._unsettled else RETRY_SECONDS
                await asyncio.sleep(pauses[min(failures, len(pauses) - 1)])
                failures += 1

    async def _write(self) -> bool:
        """Commit what waits. False when the store refuses."""
        dirty, self._dirty = self._dirty, {}
        written = [live for live in dirty.values() if live.waiting]
        if not written:
            return True
        batches = [self._take(live) for live in written]
        self._hold(written, COMMIT_SECONDS)
        try:
            refused = await self._commit(batches, self._clock() + LEASE)
        except OutcomeUnknown:
            self._unsettled = list(zip(written, batches, strict=True))
            self._hold(written, DOUBT_SECONDS)
            self._wake.set()
            return True
        except Exception as exc:
            self._hold_no_more()
            for live in written:
                sayings, live.being_written = live.being_written, []
                self._give_back(live, sayings, _refusal(exc))
            return False
        self._hold_no_more()
        if self._debug:
            entries = sum(len(batch.entries) for batch in batches)
            ms = round((self._loop.time() - self._began) * 1000, 1)
            logger.debug("store.commit", tasks=len(batches), entries=entries, ms=ms)
        for live, batch in zip(written, batches, strict=True):
            self._publish(live, batch, refused.get(live.task.head.id))
        return True

    async def _settle(self) -> bool:
        """Look which of the batches whose commit was lost are stored. False when nobody can."""
        self._wake.set()  # what waits meanwhile comes next
        batches = [batch for _, batch in self._unsettled]
        until = self._clock() + LEASE
        try:
            stored = await self._database.write(sql.find_stored, batches, self._holder, until)
        except Exception as exc:
            self._refuse_waiting(_refusal(exc))
            return False
        self._hold_no_more()
        unsettled, self._unsettled = self._unsettled, []
        logger.info("store.settled", tasks=len(unsettled), stored=len(stored))
        for live, batch in unsettled:
            if live.superseded:
                continue  # another process has the task now
            if live.task.head.id in stored:
                self._publish(live, batch, None)
            else:
                sayings, live.being_written = live.being_written, []
                self._give_back(live, sayings, _nothing_changed())
        return True

    def _hold(self, written: list[_Live], seconds: float) -> None:
        """Let everybody wait so long, and then tell them that nobody knows, or that it failed."""
        self._hold_no_more()
        self._holding = self._loop.call_later(seconds, self._tell, written)

    def _hold_no_more(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None

    def _tell(self, written: list[_Live]) -> None:
        for live in written:
            for saying in live.being_written:
                if saying.done is not None and not saying.done.done():
                    saying.told_unknown = True
                    saying.answer(OutcomeUnknown())
        self._refuse_waiting(_nothing_changed())
        self._hold(written, 1.0)  # more may have come by then

    def _refuse_waiting(self, refusal: StoreUnavailable) -> None:
        """Nothing of what waits was sent to the store."""
        dirty, self._dirty = self._dirty, {}
        for live in dirty.values():
            sayings, live.waiting = live.waiting, []
            self._give_back(live, sayings, refusal)

    async def _commit(self, batches: list[sql.Batch], until: int) -> dict[str, sql.Refusal]:
        try:
            return await self._database.write(sql.commit, batches, self._holder, until)
        except Conflict:
            return await self._database.write(sql.commit_apart, batches, self._holder, until)

    def _take(self, live: _Live) -> sql.Batch:
        """Number what waits. Numbers are final only once committed, and only then used up."""
        live.being_written, live.waiting = live.waiting, []
        updates = coalesce([u for saying in live.being_written for u in saying.updates])
        first, at = live.task.last_seq + 1, self._clock()
        numbered = [LogEntry(first + i, at, update) for i, update in enumerate(updates)]
        keys = [key for saying in live.being_written for key in saying.keys]
        return sql.Batch(live.task, live.is_new, numbered, keys, self._root.path)

    def _publish(self, live: _Live, batch: sql.Batch, refused: sql.Refusal | None) -> None:
        if refused is not None and refused.taken and not live.is_new:
            self._leave_out(live, refused.taken)
            return
        if refused is not None:
            taken = KeyTaken() if refused.taken else _has_ended(live.task.head.id)
            self._let_go(live, taken)
            return
        if live.told_unknown:
            self._let_go(live, _nothing_changed())
            return
        written, live.being_written = live.being_written, []
        live.publish(batch.entries)
        for saying in written:
            saying.answer()
        if live.over:
            self._live.pop(live.task.head.id, None)
        live.wake()

    def _leave_out(self, live: _Live, taken: frozenset[str]) -> None:
        """A request that was heard before is not heard again; the rest is said without it."""
        sayings, live.being_written = live.being_written, []
        repeated = [s for s in sayings if taken & {key.name for key in s.keys}]
        for saying in repeated:
            saying.answer(KeyTaken())
        live.waiting[:0] = [saying for saying in sayings if saying not in repeated]
        self._write_again(live)

    def _let_go(self, live: _Live, refusal: ServiceError | KeyTaken) -> None:
        """It is not ours to write; its readers go on with what the table says."""
        task_id = live.task.head.id
        unheard = [*live.being_written, *live.waiting]
        live.being_written, live.waiting = [], []
        live.superseded = live.ending = True
        for saying in unheard:
            saying.answer(refusal)
        if self._live.get(task_id) is live:
            del self._live[task_id]
        live.wake()

    def _give_back(self, live: _Live, sayings: list[_Saying], refusal: StoreUnavailable) -> None:
        """Who waits is told no, and was not heard; the rest is kept and tried again."""
        for saying in sayings:
            saying.answer(refusal)
        if live.is_new and not live.being_written:
            live.waiting.clear()  # without its beginning there is nothing to say about it
            self._live.pop(live.task.head.id, None)
        else:
            live.waiting[:0] = [saying for saying in sayings if saying.done is None]
        live.ending = any(saying.ends for saying in (*live.being_written, *live.waiting))
        self._write_again(live)

    def _write_again(self, live: _Live) -> None:
        if live.waiting:
            self._dirty[live.task.head.id] = live
            self._wake.set()
        live.wake()

    # -- holding

    async def beat(self) -> Sequence[str]:
        if not self._live:
            return ()
        until = self._clock() + LEASE
        ours = {task_id: live for task_id, live in self._live.items() if not live.is_new}
        asked, lost = await self._database.write(
            sql.beat, self._holder, until, list(ours), self._root.path
        )
        for task_id in lost:
            self._let_go(ours[task_id], _has_ended(task_id))
        return asked

    async def take_orphans(self) -> Sequence[Task]:
        async with self._taking:  # two at once would each take what the other is about to hold
            now = self._clock()
            # What we have lost and do not know it yet is not taken back before we do.
            orphans, given_up = await self._database.write(
                sql.take_orphans, self._holder, now, now + LEASE, set(self._live), self._root
            )
            for task_id, problem in given_up.items():
                event = "task.unreadable" if problem is sql.UNREADABLE else "task.unplaced"
                logger.error(event, task=task_id, advice="it has failed")
            for task in orphans:
                self._live[task.head.id] = _Live(task, is_new=False, tail_start=task.last_seq)
        return orphans

    async def elsewhere(self, head: TaskHead) -> bool:
        return await self._database.read(sql.elsewhere, head, self._holder)

    async def ask_to_stop(self, task_id: str) -> None:
        await self._database.write(sql.ask_to_stop, task_id)

    def holds(self, task_id: str) -> bool:
        return task_id in self._live

    # -- keeping the file small

    async def _sweep_forever(self, retention: Retention) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            with suppress(StoreUnavailable):  # already logged; the next round tries again
                await self.sweep(retention)

    async def sweep(self, retention: Retention) -> None:
        """Drop what has been kept long enough, a little at a time: commits wait meanwhile."""
        for statement, seconds in (
            (sql.sweep, retention.replay),
            (sql.forget, retention.tasks),
            (sql.forget_keys, retention.keys),
            (asked.forget, retention.requests),
            (sql.forget_claims, 0.0),
        ):
            before = self._clock() - int(seconds * 1000)
            if seconds or statement is not sql.forget:
                while await self._database.write(statement, before) >= sql.SWEEP:
                    pass
        while await self._database.write(sql.shrink):
            pass

    # -- reading

    async def get(self, owner: str, task_id: str) -> Task:
        """As of now: read it before the next await, while nothing can be added."""
        live = self._live.get(task_id)
        if live is not None and not live.is_new:
            if live.task.head.owner == owner:
                return live.task
            raise TaskNotFound(task_id)
        task = await self._database.read(sql.load, task_id)
        if task is None or task.head.owner != owner:
            raise TaskNotFound(task_id)
        return task

    async def get_own(self, owner: str, task_id: str) -> Task:
        if task_id not in self._live:
            root = await self._database.read(sql.root_of_task, owner, task_id)
            if root not in (None, self._root.path):
                raise OtherWorkspace.of_task(task_id, root)
        return await self.get(owner, task_id)

    async def check_context(self, owner: str, context_id: str) -> None:
        root = await self._database.read(sql.root_of_context, owner, context_id, self._root)
        if root not in (None, self._root.path):
            raise OtherWorkspace.of_context(context_id, root)

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._database.read(sql.page, query)

    async def known(self, owner: str, key: str) -> tuple[str, str] | None:
        return await self._database.read(sql.find_key, owner, key)

    async def as_of(self, task_id: str, seq: int) -> Task | None:
        return await self._database.read(sql.as_of, task_id, seq)

    def follow(self, task_id: str, after: int) -> SqlCursor:
        return SqlCursor(self._database, task_id, self._live.get(task_id), after)


class SqlCursor:
    """Implements `domain.ports.Cursor`."""

    def __init__(self, database: Database, task_id: str, live: _Live | None, after: int) -> None:
        self._database = database
        self._task_id = task_id
        self._live = live
        self._after = after
        self.caught_up = True

    def change(self) -> asyncio.Future[None] | None:
        live = self._live
        if live is None or live.over or self._after < live.task.last_seq:
            return None
        return live.changed()

    async def read(self) -> Sequence[LogEntry]:
        while True:
            live = self._live
            ours = live is not None and not live.superseded
            if live is None or not ours or self._after < live.tail_start:
                found, more = await self._database.read(
                    sql.next_entries, self._task_id, self._after
                )
            else:
                first = self._after - live.tail_start
                found = live.tail[first : first + sql.PAGE]
                more = bool(found) or not live.over
            if found:
                self._after = found[-1].seq
                self.caught_up = len(found) < sql.PAGE
                return found
            if not more:
                return ()
            if live is not None and ours:
                await live.changed()
            else:
                await asyncio.sleep(POLL_SECONDS)  # another process writes it


def _nothing_changed() -> StoreUnavailable:
    return StoreUnavailable(
        "The task store cannot be used right now. Nothing was changed; try again later.",
        retry_after=5,
    )


def _refusal(exc: Exception) -> StoreUnavailable:
    """What is told to those of whom nothing was stored."""
    if isinstance(exc, StoreUnavailable):  # those are logged where they happen
        return _nothing_changed() if isinstance(exc, OutcomeUnknown) else exc
    logger.error("store.broken", exc_info=exc)
    return _nothing_changed()


def _has_ended(task_id: str) -> UnsupportedOperation:
    return UnsupportedOperation("This task has ended; nothing can be added.", task_id=task_id)
