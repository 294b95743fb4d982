"""A client that costs as little as a client can: it shares the machine with what it measures.

Requests are written as bytes; answers are counted, not parsed. Who wants more of an answer
than its status, its events and its last bytes uses `ask`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import orjson

T = TypeVar("T")

PATIENCE = 60.0  # seconds any exchange may take
EVENT = b"data: "


@dataclass
class Answer:
    status: int = 0
    events: int = 0
    size: int = 0
    began: float = field(default_factory=perf_counter)
    heard: float | None = None  # when the awaited bytes were there
    ended: float = 0.0
    end: bytes = b""  # the last bytes of it

    @property
    def first(self) -> float:
        """Seconds until the awaited bytes were there."""
        assert self.heard is not None, self.end
        return self.heard - self.began


class Exchange(asyncio.Protocol):
    """One request on one connection, and its answer to the end."""

    def __init__(self, request: bytes, awaited: bytes, until: bytes) -> None:
        self._request = request
        self._awaited = awaited
        self._until = until
        self._rest = b""
        self.answer = Answer()
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        if not answer.status:
            answer.status = int(data[9:12])
        seen = self._rest + data
        answer.events += seen.count(EVENT)
        if answer.heard is None and self._awaited and self._awaited in answer.end + data:
            answer.heard = perf_counter()
        if answer.events and not self.begun.done():
            self.begun.set_result(None)
        self._rest = data[1 - len(EVENT) :]
        answer.size += len(data)
        answer.end = (answer.end + data)[-1024:]
        if answer.end.endswith(self._until) or (self._until in data):
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        if not self.done.done():
            self.answer.ended = perf_counter()
            self.done.set_result(self.answer)
        self.close()


@dataclass(frozen=True)
class Client:
    """Asks one server. `headers` go with every request."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        where = urlsplit(self.url)
        assert where.hostname and where.port, self.url
        return where.hostname, where.port

    def request(self, method: str, path: str, body: object = None, *, close: bool = False) -> bytes:
        raw = orjson.dumps(body) if body is not None else b""
        headers = {"Host": "localhost", **self.headers}
        if raw:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        if close:
            headers["Connection"] = "close"
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + raw

    async def open(
        self, request: bytes, awaited: bytes = b"", until: bytes = b"\r\n0\r\n\r\n"
    ) -> Exchange:
        """Begin an exchange; it is over with `until`, or with the connection."""
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(
            lambda: Exchange(request, awaited, until), *self.address
        )
        return exchange

    async def stream(self, method: str, path: str, body: object, awaited: bytes = b"") -> Answer:
        """An event stream, read to its end."""
        began = perf_counter()
        async with asyncio.timeout(PATIENCE):
            exchange = await self.open(self.request(method, path, body), awaited)
            answer = await exchange.done
        answer.began = began
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.end!r}")
        return answer


class Connection:
    """One kept-alive connection that asks one thing after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with asyncio.timeout(PATIENCE):
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._client.address)
            reader, writer = self._streams
            writer.write(self._client.request(method, path, body))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b"transfer-encoding: chunked" in head:
                raw = b""
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    raw += (await reader.readexactly(size + 2))[:-2]
                await reader.readexactly(2)
            else:
                length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
                raw = await reader.readexactly(int(length or 0))
        if not head.startswith((b"http/1.1 200", b"http/1.1 204")):
            raise RuntimeError(f"{method} {path}: {head[:40]!r} {raw[:300]!r}")
        return orjson.loads(raw) if raw else None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def message(text: str) -> dict[str, Any]:
    """A2A 1.0, REST: a message that begins a new context."""
    parts = [{"text": text}]
    return {"message": {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": parts}}


async def together(count: int, at_a_time: int, work: Callable[[], Awaitable[T]]) -> list[T]:
    """`count` times `work()`, so many at a time; what each returned."""
    results: list[T] = []
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            results.append(await work())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, at_a_time)):
            group.create_task(worker())
    return results
