"""What is left of a connection after its request: seen from inside the process that serves it."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from opencode_a2a.errors import ServiceError
from opencode_a2a.web.connections import MARK_KNOWN, ConnectionLimits, Phase
from opencode_a2a.web.protocol import ConnectionGuard, GuardedProtocol
from tests.exhaustion.attacks import PATIENCE, Socket

LIMITS = ConnectionLimits.of(total=16, per_address=8, head_seconds=600, body_seconds=600)
STREAM = b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: here\r\n\r\n"
LARGE = 50_000_000  # bytes; more than the buffers between a server and a client take


def render_error(scope: Scope, error: ServiceError, status: int) -> Response:
    return JSONResponse(error.type, status)


@dataclass
class App:
    """Answers each path in its own way, to known callers only. It reads no body."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[RequestResponseCycle] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(receive.__self__)  # type: ignore[attr-defined]
        scope["state"][MARK_KNOWN]()
        match scope["path"]:
            case "/ping":
                await Response(b"pong")(scope, receive, send)
            case "/wait":
                await self.may_answer.wait()
                await Response(b"done")(scope, receive, send)
            case "/large":
                close = {"connection": "close"}
                await Response(bytes(LARGE), headers=close)(scope, receive, send)
            case "/stream":
                await self._stream(receive, send)
            case _:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                raise ValueError("the answer ends here")

    async def _stream(self, receive: Receive, send: Send) -> None:
        await receive()
        leaving = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.01)
            assert leaving.result()["type"] == "http.disconnect"
            self.left.set()
        finally:
            leaving.cancel()


@dataclass
class Server:
    """A guarded server on loopback, whose connections can be looked at."""

    app: App
    guard: ConnectionGuard
    port: int = 0
    made: list[weakref.ref[GuardedProtocol]] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Server]:
        loop, app, state = asyncio.get_running_loop(), App(), ServerState()
        config = Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=3_600,
        )
        config.load()
        async with ConnectionGuard.open(LIMITS, 32_768, render_error) as guard:
            server = cls(app, guard)

            def make() -> GuardedProtocol:
                protocol = GuardedProtocol(guard, config, state, {})
                server.made.append(weakref.ref(protocol))
                return protocol

            listener = await loop.create_server(make, "127.0.0.1", 0)
            server.port = listener.sockets[0].getsockname()[1]
            try:
                yield server
            finally:
                listener.close()
                for task in list(state.tasks):
                    task.cancel()
                await asyncio.gather(*state.tasks, return_exceptions=True)

    @asynccontextmanager
    async def connect(self, sends: bytes) -> AsyncIterator[Socket]:
        async with asyncio.timeout(PATIENCE):
            client = Socket(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            await client.send(sends)
            yield client
        finally:
            client.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()
            await until(lambda: len(self.guard.connections) == 0)

    @property
    def connection(self) -> GuardedProtocol:
        """The newest one."""
        protocol = self.made[-1]()
        assert protocol is not None
        return protocol

    def deadlines(self) -> list[Phase]:
        """What the connections wait for, if there is an end to it."""
        return [phase for _, phase in self.guard.connections.overdue(float("inf"))]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server.open() as server:
        yield server


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_nothing_is_left_of_a_connection_that_its_client_ended(
    server: Server, is_reset: bool
) -> None:
    async with server.connect(PING) as client:
        assert (await client.answer()).status == 200
        if is_reset:
            raw = client.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.app.requests.clear()

    def is_freed() -> bool:
        gc.collect()
        return server.made[-1]() is None

    await until(is_freed)


async def test_a_stream_notices_that_its_client_left_with_another_request_behind_it(
    server: Server,
) -> None:
    async with server.connect(STREAM) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send(PING)
        await until(lambda: len(server.connection.pipeline) == 1)
    async with asyncio.timeout(PATIENCE):
        await server.app.left.wait()


async def test_a_body_that_nobody_read_is_not_kept_after_the_answer(server: Server) -> None:
    post = b"POST /wait HTTP/1.1\r\nHost: here\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000)
    async with server.connect(post + post) as client:
        await until(lambda: len(server.connection.pipeline) == 1)
        server.app.may_answer.set()
        for _ in range(2):
            assert (await client.answer()).body == b"done"
        assert [len(each.body) for each in server.app.requests] == [0, 0]


async def test_a_malformed_request_behind_others_is_refused_once_they_are_answered(
    server: Server,
) -> None:
    wait = b"GET /wait HTTP/1.1\r\nHost: here\r\n\r\n"
    chunked = b"POST /ping HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    async with server.connect(wait + PING + chunked) as client:
        await until(lambda: len(server.connection.pipeline) == 2)
        server.app.may_answer.set()
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.closed() == b""


async def test_an_answer_that_broke_off_is_no_reason_to_wait_for_its_client(
    server: Server,
) -> None:
    head = b"POST /broken HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n"
    async with server.connect(head) as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await client.closed()
        assert server.deadlines() == [Phase.LINGER]


async def test_the_last_answer_must_be_read_at_some_time_even_by_a_known_caller(
    server: Server,
) -> None:
    async with server.connect(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n"):
        await until(lambda: any(each.response_complete for each in server.app.requests))
        assert server.deadlines() == [Phase.CLOSING]
        server.connection.give_up(Phase.CLOSING)
        await until(lambda: len(server.guard.connections) == 0)
