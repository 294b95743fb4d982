"""Everything that changes about a caller's tasks, for those who watch all of them at once.

A change is told as the summary of its task as it is now, so a watcher that is slow, or was away,
needs only the latest of each task. A `_Board` keeps those of one caller, in the order in which they
changed, while somebody watches; a watcher holds a number, its position there. A watcher that is
further behind than the board reaches starts over from the database.

    commit ──► board (latest summary of each task) ──► watchers
    other processes ──► database ──► one look per second ──┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from ..domain.ports import TaskLog, TaskSummaries, TaskVersion
from ..domain.task import Task, TaskHead
from ..domain.updates import LogEntry, changes_summary
from ..domain.watching import WatchCursor
from ..errors import StoreUnavailable, TaskNotFound
from .replay import Replay, replay, replay_from

logger = structlog.get_logger()

BOARD_TASKS = 512  # summaries that a board keeps
LOOK_SECONDS = 1.0  # between two looks at what other processes have done
PAGE_TASKS = 100  # ended tasks that are read at once
# A process stamps an end before it commits it, by its own clock. Ends that were stamped so long
# before the time of a cursor are sent again, because they may have been committed after it.
OVERLAP_MS = 60_000
KNOWN_TASKS = 8_192


@dataclass(slots=True)
class Summary:
    """A task without its output and history; `encoded` keeps its wire bytes for all watchers."""

    task: Task
    encoded: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a watcher is sent next."""

    summaries: Sequence[Summary] = ()
    synced_at: int = 0  # with it, everything before this time was sent
    is_ready: bool = False  # everything that had changed before the stream began was sent


@dataclass(frozen=True, slots=True)
class WatchStart:
    cursor: WatchCursor  # where the stream begins, and could begin again
    ended_since: int | None  # tasks that ended before are not sent; None: nor are later ones

    @classmethod
    def of(cls, cursor: WatchCursor | None, *, since: int | None, now: int) -> WatchStart:
        if cursor is None and since is None:
            return cls(WatchCursor(now), None)
        times = [] if cursor is None else [cursor.at]
        times += [] if since is None else [since + OVERLAP_MS]
        at = min(now, *times)
        return cls(WatchCursor(at, cursor.tasks if cursor is not None else {}), at - OVERLAP_MS)


class _Board:
    """The latest summary of each task of a caller that has changed, while somebody watches."""

    def __init__(self) -> None:
        self.watchers = 0
        self.version = 0
        self._latest: dict[str, tuple[int, Summary]] = {}  # the last changed one is the last
        self._forgotten = 0  # the newest version that is not kept
        self._changed = asyncio.get_running_loop().create_future()

    def put(self, summary: Summary) -> None:
        self.version += 1
        task_id = summary.task.head.id
        self._latest.pop(task_id, None)
        self._latest[task_id] = self.version, summary
        if len(self._latest) > BOARD_TASKS:
            oldest = next(iter(self._latest))
            self._forgotten, _ = self._latest.pop(oldest)
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def after(self, version: int) -> list[Summary] | None:
        """What has changed after a version; None if that is not known any more."""
        if version < self._forgotten:
            return None
        newer: list[Summary] = []
        for changed_at, summary in reversed(self._latest.values()):
            if changed_at <= version:
                break
            newer.append(summary)
        return newer[::-1]

    async def changed(self) -> None:
        await asyncio.shield(self._changed)  # others wait for it, too


