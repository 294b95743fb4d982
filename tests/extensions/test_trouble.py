"""When OpenCode or the store is not there: every method says so, in declared words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from opencode_a2a.extensions.providers import PROVIDERS
from opencode_a2a.extensions.sessions import SESSIONS
from opencode_a2a.extensions.workspaces import WORKSPACES
from tests.extensions.conftest import EVERYTHING, Json, Line, settings
from tests.extensions.test_access import of
from tests.running import Upstream, fake_opencode, service, until_ready

SESSION, MESSAGE = "ses_0", "msg_0"


def requests(directory: Path) -> dict[str, Json]:
    """A well formed request to every method; what could be deleted is a directory of the test."""
    tree = {"request": {"directory": str(directory)}}
    places: dict[str, Json] = {
        "opencode.workspaces.create": {"request": {"type": "worktree"}},
        "opencode.workspaces.remove": {"workspace_id": "wrk_0"},
        "opencode.worktrees.remove": tree,
        "opencode.worktrees.reset": tree,
    }
    asked = of(SESSION, MESSAGE) | places
    methods = [*SESSIONS.methods, *PROVIDERS.methods, *WORKSPACES.methods]
    names = {method.name for method in methods} - {"opencode.worktrees.finish"}  # asks git alone
    return {name: asked.get(name, {}) for name in names}


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with fake_opencode(tmp_path_factory.mktemp("breakable")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@contextmanager
def line_to(upstream: Upstream, store: Path, **more: str) -> Iterator[Line]:
    with service(upstream, store, **settings(**EVERYTHING, **more)) as running:
        headers = {"authorization": "Bearer alice"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=60) as http:
            yield Line(http)


@pytest.fixture(scope="module")
def line(breakable: Upstream, store: Path) -> Iterator[Line]:
    with line_to(breakable, store) as connected:
        yield connected


@pytest.fixture
def fault(breakable: Upstream, line: Line) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=breakable.base_url, timeout=60) as control:
        yield control
        control.post("/__fault", json={"mode": "ok"})
    until_ready(line.http)  # else the next fault meets it on its way


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ({"mode": "down"}, "UPSTREAM_UNREACHABLE"),
        ({"mode": "html"}, "UPSTREAM_PAYLOAD_ERROR"),
    ],
)
def test_a_broken_opencode_is_named(
    line: Line, fault: httpx.Client, tmp_path: Path, mode: Json, kind: str
) -> None:
    fault.post("/__fault", json=mode)
    for method, params in requests(tmp_path).items():
        assert line.refused(method, **params)["type"] == kind, method


def test_a_slow_opencode_is_named(breakable: Upstream, fault: httpx.Client, tmp_path: Path) -> None:
    impatient = {"OPENCODE_TIMEOUT": "0.3", "OPENCODE_TIMEOUT_STREAM": "1.5"}
    with line_to(breakable, tmp_path, **impatient) as line:
        fault.post("/__fault", json={"mode": "slow", "seconds": 60})
        for method, params in requests(tmp_path).items():
            assert line.refused(method, **params)["type"] == "UPSTREAM_TIMEOUT", method


def test_a_missing_store_is_named(line: Line, store: Path) -> None:
    session = line.session("hello", "c")
    for file in store.glob("tasks.db*"):
        file.unlink()
    for method, params in of(session, MESSAGE).items():
        assert line.refused(method, **params)["type"] == "STORE_UNAVAILABLE", method
