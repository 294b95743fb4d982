"""What somebody without a credential can do to a service, and what its known callers notice of it.

Everything goes through plain sockets, because an HTTP client would not send half a request.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson

from tests.running import Service

PATIENCE = 60.0  # seconds any single exchange may take
HALF_HEAD = b"GET /tasks HTTP/1.1\r\nHost: [::1]\r\nX-Half: "
WRONG = b"Authorization: Bearer this-is-not-a-token-of-anybody\r\n"


def allow_files(count: int) -> None:
    """Let this process have so many files open, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def memory(service: Service) -> float:
    """The resident memory of the service, in MB."""
    pages = int(Path(f"/proc/{service.program.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_memory(service: Service) -> float:
    """The most resident memory the service has ever had, in MB."""
    status = Path(f"/proc/{service.program.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def head(service: Service, line: str, *fields: str) -> bytes:
    """A request head of a known caller."""
    login = f"Authorization: Bearer {service.token}"
    return "\r\n".join([f"{line} HTTP/1.1", "Host: [::1]", login, *fields, "", ""]).encode()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "")


@dataclass
class Socket:
    """One connection to a service."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self.writer.drain()

    async def answer(self) -> Answer:
        """The next answer; it must have a length."""
        async with asyncio.timeout(PATIENCE):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(": ") for line in lines if line)
            headers = {name.lower(): value for name, _, value in pairs}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split()[1]), headers, body)

    async def closed(self, seconds: float = PATIENCE) -> bytes:
        """What still came before the other side closed the connection."""
        async with asyncio.timeout(seconds):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def is_open(self) -> bool:
        """Whether the other side has not closed it by now."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.01):
                while await self.reader.read(65_536):
                    pass
            return False
        return not self.reader.at_eof() and self.reader.exception() is None


async def dial(service: Service, source: str | None = None) -> Socket:
    """A connection that the caller must close."""
    url = httpx.URL(service.url)
    local = (source, 0) if source is not None else None
    async with asyncio.timeout(PATIENCE):
        return Socket(*await asyncio.open_connection(url.host, url.port, local_addr=local))


@asynccontextmanager
async def connect(service: Service, source: str | None = None) -> AsyncIterator[Socket]:
    socket = await dial(service, source)
    try:
        yield socket
    finally:
        socket.close()


@asynccontextmanager
async def held(service: Service, count: int, sends: bytes) -> AsyncIterator[Sequence[Socket]]:
    """So many connections that have sent this and say no more; some may be closed by then."""
    async with AsyncExitStack() as stack:
        sockets = []
        for _ in range(count):
            socket = await stack.enter_async_context(connect(service))
            socket.writer.write(sends)
            sockets.append(socket)
        yield sockets


async def still_open(sockets: Sequence[Socket]) -> int:
    return sum(await asyncio.gather(*(socket.is_open() for socket in sockets)))


async def list_tasks(service: Service) -> float:
    """Seconds that a known caller waits for an answer on a new connection."""
    began = time.perf_counter()
    async with connect(service) as socket:
        await socket.send(head(service, "GET /tasks", "A2A-Version: 1.0", "Connection: close"))
        answer = await socket.answer()
    assert answer.status == 200, answer
    return time.perf_counter() - began


@dataclass
class Stream:
    """A known caller's stream: what it has heard, and how long it had to wait between two events.

    The agent says `rate` words a second until the task is cancelled.
    """

    service: Service
    rate: int = 20
    task: str = ""
    events: int = 0
    longest: float = 0.0
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stream]:
        parts = [{"text": f"[[tokens:100000]] [[rate:{self.rate}]]"}]
        message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
        body = orjson.dumps({"message": message})
        fields = ("A2A-Version: 1.0", "Content-Type: application/json")
        request = head(
            self.service, "POST /message:stream", *fields, f"Content-Length: {len(body)}"
        )
        async with connect(self.service) as self.socket:
            await self.socket.send(request + body)
            await self.socket.reader.readuntil(b"\r\n\r\n")
            reading = asyncio.create_task(self._read(self.socket.reader))
            try:
                await self.goes_on()
                yield self
                assert not reading.done(), "the stream ended"
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await self._cancel()

    async def goes_on(self, events: int = 3) -> None:
        """Wait until it has heard so many more."""
        target = self.events + events
        async with asyncio.timeout(PATIENCE):
            while self.events < target:
                self.more.clear()
                await self.more.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        last = time.perf_counter()
        while line := await reader.readline():
            if line.startswith(b"data: "):
                now = time.perf_counter()
                if self.events > 3:  # the first ones wait for the agent to begin
                    self.longest = max(self.longest, now - last)
                last = now
                self.events += 1
                self.more.set()
                if not self.task:
                    event = orjson.loads(line.removeprefix(b"data: "))
                    self.task = event.get("task", {}).get("id", "")

    async def _cancel(self) -> None:
        async with connect(self.service) as socket:
            fields = ("A2A-Version: 1.0", "Content-Length: 0", "Connection: close")
            await socket.send(head(self.service, f"POST /tasks/{self.task}:cancel", *fields))
            await socket.answer()


@dataclass
class Newcomer:
    """A known caller who opens a new connection again and again."""

    service: Service
    every: float = 0.1
    waited: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Newcomer]:
        asking = asyncio.create_task(self._ask())
        try:
            yield self
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            try:
                self.waited.append(await list_tasks(self.service))
            except (OSError, EOFError, TimeoutError, AssertionError) as exc:
                self.failed.append(repr(exc)[:80])
            await asyncio.sleep(self.every)
