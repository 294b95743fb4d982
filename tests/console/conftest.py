"""A browser, and services for it to look at.

Where no browser can be driven, these tests are skipped and say why.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.console.browser import Browser, browsing, missing
from tests.running import Service, Upstream, real_opencode, service

PERMISSION = {"bash": {"*": "allow", "rm *": "ask"}, "edit": "allow"}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    with browsing() as running:
        yield running


@pytest.fixture(scope="session")
def working_opencode(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upstream]:
    """It edits files and runs commands, but asks before it removes something."""
    with real_opencode(tmp_path_factory.mktemp("console"), permission=PERMISSION) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def behind_console(
    working_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with service(working_opencode, tmp_path_factory.mktemp("console-service")) as running:
        yield running


@pytest.fixture(scope="session")
def front(browser: Browser, behind_console: Service) -> str:
    """The address of the console."""
    card = httpx.get(f"{behind_console.url}/.well-known/agent-card.json").text
    if "opencode-task-watch" not in card:
        pytest.skip("this service does not offer opencode.tasks.watch")
    return browser.front(behind_console.url)


@pytest.fixture
def port() -> int:
    """One that is free, for a service that is started twice at the same address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "service"
