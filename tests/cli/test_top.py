"""`top`: what it makes of the metrics, and what it says when there are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from opencode_a2a.cli.failure import CommandError
from opencode_a2a.cli.top import Snapshot, Source, View, _checks_of, as_table, as_text, source
from opencode_a2a.observe.metrics import render

BEFORE = """\
opencode_a2a_info{version="1.2.3",opencode_version="1.18.33"} 1
opencode_a2a_tasks{state="working"} 2
opencode_a2a_queue_depth{reason="slot"} 4
opencode_a2a_queue_limit 256
opencode_a2a_opencode_connected 1
opencode_a2a_tokens_total{kind="output",model="acme/large",principal="a"} 100
opencode_a2a_tokens_total{kind="output",model="acme/small",principal="a"} 1
opencode_a2a_cost_dollars_total{model="acme/large",principal="a"} 0.5
opencode_a2a_task_first_token_seconds_bucket{le="0.5"} 6
opencode_a2a_task_first_token_seconds_bucket{le="2.5"} 9
opencode_a2a_task_first_token_seconds_bucket{le="+Inf"} 10
"""


def view(*, after: str = "", connected: str = "1") -> View:
    then = BEFORE.replace("connected 1", f"connected {connected}")
    return View(
        "http://localhost:8000",
        Snapshot.parse(BEFORE, 10.0),
        Snapshot.parse(then + after, 12.0),
        checks={"store": True, "opencode": connected == "1"},
        is_ready=connected == "1",
    )


def test_rates_are_what_has_grown_between_two_looks() -> None:
    more = 'opencode_a2a_tokens_total{kind="output",model="acme/new",principal="b"} 60\n'
    shown = as_text(view(after=more))
    assert "30/s out" in shown
    assert "first after ≤500 ms / ≤∞" in shown
    assert "2 working" in shown
    assert "4 of 256 wait for a slot" in shown
    assert "acme/large: 100 tokens, $0.5000" in shown
    assert shown.startswith(
        "opencode-a2a 1.2.3 at http://localhost:8000 · ready · OpenCode 1.18.33"
    )


def test_a_lost_opencode_cannot_be_overlooked() -> None:
    shown = as_text(view(connected="0"))
    assert "NOT READY (opencode)" in shown
    assert "NOT CONNECTED" in shown


def test_a_service_that_has_restarted_has_no_negative_rates() -> None:
    now = Snapshot.parse("opencode_a2a_tokens_total 5\n", 12.0)
    then = Snapshot.parse("opencode_a2a_tokens_total 500\n", 10.0)
    assert View("", then, now, checks=None, is_ready=True).rate("tokens_total") == 0


def test_it_reads_what_the_service_writes_also_before_the_first_task() -> None:
    now = Snapshot.parse(render("")[0].decode(), 1.0)
    as_text(View("http://x", now, now, checks=None, is_ready=True))
    console = Console(width=100, record=True)
    with console.capture() as shown:
        console.print(as_table(view()))
    assert "tokens" in shown.get()


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that answers everything with this status."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the screen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "token", "advice"),
    [
        (401, None, "set A2A_CLIENT_BEARER_TOKEN"),
        (401, "wrong", "does not know this token"),
        (403, "weak", "lacks the scope metrics:read"),
        (404, "fine", "A2A_METRICS=off"),
        (500, "fine", "status 500"),
    ],
)
def test_it_says_what_to_do_when_it_gets_no_metrics(
    status: int, token: str | None, advice: str
) -> None:
    with answering(status) as url, pytest.raises(CommandError, match=advice):
        Source(url, url, token).look()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nopencode_a2a_info 1\n",  # killed meanwhile
        b"HTTP/1.1 500 Broken\r\nContent-Length: 1000\r\n\r\nhalf",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<!DOCTYPE html><p>Log in",
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
    ],
)
def test_what_a_half_dead_service_says_is_an_error_to_try_again_after(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CommandError, match="does not answer"):
            Source(url, url).look()


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"checks": 1}', b"\xff"])
def test_a_readiness_that_cannot_be_read_is_none(said: bytes) -> None:
    assert _checks_of(said) is None


def test_a_service_that_does_not_answer_is_named() -> None:
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:1/metrics does not answer"):
        Source("http://127.0.0.1:1", "http://127.0.0.1:1").look()


def test_without_an_address_it_looks_where_the_service_would_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = source(None, None, {"A2A_PORT": "9000", "A2A_CLIENT_BEARER_TOKEN": "t"})
    assert (found.url, found.metrics_url, found.token) == (
        *("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        "t",
    )
