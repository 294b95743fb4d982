"""How names from outside travel in a path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from opencode_a2a.errors import UpstreamHttpError, UpstreamUnreachable
from opencode_a2a.opencode.http import Endpoint, Http, NotFound


@asynccontextmanager
async def listening(
    says: bytes = b"204 No Content\r\n\r\n",
) -> AsyncIterator[tuple[Http, list[bytes]]]:
    """A client, and the paths that arrive at its server, which always answers the same."""
    paths: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(b"HTTP/1.1 " + says)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/")
        async with Http.open(endpoint) as http:
            yield http, paths


async def test_whatever_a_name_holds_it_stays_one_segment() -> None:
    async with listening() as (http, paths):
        await http.call("POST", "session", "../a/b?c#d%2F é", "..x", query={"at": "/a b&c=d"})
    assert paths == [b"/base/session/..%2Fa%2Fb%3Fc%23d%252F%20%C3%A9/..x?at=%2Fa%20b%26c%3Dd"]


@pytest.mark.parametrize("name", ["", ".", "..", "..."])
async def test_a_name_of_dots_is_not_sent(name: str) -> None:
    async with listening() as (http, paths):
        with pytest.raises(UpstreamHttpError) as refused:
            await http.call("DELETE", "session", name, "message")
        assert refused.value.facts["upstream_status"] == 404
    assert paths == []


async def test_only_opencode_itself_says_that_it_does_not_have_something() -> None:
    """A prompt that it does not have is sent again, and a decision is not delivered again."""
    body = b'{"_tag": "MessageNotFoundError"}'
    head = b"404 Not Found\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with listening(head % len(body) + body) as (http, _):
        with pytest.raises(NotFound):
            await http.call("GET", "session", "ses_1", "message", "msg_1")
    page = b"404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n"
    async with listening(page) as (http, _):
        with pytest.raises(UpstreamUnreachable):
            await http.call("GET", "session", "ses_1", "message", "msg_1")
