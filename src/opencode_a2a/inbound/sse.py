"""Events as Server-Sent Events: plain ASGI, bytes in, bytes out.

Events that are ready together are written in one piece, so a fast task costs few
writes and a slow reader only its position in the log. The stream ends with the
sequence of events, when the client leaves, or when the service stops; the task
continues in each case. A caller can be limited in how long its streams are open: a meter says when
that is used up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ServiceError
from ..observe import metrics
from ..service.limits import StreamMeter
from .events import Event, Events
from .framing import Framing

logger = structlog.get_logger()

KEEP_ALIVE = 3.0  # seconds; a common client gives up after five of silence
GOODBYE = b": the service stops; subscribe again with the last id to go on\nretry: 1000\n\n"
USED_UP = b": this caller may have no more streams today (stream_minutes_per_day)\n\n"
WRITE_BYTES = 65_536  # at once: a slow reader must not make us hold a whole page
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


open_streams: set[EventStream] = set()  # of this process


class EventStream(Response):
    def __init__(
        self,
        events: Events,
        framing: Framing,
        stopping: asyncio.Future[None],
        *,
        meter: Callable[[], StreamMeter] | None = None,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._framing = framing
        self._stopping = stopping
        self._meter = meter
        self.wrote_at = asyncio.get_running_loop().time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_streams.add(self)
        metrics.STREAMS_OPENED.inc()
        try:
            await self._run(receive, send)
        finally:
            open_streams.discard(self)
            self._events.close()

    async def _run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self.raw_headers = []  # sent, so not kept for the minutes that follow
        ended = asyncio.get_running_loop().create_future()

        def over(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        keep_alive = _KeepAlive(self, send)
        # The writer is a task of its own, so waking it does not resume every outer coroutine.
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(disconnected(receive))
        ends: tuple[asyncio.Future[None], ...] = (writing, leaving, self._stopping)
        meter = self._meter() if self._meter is not None else None
        if meter is not None:
            ends = (*ends, meter.used_up)
        try:
            for end in ends:
                end.add_done_callback(over)
            await ended
            handed_over = not writing.done() and not leaving.done()
        finally:
            self._stopping.remove_done_callback(over)
            if meter is not None:
                meter.stop()
            tasks = (writing, leaving, *keep_alive.stop())
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results[:2]:
            if isinstance(result, Exception):
                raise result
        if handed_over:
            last = USED_UP if meter is not None and meter.used_up.done() else GOODBYE
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _write(self, send: Send) -> None:
        clock, (before, after) = asyncio.get_running_loop().time, self._framing.sides()

        def frame(event: Event) -> bytes:
            """A client that comes back names the last event it has by its id."""
            name, data = event
            if isinstance(name, int):  # nearly always
                return b"id: %d\ndata: %b%b%b\n\n" % (name, before, data, after)
            return b"id: %b\ndata: %b%b%b\n\n" % (name, before, data, after)

        if (first := self._events.take_first()) is not None:
            await _send(send, frame(first))
            first = None  # it may be large
        try:
            while (found := await self._events.read()) is not None:
                if isinstance(found, tuple):  # by far the most frequent case
                    bodies: Iterable[bytes] = (frame(found),)
                else:
                    bodies = _joined(map(frame, found))
                for body in bodies:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self.wrote_at = clock()
                    metrics.STREAM_BYTES.inc(len(body))
                found, bodies, body = None, (), b""  # not kept while the stream waits for the task
        except ServiceError as exc:
            error = bytes(self._framing.refusal(exc).body)
            await _send(send, b"event: error\ndata: %b\n\n" % error)
        await _send(send, b"", more=False)


def _joined(events: Iterable[bytes]) -> Iterator[bytes]:
    """Events, joined into pieces to write."""
    frames, size = list[bytes](), 0
    for frame in events:
        frames.append(frame)
        size += len(frame)
        if size > WRITE_BYTES:
            yield b"".join(frames)
            frames, size = [], 0
    if frames:
        yield b"".join(frames)


class _KeepAlive:
    """Writes a comment whenever a stream was silent for a while.

    One timer per stream: a time limit on every read would cost more than the read.
    """

    def __init__(self, stream: EventStream, send: Send) -> None:
        self._stream = stream
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(KEEP_ALIVE, self._check)

    def _check(self) -> None:
        stream, now = self._stream, self._loop.time()
        if now >= stream.wrote_at + KEEP_ALIVE:
            stream.wrote_at = now
            if self._writing is None or self._writing.done():  # else the client reads nothing
                self._writing = asyncio.create_task(_send(self._send, b": keep-alive\n\n"))
        self._timer = self._loop.call_at(stream.wrote_at + KEEP_ALIVE, self._check)

    def stop(self) -> Sequence[asyncio.Task[None]]:
        """Write no more comments; the caller cancels the write that may be under way."""
        self._timer.cancel()
        return () if self._writing is None else (self._writing,)


async def _send(send: Send, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
    metrics.STREAM_BYTES.inc(len(body))


async def disconnected(receive: Receive) -> None:
    """Wait until the client has left. The body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
