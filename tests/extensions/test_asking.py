"""Runs that no task stands for, and what becomes of what they ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extensions.conftest import V1, Json, Line, line_of, sub_agent, tool
from tests.extensions.inside import Inside
from tests.running import Upstream, real_opencode

BASH = tool("bash", command="touch mark", description="Marks")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with real_opencode(
        tmp_path_factory.mktemp("asking-full"),
        permission={"bash": "ask"},
        snapshot=False,
        command={"mark": {"template": BASH}, "delegate": {"template": sub_agent(BASH)}},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def inside(upstream: Upstream) -> Iterator[Inside]:
    with Inside.of(upstream) as directly:
        yield directly


@pytest.fixture(scope="module")
def alice(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line_of(upstream, tmp_path_factory.mktemp("patient")) as caller:
        caller.converse("Wake up")  # the first run takes longest
        yield caller


@pytest.fixture(scope="module")
def hasty(
    alice: Line, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Line]:
    """The same at a service that soon gives up."""
    directory = tmp_path_factory.mktemp("hasty")
    with line_of(upstream, directory, OPENCODE_TIMEOUT_STREAM="10") as caller:
        yield caller


@pytest.mark.parametrize("command", ["mark", "delegate"])
def test_a_command_that_asks_is_aborted_in_time_and_nothing_can_allow_it_later(
    hasty: Line, inside: Inside, command: str
) -> None:
    session = inside.session(command)
    with inside.awaiting("asked", ""):
        request = {"command": command}
        error = hasty.refused("sessions.command", session_id=session, request=request)
    assert error["type"] == "UPSTREAM_TIMEOUT"
    assert inside.asking() == []
    assert not inside.is_busy(session)
    assert not (inside.workspace / "mark").exists()


def test_what_a_prompted_session_asks_is_answered_by_a_message_to_it(
    alice: Line, inside: Inside
) -> None:
    session = inside.session("prompted")
    request = {"parts": [{"type": "text", "text": BASH}]}
    with inside.awaiting("asked", session):
        alice.call("sessions.prompt_async", session_id=session, request=request)
    assert inside.asking() == [session]
    task = alice.send("What is it?", shared={"session": {"id": session}})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["metadata"]["shared"]["interrupt"]["details"]["command"] == "touch mark"
    answer: Json = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "yes"}]}
    task = alice.ask("SendMessage", {"message": answer | {"taskId": task["id"]}}, **V1)["result"]
    assert task["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    (inside.workspace / "mark").unlink()  # it was made; the others look for it, too
    assert inside.asking() == []
