"""Where the operations are reached: JSON-RPC on `/`, REST of both lines, the Agent Card."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from ..contract.a2a import written
from ..contract.dispatch import Contract
from ..domain.values import Caller
from ..errors import Internal, InvalidParams, InvalidRequest, MethodNotFound, ServiceError
from . import negotiation
from .body import read_json
from .failures import (
    A2A_JSON,
    JSON,
    failure,
    line_of,
    rest_response,
    rpc_response,
    version_of,
)
from .health import Health
from .operations import RPC_METHODS, SUPPORTED_METHODS, Call, Operation, Operations
from .parse import from_query
from .render import V03_REST, V1, Dialect, Renderer
from .sse import Envelope

logger = structlog.get_logger()

BROKEN = "Something went wrong here. The log has it."

LONGEST_NAME = 100  # of a method, in the log: a caller may make up any

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A REST route; the 0.3 form has its own prefix, the 1.0 form a twin per tenant."""

    methods: tuple[str, ...]
    path: str
    operation: Operation
    summary: str
    lines: tuple[Dialect, ...] = (V1, V03_REST)

    def path_in(self, dialect: Dialect) -> str:
        return self.path if dialect is V1 else f"/v1{self.path}"


_PUSH = "/tasks/{id}/pushNotificationConfigs"
REST_ROUTES = (
    Route(("POST",), "/message:send", Operations.send, "Send a message"),
    Route(("POST",), "/message:stream", Operations.stream, "Send a message, stream the answer"),
    Route(("GET",), "/tasks", Operations.list, "List tasks"),
    Route(("POST",), "/tasks/{id}:cancel", Operations.cancel, "Cancel a task"),
    Route(("GET", "POST"), "/tasks/{id}:subscribe", Operations.subscribe, "Follow a task"),
    Route(("POST", "GET"), _PUSH, Operations.push_config, "Push configurations (not supported)"),
    Route(
        ("GET", "DELETE"),
        _PUSH + "/{config_id}",
        Operations.push_config,
        "A push configuration (not supported)",
    ),
    Route(("GET",), "/tasks/{id}", Operations.get, "Get a task"),
    Route(
        ("GET",), "/extendedAgentCard", Operations.extended_card, "The extended Agent Card", (V1,)
    ),
    Route(("GET",), "/card", Operations.extended_card, "The extended Agent Card", (V03_REST,)),
)


def add_route(
    app: FastAPI, path: str, endpoint: Endpoint, methods: tuple[str, ...], summary: str
) -> None:
    """One route per verb, as OpenAPI wants it; HEAD and tenant twins go without saying."""
    for method in methods:
        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            operation_id=f"{method} {path}",
            include_in_schema=method != "HEAD" and not path.startswith("/{tenant}"),
        )


def caller_of(request: Request) -> Caller:
    """Set by the authentication in front of every route that needs one."""
    caller: Caller = request.scope["state"]["caller"]
    return caller


def last_event_id_of(request: Request) -> str | None:
    """The last event a returning client has seen."""
    return request.headers.get("last-event-id") or request.query_params.get("after")


def add_routes(
    app: FastAPI,
    operations: Operations,
    contract: Contract,
    health: Health,
    body_limit: int,
) -> None:
    add_route(app, "/health", health.live, ("GET", "HEAD"), "Whether the service lives")
    add_route(app, "/ready", health.ready, ("GET", "HEAD"), "Whether it can work")
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        add_route(app, path, operations.card.serve, ("GET", "HEAD"), "The Agent Card")
    names = negotiation.known(contract.extensions)
    rpc = _rpc(operations, contract, names, body_limit)
    add_route(app, "/", rpc, ("POST",), "JSON-RPC, both lines")
    # Found by looking at all before it: the newer line first, a tenant (nearly anything) last.
    for dialect, prefix in ((V1, ""), (V03_REST, "/v1"), (V1, "/{tenant}")):
        for route in REST_ROUTES:
            if dialect in route.lines:
                endpoint = _rest(operations, route.operation, dialect, names, body_limit)
                add_route(app, prefix + route.path, endpoint, route.methods, route.summary)
    app.add_exception_handler(HTTPException, _unknown_path)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _broken)
    app.router.redirect_slashes = False  # a redirect is no answer in anybody's shape


