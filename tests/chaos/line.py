"""A TCP proxy that can be cut at the worst moment: between the service and OpenCode, or others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import urlsplit

EVENTS = (b"GET /global/event", b"GET /api/event")  # of OpenCode 1.x and 2
PROMPT = b"/prompt"
Moment = Literal["before", "after"]


@dataclass(eq=False, slots=True)
class _Call:
    """One connection of the service, and ours to OpenCode for it."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    events: bool = False
    doomed: bool = False  # OpenCode's next word is the last thing that happens here

    def cut(self) -> None:
        for end in (self.near, self.far):
            end.transport.abort()


class Line:
    def __init__(self, target: str, trapped: bytes = PROMPT) -> None:
        """`trapped` is what the path of a request holds that a trap cuts."""
        self._trapped = trapped
        where = urlsplit(target)
        self._host, self._port = where.hostname or "127.0.0.1", where.port or 80
        self._calls: set[_Call] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._traps: deque[Moment] = deque(maxlen=8)
        self.open = True
        self.url, self.port = "", 0
        self.sprung = 0

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str, trapped: bytes = PROMPT) -> AsyncIterator[Line]:
        async with cls(target, trapped).laid() as self:
            yield self

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Self]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            server.close()
            self.open = False
            self.cut()
            if self._answering:
                await asyncio.wait(self._answering, timeout=5)

    def cut(self, only_events: bool = False) -> int:
        """Cut what is connected now; how many calls that were."""
        cut = [call for call in self._calls if call.events or not only_events]
        for call in cut:
            call.cut()
        return len(cut)

    def trap(self, moment: Moment) -> None:
        """Cut the next such request before OpenCode gets it, or after, without its answer."""
        self._traps.append(moment)

    def disarm(self) -> None:
        self._traps.clear()

    def _take(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        answering = asyncio.create_task(self._answer(reader, near))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if not self.open:
            near.transport.abort()
            return
        try:
            answers, far = await self._connect()
        except OSError:
            near.transport.abort()
            return
        call = _Call(near, far)
        self._calls.add(call)
        try:
            asked = asyncio.create_task(self._there(call, reader))
            told = asyncio.create_task(self._back(call, answers))
            await asyncio.wait({asked, told}, return_when=asyncio.FIRST_COMPLETED)
            for copying in (asked, told):
                copying.cancel()
            await asyncio.gather(asked, told, return_exceptions=True)
        finally:
            self._calls.discard(call)
            call.cut()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    async def _there(self, call: _Call, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                request = chunk[:256].partition(b"\r\n")[0]
                call.events |= request.startswith(EVENTS)
                if request.startswith(b"POST ") and self._trapped in request and self._traps:
                    self.sprung += 1
                    if self._traps.popleft() == "before":
                        return
                    call.doomed = True
                call.far.write(chunk)
                await call.far.drain()

    async def _back(self, call: _Call, answers: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while chunk := await answers.read(65536):
                if call.doomed:
                    return
                call.near.write(chunk)
                await call.near.drain()


class Balancer(Line):
    """Asks one server after the other, a new one for each connection; those that refuse are left
    out, as a load balancer does that connects again."""

    def __init__(self) -> None:
        super().__init__("")
        self.targets: list[str] = []
        self._turn = 0

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self.targets:
            self._turn += 1
            where = urlsplit(self.targets[self._turn % len(self.targets)])
            with suppress(OSError):
                return await asyncio.open_connection(where.hostname, where.port)
        raise ConnectionRefusedError
