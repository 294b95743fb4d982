"""Whom the agent may call by itself: said to callers, and to nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from opencode_a2a import app
from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.inbound.published import Published
from opencode_a2a.opencode.http import Endpoint

PEERS = """
[peers.reviewer]
url = "https://reviewer.example.com"
[peers.deployer]
url = "https://deployer.example.com"
model_may_call = false
"""


def published(monkeypatch: pytest.MonkeyPatch, config: Path | None, **env: str) -> Published:
    for name, value in {"A2A_BEARER_TOKEN": "x", **env}.items():
        monkeypatch.setenv(name, value)
    return publication(load(config), "http://127.0.0.1:8000")


def peer_calls(found: Published) -> Any:
    return found.profile["runtime_features"]["peer_calls"]


def test_without_a_peer_the_agent_calls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    found = published(monkeypatch, None)
    told = {"enabled": False, "peers": [], "any_peer": False, "max_depth": 3}
    assert peer_calls(found) == told


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, (True, False, 3)),
        ({"A2A_MAX_CALL_DEPTH": "0"}, (False, False, 0)),
        ({"A2A_CLIENT_ALLOW_ANY_PEER": "true"}, (True, True, 3)),
    ],
)
def test_callers_and_nobody_else_are_told_which_peers_the_agent_may_call(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    env: dict[str, str],
    told: tuple[bool, bool, int],
) -> None:
    (tmp_path / "a2a.toml").write_text(PEERS)
    found = published(monkeypatch, tmp_path / "a2a.toml", **env)
    names = ("enabled", "any_peer", "max_depth")
    assert peer_calls(found) == {"peers": ["reviewer"], **dict(zip(names, told, strict=True))}
    assert "reviewer" in json.dumps(found.card.extended_pure)
    for card in (found.card.pure, found.card.hybrid):
        assert b"reviewer" not in card.body
        assert b"peer_calls" not in card.body


def test_any_peer_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = published(monkeypatch, None, A2A_CLIENT_ALLOW_ANY_PEER="true")
    assert peer_calls(found)["enabled"]


async def test_an_opencode_elsewhere_cannot_reach_the_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(PEERS)
    monkeypatch.setenv("A2A_BEARER_TOKEN", "x")
    found = publication(load(config), "http://127.0.0.1:8000", calls_peers=False)
    assert peer_calls(found) == {"enabled": False, "peers": [], "any_peer": False, "max_depth": 3}
    far, unused = Endpoint("http://10.0.0.1:4096"), cast(Any, None)
    current = app._CurrentSettings(load(config), own_urls=("http://here", far.base_url))
    async with app._peer_calls(current, unused, endpoint=far) as calls:
        assert calls is None
