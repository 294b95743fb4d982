"""`opencode-a2a call` with the real agent behind the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opencode_a2a.cli import main
from tests.cli.commands import Ran, called
from tests.e2e.seen import SHELL
from tests.running import TOKEN, Service


def call(capsys: pytest.CaptureFixture[str], state: Path, url: str, *words: str) -> Ran:
    settings = {"A2A_CLIENT_BEARER_TOKEN": TOKEN, "XDG_STATE_HOME": str(state)}
    return called(main, ["call", url, *words], settings, capsys)


def test_a_call_gets_the_answer_of_the_real_agent_and_everything_it_does(
    real_service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = json.dumps({"command": "echo from the shell", "description": "Says something"})
    asks = f"[[reason:2]] [[tool:bash {tool}]] [[text:All done.]]"
    assert call(capsys, tmp_path, real_service.url, asks) == Ran(0, "All done.\n", "")
    ran = call(capsys, tmp_path, real_service.url, "--last", "--json", asks)
    events = [json.loads(line) for line in ran.out.splitlines()]
    pieces = [each["artifactUpdate"]["artifact"] for each in events if "artifactUpdate" in each]
    assert {piece["name"] for piece in pieces} == {"reasoning", SHELL, "answer"}
    assert "from the shell" in ran.out
    usage = events[-1]["statusUpdate"]["metadata"]["shared"]["usage"]
    assert usage["total_tokens"] > 0
    listed = call(
        capsys, tmp_path, real_service.url, "--model", "demo/demo-small", "--agent", "nosuch", "Hi"
    )
    assert listed.code == 10
    assert "metadata.opencode.agent" in listed.err
