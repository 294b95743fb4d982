"""A watch of many tasks as a sequence of events: summaries, and the events of followed tasks.

The sequences of the followed tasks are read side by side, each at most one page ahead of the
client. The id of an event says where all of them are, so that a client can come back with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from ..domain.task import TaskHead
from ..domain.values import TaskState
from ..domain.watching import WatchCursor
from ..service.watching import Batch, Summary, Watch
from .events import Event, TaskEvents
from .render import Renderer


@dataclass(slots=True)
class _Follow:
    """A task whose events are sent, and the number of the last one that was."""

    events: TaskEvents
    seq: int = 0
    reading: asyncio.Task[Event | Iterator[Event] | None] | None = None


class WatchEvents:
    """Implements `Events`. It ends only when the client leaves, or the service stops."""

    def __init__(self, watch: Watch, renderer: Renderer, *, names_owner: bool) -> None:
        self._watch = watch
        self._renderer = renderer
        self._names_owner = names_owner
        self._form = f"{renderer.form}o" if names_owner else renderer.form
        self._synced_at = watch.cursor.at
        self._then_synced_at = watch.cursor.at  # once all of `_to_follow` are begun
        self._follows: dict[str, _Follow] = {}
        self._followed: set[str] = set()  # also those that have ended since
        self._watching: asyncio.Task[Batch] | None = None
        self._to_follow: list[TaskHead] = list(watch.followed)

    def take_first(self) -> None:
        return None

    def close(self) -> None:
        readings = (follow.reading for follow in self._follows.values())
        for reading in filter(None, (self._watching, *readings)):
            reading.cancel()
        self._follows.clear()
        self._watch.end()

    async def read(self) -> Iterator[Event] | None:
        while self._to_follow:
            if (first := await self._begin(self._to_follow.pop(0))) is not None:
                return iter([first])
        self._synced_at = self._then_synced_at
        self._read_on()
        assert self._watching is not None, "the watch is always read"
        readings = [each.reading for each in self._follows.values() if each.reading is not None]
        await asyncio.wait([self._watching, *readings], return_when=asyncio.FIRST_COMPLETED)
        return self._read()

    def _read_on(self) -> None:
        """Have the next events of everything read that is not being read."""
        if self._watching is None:
            self._watching = _started(self._watch.next())
        for follow in self._follows.values():
            if follow.reading is None:
                follow.reading = _started(follow.events.read())

    def _read(self) -> Iterator[Event]:
        """What has been read, encoded while it is iterated."""
        for task_id, follow in list(self._follows.items()):
            if (reading := follow.reading) is None or not reading.done():
                continue
            follow.reading = None
            found = reading.result()
            if found is None:
                del self._follows[task_id]
                continue
            for seq, data in [found] if isinstance(found, tuple) else found:
                assert isinstance(seq, int), "a task numbers its events"
                follow.seq = seq
                yield self._id(), b'{"event":%b}' % data
        if (watching := self._watching) is not None and watching.done():
            self._watching = None
            yield from self._batch(watching.result())

    def _batch(self, batch: Batch) -> Iterator[Event]:
        for summary in batch.summaries:
            head = summary.task.head
            if head.context_id in self._watch.contexts and head.id not in self._followed:
                self._to_follow.append(head)
            yield self._id(), b'{"summary":%b}' % self._summary(summary)
        self._then_synced_at = batch.synced_at
        if batch.is_ready:
            yield self._id(), b'{"ready":true}'

    def _summary(self, summary: Summary) -> bytes:
        encoded = summary.encoded.get(self._form)
        if encoded is None:
            encoded = self._renderer.summary(summary.task, names_owner=self._names_owner)
            summary.encoded[self._form] = encoded
        return encoded

    async def _begin(self, head: TaskHead) -> Event | None:
        """Follow a task: the event that shows it; None if it is followed already, or is gone."""
        if head.id in self._followed:
            return None
        self._followed.add(head.id)
        if (replay := await self._watch.replay(head)) is None:
            return None
        snapshot, renderer = replay.snapshot, self._renderer
        first = renderer.first(snapshot, gap=replay.gap)
        if not snapshot.state.terminal:
            events = TaskEvents(renderer, snapshot, first=b"", cursor=replay.cursor, waits=True)
            self._follows[head.id] = _Follow(events, seq=snapshot.last_seq)
        return self._id(), b'{"event":%b}' % first

    def _id(self) -> bytes:
        """Where this watch is. A task that waits or has ended is sent as a whole again."""
        at = {
            task_id: follow.seq
            for task_id, follow in self._follows.items()
            if follow.events.state is not TaskState.SUBMITTED
        }
        return str(WatchCursor(self._synced_at, at)).encode()


def _started(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine)
