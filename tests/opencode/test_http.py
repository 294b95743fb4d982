"""How names from outside travel in a path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from opencode_a2a.errors import UpstreamHttpError
from opencode_a2a.opencode.http import Endpoint, Http


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Http, list[bytes]]]:
    """A client, and the paths that arrive at its server."""
    paths: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
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
