"""An A2A agent of a stranger: its card and its answers are whatever a test makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Json = dict[str, Any]


class Stranger(ThreadingHTTPServer):
    daemon_threads = True
    card: Json
    answer: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Stranger

    def do_GET(self) -> None:
        self._send(self.server.card)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"messageId": "m", "contextId": "c", "role": "ROLE_AGENT"}
        message["parts"] = [{"text": self.server.answer}]  # type: ignore[assignment]
        self._send({"jsonrpc": "2.0", "id": asked["id"], "result": {"message": message}})

    def _send(self, body: Json) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def card_of(url: str) -> Json:
    """One that is right."""
    return {
        "name": "Stranger",
        "description": "Says what it was told to say.",
        "version": "1",
        "provider": {"organization": "Elsewhere", "url": "https://elsewhere.example"},
        "documentationUrl": "https://elsewhere.example/docs",
        "capabilities": {"streaming": False, "extensions": [{"uri": "urn:x", "description": "x"}]},
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "say", "name": "Say", "description": "Says it.", "tags": ["talk"]}],
    }


@contextmanager
def stranger() -> Iterator[Stranger]:
    server = Stranger(("127.0.0.1", 0), _Handler)
    server.card, server.answer = card_of(server.url), "**Hello**, too."
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
