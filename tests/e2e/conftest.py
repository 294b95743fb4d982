"""The clients and services that the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.behind import Behind
from tests.e2e.clients import LINES, Client, Line, PythonClient, connect_all
from tests.e2e.gate import Gate
from tests.e2e.javascript import JavaScriptClient
from tests.running import Service, Upstream, real_opencode, service


@pytest.fixture(params=LINES, ids=str)
def line(request: pytest.FixtureRequest) -> Line:
    """The four ways to speak A2A with us: two protocol lines over two bindings."""
    chosen: Line = request.param
    return chosen


@pytest.fixture
async def client(real_service: Service, line: Line) -> AsyncIterator[PythonClient]:
    """The Python SDK on the service with the real OpenCode, once per line."""
    async with PythonClient.connect(real_service, line) as connected:
        yield connected


@pytest.fixture(params=(LINES[0], LINES[3]), ids=str)
async def either(
    request: pytest.FixtureRequest, real_service: Service
) -> AsyncIterator[PythonClient]:
    """Two that share neither line nor binding, for what the wire form has little part in."""
    async with PythonClient.connect(real_service, request.param) as connected:
        yield connected


@pytest.fixture
async def clients(real_service: Service) -> AsyncIterator[list[PythonClient]]:
    """The same four at once, for what takes long."""
    async with connect_all(real_service) as connected:
        yield connected


@pytest.fixture(
    params=(*(("javascript", line) for line in LINES), ("python", LINES[0]), ("python", LINES[3])),
    ids=lambda who: f"{who[0]}-{who[1]}",
)
async def anyone(
    request: pytest.FixtureRequest, real_service: Service, tmp_path: Path
) -> AsyncIterator[Client]:
    """Every client there is; the Python SDK, which most tests here use, on two of its lines."""
    language, line = request.param
    if language == "python":
        async with PythonClient.connect(real_service, line) as python:
            yield python
    else:
        async with JavaScriptClient.connect(real_service, line, tmp_path) as javascript:
            yield javascript


@pytest.fixture(params=("python", "javascript"))
async def plain(
    request: pytest.FixtureRequest, real_service: Service, line: Line, tmp_path: Path
) -> AsyncIterator[Client]:
    """The same clients as they come: without any extension of ours."""
    if request.param == "python":
        async with PythonClient.connect(real_service, line, hints=False) as python:
            yield python
    else:
        async with JavaScriptClient.connect(real_service, line, tmp_path, hints=False) as other:
            yield other


@pytest.fixture
async def behind(opencode: Upstream) -> AsyncIterator[Behind]:
    async with Behind.look(opencode) as directly:
        yield directly


@pytest.fixture
def gate(opencode: Upstream) -> Gate:
    return Gate(opencode)


@pytest.fixture(scope="session")
def asking_service(
    asking_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """`opencode-a2a serve` on the OpenCode that asks before it acts."""
    with service(asking_opencode, tmp_path_factory.mktemp("service-on-asking")) as running:
        yield running


@pytest.fixture
async def asking(asking_service: Service, line: Line) -> AsyncIterator[PythonClient]:
    async with PythonClient.connect(asking_service, line) as connected:
        yield connected


@pytest.fixture(params=(LINES[0], LINES[3]), ids=str)
async def asking_either(
    request: pytest.FixtureRequest, asking_service: Service
) -> AsyncIterator[PythonClient]:
    """Two that share neither line nor binding, for what the wire form has little part in."""
    async with PythonClient.connect(asking_service, request.param) as connected:
        yield connected


@pytest.fixture(scope="session")
def snapshot_opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A real OpenCode that can tell what a turn changed."""
    with real_opencode(tmp_path_factory.mktemp("snapshots")) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def snapshot_service(
    snapshot_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with service(snapshot_opencode, tmp_path_factory.mktemp("service-on-snapshots")) as running:
        yield running


@pytest.fixture(params=(LINES[0], LINES[3]), ids=str)
async def editing_either(
    request: pytest.FixtureRequest, snapshot_service: Service
) -> AsyncIterator[PythonClient]:
    async with PythonClient.connect(snapshot_service, request.param) as connected:
        yield connected


@pytest.fixture
async def behind_asking(asking_opencode: Upstream) -> AsyncIterator[Behind]:
    async with Behind.look(asking_opencode) as directly:
        yield directly
