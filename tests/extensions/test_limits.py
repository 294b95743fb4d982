"""What limits a caller's requests may choose from, on the real OpenCode; and what it has used."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.extensions.conftest import EVERYTHING, Inside, Json, Line, line, settings
from tests.running import Service, Upstream, service

LIMITS = """
[limits.alice]
models = ["demo/demo-small", "demo/demo-v*"]
agents = ["plan", "general"]
directories = ["parts", "docs"]
permission_rules = [{ permission = "bash", pattern = "rm *", action = "deny" }]
"""


@pytest.fixture(scope="module")
def house(full_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("limited")
    for name in ("parts", "docs", "docs/deep"):
        (full_opencode.workspace / name).mkdir(exist_ok=True)
    config = folder / "limits.toml"
    config.write_text(LIMITS)
    with service(full_opencode, folder, config=str(config), **settings(**EVERYTHING)) as running:
        yield running


@pytest.fixture(scope="module")
def limited(house: Service) -> Iterator[Line]:
    with line(house, "alice") as caller:
        yield caller


@pytest.fixture(scope="module")
def free(house: Service) -> Iterator[Line]:
    with line(house, "bob") as caller:
        yield caller


def send(caller: Line, text: str, context: str | None = None, **metadata: Json) -> Json:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    message |= {"contextId": context} if context else {}
    params = {"message": message, "metadata": metadata}
    return caller.ask("SendMessage", params, **{"a2a-version": "1.0"})


def task_of(answer: Json) -> Json:
    task: Json = answer["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return task


def stored(inside: Inside, task: Json) -> Json:
    session = task["metadata"]["shared"]["session"]["id"]
    found: Json = inside.http.get(f"/session/{session}").json()
    return found


def test_who_names_nothing_gets_the_first_that_is_allowed(limited: Line, inside: Inside) -> None:
    task = task_of(send(limited, "hello"))
    by, session = task["metadata"]["opencode"], stored(inside, task)
    assert by["model"] == {"providerID": "demo", "modelID": "demo-small"}
    assert by["agent"] == "plan"
    assert session["directory"] == str(inside.workspace / "parts")
    again = task_of(send(limited, "and again", task["contextId"]))
    assert again["metadata"]["opencode"]["model"]["modelID"] == "demo-small"
    denied = {"permission": "bash", "pattern": "rm *", "action": "deny"}
    assert denied in session["permission"]


def test_what_is_allowed_can_be_chosen_and_nothing_else(limited: Line, inside: Inside) -> None:
    vision = {"model": {"providerID": "demo", "modelID": "demo-vision"}}
    chosen = task_of(
        send(limited, "hi", shared=vision, opencode={"agent": "general", "directory": "docs/deep"})
    )
    assert chosen["metadata"]["opencode"]["model"]["modelID"] == "demo-vision"
    assert stored(inside, chosen)["directory"] == str(inside.workspace / "docs" / "deep")
    other = {"model": {"providerID": "demo", "modelID": "demo"}}
    for metadata, limit, field in (
        ({"shared": other}, "models", "metadata.shared.model"),
        ({"opencode": {"agent": "build"}}, "agents", "metadata.opencode.agent"),
    ):
        error = send(limited, "no", **metadata)["error"]
        info = error["data"][0]
        assert (error["code"], info["reason"]) == (-32056, "AUTHORIZATION_FORBIDDEN")
        assert (info["metadata"]["limit"], info["metadata"]["field"]) == (limit, field)
    for directory in (".", "docs/..", "snapshots", "../docs", str(inside.workspace)):
        error = send(limited, "no", opencode={"directory": directory})["error"]
        assert error["code"] == -32602, directory


def test_others_are_not_limited(free: Line, inside: Inside) -> None:
    task = task_of(send(free, "hello"))
    session = stored(inside, task)
    assert task["metadata"]["opencode"]["model"]["modelID"] == "demo"
    assert session["directory"] == str(inside.workspace)
    assert not session.get("permission")


def test_a_session_elsewhere_cannot_be_claimed(limited: Line, inside: Inside) -> None:
    elsewhere = inside.session("somebody's")
    error = limited.refused(
        "opencode.sessions.rename", session_id=elsewhere, request={"title": "x"}
    )
    assert error["type"] == "SESSION_FORBIDDEN"
    there = inside.session("somebody's", inside.workspace / "docs")
    limited.call("opencode.sessions.rename", session_id=there, request={"title": "mine"})
    rules = inside.http.get(f"/session/{there}").json()["permission"]
    assert {"permission": "bash", "pattern": "rm *", "action": "deny"} in rules


def test_what_would_work_without_a_task_is_refused_where_limits_need_one(limited: Line) -> None:
    session = task_of(send(limited, "hello"))["metadata"]["shared"]["session"]["id"]
    text = {"parts": [{"type": "text", "text": "hello"}]}
    model = {"providerID": "demo", "modelID": "demo"}
    for method, request in (
        ("prompt_async", text),
        ("command", {"command": "shout"}),
        ("summarize", model),
    ):
        name = f"opencode.sessions.{method}"
        error = limited.refused(name, session_id=session, request=request)
        assert (error["type"], error["limits"]) == (
            "AUTHORIZATION_FORBIDDEN",
            ["models", "agents"],
        )


def test_who_has_commands_denied_to_the_agent_has_no_shell(limited: Line) -> None:
    session = task_of(send(limited, "hello"))["metadata"]["shared"]["session"]["id"]
    run = {"agent": "plan", "command": "true && rm nothing-here"}
    error = limited.refused("opencode.sessions.shell", session_id=session, request=run)
    assert (error["type"], error["limit"]) == ("AUTHORIZATION_FORBIDDEN", "permission_rules")


def test_usage_is_that_of_the_steps_sub_agents_included(free: Line, inside: Inside) -> None:
    before = free.call("opencode.usage.get", principal="bob", by=[])["total"]
    sub = {"description": "d", "prompt": "[[usage:30:3]] part", "subagent_type": "general"}
    task = task_of(send(free, f"[[usage:100:10]] [[tool:task {json.dumps(sub)}]] go"))
    today = datetime.now(UTC).date().isoformat()
    found = free.call(
        "opencode.usage.get", principal="bob", by=["day", "model"], **{"from": today, "to": today}
    )
    assert found["last_day"] == today
    assert {item["model"] for item in found["items"]} == {"demo/demo"}
    after = free.call("opencode.usage.get", principal="bob", by=[])["total"]
    used = task["metadata"]["shared"]["usage"]
    assert after["steps"] - before["steps"] == 3, "two of the agent, one of its sub-agent"
    for figure in ("input_tokens", "output_tokens", "total_tokens"):
        assert after[figure] - before[figure] == used[figure]
    assert after["cost"] - before["cost"] == pytest.approx(used["cost"])
    session = task["metadata"]["shared"]["session"]["id"]
    [child] = inside.http.get(f"/session/{session}/children").json()
    own = stored(inside, task)["tokens"]
    assert own["input"] + child["tokens"]["input"] == used["input_tokens"]


def test_a_reader_of_sessions_does_not_see_usage(house: Service) -> None:
    with line(house, "reader") as reader:
        error = reader.refused("opencode.usage.get")
    assert (error["type"], error["required_scope"]) == ("AUTHORIZATION_FORBIDDEN", "tasks:read")
