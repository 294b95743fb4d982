"""Bodies in the log: whole, without secrets, cut, and in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs

from opencode_a2a.domain.values import Caller
from opencode_a2a.redaction import Redactor
from opencode_a2a.web.payloads import PayloadLog

SECRET = "a-secret-of-this-test"
NOBODYS: Scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
SCOPE: Scope = {**NOBODYS, "state": {"caller": Caller("alice")}}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await Response(body, 201, media_type="application/json")(scope, receive, send)


async def talk(
    app: ASGIApp, *pieces: bytes, limit: int = 4096, scope: Scope = SCOPE
) -> tuple[list[Message], list[Any]]:
    """What is sent in answer to a body that comes in pieces, and what is logged about it."""
    waiting = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    with capture_logs() as logged:
        await PayloadLog(app, redactor=Redactor(SECRET), limit=limit)(scope, receive, send)
    return sent, logged


async def test_a_request_and_its_answer_are_logged_without_secrets() -> None:
    body = orjson.dumps({"text": f"my token is {SECRET}", "password": "hunter2", "n": 1})
    sent, logged = await talk(echo, body[:10], body[10:])
    assert sent[1]["body"] == body, "what is sent is left as it is"
    shown = '{"text":"my token is [redacted]","password":"[redacted]","n":1}'
    facts = {"log_level": "info", "bytes": len(body), "body": shown}
    assert logged == [
        {"event": "payload.request", **facts},
        {"event": "payload.response", "status": 201, **facts},
    ]


@pytest.mark.parametrize("scope", [NOBODYS, {**NOBODYS, "state": {"caller": None}}])
async def test_what_has_no_caller_is_not_logged(scope: Scope) -> None:
    """Such as a public path that anybody reads: that must not fill the log."""
    sent, logged = await talk(echo, b"{}", scope=scope)
    assert sent[1]["body"] == b"{}"
    assert logged == []


async def test_a_large_body_is_cut() -> None:
    body = orjson.dumps({"text": "x" * 100_000})
    _, logged = await talk(echo, body, limit=50)
    for line in logged:
        assert line["bytes"] == len(body)
        assert line["body"] == f'{{"text":"{"x" * 41} …'
    _, logged = await talk(echo, body, limit=0)
    assert [line["body"] for line in logged] == [body.decode()] * 2


async def test_nothing_is_logged_where_there_is_nothing() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await Response(status_code=204)(scope, receive, send)

    _, logged = await talk(silent, b"")
    assert logged == []


async def test_a_stream_is_passed_on_piece_by_piece_and_logged_after_it() -> None:
    """Each piece is with the client before it is in the log, and before the next one is made."""
    order: list[str] = []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in (1, 2):
            order.append(f"made {number}")
            event = f'id: {number}\ndata: {{"text":"{SECRET}"}}\n\n'.encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(message: Message) -> None:
        if message.get("body"):
            order.append("sent")
        await asyncio.sleep(0)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    class Noting(Redactor):
        def body(self, raw: bytes, limit: int = 0) -> str:
            order.append("logged")
            return super().body(raw, limit)

    with capture_logs() as logged:
        await PayloadLog(stream, redactor=Noting(SECRET), limit=4096)(SCOPE, receive, send)
    assert order == ["made 1", "sent", "logged", "made 2", "sent", "logged", "sent"]
    assert [(line["event"], line["body"]) for line in logged] == [
        ("payload.event", f'id: {n}\ndata: {{"text":"[redacted]"}}\n') for n in (1, 2)
    ]


async def test_a_body_that_cannot_be_shown_does_no_harm() -> None:
    class Broken(Redactor):
        def body(self, raw: bytes, limit: int = 0) -> str:
            raise RuntimeError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    with capture_logs() as logged:
        await PayloadLog(echo, redactor=Broken(), limit=10)(SCOPE, receive, send)
    assert sent[1]["body"] == b"{}"
    assert [line["event"] for line in logged] == ["payload.unreadable"] * 2


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_not_http_is_left_alone(kind: str) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    await PayloadLog(app, redactor=Redactor(), limit=10)({"type": kind}, receive, send)
    assert seen == [kind]
