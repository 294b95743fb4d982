"""Logs one line per request, and answers even when the application raises.

Every request has an id of its own, and a trace id: that of `traceparent` where the request belongs
to a trace of others, else the request id. An invalid `traceparent` is ignored, as W3C Trace Context
says.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import Internal, ServiceError, ShuttingDown

logger = structlog.get_logger()

_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


class Trace:
    def __init__(self, app: ASGIApp, on_error: Callable[[Scope, ServiceError], ASGIApp]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        known = {"request": request_id}
        if (trace := _trace_of(scope)) is not None:
            known["trace"] = trace
        scope.setdefault("state", {})["trace"] = trace or request_id
        started, status, answered = time.perf_counter(), 0, False

        def watched(message: Message) -> Awaitable[None]:
            # Returned, not awaited: that would cost a coroutine more for every event of a stream.
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
            else:
                answered = not message.get("more_body", False)
            return send(message)

        with structlog.contextvars.bound_contextvars(**known):
            try:
                await self._app(scope, receive, watched)
            except ClientDisconnect:
                pass  # in the middle of its request: nobody is left to answer
            except asyncio.CancelledError:
                if status:
                    raise
                # The service stops and cancels the request; the client still gets an answer.
                stopping = ShuttingDown()
                await self._on_error(scope, stopping)(scope, receive, watched)
            except Exception:
                logger.exception(
                    "request.internal_error", method=scope["method"], path=scope["path"]
                )
                if status and not answered:
                    raise  # too late for an answer: the connection is cut
                if not status:
                    error = Internal(
                        "An unexpected error occurred in the service. Its log has the details, "
                        f"under the request id {request_id}."
                    )
                    await self._on_error(scope, error)(scope, receive, watched)
            finally:
                caller = scope.get("state", {}).get("caller")
                logger.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 1),
                    principal=caller.principal if caller else None,
                )


def _trace_of(scope: Scope) -> str | None:
    """The trace that a request says it belongs to."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    found = _TRACEPARENT.fullmatch(given[0]) if len(given) == 1 else None
    return found[1].decode() if found is not None else None
