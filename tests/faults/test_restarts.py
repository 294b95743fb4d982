"""The real OpenCode dies and starts again; `python -m tests.faults.restarts` does it at length."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from opencode_a2a.domain.phrases import CONTINUE_PROMPT
from tests.faults.restarts import Client, OfServe, at_work, has_ended, state_and_answer

ABSENCE = 4.0  # long enough for every patience to grow that grows
PATIENCE = 180.0  # seconds
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


async def continue_lost_task(client: Client, lost: str) -> None:
    """Send what the failed task says, twice: the second time it is known."""
    failed = await client.until(lost, has_ended)
    assert failed["metadata"]["opencode"]["error"] == {"type": "UPSTREAM_INTERRUPTED"}
    tasks = []
    for _ in range(2):
        url, resume = (
            f"{client.killable.url}/message:send",
            failed["metadata"]["opencode"]["resume"],
        )
        async with client.http.post(url, json=resume) as answer:
            assert answer.status == 200, await answer.text()
            tasks.append((await answer.json())["task"])
    assert tasks[0]["id"] == tasks[1]["id"] != failed["id"]
    assert tasks[0]["contextId"] == failed["contextId"]
    assert state_and_answer(tasks[0]) == ("TASK_STATE_COMPLETED", f"ECHO: {CONTINUE_PROMPT}")


@pytest.mark.timeout(400)
async def test_the_service_works_as_soon_as_opencode_does_and_says_how_to_continue(
    tmp_path: Path,
) -> None:
    async with at_work("serve", tmp_path) as client:
        killable = client.killable
        assert isinstance(killable, OfServe)
        lost = await client.send("[[tokens:100000]] [[delay:100]]")
        async with asyncio.timeout(PATIENCE):
            await client.until(lost, lambda task: bool(task["artifacts"]))  # it answers
        killable.kill()
        await asyncio.sleep(ABSENCE)
        await start_slowly(killable)
        async with asyncio.timeout(PATIENCE):
            await client.until_healthy(killable.password)
            healthy_at = time.monotonic()
            await asyncio.gather(client.until_ready(), client.send("hello"))
            took = time.monotonic() - healthy_at
            await continue_lost_task(client, lost)
    # Usually less than half a second. It was more than ten where a request that was sent too
    # early had the patience of many refused ones.
    assert took < 8
