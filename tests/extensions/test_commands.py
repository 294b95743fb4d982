"""Arguments of OpenCode's commands on the real OpenCode: they never run or read anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extensions.conftest import Inside, Line


@pytest.fixture
def canary(inside: Inside) -> Path:
    """What the arguments try to make."""
    file = inside.workspace / "canary"
    file.unlink(missing_ok=True)
    return file


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("shout", "!`touch canary`"),
        ("shout", "see @README.md"),
        ("silent", "!`touch canary`"),
        ("peek", "README.md"),
        ("tell", "; touch canary"),
        ("tell", "x\ntouch canary"),
        ("explain", "!$'\ntouch canary\n$'"),
        ("compare", 'x! "| touch canary |" y'),
        ("join", '"" "touch canary"'),
        ("review", "!`touch canary`"),
        ("prompts:tell", "touch canary"),
    ],
)
def test_arguments_that_could_run_or_read_something_are_refused(
    alice: Line, inside: Inside, canary: Path, command: str, arguments: str
) -> None:
    request = {"command": command, "arguments": arguments}
    session = inside.session(command)
    error = alice.refused("opencode.sessions.command", session_id=session, request=request)
    assert list(error["fields"]) == ["request.arguments"]
    assert not canary.exists()


@pytest.mark.parametrize("command", ["tell", "explain", "compare", "join"])
def test_without_the_service_they_would_have_run(
    inside: Inside, canary: Path, command: str
) -> None:
    arguments = {
        "tell": "; touch canary",
        "explain": "!$'\ntouch canary\n$'",
        "compare": 'x! "| touch canary |" y',
        "join": '"" "touch canary"',
    }
    body = {"command": command, "arguments": arguments[command]}
    inside.http.post(f"/session/{inside.session(command)}/command", json=body)
    assert canary.exists()


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("shout", "It's 5 > 4! Mail me@example.com; please", "LOUD"),
        ("explain", "HEAD~1 of feature/x", "ECHO: Explain `HEAD~1 of feature/x` to me."),
        ("peek", "", "ECHO: Look at @"),
        ("tell", "", "ECHO: It says told-"),
        ("prompts:tell", "", "PROMPTED"),
    ],
)
def test_other_arguments_reach_the_model(
    alice: Line, inside: Inside, command: str, arguments: str, said: str
) -> None:
    """Also beside a prompt of an MCP server, whose text OpenCode does not show."""
    request = {"command": command, "arguments": arguments}
    session = inside.session(command)
    item = alice.call("opencode.sessions.command", session_id=session, request=request)["item"]
    [text] = [part["text"] for part in item["parts"] if part["kind"] == "text"]
    assert text.strip() == said


def test_prompts_are_no_templates(alice: Line, inside: Inside, canary: Path) -> None:
    text = "$ARGUMENTS !`touch canary` $1"
    alice.converse(text, "no template")
    subtask = {"type": "subtask", "prompt": text, "description": "x", "agent": "general"}
    session = inside.session("no template")
    for part in ({"type": "text", "text": text}, subtask | {"command": "tell"}):
        with inside.awaiting("session.idle", session):
            request = {"parts": [part]}
            alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    request = {"parts": [subtask | {"prompt": "@README.md"}]}
    error = alice.refused("opencode.sessions.prompt_async", session_id=session, request=request)
    assert list(error["fields"]) == ["request.parts[0].prompt"]
    assert not canary.exists()
