"""The task log: numbered entries, committed before anyone sees them.

One writer commits all updates that arrived during the previous commit as one
transaction, so batches grow under load, and an idle service commits an update at
once. Updates that can wait are delayed for up to 33 ms, or 50 ms where the database is
a server: a commit costs as much with one update as with ten. A reader holds a cursor,
not a queue: it reads the in-memory tail of a running task, or the table when it is behind.

    append ──► waiting ──► commit (writer thread) ──► tail + fold ──► cursors

A commit that was not answered may have been done. Before the writer writes anything else, it looks
up which of the batches are stored. Callers that wait for one of them wait a few seconds more and
then get `OutcomeUnknown`. If the batch turns out to be stored after that, this process closes the
task, and the task is claimed again from its rows like any task that nobody holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile

import structlog

from ..domain.limits import StepUsage
from ..domain.nodes import Node
from ..domain.ports import EarlierTask, Key, KeyTaken, TaskPage, TaskVersion
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    BlockOutput,
    BlockText,
    Ended,
    LogEntry,
    NodeReturned,
    Update,
    coalesce,
    state_after,
)
from ..domain.values import TaskQuery, TaskState
from ..errors import (
    OtherOpenCode,
    OtherWorkspace,
    OutcomeUnknown,
    ServiceError,
    ShuttingDown,
    StoreError,
    StoreUnavailable,
    TaskNotFound,
    UnsupportedOperation,
)
from ..observe import metrics
from ..observe.tasks import TaskObserver, kind_of
from . import codec, conversations, interrupts, summaries, usage
from . import statements as sql
from .clock import steady_seconds
from .database import Database
from .following import FollowedTask, Followers, Interest, read_patiently
from .holder import LEASE, Holder, Lease
from .wakeups import notify_each

logger = structlog.get_logger()
level = logging.getLogger("opencode_a2a")  # may change while the service runs

TAIL_ENTRIES = 2_048  # of a running task in memory; older ones are read from the table
COMMIT_INTERVAL_SECONDS = 0.033  # between two commits, while all updates can wait
# … to a server, where a commit takes 0.5 ms of a CPU that all nodes share, however little is in it.
SERVER_INTERVAL_SECONDS = 0.05
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts while the store fails
COMMIT_SECONDS = 8.0  # that callers wait for a commit before they get `OutcomeUnknown`
DOUBT_SECONDS = 4.0  # the same, once a commit was not answered
STOP_TIMEOUT_SECONDS = 5.0  # for the last writes when the service stops
SWEEP_SECONDS = 60.0
FIRST_SWEEP_SECONDS = 5.0  # after the start, for a service that never runs for a minute
PRUNE_WAITERS = 64  # waiters of one task, before those that left are removed
SETTLE_SECONDS = 1.0  # that a reader waits for a commit which stores another state
CONFIRM_SECONDS = LEASE / 2_000  # after the last renewal, a lease is looked up before it is used
POLL_SECONDS = 0.25  # between two reads of a task that another process writes

CALLER_LEFT = Ended(TaskState.CANCELED, "The caller left before the task could begin.")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds."""

    replay: float = 900.0  # the single entries of an ended task
    tasks: float = 30 * 86_400.0  # an ended task, a conversation with a peer; 0 means for ever
    keys: float = 86_400.0  # what a repeated request is known by
    requests: float = 600.0  # what the agent asked for, once it is settled
    usage: float = 400 * 86_400.0  # what callers have used; 0 means for ever


DEFAULT_RETENTION = Retention()


