"""Logs, counts and traces each request, and answers even when the application raises.

Every request has an id of its own, and a trace id: that of `traceparent` where the request belongs
to a trace of others, else the request id. An invalid `traceparent` is ignored, as W3C Trace Context
says.

A request is counted, and its span ends, when its answer begins: a stream may last for hours, and a
process that is killed meanwhile has told of the request already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from ..errors import Internal, ServiceError, ShuttingDown
from ..observe import metrics, tracing
from ..observe.tracing import SpanRef

logger = structlog.get_logger()

UNKNOWN = "unknown"  # the operation of a request that names none of ours
LOGGED_PATH_CHARS = 200  # of a path, which may be as long as a request's head
OPERATION, OUTCOME = "opencode_a2a.operation", "opencode_a2a.outcome"  # in a request's state
_DOCUMENTS = {  # what can be asked for besides the operations of A2A
    "/health": "health",
    "/ready": "ready",
    "/metrics": "metrics",
    "/openapi.json": "openapi",
    "/.well-known/agent-card.json": "card",
    "/.well-known/agent.json": "card",
}


def note_operation(scope: Scope, operation: str, line: str, *, transport: str) -> None:
    """Say what a request asks for, as soon as that is known. All of these are closed sets."""
    scope["state"][OPERATION] = operation, line, transport


class Trace:
    def __init__(self, app: ASGIApp, on_error: Callable[[Scope, ServiceError], ASGIApp]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = tracing.new_hex(32)
        request = _Request(scope, request_id)
        status, answered = 0, False

        def watched(message: Message) -> Awaitable[None]:
            # Returned, not awaited: that would cost a coroutine more for every event of a stream.
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
                request.answered(status)
            else:
                answered = not message.get("more_body", False)
            return send(message)

        with bound_contextvars(**request.ids):
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
                    "request.internal_error", method=scope["method"], path=_logged_path(scope)
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
                if not status:
                    scope["state"][OUTCOME] = "disconnected"
                    request.answered(status)
                caller = scope["state"].get("caller")
                logger.info(
                    "request",
                    method=scope["method"],
                    path=_logged_path(scope),
                    status=status,
                    ms=round((time.perf_counter() - request.started) * 1000, 1),
                    principal=caller.principal if caller else None,
                )


class _Request:
    """One request, for those who watch the service."""

    __slots__ = ("_began", "_parent", "_ref", "_scope", "ids", "started")

    def __init__(self, scope: Scope, request_id: str) -> None:
        self.started, self._began = time.perf_counter(), time.time_ns()
        self._scope = scope
        self._parent = _parent_of(scope)
        self.ids = {"request": request_id}  # for the log
        ref = self._parent or SpanRef(request_id)
        if self._parent is not None:
            self.ids["trace_id"] = ref.trace
        if (tracer := tracing.process.tracer) is not None:
            sampled = tracer.samples(ref.trace, self._parent, scope["path"])
            ref = SpanRef(ref.trace, tracing.new_span_id(), sampled=sampled)
            self.ids |= {"trace_id": ref.trace, "span_id": ref.span}
            tracing.current.set(ref)
        self._ref = ref
        scope.setdefault("state", {})["trace"] = ref

    def answered(self, status: int) -> None:
        """Its answer begins, or will never do (0)."""
        ended = self._began + int((time.perf_counter() - self.started) * 1e9)
        outcome = self._scope["state"].get(OUTCOME)  # a stream may still fail
        document = _DOCUMENTS.get(self._scope["path"], UNKNOWN)
        said = self._scope["state"].get(OPERATION)
        operation, line, transport = said or (document, "", "http")
        outcome = outcome or ("ok" if status < 400 else f"HTTP_{status}")
        metrics.REQUESTS.labels(operation, line, transport, outcome).inc()
        if outcome == Internal.type:
            metrics.INTERNAL_ERRORS.inc()
        metrics.REQUEST_SECONDS.labels(operation, line, transport).observe(
            (ended - self._began) / 1e9
        )
        if self._ref.sampled and transport != "http":
            self._record(status, operation=operation, line=line, outcome=outcome, ended=ended)

    def _record(self, status: int, *, operation: str, line: str, outcome: str, ended: int) -> None:
        caller = self._scope["state"].get("caller")
        tracing.record(
            operation,
            below=self._parent or SpanRef(self._ref.trace),
            span=self._ref.span,
            kind="server",
            times=(self._began, ended),
            attributes={
                "http.request.method": self._scope["method"],
                "http.response.status_code": status,
                "url.path": _logged_path(self._scope),
                "a2a.line": line,
                "a2a.outcome": outcome,
                "enduser.id": caller.principal if caller else "",
            },
            error=outcome if outcome != "ok" else None,
        )


def _logged_path(scope: Scope) -> str:
    """Anybody can make one up, also without a credential."""
    path: str = scope["path"]
    return path if len(path) <= LOGGED_PATH_CHARS else f"{path[:LOGGED_PATH_CHARS]}…"


def _parent_of(scope: Scope) -> SpanRef | None:
    """The span that a request says it was sent from."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    return tracing.parse(given[0]) if len(given) == 1 else None
