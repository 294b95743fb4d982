"""The routes of the application, and the OpenAPI document, which is printed from them.

What it says about a route follows from the declaration of the route's operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope as RequestScope

from ..contract import a2a
from ..contract.declare import Json
from ..contract.operations import LINES, Line, Operation, OperationTable, Rest
from ..contract.publish import methods_of, schemas, untitled
from ..domain.scopes import Scope
from ..domain.values import Role
from ..errors import RPC_HTTP_STATUSES, CallTooDeep, IssuerUnavailable
from ..service.calls import DEPTH_HEADER, TRACE_HEADER
from .card import Document
from .dialect import REST_DIALECTS, RPC_DIALECTS, Dialect
from .endpoints import Endpoint
from .failures import A2A_JSON, JSON, rest_media_type
from .negotiation import HEADERS as EXTENSION_HEADERS
from .published import Published
from .security import requirements

Model = type[Any]

EVENTS = "text/event-stream"
ENVELOPE = {"jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]}}
ID = {"type": "string", "minLength": 1, "maxLength": 255}
TASK_ID = "$response.body#/task/id"
TAGS = {
    "REST 1.0": "A2A 1.0 over HTTP; every route has a twin below `/{tenant}`.",
    "JSON-RPC": "The methods of A2A 1.0 and 0.3, and those of extensions, all on `POST /`.",
    "REST 0.3": "A2A 0.3 over HTTP.",
    "Service": "Open to everybody.",
    "Metrics": "For Prometheus, with the scope `metrics:read`.",
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same request with the same key again is answered with the same task",
    "schema": ID,
}
PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait=10` answers after ten seconds with the task as it stands, "
    "`respond-async` at once (RFC 7240)",
    "schema": {"type": "string"},
}
CALL_DEPTH = {
    "name": DEPTH_HEADER,
    "in": "header",
    "description": "How many agents have called each other for this message; a person's client "
    "leaves it out",
    "schema": {"type": "integer", "minimum": 0, "maximum": 99},
}
TRACE = {
    "name": TRACE_HEADER,
    "in": "header",
    "description": "The trace that the request belongs to (W3C Trace Context); an invalid one is "
    "ignored",
    "schema": {"type": "string"},
}
EVENT_ID = {"type": "string", "pattern": "^[0-9]{1,18}$"}
WATCH_EVENT_ID = {
    "type": "string",
    "pattern": r"^[0-9]{1,18}(;[^;=\s]{1,64}=[0-9]{1,18})*$",
    "maxLength": 4096,
}
LAST_EVENT = [
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The `id` of the last event that was received: the stream goes on after it",
        "schema": EVENT_ID,
    },
    {
        "name": "after",
        "in": "query",
        "description": "The same as `Last-Event-ID`, for clients that cannot set headers",
        "schema": EVENT_ID,
    },
]
EXTENSIONS = [
    {
        "name": name,
        "in": "header",
        "description": f"URIs of the extensions to activate, separated by commas ({line})",
        "schema": {"type": "string"},
    }
    for name, line in zip(EXTENSION_HEADERS, LINES, strict=True)
]
# What any request can be refused with.
REFUSED = (400, 401, 403, 404, 408, 413, 429, 431, 503)
REFUSED_WORK = (409, 502, 504)  # also, where the agent would have to do something


class Schemas:
    """References to the models of every request, result and error, and their definitions."""

    def __init__(self, published: Published) -> None:
        methods = [method for _, method in methods_of(published.contract.extensions)]
        operations = published.operations.operations
        takes = [operation.params for operation in operations] + [m.params for m in methods]
        gives = [operation.result for operation in operations] + [m.result for m in methods]
        gives += [a2a.RpcError, a2a.RestError, a2a.RestError03]
        models = [(model, "validation") for model in takes if model is not None]
        models += [(model, "serialization") for model in gives if model is not None]
        self._references, definitions = schemas(models)
        self.definitions: Json = untitled(dict(sorted(definitions.items())))

    def taken(self, model: Model | None) -> Json:
        return {"type": "object"} if model is None else self._references[model, "validation"]

    def given(self, model: Model) -> Json:
        return self._references[model, "serialization"]


Describe = Callable[[Schemas], Json]  # what the document says about a route


@dataclass(frozen=True, slots=True)
class _Declared:
    """A route as it is declared; one without a description is not in the document."""

    endpoint: Endpoint
    path: str
    verbs: Sequence[str]
    summary: str
    describe: Describe | None
    status: HTTPStatus


class DeclaredRoute(Route):
    def __init__(
        self, path: str, endpoint: Endpoint, *, methods: Sequence[str], is_public: bool
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = set(methods)  # Starlette adds HEAD to GET
        self.is_public = is_public  # open to callers without a credential


class Api:
    """The routes. It describes them when it is first asked for the document."""

    def __init__(self, published: Published) -> None:
        self.published = published
        self.routes: list[DeclaredRoute] = []
        self._declared: list[_Declared] = []
        self._made: Json | None = None
        self._release = published.contract.release()

    def add(
        self,
        endpoint: Endpoint,
        path: str,
        verbs: Sequence[str],
        *,
        summary: str,
        describe: Describe | None,
        status: HTTPStatus = HTTPStatus.OK,
        is_public: bool = False,
    ) -> None:
        self.routes.append(DeclaredRoute(path, endpoint, methods=verbs, is_public=is_public))
        self._declared.append(
            _Declared(
                endpoint, path, verbs=verbs, summary=summary, describe=describe, status=status
            )
        )

    def is_public(self, scope: RequestScope) -> bool:
        """Whether the route that answers this request is open to callers without a credential.

        The router takes the first route that matches both path and method, and so does this. Most
        requests are for no public route, and the others have patterns that take longer to match.
        """

        def answers(route: DeclaredRoute) -> bool:
            return route.matches(scope)[0] is Match.FULL

        if not any(route.is_public and answers(route) for route in self.routes):
            return False
        return next(filter(answers, self.routes)).is_public

    def openapi(self) -> Json:
        """The same object for as long as OpenCode is of the same version."""
        release = self.published.contract.release()
        if self._made is None or release != self._release:
            self._release = release
            self._made = self._document()
        return self._made

    def _document(self) -> Json:
        published, known = self.published, Schemas(self.published)
        schemes = published.facts.schemes
        rpc_error = _envelope("error", error=known.given(a2a.RpcError))
        facts = published.facts
        info = {"title": facts.title, "description": facts.description, "version": facts.version}
        return {
            "openapi": "3.1.0",
            "info": info,
            "servers": [{"url": facts.url}],
            "paths": self._paths(known),
            "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
            "security": requirements(schemes),
            "components": {
                "schemas": known.definitions,
                "responses": {
                    "Refused": _refusal(known.given(a2a.RestError), A2A_JSON),
                    "Refused03": _refusal(known.given(a2a.RestError03), JSON),
                    "RefusedRpc": _refusal(rpc_error, JSON),
                },
                "securitySchemes": {scheme.name: scheme.v03 for scheme in schemes},
            },
            "x-a2a-extension-contracts": published.extension_contracts,
            "x-a2a-compatibility-profile": published.profile,
            "x-a2a-wire-contract": published.wire_contract,
            "x-a2a-service-behaviors": published.service_behaviors,
        }

    def _paths(self, known: Schemas) -> Json:
        """One operation per route and verb."""
        paths: Json = {}
        for route in self._declared:
            for verb in route.verbs:
                if route.describe is None or verb == "HEAD":
                    continue
                said, status = route.describe(known), str(route.status.value)
                responses = said.get("responses", {})
                answer = _described(route.status.phrase) | responses.get(status, {})
                words = cleandoc(route.endpoint.__doc__ or "")
                paths.setdefault(route.path, {})[verb.lower()] = {
                    "summary": route.summary,
                    **({"description": words} if words else {}),
                    "operationId": f"{verb} {route.path}",
                    **said,
                    "responses": responses | {status: answer},
                }
        return paths


@dataclass(slots=True)
class OpenApiDocument:
    """Serves the document to those with a credential."""

    make: Callable[[], Json]  # the same object until something in it changes
    _made: Json | None = None
    _document: Document | None = None

    async def serve(self, request: Request) -> Response:
        made = self.make()
        if self._document is None or made is not self._made:
            self._made, self._document = made, Document.of(made)
        return self._document.answer(request, {"cache-control": "private, no-cache"})


def public(known: Schemas, *, unavailable: str | None = None) -> Json:
    responses = {"503": _described(unavailable)} if unavailable is not None else {}
    return {"tags": ["Service"], "security": [], "responses": responses}


def metrics(known: Schemas, *, is_public: bool) -> Json:
    said = _described("The metrics, as text or in the OpenMetrics format")
    answers: Json = {"200": said | {"content": {"text/plain": {}}}}
    if is_public:
        return {"tags": ["Service"], "security": [], "responses": answers}
    return {"tags": ["Metrics"], "responses": answers | _refused((401, 403), "Refused")}


def card(known: Schemas) -> Json:
    return public(known) | {"parameters": [_version(LINES)]}


def _version(lines: Sequence[Line]) -> Json:
    return {
        "name": "A2A-Version",
        "in": "header",
        "description": "The version of A2A that the client speaks; also taken from the query",
        "schema": {"enum": list(lines)},
    }


def _request_headers(operations: Sequence[Operation], lines: Sequence[Line]) -> list[Json]:
    """What requests of these operations may say besides their parameters."""
    sending = [operation for operation in operations if operation.sends_message]
    found = [_version(lines), *EXTENSIONS, TRACE]
    if any(operation.streams for operation in operations):
        found += LAST_EVENT
    if sending:
        found += [IDEMPOTENCY_KEY, CALL_DEPTH]
    if not all(operation.streams for operation in sending):
        found.append(PREFER)
    return found


def _or_of_a_watch(header: Json) -> Json:
    """The same header; the ids of a watch are longer than the numbers of a task's events."""
    if header.get("schema") != EVENT_ID:
        return header
    return {**header, "schema": WATCH_EVENT_ID}


