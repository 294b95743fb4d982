"""An OpenCode to break, and a service on it; mended after every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.faults.steering import control, ready
from tests.load.client import REST, Client, connected
from tests.running import Service, Upstream, fake_opencode, service


@pytest.fixture(scope="package")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with fake_opencode(tmp_path_factory.mktemp("breakable")) as upstream:
        yield upstream


@pytest.fixture(scope="package")
def service_on_it(
    breakable: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with service(breakable, tmp_path_factory.mktemp("service-on-breakable")) as running:
        yield running


@pytest.fixture
async def client(breakable: Upstream, service_on_it: Service) -> AsyncIterator[Client]:
    """A plain client of that service, which works when the test begins."""
    await ready(service_on_it)
    async with connected(service_on_it) as clients:
        yield clients[REST]
    await control(breakable, "fault", mode="ok")
    await control(breakable, "stall", on=False)
