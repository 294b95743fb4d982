"""The commands about push notifications: look at configs and dead letters, and receive some."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from ..config import ConfigError
from ..outbound.push import JWT_HEADER, TOKEN_HEADER, VALIDATION_PARAMETER, signature
from ..outbound.target import Login, Target
from ..peers import find_target, origins_of
from .failure import CommandError
from .printer import printable

Json = dict[str, Any]

DEFAULT_SERVICE = "http://127.0.0.1:8000"
SECRET_VARIABLE = "PUSH_SECRET"
TIMEOUT_SECONDS = 330.0  # to send 20 dead letters again may take so long
OLDEST_SECONDS = 300
MAX_BODY = 16 << 20
ENDS = ("completed", "failed", "canceled", "rejected")


def run_push(arguments: argparse.Namespace) -> int:
    """Run one of the commands; its exit code."""
    try:
        if arguments.command == "push listen":
            return _listen(arguments)
        service = _Service(_target(arguments))
        if arguments.command == "push list":
            params = {"taskId": arguments.task}
            found = service.call("ListTaskPushNotificationConfigs", params)["configs"]
            _show(found, ("id", "url"), as_json=arguments.json)
            return 0
        params = {"task_id": arguments.task} if arguments.task else {}
        if arguments.command == "push dead":
            found = service.call("opencode.push.deadletters.list", params)["items"]
            columns = ("event_id", "url", "event_at", "attempts", "error")
            _show(found, columns, as_json=arguments.json)
            return 0
        return _redeliver(service, params)
    except ConfigError as exc:
        raise CommandError("; ".join(exc.problems), 2) from None


def _target(arguments: argparse.Namespace) -> Target:
    from .call import client_settings, kept_token  # slow to load, and `listen` needs nothing of it

    target = find_target(client_settings(arguments), arguments.service or DEFAULT_SERVICE)
    if not target.login.headers and (token := kept_token(target.url)) is not None:
        login = Login(origins_of(target.url), (("Authorization", f"Bearer {token}"),))
        target = replace(target, login=login)
    return target


class _Service:
    """A running service, spoken to over JSON-RPC."""

    def __init__(self, target: Target) -> None:
        self._url = target.url
        self._headers = dict(target.login.headers) | {"A2A-Version": "1.0"}

    def call(self, method: str, params: Json) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        tls = httpx.create_ssl_context(trust_env=True)
        try:
            # No proxy of the environment: the credential is for the service alone.
            with httpx.Client(verify=tls, trust_env=False, timeout=TIMEOUT_SECONDS) as http:
                answer = http.post(self._url, json=body, headers=self._headers).json()
        except httpx.HTTPError:
            raise CommandError(f"{self._url}: no service answers there") from None
        except ValueError:
            raise CommandError(f"{self._url}: the answer is not A2A") from None
        if "error" in answer:
            raise CommandError(str(answer["error"].get("message", "refused")))
        found: Json = answer["result"]
        return found


def _show(rows: list[Json], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = [tuple(name.upper().replace("_", " ") for name in columns)]
    table += [tuple(str(row.get(name, "")) for name in columns) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(printable(line.rstrip()))


def _redeliver(service: _Service, params: Json) -> int:
    delivered = 0
    while True:
        found = service.call("opencode.push.deadletters.redeliver", params)
        delivered += found["delivered"]
        if found["failed"] or not found["more"]:
            break
    print(f"{delivered} delivered")
    for letter in found["failed"]:
        about = f"{letter['event_id']} to {letter['url']}: {letter['error']}"
        print(f"opencode-a2a: not taken: {printable(about)}", file=sys.stderr)
    return 1 if found["failed"] else 0


# -- listen


@dataclass(slots=True)
class _Verifier:
    """Checks that a notification comes from the service, and whether it was there before."""

    secret: str | None
    service: str | None  # whose keys are fetched
    seen: set[str] = field(default_factory=set)
    keys: Any = None

    def problems(self, headers: Any, body: bytes, url: str) -> list[str]:
        found = []
        if self.secret is not None:
            found += self._hmac_problems(headers, body)
            token = headers.get(TOKEN_HEADER)
            if token is not None and not hmac.compare_digest(token, self.secret):
                found.append("another token")
        if self.service is not None:
            found += self._jwt_problems(headers, body, url)
        return found

    def _hmac_problems(self, headers: Any, body: bytes) -> list[str]:
        event_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        given = headers.get("webhook-signature", "")
        if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > OLDEST_SECONDS:
            return ["too old"]
        right = signature(self.secret or "", event_id, timestamp=int(sent_at), body=body)
        matches = any(hmac.compare_digest(each, right) for each in given.split())
        return [] if matches else ["wrong signature" if given else "no signature"]

    def _jwt_problems(self, headers: Any, body: bytes, url: str) -> list[str]:
        import jwt

        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        token = headers.get(JWT_HEADER) or (bearer if scheme.lower() == "bearer" else "")
        try:
            self.keys = self.keys or jwt.PyJWKClient(f"{self.service}/.well-known/jwks.json")
            key = self.keys.get_signing_key_from_jwt(token).key
            claims = jwt.decode(token, key, algorithms=["ES256"], audience=url)
        except jwt.PyJWTError as exc:
            return [f"JWT not valid ({type(exc).__name__})"]
        digest = hashlib.sha256(body).hexdigest()
        return [] if claims.get("request_body_sha256") == digest else ["JWT of another body"]

    def is_repeated(self, event_id: str) -> bool:
        known = event_id in self.seen
        self.seen.add(event_id)
        return known


def _listen(arguments: argparse.Namespace) -> int:
    secret = os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(24)
    service = arguments.service.rstrip("/") if arguments.service else None
    verifier = _Verifier(secret, service)
    try:
        server = ThreadingHTTPServer((arguments.host or "127.0.0.1", arguments.port or 0), _Handler)
    except OSError as exc:
        raise CommandError(f"cannot listen there: {exc.strerror}") from None
    host, port = server.server_address[:2]
    host = host.decode() if isinstance(host, bytes) else host
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    _Handler.listening = _Listening(
        verifier, url, as_json=arguments.json, until_end=arguments.until_end
    )
    config = {"url": url, "token": secret}
    if arguments.json:
        print(json.dumps({"listening": config}), flush=True)
    else:
        print(f"listening: {json.dumps(config)}", flush=True)
    with server:
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return 0
    return 1 if _Handler.listening.rejected else 0


@dataclass(slots=True)
class _Listening:
    verifier: _Verifier
    url: str
    as_json: bool
    until_end: bool
    rejected: int = 0

    def line(self, headers: Any, body: bytes, problems: list[str]) -> str:
        event_id = headers.get("webhook-id", "")
        verdict = ", ".join(problems) or "verified"
        repeated = self.verifier.is_repeated(event_id) if not problems else False
        if self.as_json:
            about = {"event_id": event_id, "verdict": verdict, "repeated": repeated}
            return json.dumps(about | {"body": _parsed(body)}, ensure_ascii=False)
        attempt = headers.get("A2A-Notification-Attempt", "1")
        mark = "  repeated" if repeated else ""
        words = f"{event_id}  attempt {attempt}  {_what(body)}  [{verdict}]{mark}"
        return printable(words)


class _Handler(BaseHTTPRequestHandler):
    listening: _Listening
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The challenge at registration."""
        token = parse_qs(urlsplit(self.path).query).get(VALIDATION_PARAMETER, [""])[0]
        self._reply(200, token.encode())

    def do_POST(self) -> None:
        listening = self.listening
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True  # the body is still to come
            self._reply(413)
            return
        body = self.rfile.read(int(length))
        url = listening.url.rstrip("/") + self.path
        problems = listening.verifier.problems(self.headers, body, url)
        print(listening.line(self.headers, body, problems), flush=True)
        listening.rejected += bool(problems)
        self._reply(401 if problems else 204)
        if listening.until_end and not problems and _state(_parsed(body)) in ENDS:
            threading.Thread(target=self.server.shutdown).start()  # it waits for this request

    def _reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("x-content-type-options", "nosniff")  # it repeats what it is sent
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Every notification has its own line."""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _inner(event: Any) -> Json:
    if not isinstance(event, dict):
        return {}
    found = event.get("task") or event.get("statusUpdate") or event.get("artifactUpdate") or event
    return found if isinstance(found, dict) else {}


def _state(event: Any) -> str:
    status = _inner(event).get("status")
    state = str(status.get("state", "")) if isinstance(status, dict) else ""
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _what(body: bytes) -> str:
    """One notification in a few words."""
    event = _parsed(body)
    if state := _state(event):
        artifacts = _inner(event).get("artifacts") or []
        texts = [
            part.get("text", "")
            for artifact in artifacts
            for part in artifact.get("parts", [])
            if isinstance(part, dict)
        ]
        said = " ".join("".join(texts).split())
        return f"{state}: {said[:80]}" if said else state
    artifact = _inner(event).get("artifact", {})
    return f"artifact {artifact.get('name', '')}".strip()
