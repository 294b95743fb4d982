"""Where the service is reached: JSON-RPC on `/`, REST of both lines, the Agent Card, health."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from ..contract.dispatch import Contract
from ..contract.operations import Line
from ..errors import Internal, MethodNotFound
from . import negotiation
from .dialect import REST_DIALECTS
from .endpoints import INTERNAL_ERROR, Endpoint, Endpoints
from .failures import failure
from .health import Health
from .operations import A2A, Operations

PROBE = ("GET", "HEAD")
# A router takes the first route that matches. A tenant matches nearly anything, so it is last.
REST_PREFIXES: tuple[tuple[Line, str], ...] = (("1.0", ""), ("0.3", "/v1"), ("1.0", "/{tenant}"))


def add_routes(
    app: FastAPI,
    operations: Operations,
    contract: Contract,
    health: Health,
    body_limit: int,
) -> None:
    _add(app, "/health", health.live, verbs=PROBE, summary="Whether the service lives")
    _add(app, "/ready", health.ready, verbs=PROBE, summary="Whether it can work")
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        _add(app, path, operations.card.serve, verbs=PROBE, summary="The Agent Card")
    endpoints = Endpoints(
        operations=operations,
        contract=contract,
        extension_uris=negotiation.known(contract.extensions),
        body_limit=body_limit,
    )
    _add(app, "/", endpoints.rpc, verbs=("POST",), summary="JSON-RPC, both lines")
    for line, prefix in REST_PREFIXES:
        for route, operation in A2A.routes:
            if line in route.lines:
                endpoint = endpoints.rest(operation, REST_DIALECTS[line])
                path, summary = prefix + route.path, operation.summary
                _add(app, path, endpoint, verbs=route.verbs, summary=summary)
    app.add_exception_handler(HTTPException, _unknown_path)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _internal_error)
    app.router.redirect_slashes = False  # clients of A2A do not expect a redirect as an answer


def _add(
    app: FastAPI, path: str, endpoint: Endpoint, *, verbs: tuple[str, ...], summary: str
) -> None:
    """One route per verb, as OpenAPI wants it. It leaves out HEAD, and the twin per tenant."""
    for verb in verbs:
        app.add_api_route(
            path,
            endpoint,
            methods=[verb],
            summary=summary,
            operation_id=f"{verb} {path}",
            include_in_schema=verb != "HEAD" and not path.startswith("/{tenant}"),
        )


async def _client_left(request: Request, exc: Exception) -> Response:
    return Response(status_code=499)  # for the log: the client has gone


async def _internal_error(request: Request, exc: Exception) -> Response:
    return failure(request.scope, Internal(INTERNAL_ERROR))


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
        allowed = ", ".join(sorted(verbs))
        error = MethodNotFound(
            f"{request.method} is not supported at this path. Use {allowed}.", path=path
        )
        response = failure(request.scope, error, status)
        response.headers["allow"] = allowed
        return response
    if status == 404:
        error = MethodNotFound(
            "This service has no route at this path. Its address is in "
            "/.well-known/agent-card.json, and its routes are in /openapi.json.",
            path=path,
        )
        return failure(request.scope, error)
    return failure(request.scope, Internal("The request could not be answered."), status)
