"""The OpenAPI document: requests and answers of every method and route, and the contracts."""

from __future__ import annotations

import re
from typing import Any

from ..contract import a2a
from ..contract.publish import methods_of, schemas, untitled
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
    Operations.cancel: (parse.TaskParams, a2a.Task),
    Operations.subscribe: (parse.TaskParams, a2a.StreamEvent),
    Operations.extended_card: (None, a2a.AgentCard),
}
STREAMS = (Operations.stream, Operations.subscribe)


def document(published: Published) -> Json:
    contract, facts = published.contract, published.facts
    takes = [(model, "validation") for model, _ in SHAPES.values() if model is not None]
    gives = [(model, "serialization") for _, model in SHAPES.values()]
    for _, method in methods_of(contract.extensions):
        takes.append((method.params, "validation"))
        gives.append((method.result, "serialization"))
    refs, definitions = schemas([*takes, *gives, (a2a.RpcError, "serialization")])

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

    error = refs[a2a.RpcError, "serialization"]
    paths: Json = {"/": {"post": _rpc(calls, answers, error)}}
    for route in REST_ROUTES:
        for dialect in route.lines:
            for verb in route.methods:
                about = _rest(route, verb, dialect, taken, given)
                paths.setdefault(route.path_in(dialect), {})[verb.lower()] = about
    for endpoint in PUBLIC_ENDPOINTS:
        verb, path = endpoint.split()
        about = {"operationId": endpoint, "security": [], "responses": {"200": _described("OK")}}
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
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "integer", "null"]},
            "method": {"const": method},
            "params": params,
        },
        "required": ["jsonrpc", "method", *(["params"] if required else [])],
    }


def _rpc(calls: Json, answers: Json, error: Json) -> Json:
    envelope = {"jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]}}
    results = [
        {
            "title": method,
            "type": "object",
            "properties": {**envelope, "result": result},
            "required": ["jsonrpc", "id", "result"],
        }
        for method, result in answers.items()
    ]
    refusal = {"type": "object", "properties": {**envelope, "error": error}}
    return {
        "operationId": "POST /",
        "summary": "JSON-RPC, both lines",
        "requestBody": _json({"oneOf": list(calls.values())}) | {"required": True},
        "responses": {
            "200": _described("The result, a stream of results, or an error")
            | _json({"anyOf": [*results, {**refusal, "title": "error", "required": ["error"]}]}),
            "204": _described("A request without an id has been carried out"),
        },
    }


def _rest(route: Route, verb: str, dialect: Dialect, taken: Any, given: Any) -> Json:
    media = "application/a2a+json" if dialect is V1 else "application/json"
    about: Json = {
        "operationId": f"{verb} {route.path_in(dialect)}",
        "summary": route.summary,
    }
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    if route.operation not in SHAPES:
        return about | {
            "parameters": parameters,
            "responses": {"400": _described("PUSH_NOTIFICATION_NOT_SUPPORTED")},
        }
    takes, gives = SHAPES[route.operation]
    if route.operation in (Operations.send, Operations.stream):
        about["requestBody"] = _json(taken(takes), media) | {"required": True}
    elif takes is not None and verb == "GET":
        parameters += [
            {"name": field, "in": "query", "schema": schema}
            for field, schema in takes.model_json_schema()["properties"].items()
            if field not in names
        ]
    kind = "text/event-stream" if route.operation in STREAMS else media
    return about | {
        "parameters": parameters,
        "responses": {
            "200": _described("OK") | _json(given(gives), kind),
            "default": _described("An error of docs/reference/errors.md"),
        },
    }


def _json(schema: Json, media_type: str = "application/json") -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _described(words: str) -> Json:
    return {"description": words}
