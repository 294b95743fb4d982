"""What OpenCode does by itself, and no client may suffer from: it forgets, dies, and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.asks import Callbacks, Mark
from tests.e2e.behind import Behind
from tests.e2e.clients import LINES, PythonClient, ask
from tests.e2e.seen import PATIENCE, answer, error, shared, shown, state
from tests.e2e.test_decisions import until, until_ready
from tests.faults.steering import ready
from tests.features import is_2
from tests.running import Upstream, opencode2_command, opencode_in, real_opencode, service

LINE = LINES[0]


async def test_rules_outlive_an_upgrade_in_place(tmp_path: Path) -> None:
    """OpenCode 2 drops the rules of the sessions that it takes over from 1.x."""
    newer = opencode2_command()
    if newer is None or is_2():
        pytest.skip("begins with OpenCode 1.x, and needs 2.x too")
    rules = [{"permission": "bash", "pattern": "touch *", "action": "deny"}]
    settings = {"A2A_PERMISSION_RULES": json.dumps(rules)}
    folder = tmp_path / "opencode"
    with (
        real_opencode(folder, snapshot=False) as upstream,
        service(upstream, tmp_path, **settings) as before,
    ):
        mark = Mark(upstream)
        async with PythonClient.connect(before, LINE) as client:
            first, second = [await client.send(ask("hello")) for _ in range(2)]
    request = {"parts": [{"type": "text", "text": str(mark)}]}
    with (
        opencode_in(folder, {"OPENCODE_COMMAND": newer}, snapshot=False) as upgraded,
        service(upgraded, tmp_path, **settings) as after,
    ):
        async with PythonClient.connect(after, LINE) as client, Callbacks.of(after) as callbacks:
            by_message = await client.send(ask(str(mark), context=first.context_id))
            assert shared(by_message)["session"] == shared(first)["session"]
            session = shared(second)["session"]["id"]
            told = await callbacks.call(
                "opencode.sessions.prompt_async", session_id=session, request=request
            )
            assert told["session_id"] == session
            by_method = await client.send(ask("and?", context=second.context_id))  # when it is done
    assert (state(by_message), state(by_method), mark.made) == ("completed", "completed", False)


async def asks_the_model(task: str, client: PythonClient, behind: Behind) -> bool:
    session = shared(await client.get(task)).get("session")
    return session is not None and bool(await behind.prompts(session["id"]))


async def test_a_prompt_whose_answer_died_is_not_taken_for_answered(tmp_path: Path) -> None:
    """Sent again as it is, OpenCode 2 calls it done, and asks no model."""
    with real_opencode(tmp_path / "opencode", snapshot=False) as upstream:
        # Not in the environment: whoever has the password there is ended together with OpenCode.
        (secrets := tmp_path / "secrets").mkdir()
        (secrets / "opencode_auth_password").write_text(upstream.password or "")
        nameless = replace(upstream, password=None)
        with service(nameless, tmp_path, CREDENTIALS_DIRECTORY=str(secrets)) as running:
            await ready(running)
            async with (
                asyncio.timeout(3 * PATIENCE),
                PythonClient.connect(running, LINE) as client,
                Behind.look(upstream) as behind,
            ):
                task = await client.send(ask("[[start:3000]] [[text:Here.]]", now=True))
                while not await asks_the_model(task.id, client, behind):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                assert upstream.pid is not None
                os.kill(upstream.pid, signal.SIGKILL)
                ended = await until(client, task, "completed", "failed")
                assert error(ended)["type"] == "UPSTREAM_INTERRUPTED"
                await until_ready(running)
                again = await client.send(ask("Are you?", context=task.context_id))
                assert answer(again) == "ECHO: Are you?"


async def test_a_task_ends_after_the_sub_agents_that_it_left_in_the_background(
    opencode: Upstream, tmp_path: Path
) -> None:
    """What they have found begins a run of its own, after the one that has started them."""
    if not is_2():
        pytest.skip("OpenCode 1.x has no sub-agents in the background")
    call = {"description": "d", "agent": "general", "background": True}
    call["prompt"] = "[[delay:500]] [[text:Found it.]]"
    with service(opencode, tmp_path) as running:
        async with PythonClient.connect(running, LINE) as client:
            task = await client.send(ask(f"[[tool:subagent {json.dumps(call)}]] [[text:Wait.]]"))
    said = [content for name, content in shown(task) if name == "answer"]
    assert state(task) == "completed"
    assert (len(said), said[0], "Found it." in said[1]) == (2, "Wait.", True)
