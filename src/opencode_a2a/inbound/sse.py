"""A task's log as Server-Sent Events: plain ASGI, bytes in, bytes out.

What is waiting is written in one piece, so a fast task costs few writes and a
slow reader only its place in the log. The stream ends with the task, where a
person is needed, when the client leaves, or when the service stops; the task
does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.ports import Cursor
from ..domain.task import Task
from ..domain.updates import InterruptAnswered, LogEntry, MessageAdded
from ..domain.values import TaskState
from ..errors import ServiceError
from .failures import rest_error, rpc_error
from .render import DATA, END, Json, Renderer

logger = structlog.get_logger()

KEEP_ALIVE = 3.0  # seconds; a common client gives up after five of silence
GOODBYE = b": the service stops; subscribe again with the last id to go on\nretry: 1000\n\n"
LATER = "opencode_a2a.streams"  # in the scope of a request: where its stream is left
WRITE_BYTES = 65_536  # at once: a slow reader must not make us hold a whole page
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the data of each event: nothing for REST, a JSON-RPC response otherwise."""

    before: bytes = b""
    after: bytes = b""

    @classmethod
    def rpc(cls, request_id: str | int | None) -> Envelope:
        head = b'{"jsonrpc":"2.0","id":' + orjson.dumps(request_id) + b',"result":'
        return cls(head, b"}")

    def around(self, event: bytes) -> bytes:
        if not self.before:
            return event
        begin = event.index(DATA) + len(DATA)
        data = memoryview(event)[begin : -len(END)]  # the first of a stream may be large
        return b"".join((event[:begin], self.before, data, self.after, END))


class Streams:
    """Lets a stream begin when the application is done with its request.

    A stream lasts for minutes. Run inside the application it would keep all of that alive, and
    hand every write through each of its layers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = list[EventStream]()
        # A scope of its own, too: what the application keeps in it goes with it.
        await self._app({**scope, LATER: streams}, receive, send)
        for stream in streams:
            await stream.run(receive, send)


class EventStream(Response):
    def __init__(
        self,
        renderer: Renderer,
        envelope: Envelope,
        told: Task,
        first: bytes,
        cursor: Cursor | None,
        stopping: asyncio.Future[None],
        *,
        waits: bool = False,
        request_id: str | int | None = None,
    ) -> None:
        """Begins with `told`. If the client `waits`, it does not end where that rests."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._renderer = renderer
        self._envelope = envelope
        self._head = told.head
        self._first = first
        self._state = told.state  # of the task, where the stream has come to
        self._ends = not waits
        self._cursor = cursor
        self._stopping = stopping
        self._request_id = request_id
        self.wrote_at = asyncio.get_running_loop().time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if LATER in scope:
            scope[LATER].append(self)
        else:
            await self.run(receive, send)

    async def run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self.raw_headers = []  # not kept for the long rest, nor is what follows
        ended = asyncio.get_running_loop().create_future()

        def over(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        pulse = _Pulse(self, send)
        # A task of its own: to wake it does not go through everything that stands around this one.
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_gone(receive))
        ends: tuple[asyncio.Future[None], ...] = (writing, leaving, self._stopping)
        try:
            for end in ends:
                end.add_done_callback(over)
            await ended
            handed_over = not writing.done() and not leaving.done()
        finally:
            self._stopping.remove_done_callback(over)
            tasks = (writing, leaving, *pulse.stop())
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results[:2]:
            if isinstance(result, Exception):
                raise result
        if handed_over:
            await send({"type": "http.response.body", "body": GOODBYE, "more_body": False})

    async def _write(self, send: Send) -> None:
        clock, renderer, envelope = asyncio.get_running_loop().time, self._renderer, self._envelope
        first, self._first = envelope.around(self._first), b""  # not kept for the long rest
        await _send(send, first)
        del first
        over = self._cursor is None
        while not over and self._cursor is not None:
            try:
                if (change := self._cursor.change()) is not None:
                    await change
                entries = await self._cursor.read()
            except ServiceError as exc:
                error = orjson.dumps(self._error(exc))
                await _send(send, b"event: error\ndata: %b\n\n" % error)
                break
            if not entries:
                break
            if len(entries) == 1 and self._state is TaskState.WORKING and not entries[0].state:
                # One more piece of a running text: nearly all there is, for each of its readers.
                event = renderer.event(self._head, entries[0], self._state)
                if event is not None:
                    body = envelope.around(event)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self.wrote_at = clock()
            else:
                last = self._last(entries, self._cursor.caught_up)
                over = last is not None
                for body in self._bodies(entries, last):
                    await _send(send, body)
                    self.wrote_at = clock()
            body, event, entries = b"", None, ()  # not kept for the long rest
        await _send(send, b"", more=False)

    def _bodies(self, entries: Sequence[LogEntry], last: int | None) -> Iterator[bytes]:
        """What is written, up to the entry the stream ends with if there is one."""
        frames, size = list[bytes](), 0
        for index, entry in enumerate(entries if last is None else entries[: last + 1]):
            if entry.state is not None:
                self._state, self._ends = entry.state, True
            event = self._renderer.event(self._head, entry, self._state, last=index == last)
            if event is not None:
                frames.append(self._envelope.around(event))
                size += len(frames[-1])
            if size > WRITE_BYTES:
                yield b"".join(frames)
                frames, size = [], 0
        if frames:
            yield b"".join(frames)

    def _last(self, entries: Sequence[LogEntry], caught_up: bool) -> int | None:
        """Which of these the stream ends with, if the task rests after them."""
        stays = not caught_up or self._renderer.stays_open
        shown: int | None = None  # the last that anybody gets to see
        for index in range(len(entries) - 1, -1, -1):
            state, update = entries[index].state, entries[index].update
            if shown is None and not isinstance(update, InterruptAnswered | MessageAdded):
                shown = index
            if state is TaskState.INPUT_REQUIRED:
                if stays:
                    return None
                if not isinstance(update, InterruptAnswered):
                    return index
            elif state is not None:
                return index if state.terminal else None
        resting = self._state is TaskState.INPUT_REQUIRED and self._ends
        return shown if resting and not stays else None

    def _error(self, exc: ServiceError) -> Json:
        dialect = self._renderer.dialect
        if not self._envelope.before:
            return rest_error(exc, dialect)
        return {"jsonrpc": "2.0", "id": self._request_id, "error": rpc_error(exc, dialect)}


class _Pulse:
    """A sign of life whenever a stream was silent for a while.

    One timer beside it, because a time limit on every single read would cost more than the read.
    """

    def __init__(self, stream: EventStream, send: Send) -> None:
        self._stream = stream
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(KEEP_ALIVE, self._beat)

    def _beat(self) -> None:
        stream, now = self._stream, self._loop.time()
        if now >= stream.wrote_at + KEEP_ALIVE:
            stream.wrote_at = now
            if self._said is None or self._said.done():  # else its reader takes nothing
                self._said = asyncio.create_task(_send(self._send, b": keep-alive\n\n"))
        self._timer = self._loop.call_at(stream.wrote_at + KEEP_ALIVE, self._beat)

    def stop(self) -> Sequence[asyncio.Task[None]]:
        """No more signs; what is left to wait for."""
        self._timer.cancel()
        return () if self._said is None else (self._said,)


async def _send(send: Send, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
