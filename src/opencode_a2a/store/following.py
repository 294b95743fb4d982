"""Reads tasks that another process writes, once for all readers of a task in this process.

`FollowedTask` keeps the newest entries in memory, like the process that writes the task does.
`Followers` looks into the table when a notification names a task, together for all tasks that it
names, and otherwise now and then for all that are followed. While the database cannot be used,
readers wait.

Who writes a task notifies all processes of a new state (`state:TASK:NUMBER`), and of everything
else only those that follow it (`task:TASK:NUMBER`). These say so to all when they begin to
(`follow:TASK:CHANNEL`), every few seconds while they do, and when another process has taken the
task up (`claimed:TASK:0`). The one that writes it remembers that for a while (`Interest`). A word
that is lost costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from weakref import WeakSet

import structlog

from ..domain.updates import LogEntry
from ..errors import (
    StoreError,
    StoreUnavailable,
)
from . import statements as sql
from .database import Database
from .wakeups import notify

logger = structlog.get_logger()

POLL_SECONDS = 1.0  # between two looks, while notifications arrive
POLL_SECONDS_UNHEARD = 0.25  # … and while they do not
OUTAGE_SECONDS = (0.2, 0.5, 1.0, 2.0)  # between two attempts to read
TAIL_ENTRIES = 2_048  # in memory; older ones are read from the table
ANNOUNCE_SECONDS = 5.0  # between two times that a process says what it follows
INTEREST_SECONDS = 16.0  # for which that is remembered
ANNOUNCED_AT_ONCE = 90  # tasks in a notification
READ_AT_ONCE = 32  # tasks


class Interest:
    """Which tasks of this process others follow, as they have said."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until: dict[str, dict[str, float]] = {}  # by task and channel

    def note(self, task_id: str, channel: str) -> bool:
        """A process follows a task. Whether that is new."""
        now, channels = self._clock(), self._until.setdefault(task_id, {})
        is_new = channels.get(channel, 0.0) < now
        channels[channel] = now + INTEREST_SECONDS
        return is_new

    def channels(self, task_id: str) -> Collection[str]:
        """Who is to know of news of this task."""
        if (channels := self._until.get(task_id)) is None:
            return ()
        now = self._clock()
        return {channel for channel, until in channels.items() if until >= now}

    def keep(self, task_ids: Collection[str]) -> None:
        """Forget all other tasks."""
        for task_id in [each for each in self._until if each not in task_ids]:
            del self._until[task_id]


async def announce(database: Database, task_ids: Sequence[str]) -> None:
    """Have whoever writes these tasks notify this process for a while."""
    for start in range(0, len(task_ids), ANNOUNCED_AT_ONCE):
        some = task_ids[start : start + ANNOUNCED_AT_ONCE]
        words = [f"follow:{task_id}:{database.wakeups.channel}" for task_id in some]
        with suppress(StoreError):
            await database.write(notify, words)


async def read_patiently(database: Database, task_id: str, after: int) -> sql.Page:
    """The next entries of a task. A server that is away is waited for; a file is not."""
    failures = 0
    while True:
        try:
            return (await database.read(sql.next_entries, {task_id: after}))[task_id]
        except StoreUnavailable:
            if not database.is_server:
                raise
        await asyncio.sleep(OUTAGE_SECONDS[min(failures, len(OUTAGE_SECONDS) - 1)])
        failures += 1


