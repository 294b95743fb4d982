"""When OpenCode is away, too busy, or not what it should be: told in shape, and in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.api.forms import FORMS, RPC_1, UPSTREAM_BUSY, UPSTREAM_UNREACHABLE, Form, Json, line_to
from tests.running import Service, Upstream, fake_opencode, service, until_ready

QUEUE = 10


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A fake OpenCode of our own, to be mistreated."""
    with fake_opencode(tmp_path_factory.mktemp("mistreated")) as running:
        yield running


@pytest.fixture(scope="module")
def poor(
    upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, httpx.Client]]:
    """A service that does one thing at a time and lets few others wait."""
    settings = {
        "OPENCODE_MAX_CONCURRENT_STREAMS": "1",
        "A2A_MAX_QUEUED_TASKS": str(QUEUE),
        "OPENCODE_TIMEOUT": "2",
    }
    with (
        service(upstream, tmp_path_factory.mktemp("poor"), **settings) as running,
        line_to(running) as found,
    ):
        yield running, found


@contextmanager
def away(upstream: Upstream, client: httpx.Client) -> Iterator[None]:
    """OpenCode gone, and the service aware of it."""
    httpx.post(f"{upstream.base_url}/__fault", json={"mode": "down"}, timeout=60)
    try:
        until_ready(client, 503)
        yield
    finally:
        httpx.post(f"{upstream.base_url}/__fault", json={"mode": "ok"}, timeout=60)


def cancel(client: httpx.Client, form: Form, *tasks: Json) -> None:
    for task in tasks:
        form.result(form.call(client, "cancel", {"id": task["id"]}))


@pytest.mark.parametrize("operation", ["send", "stream"])
def test_too_much_work_is_refused_with_when_to_come_back(
    poor: tuple[Service, httpx.Client], form: Form, operation: str
) -> None:
    _, client = poor
    running = form.send(client, "[[hang]]", wait=False)
    with form.following(client, "subscribe", {"id": running["id"]}) as frames:
        while next(frames).body["status"]["state"] != form.state("working"):
            pass
        queued = [form.send(client, "hello", wait=False) for _ in range(QUEUE)]
        response = form.call(client, operation, form.sending("one too many"))
        form.refused(response, UPSTREAM_BUSY)
        assert int(response.headers["retry-after"]) > 0
    cancel(client, form, *queued, running)
    assert form.send(client, "hello")["status"]["state"] == form.state("completed")


def test_an_agent_that_is_away_is_said_to_be(
    poor: tuple[Service, httpx.Client], upstream: Upstream
) -> None:
    """All forms at once: the service waits a little for it to come back."""
    _, client = poor
    ways = [(form, operation) for form in FORMS for operation in ("send", "stream")]
    with away(upstream, client):
        with ThreadPoolExecutor(len(ways)) as pool:
            asked = [pool.submit(f.call, client, op, f.sending("hello")) for f, op in ways]
        for (form, _), answered in zip(ways, asked, strict=True):
            response = answered.result()
            form.refused(response, UPSTREAM_UNREACHABLE)
            assert int(response.headers["retry-after"]) > 0


def test_readiness_follows_the_agent(
    poor: tuple[Service, httpx.Client], upstream: Upstream
) -> None:
    running, client = poor
    with away(upstream, client), httpx.Client(base_url=running.url, timeout=60) as anybody:
        response = anybody.get("/ready")
        assert response.status_code == 503
        assert response.json() == {"status": "unavailable"}
        assert anybody.get("/health").status_code == 200
        told = client.get("/ready").json()
        assert told["checks"] == {"store": True, "opencode": False}
        assert "OpenCode" in told["problem"]
    assert RPC_1.send(client, "hello")["status"]["state"] == RPC_1.state("completed")
    assert client.get("/ready").status_code == 200


def test_half_a_request_is_nobodys_trouble(poor: tuple[Service, httpx.Client]) -> None:
    """A client that goes away before it has said everything leaves no error behind."""
    running, client = poor
    url = httpx.URL(running.url)
    head = (
        f"POST / HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {running.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    with socket.create_connection((url.host, url.port or 80), 60) as half:
        half.sendall(head.encode())
    running.program.wait_for(r"event=request method=POST path=/ status=499 ")
    assert "request.internal_error" not in running.program.output
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody speaks TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: [::1]\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_turned_away(
    poor: tuple[Service, httpx.Client], garbage: bytes
) -> None:
    running, client = poor
    url = httpx.URL(running.url)
    with socket.create_connection((url.host, url.port or 80), 60) as caller:
        caller.sendall(garbage)
        caller.settimeout(60)
        assert caller.recv(12)[9:] in (b"400", b"401", b"")
    assert client.get("/health").status_code == 200
    assert "Traceback" not in running.program.output
