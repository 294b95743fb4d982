"""Who listens at a port, and that nobody else is sent a password."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from opencode_a2a.errors import UpstreamUnreachable
from opencode_a2a.opencode import listener
from opencode_a2a.opencode.http import Endpoint, Http

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
LINE = " 0: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 {:5} 0 9538 1\n"


def test_only_sockets_that_listen_at_the_port_count() -> None:
    table = HEAD + "".join(
        [
            LINE.format("0100007F", 18010, "0A", 998),
            LINE.format("0" * 32, 18010, "0A", 997),  # of the table for IPv6, which has no head
            LINE.format("0100007F", 18010, "01", 996),
            LINE.format("0100007F", 18011, "0A", 995),
        ]
    )
    assert listener.users_who_listen(table, 18010) == {998, 997}


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port, and what arrives there."""
    arrived: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read(1))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], arrived


async def call(port: int) -> None:
    endpoint = Endpoint(f"http://127.0.0.1:{port}", password="secret", own_user_only=True)
    async with Http.open(endpoint) as http:
        await http.call("POST", "session")


@pytest.mark.skipif(not listener.TABLES[0].exists(), reason="there is no table of sockets")
async def test_an_opencode_of_the_own_user_is_talked_to() -> None:
    async with listening() as (port, arrived):
        await call(port)
    assert arrived == [b"P"]


async def test_nothing_is_sent_where_another_user_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    monkeypatch.setattr(listener, "TABLES", (table,))
    async with listening() as (port, arrived):
        own = LINE.format("00000000", port, "0A", os.getuid())
        table.write_text(HEAD + own + LINE.format("0100007F", port, "0A", os.getuid() + 1))
        with pytest.raises(UpstreamUnreachable, match="Another user of this machine"):
            await call(port)
    assert arrived == []


async def test_nothing_is_sent_where_nobody_was_seen_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEAD)
    monkeypatch.setattr(listener, "TABLES", (table,))
    async with listening() as (port, arrived):
        with pytest.raises(UpstreamUnreachable, match="cannot be reached"):
            await call(port)
    assert arrived == []