class FollowedTask:
    """A task of another process, and what was read of it."""

    def __init__(self, after: int) -> None:
        self.readers: WeakSet[object] = WeakSet()  # when all have left, nothing is read any more
        self.tail: list[LogEntry] = []
        self.tail_start = after  # the number before the first entry of the tail
        self.last = after  # the number up to which it was read
        self.over = False
        self._changed: asyncio.Future[None] | None = None

    async def changed(self) -> None:
        """Wait for more entries, or for the end."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def add(self, page: sql.Page) -> None:
        if page.entries:
            self.tail.extend(page.entries)
            self.last = page.entries[-1].seq
            if len(self.tail) > 2 * TAIL_ENTRIES:
                del self.tail[:-TAIL_ENTRIES]
                self.tail_start = self.tail[0].seq - 1
        self.over = page.caught_up and not page.more
        if page.entries or self.over:
            self._wake()

    def end(self) -> None:
        """It is not read any more: whoever still wants to has to begin anew."""
        self.over = True
        self._wake()

    def entries(self, after: int) -> Sequence[LogEntry]:
        """What follows in the tail. Entries of a swept task have gaps in their numbers."""
        first = after - self.tail_start
        if len(self.tail) and self.tail[-1].seq - self.tail_start == len(self.tail):
            return self.tail[first : first + sql.PAGE_ENTRIES]
        return [entry for entry in self.tail if entry.seq > after][: sql.PAGE_ENTRIES]

    def is_newest(self, entry: LogEntry) -> bool:
        """Whether nothing after this entry was read yet."""
        return entry.seq == self.last

    def is_read(self, after: int) -> bool:
        """Whether nothing more comes from here after this number."""
        return self.over and after >= self.last

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)


class Followers:
    """The tasks of other processes that somebody here reads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._followed: dict[str, FollowedTask] = {}
        self._unread: dict[str, None] = {}  # tasks to look at, in order
        self._to_read = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._unannounced: set[str] = set()
        self._to_announce = asyncio.Event()
        self._unsubscribe: Callable[[], None] = database.wakeups.subscribe(self._on_words)

    def follow(self, task_id: str, *, after: int, reader: object) -> FollowedTask:
        followed = self._followed.get(task_id)
        if followed is None or followed.over:
            followed = FollowedTask(after)
            followed.readers.add(reader)
            self._followed[task_id] = followed
            self._look([task_id])
            self._announce([task_id])
        followed.readers.add(reader)
        return followed

    def look(self, task_id: str) -> None:
        """A followed task may have news."""
        if task_id in self._followed:
            self._look([task_id])

    def _look(self, task_ids: Iterable[str]) -> None:
        self._unread |= dict.fromkeys(task_ids)
        self._to_read.set()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_while_following())

    async def _read_while_following(self) -> None:
        """Read what notifications name, and everything when it is time to look."""
        clock = asyncio.get_running_loop().time
        look_at, most, failures = clock(), READ_AT_ONCE, 0
        try:
            while self._followed:
                if clock() >= look_at:
                    self._unread |= dict.fromkeys(self._followed)
                    heard = self._database.wakeups.connected
                    look_at = clock() + (POLL_SECONDS if heard else POLL_SECONDS_UNHEARD)
                some = [*islice(self._unread, most)]
                for task_id in some:
                    del self._unread[task_id]
                if await self._read([each for each in some if each in self._followed]):
                    most, failures = min(2 * most, READ_AT_ONCE), 0
                else:  # the server is away, or cannot read one task: that must not stop all
                    self._unread |= dict.fromkeys(some)
                    most = max(1, most // 2)
                    await asyncio.sleep(OUTAGE_SECONDS[min(failures, len(OUTAGE_SECONDS) - 1)])
                    failures += 1
                if not self._unread:
                    self._to_read.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(look_at):
                            await self._to_read.wait()
        finally:
            for followed in self._followed.values():
                followed.end()
            self._followed.clear()

    async def _read(self, task_ids: Sequence[str]) -> bool:
        """Read on in these tasks. False when the database did not answer."""
        after = {task_id: self._followed[task_id].last for task_id in task_ids}
        try:
            pages = await self._database.read(sql.next_entries, after) if after else {}
        except StoreUnavailable:
            return False
        except Exception:
            if len(task_ids) > 1:  # one of them cannot be decoded
                return all([await self._read([task_id]) for task_id in task_ids])
            logger.exception("store.internal_error", task=task_ids[0])
            self._followed.pop(task_ids[0]).end()
            return True
        for task_id, page in pages.items():
            followed = self._followed[task_id]
            followed.add(page)
            if not followed.readers:
                followed.end()
            if followed.over:
                del self._followed[task_id]
            elif not page.caught_up:
                self._unread[task_id] = None
        return True

    def _announce(self, task_ids: Iterable[str]) -> None:
        self._unannounced.update(task_ids)
        self._to_announce.set()
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce_while_following())

    async def _announce_while_following(self) -> None:
        """Say which tasks are followed here: new ones at once, all of them now and then."""
        clock = asyncio.get_running_loop().time
        all_at = clock() + ANNOUNCE_SECONDS
        while self._followed:
            if clock() >= all_at:
                self._unannounced.update(self._followed)
                all_at = clock() + ANNOUNCE_SECONDS
            task_ids = sorted(self._unannounced)
            self._to_announce.clear()
            self._unannounced.clear()
            await announce(self._database, task_ids)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(all_at):
                    await self._to_announce.wait()

    def _on_words(self, words: list[str]) -> None:
        named: list[str] = [] if words else [*self._followed]
        for word in words:
            if word.startswith(("task:", "state:", "claimed:")):
                task_id = word.partition(":")[2].rpartition(":")[0]
                if task_id in self._followed:
                    named.append(task_id)
                    if word.startswith("claimed:"):
                        self._announce([task_id])
        if named:
            self._look(named)

    async def close(self) -> None:
        self._unsubscribe()
        jobs = [job for job in (self._reading, self._announcing) if job is not None]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
