"""The running service as its clients see it: raw HTTP over real sockets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.api.forms import FORMS, Form, line_to
from tests.running import Service, Upstream, service

PARTIES: dict[str, dict[str, str | list[str]]] = {
    "alice": {"scheme": "bearer", "token": "alice-token"},
    "bob": {"scheme": "basic", "username": "bob", "password": "bob:secret é"},
    "reader": {"scheme": "bearer", "token": "reader-token", "scopes": ["tasks:read"]},
    "writer": {"scheme": "bearer", "token": "writer-token", "scopes": ["tasks:write"]},
}


@pytest.fixture(params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.fixture(scope="session")
def client(fake_service: Service) -> Iterator[httpx.Client]:
    """The one caller of the shared service."""
    with line_to(fake_service) as found:
        yield found


@pytest.fixture(scope="session")
def guarded(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with several callers, for everything about who may do what."""
    known = json.dumps([{**what, "principal": who} for who, what in PARTIES.items()])
    directory = tmp_path_factory.mktemp("guarded")
    with service(fake, directory, A2A_STATIC_AUTH_CREDENTIALS=known) as running:
        yield running


@pytest.fixture(scope="session")
def alice(guarded: Service) -> Iterator[httpx.Client]:
    with line_to(guarded, headers={"authorization": "Bearer alice-token"}) as found:
        yield found


@pytest.fixture(scope="session")
def bob(guarded: Service) -> Iterator[httpx.Client]:
    login = httpx.BasicAuth("bob", "bob:secret é")
    with line_to(guarded, headers={}, auth=login) as found:
        yield found


@pytest.fixture(scope="session")
def addresses() -> Callable[[], str]:
    """A loopback address nobody has used: failed logins are counted by address."""
    numbers = itertools.count(2)
    return lambda: f"127.0.1.{next(numbers)}"


@pytest.fixture
def nobody(guarded: Service, addresses: Callable[[], str]) -> Iterator[httpx.Client]:
    """A client without a credential, at an address of its own."""
    transport = httpx.HTTPTransport(local_address=addresses(), verify=False)
    with line_to(guarded, headers={}, transport=transport) as found:
        yield found
