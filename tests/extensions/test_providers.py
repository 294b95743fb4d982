"""Which models, agents and commands there are, and that no key or template comes with them."""

from __future__ import annotations

import json

from tests.extensions.conftest import Line
from tests.extensions.inside import Inside
from tests.features import is_2


def test_providers_are_listed_without_their_keys(alice: Line, inside: Inside) -> None:
    options, model_count = inside.provider()
    assert options["apiKey"]  # so there is something to hide
    found = alice.call("providers.list")
    assert found == {
        "items": [
            {
                "provider_id": "demo",
                "name": "Demo",
                "source": "" if is_2() else "config",
                "connected": True,
                "default_model": "demo",
                "model_count": model_count,
            }
        ],
        "connected": ["demo"],
        "default_by_provider": {"demo": "demo"},  # it is configured; OpenCode would prefer another
    }
    told = json.dumps([found, alice.call("models.list")])
    for secret in ("apiKey", "baseURL", "options", "settings", "headers", options["baseURL"]):
        assert secret not in told


def test_models_say_what_they_can_do(alice: Line) -> None:
    found = alice.call("models.list")
    items = {m["model_id"]: m for m in found["items"]}
    assert items["demo"]["input"] == ["text"]
    assert "image" in items["demo-vision"]["input"]
    assert items["demo"]["variants"][:1] == ["low"]
    assert items["demo"]["context_tokens"] > 0
    assert items["demo"]["connected"] is True
    assert found["default_by_provider"] == {"demo": "demo"}
    assert alice.call("models.list", provider_id="demo") == found
    for method in ("providers.list", "models.list"):
        assert alice.refused_field(method, provider_id="nobody") == "provider_id"


def test_agents_are_listed_the_default_first_and_not_those_of_opencode_itself(
    alice: Line, inside: Inside
) -> None:
    raw = inside.agents()
    items = alice.call("agents.list")["items"]
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
    items = {item["name"]: item for item in alice.call("commands.list")["items"]}
    assert items["shout"] == {
        "name": "shout",
        "description": "Say it loud",
        "source": "command",
        "agent": None,
        "model": None,
        "subtask": False,
    }
    assert "LOUD" not in json.dumps(items)
