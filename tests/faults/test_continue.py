"""OpenCode is killed in the middle of its work, with everything else, and asked again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opencode_a2a.domain.phrases import CONTINUE_PROMPT
from tests.cli.commands import command
from tests.fakes import model
from tests.faults.restarts import Client, OfUp, has_ended, state_and_answer
from tests.processes import PROC, pids
from tests.running import TOKEN, isolated, opencode_command, running

Json = dict[str, Any]
PATIENCE = 300.0  # seconds
LONG = "[[tokens:100000]] [[delay:100]]"


def family(parent: int) -> set[int]:
    """A process and everything that it has started, and what those have."""
    parents: dict[int, int] = {}
    for pid in pids():
        try:
            parents[pid] = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, before = {parent}, set[int]()
    while found != before:
        before, found = found, found | {pid for pid, up in parents.items() if up in found}
    return found


@asynccontextmanager
async def up(folder: Path, config: Json) -> AsyncIterator[OfUp]:
    """`opencode-a2a up`, which asks an agent to continue that was interrupted."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    env = isolated(
        folder / "home",
        OPENCODE_COMMAND=opencode_command(),
        OPENCODE_CONFIG_CONTENT=json.dumps(config),
        A2A_PORT="0",
        A2A_BEARER_TOKEN=TOKEN,
        A2A_ON_INTERRUPTED="continue",
    )
    with running(command("opencode-a2a", "up"), env, workspace) as program:
        # In a thread: the model, which this loop serves, is asked meanwhile.
        ready = r"OpenCode answers A2A at (\S+)"
        found = await asyncio.to_thread(program.wait_for, ready, PATIENCE)
        yield OfUp(program, found[1])


@pytest.mark.timeout(400)
async def test_after_everything_was_killed_the_agent_is_asked_to_continue(tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
    async with (
        asyncio.timeout(PATIENCE),
        model.serve() as model_url,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        config = model.opencode_config(model_url) | {"snapshot": False}
        async with up(tmp_path, config) as service:
            client = Client(http, service)
            task = await client.send(LONG)
            await client.until(task, lambda task: bool(task["artifacts"]))  # it answers
            for pid in family(service.program.process.pid):
                os.kill(pid, signal.SIGKILL)
            service.program.process.wait(60)
        async with up(tmp_path, config) as service:
            done = await Client(http, service).until(task, has_ended)
    assert state_and_answer(done) == ("TASK_STATE_COMPLETED", f"ECHO: {CONTINUE_PROMPT}")
    assert [part["text"] for message in done["history"] for part in message["parts"]] == [LONG]
