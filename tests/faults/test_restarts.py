"""The real OpenCode dies and starts again; `python -m tests.faults.restarts` does it at length."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.restarts import OfServe, at_work

ABSENCE = 4.0  # long enough for every patience to grow that grows
PAUSE = 3.0  # in which whoever looks for OpenCode meets it


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def start_slowly(killable: OfServe) -> None:
    """Start it, and hold it where it accepts connections and does not answer yet."""
    killable.start()
    assert killable.process is not None
    async with asyncio.timeout(60):
        while not await accepts(killable.port):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    os.kill(killable.process.pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSE)
    os.kill(killable.process.pid, signal.SIGCONT)


@pytest.mark.timeout(240)
async def test_the_service_works_as_soon_as_opencode_does(tmp_path: Path) -> None:
    async with at_work("serve", tmp_path) as client:
        killable = client.killable
        assert isinstance(killable, OfServe)
        killable.kill()
        await asyncio.sleep(ABSENCE)
        await start_slowly(killable)
        async with asyncio.timeout(120):
            await client.until_healthy(killable.password)
            healthy_at = time.monotonic()
            await asyncio.gather(client.until_ready(), client.send("hello"))
            took = time.monotonic() - healthy_at
    # Usually less than half a second. It was more than ten where a request that was sent too
    # early had the patience of many refused ones.
    assert took < 8
