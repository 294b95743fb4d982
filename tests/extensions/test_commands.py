"""Arguments of OpenCode's commands on the real OpenCode: they never run or read anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extensions.conftest import Line
from tests.extensions.inside import Inside
from tests.features import available, require

EVIL = [
    ("tell", "; touch canary"),
    ("compare", 'x! "| touch canary |" y'),
    ("join", '"" "touch canary"'),
]


@pytest.fixture
def canary(inside: Inside) -> Path:
    """What the arguments try to make."""
    file = inside.workspace / "canary"
    file.unlink(missing_ok=True)
    return file


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *EVIL,
        ("explain", "!$'\ntouch canary\n$'"),
        ("shout", "!`touch canary`"),
        ("shout", "see @README.md"),
        ("silent", "!`touch canary`"),
        ("peek", "README.md"),
        ("review", "!`touch canary`"),
        ("prompts:tell", "touch canary"),
    ],
)
def test_arguments_that_could_run_or_read_something_are_refused(
    alice: Line, inside: Inside, canary: Path, command: str, arguments: str
) -> None:
    request = {"command": command, "arguments": arguments}
    session = inside.session(command)
    field = alice.refused_field("sessions.command", session_id=session, request=request)
    assert field == "request.arguments"
    assert not canary.exists()


@pytest.mark.parametrize(("command", "arguments"), EVIL)
def test_without_the_service_they_would_have_run(
    inside: Inside, canary: Path, command: str, arguments: str
) -> None:
    inside.command(inside.session(command), command, arguments)
    assert canary.exists()


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("shout", "It's 5 > 4! Mail me@example.com; please", "LOUD"),
        ("explain", "HEAD~1 of feature/x", "ECHO: Explain `HEAD~1 of feature/x` to me."),
        ("shout", "", "LOUD"),
        ("peek", "", "ECHO: Look at @"),
        ("tell", "", "ECHO: It says told-"),
        ("prompts:tell", "", "PROMPTED"),
    ],
)
def test_other_arguments_reach_the_model(
    alice: Line, inside: Inside, command: str, arguments: str, said: str
) -> None:
    """Where OpenCode shows the template, and where there are none."""
    request = {"command": command, "arguments": arguments, "agent": "build"}
    params = {"session_id": inside.session(command), "request": request}
    if arguments and not available("command_templates"):
        assert alice.refused_field("sessions.command", **params) == "request.arguments"
        return
    item = alice.call("sessions.command", **params)["item"]
    [text] = [part["text"] for part in item["parts"] if part["kind"] == "text"]
    assert text.strip() == said


def test_prompts_are_no_templates(alice: Line, inside: Inside, canary: Path) -> None:
    text = "$ARGUMENTS !`touch canary` $1"
    alice.converse(text)
    request = {"parts": [{"type": "text", "text": text}]}
    session = inside.session("no template")
    with inside.awaiting("idle", session):
        alice.call("sessions.prompt_async", session_id=session, request=request)
    assert not canary.exists()


def test_the_prompt_of_a_subtask_is_no_template_either(
    alice: Line, inside: Inside, canary: Path
) -> None:
    require("subtasks")
    session = inside.session("no template")
    for prompt in ("$ARGUMENTS !`touch canary` $1", "@README.md"):
        part = {"type": "subtask", "prompt": prompt, "description": "x", "agent": "general"}
        params = {"session_id": session, "request": {"parts": [part | {"command": "tell"}]}}
        if "@" in prompt:
            field = alice.refused_field("sessions.prompt_async", **params)
            assert field == "request.parts[0].prompt"
        else:
            with inside.awaiting("idle", session):
                alice.call("sessions.prompt_async", **params)
    assert not canary.exists()
