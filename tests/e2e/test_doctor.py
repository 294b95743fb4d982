"""`opencode-a2a doctor` where all is well: the real OpenCode, and a service in front of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opencode_a2a.cli import main
from tests.cli.commands import called
from tests.running import (
    TOKEN,
    Service,
    Upstream,
    opencode2_command,
    opencode_command,
    real_opencode,
)


def test_where_all_is_well_the_doctor_finds_nothing(
    opencode: Upstream, real_service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opencode.password is not None
    settings = {
        "OPENCODE_BASE_URL": opencode.base_url,
        "OPENCODE_AUTH_PASSWORD": opencode.password,
        "OPENCODE_WORKSPACE_ROOT": str(opencode.workspace),
        "OPENCODE_COMMAND": opencode_command(),
        "A2A_BEARER_TOKEN": TOKEN,
        "A2A_PUBLIC_URL": real_service.url,
        "A2A_PORT": "0",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    ran = called(main, ["doctor", "--json"], settings, capsys)
    found = {each["check"]: each for each in json.loads(ran.out)["checks"]}
    wrong = {
        name: each
        for name, each in found.items()
        if each["verdict"] != "ok" and each["finding"] != "opencode.lacks"  # of an older version
    }
    assert wrong.pop("credentials")["finding"] == "credentials.short"  # the token of the tests
    wrong.pop("python", None)  # a new one may not be among the tested
    if wrong.get("stream", {}).get("verdict") == "unknown":  # this machine is very fast
        assert "too fast" in wrong.pop("stream")["says"]
    assert (ran.code, wrong) == (0, {})
    assert "OpenCode " in found["opencode version"]["says"]
    assert "demo" in found["provider"]["says"]


@pytest.mark.parametrize("command", [opencode_command, opencode2_command], ids=["1", "2"])
def test_without_a_service_the_doctor_asks_opencode_itself(
    command: Callable[[], str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (program := command()) is None:
        pytest.skip("npm has no OpenCode 2 for this system")
    with real_opencode(tmp_path, {"OPENCODE_COMMAND": program}) as upstream:
        assert upstream.password is not None
        settings = {
            "OPENCODE_BASE_URL": upstream.base_url,
            "OPENCODE_AUTH_PASSWORD": upstream.password,
            "OPENCODE_WORKSPACE_ROOT": str(upstream.workspace),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        ran = called(main, ["doctor", "--json"], settings, capsys)
        wrong = called(
            main, ["doctor", "--json"], settings | {"OPENCODE_AUTH_PASSWORD": "another"}, capsys
        )
    found = {each["check"]: each for each in json.loads(ran.out)["checks"]}
    said = {name: each["says"] for name, each in found.items()}
    about = ("opencode", "opencode password", "opencode events", "provider", "model")
    assert [found[name]["verdict"] for name in about] == ["ok"] * len(about), said
    assert found["opencode version"]["finding"] in (None, "opencode.lacks")
    assert "Model: demo/demo" in said["provider"]
    assert "it said “ECHO: Answer with the single word: ready" in said["model"]
    refused = {each["check"]: each for each in json.loads(wrong.out)["checks"]}
    assert refused["opencode password"]["finding"] == "opencode.refuses"
    assert {refused[name]["verdict"] for name in about[2:]} == {"unknown"}
