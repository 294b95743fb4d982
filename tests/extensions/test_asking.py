"""Runs that no task stands for, and what becomes of what they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.extensions.conftest import Inside, Json, Line, settings
from tests.running import Upstream, real_opencode, service

BASH = "[[tool:bash {}]]".format(json.dumps({"command": "touch mark", "description": "Marks"}))
SUB_AGENT = {"description": "sub", "prompt": BASH, "subagent_type": "general"}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with real_opencode(
        tmp_path_factory.mktemp("asking-full"),
        permission={"bash": "ask"},
        snapshot=False,
        command={
            "mark": {"template": BASH},
            "delegate": {"template": f"[[tool:task {json.dumps(SUB_AGENT)}]]"},
        },
    ) as running:
        yield running


@pytest.fixture(scope="module")
def inside(upstream: Upstream) -> Iterator[Inside]:
    login = ("opencode", upstream.password or "")
    with httpx.Client(base_url=upstream.base_url, auth=login, timeout=60) as http:
        yield Inside(http, upstream.workspace)


@pytest.fixture(scope="module")
def alice(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with line(upstream, tmp_path_factory.mktemp("patient")) as connected:
        connected.converse("Wake up", "c")  # the first run takes longest
        yield connected


@pytest.fixture(scope="module")
def hasty(
    alice: Line, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Line]:
    """The same at a service that soon gives up."""
    directory = tmp_path_factory.mktemp("hasty")
    with line(upstream, directory, OPENCODE_TIMEOUT_STREAM="10") as connected:
        yield connected


@contextmanager
def line(upstream: Upstream, directory: Path, **more: str) -> Iterator[Line]:
    with service(upstream, directory, **settings(**more)) as running:
        headers = {"authorization": "Bearer alice"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
            yield Line(http)


def pending(inside: Inside) -> list[Json]:
    where = {"directory": str(inside.workspace)}
    found: list[Json] = inside.http.get("/permission", params=where).json()
    return found


def mark(inside: Inside) -> Path:
    return inside.workspace / "mark"


@pytest.mark.parametrize("command", ["mark", "delegate"])
def test_a_command_that_asks_is_aborted_in_time_and_nothing_can_allow_it_later(
    hasty: Line, inside: Inside, command: str
) -> None:
    session = inside.session(command)
    with inside.awaiting("permission.asked"):
        request = {"command": command}
        error = hasty.refused("opencode.sessions.command", session_id=session, request=request)
    assert error["type"] == "UPSTREAM_TIMEOUT"
    assert pending(inside) == []
    where = {"directory": str(inside.workspace)}
    assert session not in inside.http.get("/session/status", params=where).json(), "it is idle"
    assert not mark(inside).exists()


def test_what_a_prompted_session_asks_is_answered_by_a_message_to_it(
    alice: Line, inside: Inside
) -> None:
    session = inside.session("prompted")
    request = {"parts": [{"type": "text", "text": BASH}]}
    with inside.awaiting("permission.asked"):
        alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    assert [ask["sessionID"] for ask in pending(inside)] == [session]
    task = say(alice, "What is it?", metadata={"shared": {"session": {"id": session}}})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["metadata"]["shared"]["interrupt"]["details"]["command"] == "touch mark"
    task = say(alice, "yes", taskId=task["id"])
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    mark(inside).unlink()  # it was made; the others look for it, too
    assert pending(inside) == []


def say(alice: Line, text: str, **more: object) -> Json:
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}], **more}
    answer = alice.ask("SendMessage", {"message": message}, **{"a2a-version": "1.0"})
    task: Json = answer["result"]["task"]
    return task
