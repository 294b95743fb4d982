"""The first task after a start of OpenCode is canceled, at the moment at which OpenCode would load
what prompts need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.behind import Behind
from tests.e2e.clients import LINES, PythonClient, ask
from tests.e2e.seen import PATIENCE, shared, shown, state
from tests.faults.steering import ready
from tests.running import real_opencode, service

SLOW = {"slow": {"type": "local", "command": ["sh", "-c", "sleep 2; exit 1"], "enabled": True}}


async def is_prompted(task: str, client: PythonClient, behind: Behind) -> bool:
    """Whether OpenCode has the prompt of a task."""
    session = shared(await client.get(task)).get("session")
    return session is not None and bool(await behind.said(session["id"]))


@pytest.mark.parametrize("mcp", [{}, SLOW], ids=("providers", "MCP"))
async def test_a_cancel_of_the_first_task_does_not_harm_the_next(
    tmp_path: Path, mcp: dict[str, object]
) -> None:
    """OpenCode would keep the interruption: every later prompt would be dropped, or aborted."""
    with (
        real_opencode(tmp_path / "opencode", mcp=mcp) as upstream,
        service(upstream, tmp_path) as run,
    ):
        await ready(run)
        async with (
            asyncio.timeout(PATIENCE),
            Behind.look(upstream) as behind,
            PythonClient.connect(run, LINES[0]) as client,
        ):
            first = await client.send(ask("[[hang]]", now=True))
            while not await is_prompted(first.id, client, behind):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            canceled = await client.cancel(first.id)
            second = await client.send(ask("[[text:Here I am.]]"))
    assert state(canceled) == "canceled"
    assert (state(second), shown(second)) == ("completed", [("answer", "Here I am.")])