def rpc(known: Schemas, *, published: Published) -> Json:
    calls: list[Json] = []
    answers: list[Json] = []
    for name, (line, operation) in published.operations.methods.items():
        result: Model | None = operation.result
        if result is None:
            continue
        dialect = RPC_DIALECTS[line]
        if result is a2a.Sent and dialect.tagged:
            result = a2a.Task  # 0.3 answers with the task itself
        required = operation.params is not None
        call = _rpc_call(
            name, operation.summary, params=known.taken(operation.params), required=required
        )
        if operation.sends_message:
            params = _message(dialect)
            call["examples"] = [{"jsonrpc": "2.0", "id": 1, "method": name, "params": params}]
        calls.append(call)
        answers.append(_envelope(name, result=known.given(result)))
    for _, method in methods_of(published.contract.extensions):
        required = bool(method.params_schema.get("required"))
        summary = method.summary.partition("\n")[0]
        calls.append(
            _rpc_call(method.name, summary, params=known.taken(method.params), required=required)
        )
        answers.append(_envelope(method.name, result=known.given(method.result)))
    answers.append(_envelope("error", error=known.given(a2a.RpcError)))
    answer = _described("The result, a stream of results, or an error") | _json({"anyOf": answers})
    answer["content"][EVENTS] = {}  # each event is such an answer
    return {
        "tags": ["JSON-RPC"],
        "parameters": [
            _or_of_a_watch(each)
            for each in _request_headers(published.operations.operations, LINES)
        ],
        "requestBody": _json({"oneOf": calls}) | {"required": True},
        "responses": {
            "200": answer,
            "204": _described("A request without an id is not answered, even if it fails"),
            **_refused((*RPC_HTTP_STATUSES, IssuerUnavailable.http_status), "RefusedRpc"),
        },
    }


