"""Errors as answers, in the shape of whoever asked.

JSON-RPC wants an envelope, REST 1.0 a google.rpc.Status, REST 0.3 a plain object;
the facts are the same. Nothing but our own words and facts gets out.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Scope

from ..errors import InvalidParams, ServiceError
from .render import V03_REST, V1, Dialect, Json

JSON = "application/json"
A2A_JSON = "application/a2a+json"
_A2A_DOMAIN = "a2a-protocol.org"
_OUR_DOMAIN = "opencode-a2a"

# JSON-RPC answers 200 and says the rest in its body, but for what gateways must see.
_HTTP_EVEN_FOR_RPC = frozenset({401, 403, 413, 429})
_STATUS_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_INVALID = frozenset({-32700, -32600, -32602, -32005, -32073})


def rpc_error(error: ServiceError, dialect: Dialect) -> Json:
    return {
        "code": error.rpc_code,
        "message": error.message,
        "data": _details(error) if dialect is V1 else _facts(error),
    }


def rpc_response(error: ServiceError, dialect: Dialect, request_id: Any) -> Response:
    status = error.http_status if error.http_status in _HTTP_EVEN_FOR_RPC else 200
    body = {"jsonrpc": "2.0", "id": request_id, "error": rpc_error(error, dialect)}
    return Response(orjson.dumps(body), status, _headers(error), JSON)


def rest_error(error: ServiceError, dialect: Dialect) -> Json:
    if dialect is V03_REST:
        return {"code": error.rpc_code, "message": error.message, "data": _facts(error)}
    name = "FAILED_PRECONDITION" if error.rpc_code not in _INVALID else "INVALID_ARGUMENT"
    return {
        "error": {
            "code": error.http_status,
            "status": _STATUS_NAMES.get(error.http_status, name),
            "message": error.message,
            "details": _details(error),
        }
    }


def rest_response(error: ServiceError, dialect: Dialect) -> Response:
    media_type = JSON if dialect is V03_REST else A2A_JSON
    body = orjson.dumps(rest_error(error, dialect))
    return Response(body, error.http_status, _headers(error), media_type)


def failure(scope: Scope, error: ServiceError) -> Response:
    """An error met before anybody looked at the request: its path says who asked."""
    path = scope["path"]
    if path in ("", "/"):
        return rpc_response(error, V1, None)
    return rest_response(error, V03_REST if path.startswith("/v1/") else V1)


def _headers(error: ServiceError) -> dict[str, str]:
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.http_status == 401:
        headers["www-authenticate"] = str(error.facts["challenge"])
    return headers


def _facts(error: ServiceError) -> Json:
    facts: Json = {"type": error.type, **error.facts}
    if isinstance(error, InvalidParams) and error.fields:
        facts["fields"] = error.fields
    return facts


def _details(error: ServiceError) -> list[Json]:
    """google.rpc details: ErrorInfo, whose metadata may hold strings only, and BadRequest."""
    details: list[Json] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": error.type,
            "domain": _A2A_DOMAIN if error.protocol else _OUR_DOMAIN,
            "metadata": {name: _string(value) for name, value in error.facts.items()},
        }
    ]
    if isinstance(error, InvalidParams) and error.fields:
        violations = [{"field": f, "description": d} for f, d in error.fields.items()]
        details.append(
            {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
        )
    return details


def _string(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