@dataclass(slots=True)
class PendingWrite:
    """Updates that wait for the writer. `done` is for the caller that waits for the commit."""

    updates: Sequence[Update]
    encoded: Sequence[codec.Encoded | None]  # as they are stored; None: not known yet
    done: asyncio.Future[None] | None = None
    keys: Sequence[Key] = ()
    answered_unknown: bool = False

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
class OpenTask:
    """A task this process writes: its state, the tail of its log, and the pending writes."""

    task: Task
    is_new: bool = True
    ending: bool = False  # its end waits or is committed: no more updates are accepted
    superseded: bool = False  # another process holds it or has ended it
    over: bool = False  # it has ended, or is superseded
    waiting: list[PendingWrite] = field(default_factory=list)
    being_written: list[PendingWrite] = field(default_factory=list)
    tail: list[LogEntry] = field(default_factory=list)
    tail_start: int = 0  # the number before the first entry of the tail
    newest: int = 0  # how many entries of the tail the last commit added
    waiters: list[asyncio.Future[None]] = field(default_factory=list)  # for a change
    observer: TaskObserver | None = None  # None where nobody wants to know
    prune_at: int = PRUNE_WAITERS  # the number of waiters at which to remove those that left
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def can_wait(self, update: Update) -> bool:
        """Whether its commit may be delayed: it adds to a block that is visible already."""
        if isinstance(update, BlockText):
            return update.append and update.block_id in self.task.blocks
        return isinstance(update, BlockOutput)

    @property
    def changes_state(self) -> bool:
        """Whether a commit is under way that stores another state."""
        return any(
            state_after(update) is not None
            for write in self.being_written
            for update in write.updates
        )

    @property
    def answered_unknown(self) -> bool:
        """Whether a caller got `OutcomeUnknown` for a write that is not settled yet."""
        return any(write.answered_unknown for write in self.being_written)

    def waiting_keys(self) -> set[str]:
        """The keys of all pending writes."""
        return {k.name for write in (*self.being_written, *self.waiting) for k in write.keys}

    def publish(self, committed: Sequence[LogEntry]) -> None:
        for entry in self.tail[-self.newest :]:
            entry.encoded.clear()  # readers that keep up have sent it; others encode it again
        self.newest = len(committed)
        for entry in committed:
            self.task.apply(entry)
        self.over = self.over or self.task.ended is not None
        self.tail.extend(committed)
        if len(self.tail) > 2 * TAIL_ENTRIES:
            self.tail_start += len(self.tail) - TAIL_ENTRIES
            del self.tail[:-TAIL_ENTRIES]
        self.is_new = False

    def changed(self) -> asyncio.Future[None]:
        """A future that is done with the next change. A waiter may leave without notice.

        With a thousand readers this runs a thousand times for each commit.
        """
        if len(self.waiters) >= self.prune_at:
            self.waiters = [waiter for waiter in self.waiters if not waiter.done()]
            self.prune_at = 2 * len(self.waiters) + PRUNE_WAITERS
        waiter = self.loop.create_future()  # `get_running_loop` makes a system call each time
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
        clock: Callable[[], int] | None = None,
        root: str = "",
        opencode: str | None = None,
    ) -> None:
        """`clock`: that of the database unless another is given. `opencode`: whose tasks this
        process works on; None where there is only one.
        """
        self._database = database
        self.opencode = opencode
        self._root = root
        self._holder = holder.name
        self._clock = clock or database.clock
        self._open: dict[str, OpenTask] = {}
        self._dirty: dict[str, OpenTask] = {}
        self._unsettled: list[tuple[OpenTask, sql.Batch]] = []  # their commit was not answered
        self._deadline: asyncio.TimerHandle | None = None  # answers callers that wait too long
        self._wake = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None  # sets `_wake` after a delay
        self._last_commit_at = 0.0  # by the loop's clock
        self._interval = SERVER_INTERVAL_SECONDS if database.is_server else COMMIT_INTERVAL_SECONDS
        self._loop = asyncio.get_running_loop()
        self._claiming = asyncio.Lock()
        self._claimed: set[str] = set()  # tasks held by this process and not open yet
        self._adoption = sql.AdoptionRound()
        self._renewed_at = steady_seconds()  # all leases
        self._followers = Followers(database)
        self._interest = Interest()  # of other processes, in tasks of this one
        self._telling: set[asyncio.Task[None]] = set()
        self._unsubscribe = database.wakeups.subscribe(self._on_words)
        # Told of each step once, when it is committed.
        self.on_usage: Callable[[Sequence[StepUsage]], None] | None = None
        self._dirty_since = 0.0  # by the loop's clock: since when the oldest update waits
        self.on_commit: Callable[[str, Sequence[LogEntry]], None] | None = None  # of a task
        # Told of every commit, with the task as it is then, which must not be changed.
        self.on_change: Callable[[Task, Sequence[LogEntry]], None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: Database,
        retention: Retention = DEFAULT_RETENTION,
        clock: Callable[[], int] | None = None,
        root: str = "",
        opencode: str | None = None,
    ) -> AsyncIterator[SqlTaskLog]:
        """Open the log. When it closes, it releases its tasks for other processes to claim."""
        self = cls(database, Holder.this_process(), clock=clock, root=root, opencode=opencode)
        writing = asyncio.create_task(self._write_forever())
        sweeping = asyncio.create_task(self._sweep_forever(retention))
        try:
            yield self
        finally:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                        for task_id in list(self._open):
                            await self.flushed(task_id)
                        with suppress(StoreError):
                            await self._database.write(sql.release, self._holder, self._root)
            finally:
                self._unsubscribe()
                jobs = [sweeping, writing, *self._telling]
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
                await self._followers.close()
                self._cancel_deadline()
                for open_task in self._open.values():
                    for write in open_task.being_written:
                        write.answer(OutcomeUnknown())
                    for write in open_task.waiting:
                        write.answer(ShuttingDown())

    @property
    def holder(self) -> str:
        """The name under which this process holds tasks."""
        return self._holder

    # -- enqueueing updates

    async def create(
        self, head: TaskHead, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> Task:
        task = Task(head, status_at=head.created_at)
        open_task = OpenTask(task, observer=TaskObserver.of(task))
        committed = self._submit(open_task, updates, keys)
        self._open[head.id] = open_task
        try:
            await committed
        except asyncio.CancelledError:
            if keys:
                self._leave_to_claim(open_task)
            else:
                self._enqueue(open_task, [CALLER_LEFT])  # if it is stored, nobody works on it
            raise
        return open_task.task.snapshot()

    def _leave_to_claim(self, open_task: OpenTask) -> None:
        """Have a task claimed that nobody works on, once it is stored.

        Its caller was not answered, such as when the service stops, and will send the same request
        again: then it must find a task that is at work.
        """
        writes = [*open_task.being_written, *open_task.waiting]
        for write in writes:
            write.answered_unknown = True
        if not writes:
            self._close(open_task, StoreUnavailable.nothing_changed())

    async def write(
        self, task_id: str, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> None:
        open_task = self._open.get(task_id)
        if open_task is None or open_task.ending:
            raise _has_ended(task_id)
        if open_task.waiting_keys() & {key.name for key in keys}:
            await self.settled(task_id)
            raise KeyTaken
        await self._submit(open_task, updates, keys)

    def append(self, task_id: str, updates: Sequence[Update]) -> None:
        open_task = self._open.get(task_id)
        if open_task is not None and updates:
            self._enqueue(open_task, updates)

    async def flushed(self, task_id: str, *, within: float | None = None) -> None:
        open_task = self._open.get(task_id)
        try:
            async with asyncio.timeout(within):
                while open_task is not None and (open_task.waiting or open_task.being_written):
                    await open_task.changed()
        except TimeoutError:
            raise StoreUnavailable.nothing_changed() from None

    async def settled(self, task_id: str) -> None:
        open_task = self._open.get(task_id)
        try:
            async with asyncio.timeout(DOUBT_SECONDS):
                while open_task is not None and self._is_unsettled(open_task):
                    await open_task.changed()
        except TimeoutError:
            raise OutcomeUnknown from None

    def _is_unsettled(self, open_task: OpenTask) -> bool:
        return open_task.answered_unknown or any(open_task is each for each, _ in self._unsettled)

    def _enqueue(
        self,
        open_task: OpenTask,
        updates: Sequence[Update],
        *,
        done: asyncio.Future[None] | None = None,
        keys: Sequence[Key] = (),
    ) -> None:
        if open_task.ending:
            return
        accepted = coalesce(updates)  # first: deltas that came together are encoded as one
        ended = next((i for i, update in enumerate(accepted) if isinstance(update, Ended)), None)
        if ended is not None:
            del accepted[ended + 1 :]
        # An update that cannot be encoded is refused here. In the writer it would make the commit
        # of all other tasks fail.
        encoded = [None if _is_plain(update) else codec.encode(update) for update in accepted]
        open_task.ending = ended is not None
        write = PendingWrite(accepted, encoded, done=done, keys=keys)
        open_task.waiting.append(write)
        if not self._dirty:
            self._dirty_since = self._loop.time()
        self._dirty[open_task.task.head.id] = open_task
        if done is None and all(map(open_task.can_wait, accepted)):
            self._wake_later()
        else:
            self._wake.set()

    def _wake_later(self) -> None:
        """Wake the writer a while after the last commit, or now."""
        if self._wake_timer is None and not self._wake.is_set():
            due = self._last_commit_at + self._interval
            if self._loop.time() >= due:
                self._wake.set()
            else:
                self._wake_timer = self._loop.call_at(due, self._wake.set)

    def _submit(
        self, open_task: OpenTask, updates: Sequence[Update], keys: Sequence[Key]
    ) -> asyncio.Future[None]:
        """Enqueue updates. The future is done with their commit, or has the reason for none."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(open_task, updates, done=done, keys=keys)
        return done

    # -- the writer

    async def _write_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._wake_timer is not None:
                self._wake_timer.cancel()
                self._wake_timer = None
            self._last_commit_at = self._loop.time()
            try:
                succeeded = await (self._settle() if self._unsettled else self._write())
            except Exception:  # of this service: the store's failures are answered above
                logger.exception("store.internal_error", advice="report it; the writer goes on")
                self._give_up_batches()
                succeeded = False
            if succeeded:
                failures = 0
            else:
                pauses = RETRY_SECONDS[:3] if self._unsettled else RETRY_SECONDS
                await asyncio.sleep(pauses[min(failures, len(pauses) - 1)])
                failures += 1

    def _give_up_batches(self) -> None:
        """Close the tasks of a round that failed inside: nobody knows what of them is stored.

        Their callers are told so, their readers go on with the table, and like any task that nobody
        holds they are claimed again from their rows.
        """
        if not self._unsettled:
            self._cancel_deadline()
        for open_task in list(self._open.values()):
            if open_task.being_written and not any(
                open_task is each for each, _ in self._unsettled
            ):
                self._close(open_task, OutcomeUnknown())
            elif open_task.waiting:
                self._dirty[open_task.task.head.id] = open_task
        # Nothing of these was sent to the store. The fault may come again, so nobody waits for it.
        self._refuse_waiting(StoreUnavailable.nothing_changed())
        self._wake.set()

    async def _write(self) -> bool:
        """Commit all waiting writes. False when the store fails."""
        dirty, self._dirty = self._dirty, {}
        written, batches = self._make_batches([each for each in dirty.values() if each.waiting])
        if not batches:
            return True
        dirty_since = self._dirty_since
        self._start_deadline(written, COMMIT_SECONDS)
        try:
            refused = await self._commit(batches)
        except OutcomeUnknown:
            self._unsettled = list(zip(written, batches, strict=True))
            self._start_deadline(written, DOUBT_SECONDS)
            self._wake.set()
            return True
        except Exception as exc:
            self._cancel_deadline()
            for open_task in written:
                writes, open_task.being_written = open_task.being_written, []
                self._refuse(open_task, writes, _refusal(exc))
            self._dirty_since = dirty_since  # of those that are tried again
            return False
        self._cancel_deadline()
        self._count_commit(batches, dirty_since)
        for open_task, batch in zip(written, batches, strict=True):
            self._publish(open_task, batch, refused.get(open_task.task.head.id))
        return True

    def _count_commit(self, batches: Sequence[sql.Batch], dirty_since: float) -> None:
        entries, now = sum([len(batch.entries) for batch in batches]), self._loop.time()
        metrics.COMMIT_SECONDS.observe(now - self._last_commit_at)
        metrics.COMMIT_ENTRIES.observe(entries)
        metrics.LOG_LAG_SECONDS.observe(now - dirty_since)
        if level.isEnabledFor(logging.DEBUG):
            ms = round((now - self._last_commit_at) * 1000, 1)
            logger.debug("store.commit", tasks=len(batches), entries=entries, ms=ms)

    async def _settle(self) -> bool:
        """Look up which of the unsettled batches are stored. False when the store fails."""
        self._wake.set()  # the writes that wait meanwhile come next
        batches = [batch for _, batch in self._unsettled]
        try:
            stored = await self._database.write(sql.find_stored, batches, self._lease())
        except Exception as exc:
            self._refuse_waiting(_refusal(exc))
            return False
        self._cancel_deadline()
        unsettled, self._unsettled = self._unsettled, []
        logger.info("store.settled", tasks=len(unsettled), stored=len(stored))
        for open_task, batch in unsettled:
            if open_task.superseded:
                continue  # another process has the task now
            if open_task.task.head.id in stored:
                self._publish(open_task, batch, None)
            else:
                writes, open_task.being_written = open_task.being_written, []
                self._refuse(open_task, writes, StoreUnavailable.nothing_changed())
        return True

    def _start_deadline(self, written: list[OpenTask], seconds: float) -> None:
        """Answer the callers that still wait after so many seconds."""
        self._cancel_deadline()
        self._deadline = self._loop.call_later(seconds, self._answer_unknown, written)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answer_unknown(self, written: list[OpenTask]) -> None:
        for open_task in written:
            for write in open_task.being_written:
                if write.done is not None and not write.done.done():
                    write.answered_unknown = True
                    write.answer(OutcomeUnknown())
        self._refuse_waiting(StoreUnavailable.nothing_changed())
        self._start_deadline(written, 1.0)  # for writes that come later

    def _refuse_waiting(self, refusal: StoreUnavailable) -> None:
        """Refuse the waiting writes, of which nothing was sent to the store."""
        dirty, self._dirty = self._dirty, {}
        for open_task in dirty.values():
            writes, open_task.waiting = open_task.waiting, []
            self._refuse(open_task, writes, refusal)

    async def _commit(self, batches: list[sql.Batch]) -> dict[str, sql.Refusal]:
        lease = self._lease()
        try:
            return await self._database.write(sql.commit, batches, lease)
        except StoreError:
            raise
        except Exception:  # of one of the tasks, which must not stop the others
            return await self._database.write(sql.commit_apart, batches, lease)

    def _lease(self) -> Lease:
        return Lease(self._holder, until=self._clock() + LEASE)

    def _make_batches(self, dirty: Sequence[OpenTask]) -> tuple[list[OpenTask], list[sql.Batch]]:
        """The batches of these tasks. A task of which none can be made must not stop the others."""
        written: list[OpenTask] = []
        batches: list[sql.Batch] = []
        for open_task in dirty:
            task_id = open_task.task.head.id
            try:
                batch = self._make_batch(open_task)
            except Exception:
                logger.exception("store.internal_error", task=task_id)
                self._close(open_task, StoreUnavailable.nothing_changed())
            else:
                written.append(open_task)
                batches.append(batch)
        return written, batches

    def _make_batch(self, open_task: OpenTask) -> sql.Batch:
        """Number the waiting updates. A number is used up only by a commit."""
        open_task.being_written, open_task.waiting = open_task.waiting, []
        writes = open_task.being_written
        updates, encoded = _merge(writes)
        first, at = open_task.task.last_seq + 1, self._clock()
        return sql.Batch(
            open_task.task,
            is_new=open_task.is_new,
            entries=[LogEntry(seq, at, update) for seq, update in enumerate(updates, first)],
            encoded=encoded,
            keys=[key for write in writes for key in write.keys],
            root=self._root,
            opencode=self.opencode,
            followers=self._interest.channels(open_task.task.head.id),
        )

    def _on_words(self, words: list[str]) -> None:
        """Remember who follows which task, and tell who is new that there may be news already."""
        fresh: dict[str, list[str]] = {}
        for word in words:
            if word.startswith("follow:"):
                task_id, _, channel = word.removeprefix("follow:").rpartition(":")
                if channel == self._database.wakeups.channel:
                    continue
                # Who follows a task may hear that it is claimed here before it is open here.
                mine = task_id in self._open or self._claiming.locked()
                if mine and self._interest.note(task_id, channel):
                    fresh.setdefault(channel, []).append(f"task:{task_id}:0")
        if fresh:
            telling = asyncio.create_task(self._tell(fresh))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _tell(self, words: Mapping[str, Sequence[str]]) -> None:
        with suppress(StoreError):  # they look by themselves, a little later
            await self._database.write(notify_each, words)

    def _publish(self, open_task: OpenTask, batch: sql.Batch, refused: sql.Refusal | None) -> None:
        if refused is not None and refused.taken and not open_task.is_new:
            self._drop_repeated(open_task, refused.taken)
            return
        if refused is not None:
            taken = KeyTaken() if refused.taken else _has_ended(open_task.task.head.id)
            self._close(open_task, taken)
            return
        if open_task.answered_unknown:
            self._close(open_task, StoreUnavailable.nothing_changed())
            return
        try:
            open_task.publish(batch.entries)
        except Exception:  # what is committed can be read from the table
            logger.exception("store.internal_error", task=open_task.task.head.id)
            self._close(open_task, OutcomeUnknown())
            return
        written, open_task.being_written = open_task.being_written, []
        for write in written:
            write.answer()
        if open_task.over:
            self._open.pop(open_task.task.head.id, None)
        open_task.wake()
        self._followers.look(open_task.task.head.id)  # readers from before it was claimed here
        self._call_hooks(open_task, batch)

    def _call_hooks(self, open_task: OpenTask, batch: sql.Batch) -> None:
        """Tell those who watch commits. What goes wrong with one harms nobody else."""
        if open_task.observer is not None:
            _call_hook(_observe, open_task.observer, batch.entries)
        if batch.counted and self.on_usage is not None:
            _call_hook(self.on_usage, list(batch.counted))
        if self.on_commit is not None:
            _call_hook(self.on_commit, open_task.task.head.id, batch.entries)
        if self.on_change is not None:
            _call_hook(self.on_change, open_task.task, batch.entries)

    def _drop_repeated(self, open_task: OpenTask, taken: frozenset[str]) -> None:
        """Refuse the writes whose key is taken, and write the others without them."""
        writes, open_task.being_written = open_task.being_written, []
        repeated = [write for write in writes if taken & {key.name for key in write.keys}]
        for write in repeated:
            write.answer(KeyTaken())
        open_task.waiting[:0] = [write for write in writes if write not in repeated]
        self._write_again(open_task)

    def _close(self, open_task: OpenTask, refusal: ServiceError | KeyTaken) -> None:
        """Stop writing a task that is no longer ours. Its readers go on with the table."""
        task_id = open_task.task.head.id
        refused = [*open_task.being_written, *open_task.waiting]
        open_task.being_written, open_task.waiting = [], []
        open_task.superseded = open_task.ending = open_task.over = True
        for write in refused:
            write.answer(refusal)
        if self._open.get(task_id) is open_task:
            del self._open[task_id]
        open_task.wake()

    def _refuse(
        self, open_task: OpenTask, writes: list[PendingWrite], refusal: StoreUnavailable
    ) -> None:
        """Refuse the writes that a caller waits for; keep the others and try them again."""
        for write in writes:
            write.answer(refusal)
        if open_task.is_new and not open_task.being_written:
            open_task.waiting.clear()  # the task does not exist without its first write
            self._open.pop(open_task.task.head.id, None)
        else:
            open_task.waiting[:0] = [write for write in writes if write.done is None]
        open_task.ending = any(
            write.ends for write in (*open_task.being_written, *open_task.waiting)
        )
        self._write_again(open_task)

    def _write_again(self, open_task: OpenTask) -> None:
        if open_task.waiting:
            self._dirty[open_task.task.head.id] = open_task
            self._wake.set()
        open_task.wake()

    # -- leases

    async def renew_leases(self) -> Sequence[str]:
        await self._database.read_clock()
        self._interest.keep(self._open.keys() | self._claimed)
        if not self._open and not self._claiming.locked():
            self._renewed_at = steady_seconds()  # what is opened next has a new lease
            return ()
        stored = {each for each, open_task in self._open.items() if not open_task.is_new}
        began = steady_seconds()
        to_stop, lost = await self._database.write(
            sql.renew_leases, self._lease(), ours=stored | self._claimed, root=self._root
        )
        self._renewed_at = began
        self._claimed -= lost
        for task_id in lost & self._open.keys():
            self._close(self._open[task_id], _has_ended(task_id))
        return to_stop

    async def expired(self) -> Sequence[str]:
        found = await self._database.read(
            sql.find_expired,
            self._holder,
            now=self._clock(),
            root=self._root,
            opencode=self.opencode,
        )
        # A task that is open here may have a new holder already. It is not claimed back before
        # this process has noticed.
        return [each for each in found if each not in self._open]

    async def claim(self, task_ids: Sequence[str]) -> Sequence[Task]:
        async with self._claiming:  # two at once would both claim the same tasks
            wanted = [task_id for task_id in task_ids if task_id not in self._open]
            ours = await self._database.write(
                sql.claim,
                self._lease(),
                wanted,
                now=self._clock(),
                root=self._root,
                opencode=self.opencode,
            )
            # Commits and renewals go on meanwhile: to read a long log takes a while. A renewal
            # removes from `_claimed` what another process holds by now.
            self._claimed = ours
            read: list[Task] = []
            try:
                for task_id in wanted:
                    with suppress(StoreError):  # logged; it may be of this task's rows alone
                        if task_id in self._claimed and (task := await self._read_claimed(task_id)):
                            read.append(task)
                claimed = [task for task in read if task.head.id in self._claimed]
            finally:
                self._claimed = set()
            for task in claimed:
                self._open[task.head.id] = open_task = OpenTask(
                    task,
                    is_new=False,
                    tail_start=task.last_seq,
                    observer=TaskObserver.of(task),
                )
                if task.lost is not None:
                    self._enqueue(open_task, [NodeReturned()])
        return [task.snapshot() for task in claimed]

    async def _read_claimed(self, task_id: str) -> Task | None:
        """A task that was just claimed; None if this process cannot continue it, or not now."""
        try:
            return await self._database.read(sql.load, task_id)
        except codec.Unreadable:  # one damaged task must not keep the others from going on
            if await self._database.write(sql.give_up, task_id, self._holder, now=self._clock()):
                logger.error("task.unreadable", task=task_id, advice="it has failed")
                metrics.TASKS_ENDED.labels(TaskState.FAILED.value, sql.UNREADABLE.type.value).inc()
        except StoreError:
            raise
        except Exception:  # of this process, such as a lack of memory; what is stored may be sound
            logger.exception("store.internal_error", task=task_id, advice="it is claimed again")
        await self._database.write(sql.release_one, task_id, self._holder)
        return None

    async def note_lost(self, since: int, *, return_ms: int) -> Sequence[str]:
        """Let the tasks of an OpenCode that no node has used since then say that they wait."""
        lost = await self._database.write(
            sql.note_lost, since=since, return_ms=return_ms, now=self._clock()
        )
        for task_id in lost:
            logger.warning("task.waits_for_node", task=task_id)
        return lost

    async def adopt_unstarted(
        self, mine: Node, *, alive_since: int, return_since: int
    ) -> Sequence[str]:
        """Let this node have what nodes that are gone have not begun. It is claimed with others."""
        adopted, self._adoption = await self._database.write(
            sql.adopt_unstarted,
            mine,
            after=self._adoption,
            alive_since=alive_since,
            return_since=return_since,
            now=self._clock(),
        )
        for task_id in adopted:
            logger.warning("task.adopted", task=task_id)
        return adopted

    async def earlier_tasks(self, head: TaskHead) -> Sequence[EarlierTask]:
        if self.opencode is None:
            return ()
        return await self._database.read(sql.earlier_tasks, head, self.opencode)

    async def fail_abandoned(self, before: int) -> Sequence[str]:
        """Fail the tasks of an OpenCode that no node has used since then."""
        failed = await self._database.write(
            sql.fail_abandoned, self._lease(), before=before, now=self._clock()
        )
        for task_id in failed:
            logger.warning("task.abandoned", task=task_id)
            metrics.TASKS_ENDED.labels(TaskState.FAILED.value, sql.ABANDONED.type.value).inc()
        return failed

    async def older_held_by_other(self, head: TaskHead) -> str | None:
        return await self._database.read(sql.older_held_by_other, head, self._holder)

    async def ask_to_stop(self, task_id: str) -> None:
        await self._database.write(sql.ask_to_stop, task_id)

    def is_mine(self, task_id: str) -> bool:
        return task_id in self._open

    async def confirm_lease(self, task_id: str) -> bool:
        open_task = self._open.get(task_id)
        if open_task is None or open_task.is_new:
            return open_task is not None
        if steady_seconds() - self._renewed_at < CONFIRM_SECONDS:
            return True
        # This process was stopped, or could not reach the database: another may hold the task.
        held = await self._database.read(sql.is_held, task_id, self._holder)
        if not held and self._open.get(task_id) is open_task:
            self._close(open_task, _has_ended(task_id))
        return held

    # -- what can be seen of it

    @property
    def gauges(self) -> dict[metrics.Gauge, Callable[[], metrics.Values]]:
        return {
            metrics.TASKS: self._states,
            metrics.INTERRUPTS_OPEN: self._open_interrupts,
            metrics.READERS: lambda: metrics.one(
                sum(not waiter.done() for each in self._open.values() for waiter in each.waiters)
            ),
            metrics.LOG_PENDING: lambda: metrics.one(
                sum(
                    len(write.updates)
                    for each in self._open.values()
                    for write in (*each.being_written, *each.waiting)
                )
            ),
        }

    def _states(self) -> metrics.Values:
        states = Counter(each.task.state for each in self._open.values())
        return {(state.value,): states[state] for state in TaskState if not state.terminal}

    def _open_interrupts(self) -> metrics.Values:
        kinds = Counter(
            kind_of(interrupt)
            for each in self._open.values()
            for interrupt in each.task.open_interrupts
        )
        return {(kind,): kinds[kind] for kind in ("permission", "question")}

    # -- keeping the file small

    async def _sweep_forever(self, retention: Retention) -> None:
        pause = min(FIRST_SWEEP_SECONDS, SWEEP_SECONDS)
        while True:
            await asyncio.sleep(pause)
            pause = SWEEP_SECONDS
            try:
                await self.sweep(retention)
            except StoreError:
                continue  # already logged; the next round tries again
            except Exception:
                logger.exception("store.sweep_failed")

    async def sweep(self, retention: Retention) -> None:
        """Delete what is older than its retention, in small steps: commits wait meanwhile."""
        for statement, seconds in (
            (sql.sweep, retention.replay),
            (sql.forget, retention.tasks),
            (conversations.forget, retention.tasks),
            (sql.forget_keys, retention.keys),
            (interrupts.forget, retention.requests),
            (usage.forget, retention.usage),
            (sql.forget_claims, 0.0),
        ):
            before = self._clock() - int(seconds * 1000)
            if seconds or statement not in (sql.forget, conversations.forget, usage.forget):
                while await self._database.write(statement, before) >= sql.SWEEP_ROWS:
                    pass
        while await self._database.write(sql.shrink):
            pass

    # -- reading

    async def get(self, owner: str, task_id: str) -> Task:
        task = await self._snapshot(task_id)
        if task is None:
            task = await self._database.read(sql.load, task_id)
        if task is None or task.head.owner != owner:
            raise TaskNotFound(task_id)
        return task

    async def _snapshot(self, task_id: str) -> Task | None:
        """A task as this process knows it, if nobody can know more."""
        open_task = self._open.get(task_id)
        if open_task is None or open_task.is_new or not await self._is_newest(open_task):
            return None
        return open_task.task.snapshot()

    async def _is_newest(self, open_task: OpenTask) -> bool:
        """Whether no other process can know more of a task than what is in memory here.

        If this process was stopped or cut off from the server, another may hold the task by now.
        While a commit is under way, others may have seen the state that it stores.
        """
        if not self._database.is_server:
            return True
        until = self._loop.time() + SETTLE_SECONDS
        while open_task.changes_state and self._loop.time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await open_task.changed()
        is_held = steady_seconds() - self._renewed_at < CONFIRM_SECONDS
        return is_held and not open_task.changes_state and not open_task.superseded

    async def owner_of(self, task_id: str) -> str | None:
        return await self._database.read(sql.owner_of_task, task_id)

    async def get_own(self, owner: str, task_id: str) -> Task:
        if task_id not in self._open:
            root = await self._database.read(sql.root_of_task, owner, task_id)
            if root not in (None, self._root):
                raise OtherWorkspace.of_task(task_id, root)
        return await self.get(owner, task_id)

    async def check_context(self, owner: str, context_id: str) -> None:
        root, opencode = await self._database.read(sql.home_of_context, owner, context_id)
        if root not in (None, self._root):
            raise OtherWorkspace.of_context(context_id, root)
        if self.opencode is not None and opencode not in (None, self.opencode):
            raise OtherOpenCode.of_context(context_id, opencode)

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._database.read(sql.page, query)

    async def listed(self, task_ids: Sequence[str], *, max_bytes: int) -> Sequence[Task | None]:
        mine = await asyncio.gather(*(self._snapshot(e) for e in task_ids if e in self._open))
        found: dict[str, Task | None] = {task.head.id: task for task in mine if task is not None}
        if stored := [each for each in task_ids if each not in found]:
            found |= await self._database.read(sql.load_several, stored, max_bytes)
        return [found[each] for each in takewhile(found.__contains__, task_ids)]

    async def known(self, owner: str, key: str) -> tuple[str, str] | None:
        return await self._database.read(sql.find_key, owner, key)

    async def as_of(self, task_id: str, seq: int) -> Task | None:
        return await self._database.read(sql.as_of, task_id, seq)

    # -- without output and history: implements `domain.ports.TaskSummaries`

    async def open_tasks(self, owner: str | None) -> Sequence[Task]:
        found: list[Task] = []
        for version in await self._database.read(summaries.open_versions, owner):
            open_task = self._open.get(version.task_id)
            if open_task is not None and not open_task.is_new:
                found.append(open_task.task.summary())
            elif (task := await self.summary(version)) is not None:
                found.append(task.summary())
        return found

    async def ended_tasks(
        self, owner: str | None, *, after: tuple[int, str], limit: int
    ) -> Sequence[Task]:
        return await self._database.read(summaries.ended, owner, after=after, limit=limit)

    async def held_by_others(self, since: int) -> Sequence[TaskVersion]:
        return await self._database.read(summaries.held_by_others, self._holder, since)

    async def summary(self, version: TaskVersion, base: Task | None = None) -> Task | None:
        return await self._database.read(summaries.read, version, base=base)

    def follow(self, task_id: str, after: int) -> SqlCursor:
        return SqlCursor(
            self._database,
            task_id,
            open_task=self._open.get(task_id),
            after=after,
            followers=self._followers,
        )


class SqlCursor:
    """Implements `domain.ports.Cursor`."""

    def __init__(
        self,
        database: Database,
        task_id: str,
        open_task: OpenTask | None,
        after: int,
        followers: Followers,
    ) -> None:
        self._database = database
        self._task_id = task_id
        self._open = open_task
        self._after = after
        self._followers = followers
        self._followed: FollowedTask | None = None  # where another process writes it
        self.caught_up = True

    def change(self) -> asyncio.Future[None] | None:
        open_task = self._open
        if open_task is None or open_task.over or self._after < open_task.task.last_seq:
            return None
        return open_task.changed()

    async def read(self) -> Sequence[LogEntry]:
        while True:
            open_task = self._open
            ours = open_task is not None and not open_task.superseded
            if open_task is None or not ours:
                if self._database.is_server:
                    return await self._read_followed()
                entries, more = await self._read_table()
            elif self._after < open_task.tail_start:
                entries, more = await self._read_table()
                # The table may be ahead of the task: its newest entries wait until `get` has them.
                shown = open_task.task.last_seq
                entries = [entry for entry in entries if entry.seq <= shown]
            else:
                first = self._after - open_task.tail_start
                entries = open_task.tail[first : first + sql.PAGE_ENTRIES]
                self.caught_up = first + sql.PAGE_ENTRIES >= len(open_task.tail)
                more = not open_task.over
            if entries:
                self._after = entries[-1].seq
                return entries
            if not more:
                return ()
            if open_task is not None and ours:
                await open_task.changed()
            else:
                await asyncio.sleep(POLL_SECONDS)  # another process writes it

    async def _read_table(self) -> tuple[Sequence[LogEntry], bool]:
        page = await read_patiently(self._database, self._task_id, self._after)
        self.caught_up = page.caught_up
        return page.entries, page.more

    async def _read_followed(self) -> Sequence[LogEntry]:
        """The next entries of a task that another process writes, shared with other readers."""
        while True:
            if self._followed is None:
                self._followed = self._followers.follow(
                    self._task_id, after=self._after, reader=self
                )
            followed, more = self._followed, True
            if self._after < followed.tail_start or followed.is_read(self._after):
                entries, more = await self._read_table()
            else:
                entries = followed.entries(self._after)
                self.caught_up = not entries or followed.is_newest(entries[-1])
            if entries:
                self._after = entries[-1].seq
                return entries
            if not more:
                return ()
            if followed.over:
                self._followed = None  # it could not be read on, or somebody has to begin anew
            else:
                await followed.changed()


def _merge(
    writes: Sequence[PendingWrite],
) -> tuple[Sequence[Update], Sequence[codec.Encoded]]:
    """The updates of several writes, deltas of one block merged, and how they are stored."""
    if len(writes) == 1:
        updates, encoded = writes[0].updates, writes[0].encoded
    else:
        updates = coalesce([update for write in writes for update in write.updates])
        # Merged deltas are new updates; most others were encoded when they were enqueued.
        known = {
            id(update): encoded
            for write in writes
            for update, encoded in zip(write.updates, write.encoded, strict=True)
        }
        encoded = [known.get(id(update)) for update in updates]
    return updates, [
        each or codec.encode(update) for update, each in zip(updates, encoded, strict=True)
    ]


def _call_hook(hook: Callable[..., None], *args: object) -> None:
    """Call what wants to know of commits. An exception of it must not end the writer."""
    try:
        hook(*args)
    except Exception:
        logger.exception("store.hook_failed", hook=getattr(hook, "__qualname__", repr(hook)))


def _observe(observer: TaskObserver, committed: Sequence[LogEntry]) -> None:
    if observer.wants(committed):
        observer.observe(committed)


def _is_plain(update: Update) -> bool:
    """Whether it can be encoded for certain, so that there is time to merge it with others."""
    return isinstance(update, BlockText) and update.append and update.text.isascii()


def _refusal(exc: Exception) -> StoreUnavailable:
    """The error for callers of whom nothing was stored."""
    if isinstance(exc, StoreUnavailable):
        return exc
    if not isinstance(exc, OutcomeUnknown):  # that was logged where it was raised
        logger.error("store.internal_error", exc_info=exc)
    return StoreUnavailable.nothing_changed()


def _has_ended(task_id: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        "This task has ended, so nothing can be added to it. Send a new message in the same "
        "context to go on.",
        task_id=task_id,
    )
