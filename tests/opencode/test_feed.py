"""Who gets which events of the one stream, and how the stream is found again."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from opencode_a2a.domain.events import (
    Busy,
    ChildStarted,
    Gap,
    Idle,
    RunEnd,
    TitleChanged,
    ToolSnapshot,
)
from opencode_a2a.errors import UpstreamHttpError, UpstreamPayloadError, UpstreamUnreachable
from opencode_a2a.opencode import feed as feeds
from opencode_a2a.opencode import http as https
from opencode_a2a.opencode.feed import Feed, Subscription
from opencode_a2a.opencode.http import Endpoint, Http
from opencode_a2a.opencode.v2 import wire as wire2


async def test_what_follows_a_gap_is_looked_at_after_it() -> None:
    with Subscription("s", {}) as events:
        events.put([Busy("s")])
        events.add_gap()
        events.put([Idle("s")])
        events.add_gap()
        assert await anext(events) == [Busy("s"), Gap("s")]
        assert await anext(events) == [Idle("s"), Gap("s")]


async def test_a_sub_agent_that_becomes_a_conversation_keeps_its_events() -> None:
    routes: dict[str, Subscription] = {}
    with Subscription("parent", routes) as parent:
        parent.include("child")
        assert routes == {"parent": parent, "child": parent}
        with Subscription("child", routes) as child:
            parent.include("child")
            assert routes["child"] is child
        assert routes == {"parent": parent}
        with Subscription("child", routes) as child:
            parent.__exit__()
            assert routes == {"child": child}


# How a loss is noticed where events are numbered


def happens(feed: Feed, kind: str, seq: int | None = None, **data: Any) -> None:
    event = {"type": kind, "created": 5, "data": {"sessionID": "s", **data}}
    if seq is not None:
        event["durable"] = {"seq": seq}
    feed._route(json.dumps(event).encode(), wire2)


BEGINS, ENDS = "session.execution.started", "session.execution.succeeded"


async def test_a_hole_in_the_numbers_of_a_session_is_a_gap() -> None:
    feed = Feed(cast(Http, None))
    with Subscription("s", feed._routes) as events:
        happens(feed, BEGINS, 7)
        happens(feed, "session.usage.updated")  # without a number, and of no interest
        happens(feed, "session.created", 0, sessionID="child", parentID="s")
        happens(feed, ENDS, 8)  # a child has numbers of its own
        assert await anext(events) == [Busy("s"), ChildStarted("child", "s"), Idle("s", RunEnd())]
        happens(feed, "session.renamed", 10, title="One")  # what the title has cost was the 9th
        assert await anext(events) == [TitleChanged("s", "One")]
        happens(feed, BEGINS, 13)
        happens(feed, ENDS, 3, sessionID="child")
        happens(feed, ENDS, 14)
        assert await anext(events) == [Gap("s")]
        assert await anext(events) == [Busy("s"), Gap("s")]
        assert await anext(events) == [Idle("child", RunEnd()), Idle("s", RunEnd())]


async def test_a_change_of_a_tool_call_that_nobody_heard_of_is_a_gap() -> None:
    feed = Feed(cast(Http, None))
    with Subscription("s", feed._routes) as events:
        call: dict[str, Any] = {"assistantMessageID": "msg_1", "id": "call_1"}
        happens(feed, "session.tool.called", **call, input={})
        happens(feed, "session.tool.input.started", **call, name="shell")
        happens(feed, "session.tool.called", **call, input={})
        assert await anext(events) == [Gap("s")]
        named, called = await anext(events)
        assert isinstance(named, ToolSnapshot)
        assert isinstance(called, ToolSnapshot)
        assert (named.call.status, called.call.status) == ("pending", "running")


# How the stream is found again

HEALTH, EVENTS = "/global/health", "/global/event"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
FAILED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
UNKNOWN = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n"
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b'data: {"payload":{"type":"server.connected","properties":{}}}\n\n'
)
LATE = b"late"
NEVER = b""  # accepted and not answered, as by an OpenCode that is starting
Exchange = tuple[str, bytes]


def healthy(path: str) -> bytes:
    return STREAM if path == EVENTS else OK


class Server:
    """A socket in the role of OpenCode; it notes what it is asked and what it answers."""

    def __init__(self) -> None:
        # Bound and not listening: nobody else can get the port while this one is away.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        self.exchanges: list[Exchange] = []
        self.answer: Callable[[str], bytes] = healthy
        self.late = asyncio.Event()  # what is answered late waits for it
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, reuse_port=True
        )

    def free(self) -> None:
        self._reserved.close()

    async def kill(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()

    async def asked(self, path: str, times: int, answer: bytes | None = None) -> None:
        """Return when this was asked so often, and answered so."""
        async with asyncio.timeout(60):
            while (
                sum(each[0] == path and answer in (None, each[1]) for each in self.exchanges)
                < times
            ):
                self._news.clear()
                await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                answer = self.answer(path)
                self.exchanges.append((path, answer))
                self._news.set()
                if answer == LATE:
                    await self.late.wait()
                    answer = OK
                writer.write(answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def reading(server: Server) -> AsyncIterator[tuple[Http, Feed]]:
    try:
        async with (
            Http.open(Endpoint(f"http://127.0.0.1:{server.port}")) as http,
            Feed.open(http) as feed,
        ):
            yield http, feed
    finally:
        await server.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.free()


async def test_events_are_asked_for_right_after_the_first_healthy_answer(server: Server) -> None:
    """OpenCode is away, accepts without answering, has trouble, works, is killed; all twice."""
    async with reading(server) as (_, feed):
        for times in (1, 2):
            async with asyncio.timeout(60):
                while feed.connected:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            with pytest.raises(UpstreamUnreachable):
                await feed.ready(0.2)
            server.answer = lambda path: NEVER
            await server.start()
            await server.asked(HEALTH, 3 * times, NEVER)
            server.answer = lambda path: FAILED
            await server.asked(HEALTH, 3 * times, FAILED)
            server.answer = healthy
            await feed.ready(60)
            await server.kill()
    # It was asked for events only when it could send them: no patience was spent in vain.
    seen = server.exchanges
    assert [each for each in seen if each[0] == EVENTS] == [(EVENTS, STREAM)] * 2
    assert [seen[i - 1] for i, each in enumerate(seen) if each[0] == EVENTS] == [(HEALTH, OK)] * 2


async def test_a_busy_opencode_may_answer_after_it_was_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "PROBE_TIMEOUT", 600.0)
    answers = [LATE]
    server.answer = lambda path: STREAM if path == EVENTS else answers.pop() if answers else NEVER
    await server.start()
    async with reading(server) as (_, feed):
        await server.asked(HEALTH, 3)
        server.late.set()
        await feed.ready(60)
    assert server.exchanges[-1] == (EVENTS, STREAM)


async def test_a_question_that_got_lost_is_asked_again_when_events_arrive(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "FIRST_TRY_SECONDS", 600.0)
    server.answer = lambda path: NEVER
    await server.start()
    async with reading(server) as (http, feed):
        question = asyncio.create_task(http.call("GET", "session"))
        order = asyncio.create_task(http.call("POST", "session", body={}))
        await server.asked("/session", 2)
        server.answer = healthy
        await feed.ready(60)
        async with asyncio.timeout(60):
            assert await question == {}
        order.cancel()
    asked = [exchange for exchange in server.exchanges if exchange[0] == "/session"]
    assert asked == [("/session", NEVER), ("/session", NEVER), ("/session", OK)]


@pytest.mark.parametrize(
    ("answer", "error"), [(UNKNOWN, UpstreamHttpError), (PAGE, UpstreamPayloadError)]
)
async def test_trouble_that_waiting_does_not_end_is_told_at_once_and_looked_at_more_rarely(
    server: Server, answer: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LASTING_SECONDS", 600.0)
    server.answer = lambda path: answer
    await server.start()
    async with reading(server) as (_, feed):
        with pytest.raises(error):
            await feed.ready(60)
        before = server.exchanges.count((HEALTH, answer))
        await asyncio.sleep(3 * feeds.PROBE_SECONDS)
    assert server.exchanges.count((HEALTH, answer)) <= before + 1
    assert (EVENTS, answer) not in server.exchanges


async def test_a_pause_between_two_attempts_ends_with_the_next_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BACKOFF", (600.0,))
    server.answer = lambda path: OK if path == HEALTH else UNKNOWN
    await server.start()
    async with reading(server) as (http, feed):
        with pytest.raises(UpstreamHttpError):
            await feed.ready(60)
        server.answer = healthy
        async with asyncio.timeout(60):
            while not feed.connected:
                await http.call("GET", "session")
                await asyncio.sleep(0.01)
