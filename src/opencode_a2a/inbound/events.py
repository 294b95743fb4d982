"""A task as a sequence of events: the task itself, then what its log adds, until it rests.

Each event is one encoded JSON value with its number. How events travel is left to `sse.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..domain.ports import Cursor
from ..domain.task import Task
from ..domain.updates import InterruptAnswered, LogEntry, MessageAdded
from ..domain.values import TaskState
from .render import Renderer

Event = tuple[int | bytes, bytes]  # its number in the log, or another id, and JSON


class Events(Protocol):
    """A sequence of events for one reader."""

    def take_first(self) -> Event | None:
        """The event that the sequence begins with, once; None where it has to be read."""
        ...

    async def read(self) -> Event | Iterator[Event] | None:
        """The next event or events, waiting for some; None after the last.

        Several are encoded while they are iterated.
        """
        ...

    def close(self) -> None:
        """Nobody reads any more."""
        ...


class TaskEvents:
    """Begins with `first`, which shows `task`; continues with what `cursor` reads.

    It ends with the task, or where a person is needed. If the client `waits`, it does not end
    because `task` needs a person already.
    """

    def __init__(
        self,
        renderer: Renderer,
        task: Task,
        *,
        first: bytes,
        cursor: Cursor | None,
        waits: bool = False,
    ) -> None:
        self._renderer = renderer
        self._head = task.head
        self._state = task.state  # of the task, after the latest event of the sequence
        self._first = [(task.last_seq, first)]
        self._cursor = cursor  # None when the sequence has no more entries
        self._ends = not waits

    def take_first(self) -> Event:
        """The event that shows the task, once: it may be large and is not kept here."""
        return self._first.pop()

    @property
    def state(self) -> TaskState:
        """Of the task, after the latest event."""
        return self._state

    def close(self) -> None:
        self._cursor = None

    async def read(self) -> Event | Iterator[Event] | None:
        while (cursor := self._cursor) is not None:
            if (change := cursor.change()) is not None:
                await change
            entries = await cursor.read()
            if not entries:
                break
            if len(entries) > 1 or self._state is not TaskState.WORKING or entries[0].state:
                last = self._last(entries, cursor.caught_up)
                if last is not None:
                    self._cursor = None
                return self._events(entries, last)
            # One more piece of a running text: by far the most frequent case.
            entry = entries[0]
            if (data := self._renderer.event(self._head, entry, self._state)) is not None:
                return entry.seq, data
        return None

    def _events(self, entries: Sequence[LogEntry], last: int | None) -> Iterator[Event]:
        """What clients see of the entries, up to the one the sequence ends with."""
        for index, entry in enumerate(entries if last is None else entries[: last + 1]):
            if entry.state is not None:
                self._state, self._ends = entry.state, True
            ends = index == last and entry.state is not None
            data = self._renderer.event(self._head, entry, self._state, last=ends)
            if data is not None:
                yield entry.seq, data
        if last is not None and (entry := entries[last]).state is None:
            # The status that the sequence ends with was sent before more of the log was read.
            yield entry.seq, self._renderer.last_status(self._head, entry, self._state)

    def _last(self, entries: Sequence[LogEntry], caught_up: bool) -> int | None:
        """The index of the entry the sequence ends with, if the task rests after these."""
        stays = not caught_up or self._renderer.stays_open
        newest: int | None = None  # the newest entry that is the agent's own
        for index in range(len(entries) - 1, -1, -1):
            state, update = entries[index].state, entries[index].update
            if newest is None and not isinstance(update, InterruptAnswered | MessageAdded):
                newest = index
            if state is TaskState.INPUT_REQUIRED:
                if stays:
                    return None
                if not isinstance(update, InterruptAnswered):
                    return index
            elif state is not None:
                return index if state.terminal else None
        resting = self._state is TaskState.INPUT_REQUIRED and self._ends
        return newest if resting and not stays else None