def _rpc_call(name: str, summary: str, params: Json, required: bool) -> Json:
    call = _envelope(name, method={"const": name}, params=params)
    call["required"] = ["jsonrpc", "method", *(["params"] if required else [])]
    return call | {"description": summary}


def _envelope(title: str, **members: Json) -> Json:
    return {
        "title": title,
        "type": "object",
        "properties": {**ENVELOPE, **members},
        "required": ["jsonrpc", "id", *members],
    }


def rest(
    known: Schemas, *, route: Rest, operation: Operation, line: Line, table: OperationTable
) -> Json:
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": n, "in": "path", "required": True, "schema": ID} for n in names]
    about: Json = {"tags": [f"REST {line}"], "parameters": parameters}
    if operation.takes_body:
        dialect = REST_DIALECTS[line]
        body = {"schema": known.taken(operation.params)}
        body |= {"example": _message(dialect)} if operation.sends_message else {}
        about["requestBody"] = {"content": {rest_media_type(dialect): body}, "required": True}
    elif operation.params is not None:
        parameters += [
            {"name": field, "in": "query", "schema": untitled(schema)}
            for field, schema in operation.params.model_json_schema()["properties"].items()
            if field not in names
        ]
    parameters += _request_headers([operation], ("1.0",) if line == "1.0" else LINES)
    return about | {"responses": _rest_responses(operation, known, line, table=table)}


def _message(dialect: Dialect) -> Json:
    part = ({"kind": "text"} if dialect.tagged else {}) | {"text": "Hello!"}
    role = dialect.roles[Role.USER]
    return {"message": {"messageId": "m1", "role": role, dialect.content: [part]}}


def _rest_responses(
    operation: Operation, known: Schemas, line: Line, *, table: OperationTable
) -> Json:
    refused = "Refused" if line == "1.0" else "Refused03"
    if operation.result is None:
        return _refused(REFUSED, refused)
    result = known.given(operation.result)
    if operation.streams:
        answer = _described("Events") | _json(result, EVENTS)
    else:
        answer = _json(result, rest_media_type(REST_DIALECTS[line]))
    if operation.result is a2a.Sent:
        answer["links"] = {
            endpoint: {"operationId": endpoint, "parameters": {"id": TASK_ID}}
            for endpoint in _follow_ups(table, line)
        }
    works = REFUSED_WORK if operation.scope == Scope.TASKS_WRITE else ()
    loops = (CallTooDeep.http_status,) if operation.sends_message else ()
    return {"200": answer, **_refused((*REFUSED, *works, *loops), refused)}


def _follow_ups(table: OperationTable, line: Line) -> list[str]:
    """What can be done with a task that was sent."""
    return [
        f"{verb} {route.path_in(line)}"
        for route, operation in table.routes
        if operation.supported and "{id}" in route.path
        for verb in route.verbs
    ]


def _refused(statuses: Sequence[int], how: str) -> Json:
    return {str(status): {"$ref": f"#/components/responses/{how}"} for status in statuses}


def _refusal(error: Json, media_type: str) -> Json:
    return _described("An error of docs/reference/errors.md") | _json(error, media_type)


def _json(schema: Json, media_type: str = JSON) -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _described(words: str) -> Json:
    return {"description": words}
