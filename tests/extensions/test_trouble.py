"""When OpenCode or the store is not there: every method says so, in declared words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from opencode_a2a.extensions.providers import PROVIDERS
from opencode_a2a.extensions.sessions import SESSIONS
from opencode_a2a.extensions.workspaces import WORKSPACES
from tests.extensions.conftest import EVERYTHING, MISSING, Json, Line, line_of
from tests.extensions.test_access import of
from tests.running import Upstream, fake_opencode, until_ready


def requests(directory: Path) -> dict[str, Json]:
    """A well formed request to every method; what could be deleted is a directory of the test."""
    tree = {"request": {"directory": str(directory)}}
    asked: dict[str, Json] = of("ses_0") | {
        "workspaces.create": {"request": {"type": "worktree"}},
        "workspaces.remove": {"workspace_id": "wrk_0"},
        "worktrees.remove": tree,
        "worktrees.reset": tree,
    }
    methods = [*SESSIONS.methods, *PROVIDERS.methods, *WORKSPACES.methods]
    names = {method.name.removeprefix("opencode.") for method in methods}
    asks_git_alone = {"worktrees.finish"}
    return {name: asked.get(name, {}) for name in names - asks_git_alone - MISSING}


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with fake_opencode(tmp_path_factory.mktemp("breakable")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def line(breakable: Upstream, store: Path) -> Iterator[Line]:
    with line_of(breakable, store, **EVERYTHING) as connected:
        yield connected


@pytest.fixture
def fault(breakable: Upstream, line: Line) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=breakable.base_url, timeout=60) as control:
        yield control
        control.post("/__fault", json={"mode": "ok"})
    until_ready(line.http)  # else the next fault meets it on its way


@pytest.mark.parametrize(
    ("mode", "kind"), [("down", "UPSTREAM_UNREACHABLE"), ("html", "UPSTREAM_PAYLOAD_ERROR")]
)
def test_a_broken_opencode_is_named(
    line: Line, fault: httpx.Client, tmp_path: Path, mode: str, kind: str
) -> None:
    fault.post("/__fault", json={"mode": mode})
    for method, params in requests(tmp_path).items():
        assert line.refused(method, **params)["type"] == kind, method


def test_a_slow_opencode_is_named(breakable: Upstream, fault: httpx.Client, tmp_path: Path) -> None:
    impatient = {"OPENCODE_TIMEOUT": "0.3", "OPENCODE_TIMEOUT_STREAM": "1.5", **EVERYTHING}
    with line_of(breakable, tmp_path, **impatient) as line:
        fault.post("/__fault", json={"mode": "slow", "seconds": 60})
        for method, params in requests(tmp_path).items():
            assert line.refused(method, **params)["type"] == "UPSTREAM_TIMEOUT", method


def test_a_missing_store_is_named(line: Line, store: Path) -> None:
    session = line.session("hello")
    for file in store.glob("tasks.db*"):
        file.unlink()
    for method, params in of(session).items():
        assert line.refused(method, **params)["type"] == "STORE_UNAVAILABLE", method
