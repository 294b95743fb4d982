"""The metrics as a page, at a path of the service or on a listener of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.addresses import is_loopback
from ..errors import ServiceError
from ..observe import metrics
from .connections import ConnectionLimits
from .hosts import HostCheck
from .protocol import ConnectionGuard
from .server import QuietServer

PATH = "/metrics"
# Whoever can reach the listener needs no credential. A new connection closes the oldest.
LIMITS = ConnectionLimits(
    total=64, unknown=64, unknown_per_address=32, head_seconds=10.0, body_seconds=10.0
)
MAX_HEAD_BYTES = 16_384


def page(headers: Headers) -> Response:
    """The metrics, in the best format that the client accepts."""
    body, content_type = metrics.render(headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    answer: Response = PlainTextResponse(f"The metrics are at {PATH}.\n", 404)
    if scope["path"] == PATH and scope["method"] in ("GET", "HEAD"):
        answer = page(Headers(scope=scope))
    await answer(scope, receive, send)


@asynccontextmanager
async def listening(listener: socket.socket) -> AsyncIterator[None]:
    """Answer with the metrics there, while the block lasts, whoever asks."""
    app: ASGIApp = _app
    if is_loopback(listener.getsockname()[0]):  # a web page must not read them by its own name
        app = HostCheck(_app, allowed=(), on_error=lambda _, error: _refusal(error, 403))
    async with ConnectionGuard.open(
        LIMITS, MAX_HEAD_BYTES, render_error=lambda _, error, status: _refusal(error, status)
    ) as guard:
        server = QuietServer(_config(app, guard))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            await serving


def _refusal(error: ServiceError, status: int) -> Response:
    return PlainTextResponse(f"{error.message}\n", status)


def _config(app: ASGIApp, guard: ConnectionGuard) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=guard.protocol,
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        reset_contextvars=True,
    )
