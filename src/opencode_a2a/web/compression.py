"""Compresses answers for clients that accept it.

To compress an answer that holds both a secret and what an attacker chose would give the secret
away by its length (BREACH). None does: credentials are never in an answer, and a page of an
attacker cannot have a request sent with somebody else's (see `web/origins.py`).
"""

from __future__ import annotations

import asyncio
import gzip

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES = 1_024  # below that little is saved
INLINE_BYTES = 65_536  # about a millisecond; what takes longer must not hold up the other requests
LEVEL = 5  # more than twice as fast as 9, for six percent more bytes
MEDIA_TYPES = ("application/json", "application/a2a+json", "text/html")


class Compression:
    """Answers that are sent in pieces pass unchanged, so a stream is never held back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        accepted = [v.decode("latin-1") for k, v in scope["headers"] if k == b"accept-encoding"]
        head: Message | None = None

        async def compressed(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message  # its headers depend on the body
                return
            if head is not None:
                if _is_worth_it(head, message):
                    message = await _compress(head, message, is_accepted(", ".join(accepted)))
                await send(head)
                head = None
            await send(message)

        await self._app(scope, receive, compressed)


def _is_worth_it(head: Message, message: Message) -> bool:
    if message.get("more_body", False) or len(message.get("body", b"")) < MIN_BYTES:
        return False
    headers = MutableHeaders(raw=head["headers"])
    media_type = headers.get("content-type", "").partition(";")[0]
    return media_type in MEDIA_TYPES and "content-encoding" not in headers


async def _compress(head: Message, message: Message, accepted: bool) -> Message:
    """The body as it is to be sent; the head is changed to fit."""
    headers = MutableHeaders(raw=head["headers"])
    if "accept-encoding" not in headers.get("vary", "").lower():
        headers.add_vary_header("Accept-Encoding")
    if not accepted:
        return message
    body = message["body"]
    if len(body) <= INLINE_BYTES:
        body = _gzip(body)
    else:
        body = await asyncio.to_thread(_gzip, body)
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(len(body))
    return {**message, "body": body}


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)


def is_accepted(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    weights = {}
    for entry in accept_encoding.lower().split(","):
        coding, _, parameter = entry.partition(";")
        name, _, weight = parameter.strip().partition("=")
        weights[coding.strip()] = weight.strip() if name == "q" else "1"
    weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", "0")))
    return weight.strip("0.") != ""
