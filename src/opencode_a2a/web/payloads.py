"""Logs the bodies of requests and answers, for finding faults, where A2A_LOG_PAYLOADS says so."""

from __future__ import annotations

from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..redaction import Redactor

logger = structlog.get_logger()


class PayloadLog:
    """Logs each body once it is whole, and of a stream each piece when it has been sent.

    Every message is passed on before it is logged. Requests without a known caller are not logged,
    so that a caller without a credential cannot fill the log.
    """

    def __init__(self, app: ASGIApp, *, redactor: Redactor, limit: int) -> None:
        self._app = app
        self._redactor = redactor
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("state", {}).get("caller") is None:
            await self._app(scope, receive, send)
            return
        received, sent = list[bytes](), list[bytes]()
        status, is_stream = 0, False

        async def logged_receive() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                received.append(message.get("body", b""))
                if not message.get("more_body", False):
                    self._log("payload.request", received)
            return message

        async def logged_send(message: Message) -> None:
            nonlocal status, is_stream
            await send(message)
            if message["type"] == "http.response.start":
                status, is_stream = message["status"], _is_stream(message)
            elif message["type"] == "http.response.body":
                sent.append(message.get("body", b""))
                if is_stream:
                    self._log("payload.event", sent)
                elif not message.get("more_body", False):
                    self._log("payload.response", sent, status=status)

        await self._app(scope, logged_receive, logged_send)

    def _log(self, event: str, pieces: list[bytes], **facts: Any) -> None:
        raw = b"".join(pieces)
        pieces.clear()
        if not raw or raw.startswith(b":"):  # nothing, or the heartbeat of a silent stream
            return
        try:
            body = self._redactor.body(raw, self._limit)
        except Exception:  # a failure to log must not fail the request
            logger.exception("payload.unreadable", payload=event, bytes=len(raw))
        else:
            logger.info(event, **facts, bytes=len(raw), body=body)


def _is_stream(start: Message) -> bool:
    headers = start.get("headers", ())
    return any(k == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
