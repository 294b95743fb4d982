"""Whether an instance works: what is asked, and that a credential goes nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from opencode_a2a.deploy.check import ask, wait_until_ready
from opencode_a2a.deploy.resources import DeployError


@contextmanager
def answering(status: int, body: bytes = b"{}", **headers: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_credential_does_not_go_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200) as (url, asked), answering(200) as (proxy, overheard):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        wait_until_ready(url, "Bearer token", seconds=60)
    assert (asked, overheard) == (["/ready"], [])


def test_a_credential_does_not_follow_a_redirect() -> None:
    with answering(200) as (elsewhere, overheard), answering(302, Location=elsewhere) as (url, _):
        with pytest.raises(DeployError, match="302"):
            wait_until_ready(url, "Bearer token", seconds=0.1)
        with pytest.raises(DeployError, match="302"):
            ask(url, "Bearer token")
    assert overheard == []


def test_an_answer_that_is_none_of_ours_is_said_to_be_that() -> None:
    with answering(200, b"<html>") as (url, _):
        with pytest.raises(DeployError, match="is no opencode-a2a"):
            wait_until_ready(url, None, seconds=0.1)
        with pytest.raises(DeployError, match="is no opencode-a2a"):
            ask(url, "Bearer token")
