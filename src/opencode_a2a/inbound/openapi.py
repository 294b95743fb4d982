"""The OpenAPI document: requests and answers of every method and route, and the contracts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..contract import a2a
from ..contract.publish import methods_of, schemas, untitled
from ..errors import RPC_HTTP_STATUSES
from . import parse
from .operations import RPC_METHODS, SUPPORTED_METHODS, Operation, Operations
from .published import PUBLIC_ENDPOINTS, Published
from .render import V03, V1, Dialect, Json
from .routes import REST_ROUTES, Route

Model = type[Any]

# What an operation takes and gives; `None` where that is no object of ours.
SHAPES: dict[Operation, tuple[Model | None, Model]] = {
    Operations.send: (parse.SendParams, a2a.Sent),
    Operations.stream: (parse.SendParams, a2a.StreamEvent),
    Operations.get: (parse.TaskParams, a2a.Task),
    Operations.list: (parse.ListParams, a2a.TaskList),
    Operations.cancel: (parse.TaskIdParams, a2a.Task),
    Operations.subscribe: (parse.TaskIdParams, a2a.StreamEvent),
    Operations.extended_card: (None, a2a.AgentCard),
}
STREAMS = (Operations.stream, Operations.subscribe)
SENDS = (Operations.send, Operations.stream)
EVENTS = "text/event-stream"
ENVELOPE = {"jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]}}
ID = {"type": "string", "minLength": 1, "maxLength": 255}
TASK_ID = "$response.body#/task/id"
# What any request can be refused with.
REFUSED = (400, 401, 403, 404, 408, 413, 429, 431, 503)
REFUSED_WORK = (409, 502, 504)  # and what makes the agent do something


def document(published: Published) -> Json:
    contract, facts = published.contract, published.facts
    takes = [(model, "validation") for model, _ in SHAPES.values() if model is not None]
    gives = [(model, "serialization") for _, model in SHAPES.values()]
    for _, method in methods_of(contract.extensions):
        takes.append((method.params, "validation"))
        gives.append((method.result, "serialization"))
    refusals = (a2a.RpcError, a2a.RestError, a2a.RestError03)
    refs, definitions = schemas([*takes, *gives, *((r, "serialization") for r in refusals)])

    def taken(model: Model | None) -> Json:
        return refs[model, "validation"] if model is not None else {"type": "object"}

    def given(model: Model) -> Json:
        return refs[model, "serialization"]

    calls: Json = {}
    answers: Json = {}
    for name in SUPPORTED_METHODS:
        dialect, operation = RPC_METHODS[name]
        takes_model, gives_model = SHAPES[operation]
        if dialect is V03 and gives_model is a2a.Sent:
            gives_model = a2a.Task  # 0.3 answers with the task itself
        calls[name] = _call(name, taken(takes_model), operation is not Operations.extended_card)
        answers[name] = given(gives_model)
    for _, method in methods_of(contract.extensions):
        required = bool(method.params_schema.get("required"))
        calls[method.name] = _call(method.name, taken(method.params), required)
        answers[method.name] = given(method.result)

    paths: Json = {"/": {"post": _rpc(calls, answers, given(a2a.RpcError))}}
    for route in REST_ROUTES:
        for dialect in route.lines:
            for verb in route.methods:
                about = _rest(route, verb, dialect, taken, given)
                paths.setdefault(route.path_in(dialect), {})[verb.lower()] = about
    for endpoint in PUBLIC_ENDPOINTS:
        verb, path = endpoint.split()
        about = {"operationId": endpoint, "security": [], "responses": {"200": _described("OK")}}
        if path == "/ready":
            about["responses"]["503"] = _described("Something it needs is missing")
        paths[path] = {verb.lower(): about}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": facts.title,
            "description": facts.description,
            "version": facts.version,
        },
        "servers": [{"url": facts.url}],
        "security": [{scheme: []} for scheme in facts.schemes],
        "paths": paths,
        "components": {
            "schemas": untitled(dict(sorted(definitions.items()))),
            "responses": {
                "Refused": _refusal(given(a2a.RestError), "application/a2a+json"),
                "Refused03": _refusal(given(a2a.RestError03), "application/json"),
                "RefusedRpc": _refusal(_rpc_refusal(given(a2a.RpcError)), "application/json"),
            },
            "securitySchemes": {s: {"type": "http", "scheme": s} for s in facts.schemes},
        },
        "x-a2a-extension-contracts": published.extension_contracts,
        "x-a2a-compatibility-profile": published.profile,
        "x-a2a-wire-contract": published.wire_contract,
        "x-a2a-service-behaviors": published.service_behaviors,
    }


def _call(method: str, params: Json, required: bool) -> Json:
    return {
        "type": "object",
        "title": method,
        "properties": {
            **ENVELOPE,
            "method": {"const": method},
            "params": params,
        },
        "required": ["jsonrpc", "method", *(["params"] if required else [])],
    }


def _rpc(calls: Json, answers: Json, error: Json) -> Json:
    results = [
        {
            "title": method,
            "type": "object",
            "properties": {**ENVELOPE, "result": result},
            "required": ["jsonrpc", "id", "result"],
        }
        for method, result in answers.items()
    ]
    told = _described("The result, a stream of results, or an error")
    told |= _json({"anyOf": [*results, _rpc_refusal(error)]})
    told["content"][EVENTS] = {}  # each event is such an answer
    return {
        "operationId": "POST /",
        "summary": "JSON-RPC, both lines",
        "requestBody": _json({"oneOf": list(calls.values())}) | {"required": True},
        "responses": {
            "200": told,
            "204": _described("A request without an id is not answered, even if it fails"),
            **_refused(RPC_HTTP_STATUSES, "RefusedRpc"),
        },
    }


def _rpc_refusal(error: Json) -> Json:
    return {
        "title": "error",
        "type": "object",
        "properties": {**ENVELOPE, "error": error},
        "required": ["jsonrpc", "id", "error"],
    }


def _rest(route: Route, verb: str, dialect: Dialect, taken: Any, given: Any) -> Json:
    media = "application/a2a+json" if dialect is V1 else "application/json"
    refused = "Refused" if dialect is V1 else "Refused03"
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": n, "in": "path", "required": True, "schema": ID} for n in names]
    about: Json = {
        "operationId": f"{verb} {route.path_in(dialect)}",
        "summary": route.summary,
        "parameters": parameters,
    }
    if route.operation not in SHAPES:
        return about | {"responses": _refused(REFUSED, refused)}
    takes, gives = SHAPES[route.operation]
    if route.operation in SENDS:
        about["requestBody"] = _json(taken(takes), media) | {"required": True}
    elif takes is not None and verb == "GET":
        parameters += [
            {"name": field, "in": "query", "schema": untitled(schema)}
            for field, schema in takes.model_json_schema()["properties"].items()
            if field not in names
        ]
    told = _described("OK") | _json(given(gives), media)
    if route.operation is Operations.send:
        told["links"] = {
            f"{verb} {path}": {"operationId": f"{verb} {path}", "parameters": {"id": TASK_ID}}
            for verb, path in _follow_ups(dialect)
        }
    if route.operation in STREAMS:
        told = _described("Events") | _json(given(gives), EVENTS)
    works = REFUSED_WORK if route.operation in (*SENDS, Operations.cancel) else ()
    return about | {"responses": {"200": told, **_refused((*REFUSED, *works), refused)}}


def _follow_ups(dialect: Dialect) -> list[tuple[str, str]]:
    """What can be done with a task that was sent."""
    return [
        (verb, route.path_in(dialect))
        for route in REST_ROUTES
        for verb in route.methods
        if route.operation in (Operations.get, Operations.cancel, Operations.subscribe)
    ]


def _refused(statuses: Sequence[int], how: str) -> Json:
    return {str(status): {"$ref": f"#/components/responses/{how}"} for status in statuses}


def _refusal(error: Json, media_type: str) -> Json:
    return _described("An error of docs/reference/errors.md") | _json(error, media_type)


def _json(schema: Json, media_type: str = "application/json") -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _described(words: str) -> Json:
    return {"description": words}