def _rpc(
    operations: Operations, contract: Contract, names: Mapping[str, str], body_limit: int
) -> Endpoint:
    async def answer(request: Request) -> Response:
        active = negotiation.activated(request, names)
        return negotiation.confirm(await respond(request, active), request, active)

    async def respond(request: Request, active: frozenset[str]) -> Response:
        dialect, request_id, method = line_of(request), None, ""
        notification = False
        try:
            body = await read_json(request, body_limit)
            request_id = _id_of(body)
            method = body.get("method")
            if body.get("jsonrpc") != "2.0" or not isinstance(method, str):
                raise InvalidRequest('A request needs "jsonrpc": "2.0" and a "method".')
            notification = "id" not in body
            if notification:
                request.state.answer = _no_answer()  # also if the service stops, or breaks
            operation = None
            if method in RPC_METHODS:
                dialect, operation = RPC_METHODS[method]
            elif method not in contract:
                raise MethodNotFound(
                    f"There is no method {method}.",
                    method=method,
                    supported_methods=[*SUPPORTED_METHODS, *contract.available],
                    protocol_version=dialect.version,
                )
            operations.negotiate(dialect, version_of(request))
            _understood(request, method, dialect, active)
            params = body.get("params")
            if params is not None and not isinstance(params, dict):
                raise InvalidParams.at("params", "must be an object")
            if operation is None:
                found = await contract.call(method, caller_of(request), params)
                result = written(found, Renderer(dialect).value)
            else:
                result = await operation(
                    operations,
                    Call(
                        caller_of(request),
                        dialect,
                        params,
                        Envelope.rpc(request_id),
                        request_id,
                        request.headers.get("idempotency-key"),
                        last_event_id_of(request),
                        active,
                        notification,
                    ),
                )
        except ServiceError as exc:
            if notification:
                logger.info("notification.failed", method=method[:LONGEST_NAME], type=exc.type)
                return _no_answer()
            return rpc_response(exc, dialect, request_id)
        except Exception:
            if not notification:
                request.state.answer = rpc_response(Internal(BROKEN), dialect, request_id)
            raise
        if notification:
            return _no_answer()
        if isinstance(result, Response):
            return result
        answered = {"jsonrpc": "2.0", "id": request_id, "result": result}
        return Response(orjson.dumps(answered), media_type=JSON)

    return answer


def _understood(request: Request, what: str, dialect: Dialect, active: frozenset[str]) -> None:
    logger.debug(
        "request.understood",
        operation=what,
        line=dialect.version,
        version=version_of(request),
        extensions=sorted(active) or None,
        last_event_id=last_event_id_of(request),
    )


def _no_answer() -> Response:
    """JSON-RPC forbids to answer a notification, whatever came of it."""
    return Response(status_code=204)


def _id_of(body: Any) -> str | int | None:
    if not isinstance(body, dict):
        raise InvalidRequest("A request must be one JSON object; batches are not part of A2A.")
    request_id = body.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        raise InvalidRequest('"id" must be a string, a whole number or null.')
    return request_id


def _rest(
    operations: Operations,
    operation: Operation,
    dialect: Dialect,
    names: Mapping[str, str],
    body_limit: int,
) -> Endpoint:
    media_type = A2A_JSON if dialect is V1 else JSON

    async def answer(request: Request) -> Response:
        active = negotiation.activated(request, names)
        return negotiation.confirm(await respond(request, active), request, active)

    async def respond(request: Request, active: frozenset[str]) -> Response:
        try:
            operations.negotiate(dialect, version_of(request))
            _understood(request, operation.__name__, dialect, active)
            params: dict[str, Any] = {}
            if request.method == "POST" and await _has_body(request, operation):
                body = await read_json(request, body_limit)
                if body is not None and not isinstance(body, dict):
                    raise InvalidRequest("The body must be a JSON object.")
                params = body or {}
            elif request.method == "GET":
                params = from_query(request.query_params)
            if "id" in request.path_params:
                params = {**params, "id": request.path_params["id"]}
            call = Call(
                caller_of(request),
                dialect,
                params,
                idempotency_key=request.headers.get("idempotency-key"),
                last_event_id=last_event_id_of(request),
                extensions=active,
            )
            result = await operation(operations, call)
        except ServiceError as exc:
            return rest_response(exc, dialect)
        if isinstance(result, Response):
            return result
        return Response(orjson.dumps(result), media_type=media_type)

    return answer


async def _has_body(request: Request, operation: Operation) -> bool:
    """Sends need one; elsewhere an absent body is fine, and has no content type to check."""
    if operation in (Operations.send, Operations.stream):
        return True
    return request.headers.get("content-length", "0") != "0"


async def _left(request: Request, exc: Exception) -> Response:
    return Response(status_code=499)  # for the log: nobody is left to read it


async def _broken(request: Request, exc: Exception) -> Response:
    return failure(request.scope, Internal(BROKEN))


async def _unknown_path(request: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    path = request.scope["path"]
    if status == 405:
        verbs = {
            verb
            for route in request.app.routes
            if route.matches(request.scope)[0] is not Match.NONE
            for verb in route.methods
        }
        error = MethodNotFound(f"{request.method} is not possible here.", path=path)
        response = failure(request.scope, error, status)
        response.headers["allow"] = ", ".join(sorted(verbs))
        return response
    if status == 404:
        return failure(request.scope, MethodNotFound("There is nothing at this path.", path=path))
    return failure(request.scope, Internal("The request could not be answered."), status)
