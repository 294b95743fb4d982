"""The listener of the metrics, on real sockets: whoever can reach it needs no credential."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from opencode_a2a.web.metrics import LIMITS, listening


@asynccontextmanager
async def metrics_listener() -> AsyncIterator[int]:
    """The port of one on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with listening(listener):
            yield listener.getsockname()[1]


async def test_silent_connections_are_bounded_and_keep_nobody_out() -> None:
    async with metrics_listener() as port:
        silent = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(LIMITS.unknown_per_address + 10)
        ]
        async with httpx.AsyncClient(timeout=60) as prometheus:
            answer = await prometheus.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.status_code == 200
        async with asyncio.timeout(60):
            for reader, _ in silent[:10]:  # the oldest were closed for the newest
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_web_page_cannot_read_them_by_a_name_of_its_own() -> None:
    async with metrics_listener() as port, httpx.AsyncClient(timeout=60) as browser:
        url = f"http://127.0.0.1:{port}/metrics"
        answer = await browser.get(url, headers={"host": f"evil.example:{port}"})
        assert answer.status_code == 403
        assert (await browser.get(url, headers={"host": f"localhost:{port}"})).status_code == 200
