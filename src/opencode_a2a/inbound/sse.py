"""A task's log as Server-Sent Events: plain ASGI, bytes in, bytes out.

What is waiting is written in one piece, so a fast task costs few writes and a
slow reader only its place in the log. The stream ends with the task, where a
person is needed, when the client leaves, or when the service stops; the task
does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..domain.ports import Cursor
from ..domain.task import TaskHead
from ..domain.updates import InterruptAnswered, LogEntry, state_after
from ..domain.values import TaskState
from ..errors import ServiceError
from .failures import rest_error, rpc_error
from .render import Json, Renderer

logger = structlog.get_logger()

KEEP_ALIVE = 4.0  # seconds; a common client gives up after five of silence
GOODBYE = b": the service stops; subscribe again with the last id to go on\nretry: 1000\n\n"
WRITE_BYTES = 65_536  # at once: a slow reader must not make us hold a whole page
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds each event: nothing for REST, a JSON-RPC response otherwise."""

    before: bytes = b""
    after: bytes = b""

    @classmethod
    def rpc(cls, request_id: str | int | None) -> Envelope:
        head = b'{"jsonrpc":"2.0","id":' + orjson.dumps(request_id) + b',"result":'
        return cls(head, b"}")

    def frame(self, seq: int, payload: bytes) -> bytes:
        return b"id: %d\ndata: %b%b%b\n\n" % (seq, self.before, payload, self.after)


class EventStream(Response):
    def __init__(
        self,
        renderer: Renderer,
        envelope: Envelope,
        head: TaskHead,
        first: tuple[int, bytes],
        cursor: Cursor | None,
        stopping: asyncio.Future[None],
        *,
        request_id: str | int | None = None,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._renderer = renderer
        self._envelope = envelope
        self._head = head
        self._first = first
        self._cursor = cursor
        self._stopping = stopping
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait(
                {writing, leaving, self._stopping}, return_when=asyncio.FIRST_COMPLETED
            )
            handed_over = not writing.done() and not leaving.done()
        finally:
            for task in (writing, leaving):
                task.cancel()
            results = await asyncio.gather(writing, leaving, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if handed_over:
            await send({"type": "http.response.body", "body": GOODBYE, "more_body": False})

    async def _write(self, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        await write(self._envelope.frame(*self._first))
        over = self._cursor is None
        while not over and self._cursor is not None:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    entries = await self._cursor.read()
            except TimeoutError:
                await write(b": keep-alive\n\n")
                continue
            except ServiceError as exc:
                await write(b"event: error\ndata: %b\n\n" % orjson.dumps(self._error(exc)))
                break
            if not entries:
                break
            last = self._last(entries, self._cursor.caught_up)
            over = last is not None
            frames, size = [], 0
            for index, entry in enumerate(entries if last is None else entries[: last + 1]):
                payload = self._renderer.event(self._head, entry, last=index == last)
                if payload is not None:
                    frames.append(self._envelope.frame(entry.seq, payload))
                    size += len(frames[-1])
                if size > WRITE_BYTES:
                    await write(b"".join(frames))
                    frames, size = [], 0
            if frames:
                await write(b"".join(frames))
        await write(b"", more=False)

    def _last(self, entries: Sequence[LogEntry], caught_up: bool) -> int | None:
        """Which of these the stream ends with, if the task rests after them."""
        stays = not caught_up or self._renderer.stays_open
        for index in range(len(entries) - 1, -1, -1):
            update = entries[index].update
            state = state_after(update)
            if state is TaskState.INPUT_REQUIRED:
                if stays:
                    return None
                if not isinstance(update, InterruptAnswered):  # which nobody gets to see
                    return index
            elif state is not None:
                return index if state.terminal else None
        return None

    def _error(self, exc: ServiceError) -> Json:
        dialect = self._renderer.dialect
        if not self._envelope.before:
            return rest_error(exc, dialect)
        return {"jsonrpc": "2.0", "id": self._request_id, "error": rpc_error(exc, dialect)}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
