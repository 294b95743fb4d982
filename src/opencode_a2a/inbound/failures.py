"""Errors as answers, in the shape that the client expects.

JSON-RPC wants an envelope, REST 1.0 a google.rpc.Status, REST 0.3 a plain object;
the facts are the same. An answer holds our own texts and facts only, no exception's.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from ..contract.declare import Json
from ..errors import InvalidParams, ServiceError
from ..web.trace import OUTCOME
from .dialect import V03, V03_REST, V1, Dialect

JSON = "application/json"
A2A_JSON = "application/a2a+json"
A2A_DOMAIN = "a2a-protocol.org"
_OUR_DOMAIN = "opencode-a2a"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"

_STATUS_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_INVALID = frozenset({-32700, -32600, -32602, -32005, -32073, -32075})
# 0.3 defines no error body for REST: JavaScript clients read the code, Python clients these names.
_V03_NAMES = {
    -32700: "JSONParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32005: "ContentTypeNotSupportedError",
    -32009: "VersionNotSupportedError",
}
_PARTS_IN_V03 = ("message.parts", f"message.{V03_REST.content}")


def rpc_error(error: ServiceError, dialect: Dialect) -> Json:
    return {
        "code": error.rpc_code,
        "message": error.message,
        "data": _details(error) if dialect is V1 else _facts(error),
    }


def rpc_response(
    error: ServiceError, dialect: Dialect, request_id: Any, *, status: int | None = None
) -> Response:
    body = {"jsonrpc": "2.0", "id": request_id, "error": rpc_error(error, dialect)}
    return Response(
        orjson.dumps(body),
        status_code=status or error.rpc_http_status(),
        headers=_headers(error),
        media_type=JSON,
    )


def rest_error(error: ServiceError, dialect: Dialect, status: int | None = None) -> Json:
    if dialect is V03_REST:
        facts, message = _facts(error), error.message.replace(*_PARTS_IN_V03)
        if isinstance(error, InvalidParams) and error.fields:
            facts["fields"] = {k.replace(*_PARTS_IN_V03): v for k, v in error.fields.items()}
        body = {"code": error.rpc_code, "message": message, "data": facts}
        return body | {"type": _V03_NAMES.get(error.rpc_code, error.type)}
    name = "FAILED_PRECONDITION" if error.rpc_code not in _INVALID else "INVALID_ARGUMENT"
    status = status or error.http_status
    return {
        "error": {
            "code": status,
            "status": _STATUS_NAMES.get(status, name),
            "message": error.message,
            "details": _details(error),
        }
    }


def rest_response(error: ServiceError, dialect: Dialect, status: int | None = None) -> Response:
    return Response(
        orjson.dumps(rest_error(error, dialect, status)),
        status_code=status or error.http_status,
        headers=_headers(error),
        media_type=rest_media_type(dialect),
    )


def rest_media_type(dialect: Dialect) -> str:
    return JSON if dialect is V03_REST else A2A_JSON


def failure(scope: Scope, error: ServiceError, status: int | None = None) -> Response:
    """The answer to a request that failed outside of its endpoint, shaped by its path.

    An endpoint that has read the request may have left an answer in its state for this case.
    """
    state = scope.setdefault("state", {})
    state[OUTCOME] = error.type
    answer: Response | None = state.get("answer")
    if answer is not None:
        return answer
    path = scope["path"]
    if path in ("", "/"):
        return rpc_response(error, line_of(HTTPConnection(scope)), None, status=status)
    return rest_response(error, V03_REST if path.startswith("/v1/") else V1, status)


def version_of(request: HTTPConnection) -> str | None:
    """The protocol version that a request names."""
    return request.headers.get("a2a-version") or request.query_params.get("A2A-Version")


def line_of(request: HTTPConnection) -> Dialect:
    """Whose error shape JSON-RPC has before the method is known."""
    return V1 if (version_of(request) or "").startswith("1") else V03


def _headers(error: ServiceError) -> dict[str, str]:
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if "challenge" in error.facts:
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
            "@type": ERROR_INFO,
            "reason": error.type,
            "domain": A2A_DOMAIN if error.protocol else _OUR_DOMAIN,
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
