"""Where the service is reached: JSON-RPC on `/`, REST of both lines, the Agent Card, health."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from ..contract.declare import Json
from ..contract.dispatch import require_scope
from ..contract.operations import Line
from ..domain.scopes import Scope
from ..errors import AuthorizationForbidden, Internal, MethodNotFound
from ..web.metrics import PATH as METRICS_PATH
from ..web.metrics import page
from . import openapi
from .console import PATH as CONSOLE_PATH
from .console import Console
from .dialect import REST_DIALECTS
from .endpoints import INTERNAL_ERROR, Endpoint, Endpoints, caller_of
from .failures import failure
from .health import Health
from .openapi import Api, OpenApiDocument, public
from .operations import Operations
from .published import JWKS_PATH, Published

PROBE = ("GET", "HEAD")
# A router tries one route after the other and takes the first that matches. So what is called most
# comes first, and a tenant, which matches nearly anything, last.
TENANT = "/{tenant}"
REST_PREFIXES: tuple[tuple[Line, str], ...] = (("1.0", ""), ("0.3", "/v1"), ("1.0", TENANT))


def add_routes(
    api: Api,
    operations: Operations,
    health: Health,
    body_limit: int,
    *,
    console: Console | None = None,
) -> None:
    endpoints = Endpoints(
        operations=operations,
        table=api.published.operations,
        contract=api.published.contract,
        body_limit=body_limit,
    )
    describe = partial(openapi.rpc, published=api.published)
    api.add(endpoints.rpc, "/", ("POST",), summary="JSON-RPC, both lines", describe=describe)
    for line, prefix in REST_PREFIXES:
        if prefix == TENANT:
            _add_documents(api, health)
            if console is not None:
                for path in (CONSOLE_PATH, CONSOLE_PATH + "/{path:path}"):
                    _add_public(api, console.serve, path, summary="The console")
            if api.published.deployment.push is not None:
                about_keys = "The keys that push notifications are signed with"
                _add_public(api, endpoints.keys, JWKS_PATH, summary=about_keys, describe=public)
        for route, operation in api.published.operations.routes:
            if line in route.lines:
                about = partial(
                    openapi.rest,
                    route=route,
                    operation=operation,
                    line=line,
                    table=api.published.operations,
                )
                api.add(
                    endpoints.rest(operation, REST_DIALECTS[line]),
                    prefix + route.path,
                    route.verbs,
                    summary=operation.summary,
                    describe=about if prefix != TENANT else None,
                    status=HTTPStatus.OK if operation.supported else HTTPStatus.BAD_REQUEST,
                )


def application(api: Api) -> Starlette:
    """Answers the requests for these routes."""
    app = Starlette(
        routes=api.routes,
        exception_handlers={
            HTTPException: _unknown_path,
            ClientDisconnect: _client_left,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False  # clients of A2A do not expect a redirect as an answer
    return app


def document(published: Published) -> Json:
    """The OpenAPI document. No service needs to run."""
    api = Api(published)
    add_routes(api, cast(Operations, None), Health({}), body_limit=0)  # no request is answered
    return api.openapi()


def _add_public(
    api: Api,
    endpoint: Endpoint,
    path: str,
    *,
    summary: str,
    describe: openapi.Describe | None = None,
) -> None:
    """What everybody may read, without a credential."""
    api.add(endpoint, path, PROBE, summary=summary, describe=describe, is_public=True)


def _add_documents(api: Api, health: Health) -> None:
    about_health = "Whether the service lives"
    _add_public(api, health.live, "/health", summary=about_health, describe=public)
    missing = partial(public, unavailable="Something it needs is missing")
    _add_public(api, health.ready, "/ready", summary="Whether it can work", describe=missing)
    card = api.published.card.serve
    for path in ("/.well-known/agent-card.json", "/.well-known/agent.json"):
        _add_public(api, card, path, summary="The Agent Card", describe=openapi.card)
    deployment = api.published.deployment
    if deployment.shows_metrics:
        is_public = deployment.metrics == "open"
        describe = partial(openapi.metrics, is_public=is_public)
        endpoint = _metrics_endpoint(is_public=is_public)
        api.add(
            endpoint,
            METRICS_PATH,
            PROBE,
            summary="Metrics for Prometheus",
            describe=describe,
            is_public=is_public,
        )
    api.add(
        OpenApiDocument(api.openapi).serve,
        "/openapi.json",
        PROBE,
        summary="This document",
        describe=None,
    )


def _metrics_endpoint(*, is_public: bool) -> Endpoint:
    async def answer(request: Request) -> Response:
        if not is_public:
            try:
                require_scope(caller_of(request), Scope.METRICS_READ)
            except AuthorizationForbidden as exc:
                return failure(request.scope, exc)
        return page(request.headers)

    return answer


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
