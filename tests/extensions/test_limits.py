"""What limits a caller's requests may choose from, on the real OpenCode; and what it has used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.extensions.conftest import (
    EVERYTHING,
    MODEL,
    Json,
    Line,
    line,
    session_of,
    settings,
    sub_agent,
)
from tests.extensions.inside import Inside
from tests.features import tool_name
from tests.running import Service, Upstream, service

LIMITS = """
[limits.alice]
models = ["demo/demo-small", "demo/demo-v*"]
agents = ["plan", "general"]
directories = ["parts", "docs"]
permission_rules = [{ permission = "bash", pattern = "rm *", action = "deny" }]
"""
DENIED = {"permission": tool_name("bash"), "pattern": "rm *", "action": "deny"}


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


def model_of(task: Json) -> str:
    found: str = task["metadata"]["opencode"]["model"]["modelID"]
    return found


def test_who_names_nothing_gets_the_first_that_is_allowed(limited: Line, inside: Inside) -> None:
    task = limited.converse("hello")
    session = session_of(task)
    assert (model_of(task), task["metadata"]["opencode"]["agent"]) == ("demo-small", "plan")
    assert inside.directory(session) == str(inside.workspace / "parts")
    assert DENIED in inside.rules(session)
    assert model_of(limited.converse("and again", task["contextId"])) == "demo-small"


def test_what_is_allowed_can_be_chosen_and_nothing_else(limited: Line, inside: Inside) -> None:
    chosen = limited.converse(
        "hi",
        shared={"model": MODEL | {"modelID": "demo-vision"}},
        opencode={"agent": "general", "directory": "docs/deep"},
    )
    assert model_of(chosen) == "demo-vision"
    assert inside.directory(session_of(chosen)) == str(inside.workspace / "docs" / "deep")
    for metadata, limit, field in (
        ({"shared": {"model": MODEL}}, "models", "metadata.shared.model"),
        ({"opencode": {"agent": "build"}}, "agents", "metadata.opencode.agent"),
    ):
        error = limited.send("no", **metadata)
        info = error["data"][0]
        assert (error["code"], info["reason"]) == (-32056, "AUTHORIZATION_FORBIDDEN")
        assert (info["metadata"]["limit"], info["metadata"]["field"]) == (limit, field)
    for directory in (".", "docs/..", "snapshots", "../docs", str(inside.workspace)):
        error = limited.send("no", opencode={"directory": directory})
        assert error["code"] == -32602, directory


def test_others_are_not_limited(free: Line, inside: Inside) -> None:
    task = free.converse("hello")
    session = session_of(task)
    assert model_of(task) == "demo"
    assert inside.directory(session) == str(inside.workspace)
    assert not inside.rules(session)


def test_a_session_elsewhere_cannot_be_claimed(limited: Line, inside: Inside) -> None:
    request = {"title": "mine"}
    elsewhere = inside.session("somebody's")
    error = limited.refused("sessions.rename", session_id=elsewhere, request=request)
    assert error["type"] == "SESSION_FORBIDDEN"
    allowed = inside.session("somebody's", inside.workspace / "docs")
    limited.call("sessions.rename", session_id=allowed, request=request)
    assert DENIED in inside.rules(allowed)


def test_usage_is_that_of_the_steps_sub_agents_included(free: Line, inside: Inside) -> None:
    def total() -> Json:
        found: Json = free.call("usage.get", principal="bob", by=[])["total"]
        return found

    before = total()
    task = free.converse(f"[[usage:100:10]] {sub_agent('[[usage:30:3]] part')} go")
    used, after = task["metadata"]["shared"]["usage"], total()
    assert after["steps"] - before["steps"] == 3, "two of the agent, one of its sub-agent"
    for figure in ("input_tokens", "output_tokens", "total_tokens", "cost"):
        assert after[figure] - before[figure] == pytest.approx(used[figure])
    session = session_of(task)
    [child] = free.call("sessions.children", session_id=session)["items"]
    stored = [inside.get(each) or {} for each in (session, child["id"])]
    assert sum(each["tokens"]["input"] for each in stored) == used["input_tokens"]
    today = datetime.now(UTC).date().isoformat()
    days = {"from": today, "to": today}
    found = free.call("usage.get", principal="bob", by=["day", "model"], **days)
    assert found["last_day"] == today
    assert {item["model"] for item in found["items"]} == {"demo/demo"}
