"""Receivers of push notifications on real sockets, which answer as a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    at: float

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found

    @property
    def event(self) -> tuple[str, int]:
        task_id, _, seq = self.headers["webhook-id"].rpartition(":")
        return task_id, int(seq)


Answer = tuple[int, dict[str, str]]  # the status and the header
Behaviour = Callable[[Received], Answer | None]  # None: hang up


def take(_: Received) -> Answer:
    return 204, {}


@dataclass
class Receiver:
    """A server that keeps what it gets. It answers as `behaviour` says."""

    behaviour: Behaviour = take
    received: list[Received] = field(default_factory=list)
    taken: list[Received] = field(default_factory=list)  # answered with 2xx
    answers_challenges: bool = True
    news: threading.Condition = field(default_factory=threading.Condition)
    server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def wait_for(self, count: int, seconds: float = 60.0) -> list[Received]:
        """What was taken, once it is at least so many."""
        with self.news:
            self.news.wait_for(lambda: len(self.taken) >= count, seconds)
            assert len(self.taken) >= count, f"{len(self.taken)} of {count} were taken"
            return list(self.taken)

    def wait_for_end(self, seconds: float = 60.0) -> list[Received]:
        """What was taken, once the end of a task is among it."""

        def ended() -> bool:
            return any(state_of(each) in ENDS for each in self.taken)

        with self.news:
            assert self.news.wait_for(ended, seconds), f"no end among {len(self.taken)}"
            return list(self.taken)

    def wait_for_attempt(self, count: int, seconds: float = 60.0) -> list[Received]:
        with self.news:
            self.news.wait_for(lambda: len(self.received) >= count, seconds)
            assert len(self.received) >= count, f"{len(self.received)} of {count} were tried"
            return list(self.received)


ENDS = ("completed", "failed", "canceled")


def state_of(received: Received) -> str:
    """The state of the task, in the words of 0.3, in either form of a notification."""
    body = received.json
    inner = body.get("task") or body.get("statusUpdate") or body
    state: str = inner.get("status", {}).get("state", "")
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that was killed leaves connections behind."""


@contextmanager
def receiver(behaviour: Behaviour = take) -> Iterator[Receiver]:
    found = Receiver(behaviour)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            token = parse_qs(urlsplit(self.path).query).get("validationToken", [""])[0]
            self._reply(200, {}, token.encode() if found.answers_challenges else b"no")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Received(self.path, headers, body, time.time())
            with found.news:
                found.received.append(got)
                found.news.notify_all()
            answer = found.behaviour(got)
            if answer is None:
                self.close_connection = True
                return
            if 200 <= answer[0] < 300:
                with found.news:
                    found.taken.append(got)
                    found.news.notify_all()
            self._reply(*answer)

        def _reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        found.server = server
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(10)