class TaskWatches:
    """All boards of this process, and what fills them."""

    def __init__(self, *, log: TaskLog, summaries: TaskSummaries, clock: Callable[[], int]) -> None:
        self.log = log
        self.summaries = summaries
        self.clock = clock
        self.synced_at = 0  # what other processes did before is on the boards
        self._boards: dict[str | None, _Board] = {}  # by owner; None: everybody's
        self._known: dict[str, TaskVersion] = {}  # what was seen of other processes' tasks
        self._bases: dict[str, Task] = {}  # of those that are open, what was read so far
        self._looking = asyncio.Lock()
        self._watched = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at what other processes do, while anybody watches."""
        looking = asyncio.create_task(self._look_forever())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def open(
        self,
        owner: str | None,
        *,
        tasks: Sequence[str] = (),
        contexts: Sequence[str] = (),
        cursor: WatchCursor | None = None,
        since: int | None = None,
    ) -> Watch:
        """A watch of somebody's tasks, or of everybody's.

        It begins with the tasks that are open, those that have ended since the time of the
        `cursor`, and those that have ended `since` then. `TaskNotFound` for a task in `tasks` that
        is not theirs.
        """
        heads = [await self._head(owner, task_id) for task_id in tasks]
        for task_id in cursor.tasks if cursor is not None else ():
            # Its summary may have been sent already, while its events were not.
            with suppress(TaskNotFound):
                if (head := await self._head(owner, task_id)).context_id in contexts:
                    heads.append(head)
        start = WatchStart.of(cursor, since=since, now=self.clock())
        return Watch(self, owner, followed=heads, contexts=frozenset(contexts), start=start)

    async def _head(self, owner: str | None, task_id: str) -> TaskHead:
        found = owner if owner is not None else await self.log.owner_of(task_id)
        if found is None:
            raise TaskNotFound(task_id)
        return (await self.log.get(found, task_id)).head

    def board(self, owner: str | None) -> _Board:
        """The board of an owner, for one more watcher."""
        board = self._boards.setdefault(owner, _Board())
        board.watchers += 1
        self._watched.set()
        return board

    def leave(self, owner: str | None) -> None:
        board = self._boards[owner]
        board.watchers -= 1
        if board.watchers == 0:
            del self._boards[owner]
        if not self._boards:
            self._watched.clear()
            self._known.clear()
            self._bases.clear()
            self.synced_at = 0

    def on_change(self, task: Task, entries: Sequence[LogEntry]) -> None:
        """A commit of this process. Runs for every one, so it is quick where nobody watches."""
        if not self._boards or not any(changes_summary(entry.update) for entry in entries):
            return
        if task.state.terminal:
            self._note(TaskVersion(task.head.id, task.head.owner, state=task.state.value, seq=0))
        self._put(task)

    def _put(self, task: Task) -> None:
        boards = (self._boards.get(task.head.owner), self._boards.get(None))
        if any(boards):
            summary = Summary(task.summary())
            for board in filter(None, boards):
                board.put(summary)

    def _note(self, version: TaskVersion) -> None:
        self._known[version.task_id] = version
        if len(self._known) > KNOWN_TASKS:
            del self._known[next(iter(self._known))]

    async def begin(self) -> None:
        """Return when everything that others do from now on will come to the boards."""
        async with self._looking:
            if self.synced_at == 0:
                now = self.clock()
                for version in await self.summaries.held_by_others(now - OVERLAP_MS):
                    self._note(version)
                self.synced_at = now

    async def _look_forever(self) -> None:
        while True:
            await self._watched.wait()
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except StoreUnavailable:  # logged where it was raised; the next look tries again
                pass
            except Exception:
                logger.exception("watch.internal_error")

    async def look(self) -> None:
        """Put on the boards what other processes have done since the last look."""
        async with self._looking:
            if self.synced_at == 0:
                return  # nobody watches, or the first watcher has not begun
            now = self.clock()
            for version in await self.summaries.held_by_others(self.synced_at - OVERLAP_MS):
                if self._known.get(version.task_id) != version:
                    await self._take(version)
            if self._boards:
                self.synced_at = now

    async def _take(self, version: TaskVersion) -> None:
        watched = None in self._boards or version.owner in self._boards
        if watched:
            base = self._bases.get(version.task_id)
            before = replace(base.summary(), last_seq=0) if base is not None else None
            task = await self.summaries.summary(version, base)
            if task is not None and replace(task.summary(), last_seq=0) != before:
                self._put(task)
            if task is not None and not task.state.terminal:
                self._bases[version.task_id] = task
            else:
                self._bases.pop(version.task_id, None)
        self._note(version)


class Watch:
    """One watcher. Between the first `next` and `end` it has a place at the board."""

    def __init__(
        self,
        watches: TaskWatches,
        owner: str | None,
        *,
        followed: Sequence[TaskHead],
        contexts: frozenset[str],
        start: WatchStart,
    ) -> None:
        self.owner = owner
        self.followed = followed  # tasks whose events are wanted
        self.contexts = contexts  # the same, of all their tasks that are open, or change
        self.cursor = start.cursor
        self._watches = watches
        self._board: _Board | None = None
        self._version = 0  # of the board, up to which everything was sent
        self._synced_at = start.cursor.at
        self._phase: Literal["open", "ended", "ready", "live"] = "open"
        self._after = (start.ended_since, "") if start.ended_since is not None else None
        self._began_at = 0

    async def next(self) -> Batch:
        """What to send next, waiting for something. Safe to cancel only at the end."""
        watches = self._watches
        if self._board is None:
            self._board = watches.board(self.owner)
        if self._phase == "open":
            await watches.begin()
            self._version, self._began_at = self._board.version, watches.clock()
            found = await watches.summaries.open_tasks(self.owner)
            self._phase = "ended" if self._after is not None else "ready"
            return Batch([Summary(task) for task in found], self._synced_at)
        if self._phase == "ended" and (ended := await self._ended()):
            return Batch([Summary(task) for task in ended], self._synced_at)
        if self._phase != "live":
            self._phase, self._synced_at = "live", self._began_at
            return Batch(synced_at=self._synced_at, is_ready=True)
        return await self._live(self._board)

    async def _ended(self) -> Sequence[Task]:
        assert self._after is not None, "otherwise there is no such phase"
        ended = await self._watches.summaries.ended_tasks(
            self.owner, after=self._after, limit=PAGE_TASKS
        )
        if ended:
            self._after = (ended[-1].status_at, ended[-1].head.id)
            self._synced_at = max(self._synced_at, ended[-1].status_at)
        return ended

    async def _live(self, board: _Board) -> Batch:
        while True:
            now = min(self._watches.clock(), self._watches.synced_at)
            changed = board.after(self._version)
            if changed is None:  # too far behind: all over again
                self._phase, self._after = "open", (self._synced_at - OVERLAP_MS, "")
                return await self.next()
            if changed:
                self._version, self._synced_at = board.version, now
                return Batch(changed, now)
            await board.changed()

    def end(self) -> None:
        if self._board is not None:
            self._board = None
            self._watches.leave(self.owner)

    async def replay(self, head: TaskHead) -> Replay | None:
        """A task and what follows, from the cursor on if that names it; None if it is gone."""
        log = self._watches.log
        try:
            task = await log.get(head.owner, head.id)
        except TaskNotFound:
            return None
        seq = self.cursor.tasks.get(head.id)
        return replay(log, task) if seq is None else await replay_from(log, task, seq)
