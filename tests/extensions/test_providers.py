"""Which models there are, and that no key comes with them."""

from __future__ import annotations

import json

from tests.extensions.conftest import Inside, Line


def test_providers_are_listed_without_their_keys(alice: Line, inside: Inside) -> None:
    [raw] = inside.http.get("/provider").json()["all"]
    assert raw["options"]["apiKey"]  # so there is something to hide
    found = alice.call("opencode.providers.list")
    [item] = found["items"]
    assert item == {
        "provider_id": "demo",
        "name": "Demo",
        "source": "config",
        "connected": True,
        "default_model": "demo",
        "model_count": len(raw["models"]),
    }
    assert found["connected"] == ["demo"]
    assert found["default_by_provider"] == {"demo": "demo"}
    told = json.dumps([found, alice.call("opencode.models.list")])
    for secret in ("apiKey", "baseURL", "options", "headers", raw["options"]["baseURL"]):
        assert secret not in told


def test_the_configured_model_is_the_default(alice: Line, inside: Inside) -> None:
    raw = inside.http.get("/provider").json()
    assert raw["default"]["demo"] != "demo"  # OpenCode names what it would prefer
    for method in ("opencode.providers.list", "opencode.models.list"):
        assert alice.call(method)["default_by_provider"] == {"demo": "demo"}


def test_models_say_what_they_can_do(alice: Line) -> None:
    items = {m["model_id"]: m for m in alice.call("opencode.models.list")["items"]}
    assert items["demo"]["input"] == ["text"]
    assert "image" in items["demo-vision"]["input"]
    assert items["demo"]["variants"][:1] == ["low"]
    assert items["demo"]["context_tokens"] > 0
    assert items["demo"]["connected"] is True


def test_one_provider_can_be_asked_for(alice: Line) -> None:
    assert alice.call("opencode.models.list", provider_id="demo") == alice.call(
        "opencode.models.list"
    )
    for method in ("opencode.providers.list", "opencode.models.list"):
        error = alice.refused(method, provider_id="nobody")
        assert list(error["fields"]) == ["provider_id"]


def test_agents_are_listed_the_default_first_and_not_those_of_opencode_itself(
    alice: Line, inside: Inside
) -> None:
    raw = {agent["name"]: agent for agent in inside.http.get("/agent").json()}
    items = alice.call("opencode.agents.list")["items"]
    assert items[0] == {
        "name": "build",
        "description": raw["build"]["description"],
        "mode": "primary",
        "model": None,
        "variant": None,
        "native": True,
    }
    modes = {item["name"]: item["mode"] for item in items}
    assert modes["general"] == "subagent"
    assert raw["title"]["hidden"]
    assert "title" not in modes


def test_commands_are_listed_without_their_templates(alice: Line) -> None:
    items = {item["name"]: item for item in alice.call("opencode.commands.list")["items"]}
    assert items["shout"] == {
        "name": "shout",
        "description": "Say it loud",
        "source": "command",
        "agent": None,
        "model": None,
        "subtask": False,
    }
    assert "LOUD" not in json.dumps(items)
