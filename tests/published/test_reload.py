"""What is published changes with a reload, and what was published before is let go."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from opencode_a2a.app import build
from opencode_a2a.config import load
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.opencode.http import Endpoint


def applications() -> int:
    gc.collect()
    return sum(isinstance(each, Api) for each in gc.get_objects())


async def test_a_reload_keeps_nothing_of_the_application_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "A2A_BEARER_TOKEN": "x",
        "A2A_TASK_STORE_BACKEND": "memory",
        "OPENCODE_WORKSPACE_ROOT": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    nowhere, stopping = Endpoint("http://127.0.0.1:9"), asyncio.get_running_loop().create_future()
    async with build(load(None), endpoint=nowhere, url="http://here", stopping=stopping) as built:
        before = applications()
        for _ in range(5):
            built.reload(load(None))
        assert applications() <= before
