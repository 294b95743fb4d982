"""The OpenAPI document: requests and answers of every method and route, and the contracts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..contract import a2a
from ..contract.declare import Json
from ..contract.operations import Line, Operation, Rest
from ..contract.publish import methods_of, schemas, untitled
from ..domain.scopes import Scope
from ..errors import RPC_HTTP_STATUSES
from .dialect import REST_DIALECTS, RPC_DIALECTS
from .failures import A2A_JSON, JSON, rest_media_type
from .operations import A2A
from .published import PUBLIC_ENDPOINTS, Published

Model = type[Any]

EVENTS = "text/event-stream"
ENVELOPE = {"jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]}}
ID = {"type": "string", "minLength": 1, "maxLength": 255}
TASK_ID = "$response.body#/task/id"
# What any request can be refused with.
REFUSED = (400, 401, 403, 404, 408, 413, 429, 431, 503)
REFUSED_WORK = (409, 502, 504)  # also, where the agent would have to do something


class Schemas:
    """References to the models of every request, result and error, and their definitions."""

    def __init__(self, published: Published) -> None:
        methods = [method for _, method in methods_of(published.contract.extensions)]
        takes = [operation.params for operation in A2A.operations] + [m.params for m in methods]
        gives = [operation.result for operation in A2A.operations] + [m.result for m in methods]
        gives += [a2a.RpcError, a2a.RestError, a2a.RestError03]
        models = [(model, "validation") for model in takes if model is not None]
        models += [(model, "serialization") for model in gives if model is not None]
        self._references, definitions = schemas(models)
        self.definitions: Json = untitled(dict(sorted(definitions.items())))

    def taken(self, model: Model | None) -> Json:
        return {"type": "object"} if model is None else self._references[model, "validation"]

    def given(self, model: Model) -> Json:
        return self._references[model, "serialization"]


def document(published: Published) -> Json:
    facts, known = published.facts, Schemas(published)
    rpc_error = _rpc_refusal(known.given(a2a.RpcError))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": facts.title,
            "description": facts.description,
            "version": facts.version,
        },
        "servers": [{"url": facts.url}],
        "security": [{scheme: []} for scheme in facts.schemes],
        "paths": {"/": {"post": _rpc(published, known)}} | _rest_paths(known) | _public_paths(),
        "components": {
            "schemas": known.definitions,
            "responses": {
                "Refused": _refusal(known.given(a2a.RestError), A2A_JSON),
                "Refused03": _refusal(known.given(a2a.RestError03), JSON),
                "RefusedRpc": _refusal(rpc_error, JSON),
            },
            "securitySchemes": {s: {"type": "http", "scheme": s} for s in facts.schemes},
        },
        "x-a2a-extension-contracts": published.extension_contracts,
        "x-a2a-compatibility-profile": published.profile,
        "x-a2a-wire-contract": published.wire_contract,
        "x-a2a-service-behaviors": published.service_behaviors,
    }


def _rpc(published: Published, known: Schemas) -> Json:
    calls: list[Json] = []
    answers: list[Json] = []
    for name, (line, operation) in A2A.methods.items():
        result: Model | None = operation.result
        if result is None:
            continue
        if result is a2a.Sent and RPC_DIALECTS[line].tagged:
            result = a2a.Task  # 0.3 answers with the task itself
        calls.append(_rpc_call(name, known.taken(operation.params), operation.params is not None))
        answers.append(_rpc_result(name, known.given(result)))
    for _, method in methods_of(published.contract.extensions):
        required = bool(method.params_schema.get("required"))
        calls.append(_rpc_call(method.name, known.taken(method.params), required))
        answers.append(_rpc_result(method.name, known.given(method.result)))
    answers.append(_rpc_refusal(known.given(a2a.RpcError)))
    answer = _described("The result, a stream of results, or an error") | _json({"anyOf": answers})
    answer["content"][EVENTS] = {}  # each event is such an answer
    return {
        "operationId": "POST /",
        "summary": "JSON-RPC, both lines",
        "requestBody": _json({"oneOf": calls}) | {"required": True},
        "responses": {
            "200": answer,
            "204": _described("A request without an id is not answered, even if it fails"),
            **_refused(RPC_HTTP_STATUSES, "RefusedRpc"),
        },
    }


def _rpc_call(method: str, params: Json, required: bool) -> Json:
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


def _rpc_result(method: str, result: Json) -> Json:
    return {
        "title": method,
        "type": "object",
        "properties": {**ENVELOPE, "result": result},
        "required": ["jsonrpc", "id", "result"],
    }


def _rpc_refusal(error: Json) -> Json:
    return {
        "title": "error",
        "type": "object",
        "properties": {**ENVELOPE, "error": error},
        "required": ["jsonrpc", "id", "error"],
    }


def _rest_paths(known: Schemas) -> Json:
    paths: Json = {}
    for route, operation in A2A.routes:
        for line in route.lines:
            for verb in route.verbs:
                about: Json = {
                    "operationId": f"{verb} {route.path_in(line)}",
                    "summary": operation.summary,
                    **_rest_request(route, operation, known, verb=verb, line=line),
                    "responses": _rest_responses(operation, known, line),
                }
                paths.setdefault(route.path_in(line), {})[verb.lower()] = about
    return paths


def _rest_request(
    route: Rest, operation: Operation, known: Schemas, *, verb: str, line: Line
) -> Json:
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": n, "in": "path", "required": True, "schema": ID} for n in names]
    about: Json = {"parameters": parameters}
    if operation.sends_message:
        body = _json(known.taken(operation.params), rest_media_type(REST_DIALECTS[line]))
        about["requestBody"] = body | {"required": True}
    elif operation.params is not None and verb == "GET":
        parameters += [
            {"name": field, "in": "query", "schema": untitled(schema)}
            for field, schema in operation.params.model_json_schema()["properties"].items()
            if field not in names
        ]
    return about


def _rest_responses(operation: Operation, known: Schemas, line: Line) -> Json:
    refused = "Refused" if line == "1.0" else "Refused03"
    if operation.result is None:
        return _refused(REFUSED, refused)
    result = known.given(operation.result)
    if operation.streams:
        answer = _described("Events") | _json(result, EVENTS)
    else:
        answer = _described("OK") | _json(result, rest_media_type(REST_DIALECTS[line]))
    if operation.result is a2a.Sent:
        answer["links"] = {
            endpoint: {"operationId": endpoint, "parameters": {"id": TASK_ID}}
            for endpoint in _follow_ups(line)
        }
    works = REFUSED_WORK if operation.scope == Scope.TASKS_WRITE else ()
    return {"200": answer, **_refused((*REFUSED, *works), refused)}


def _follow_ups(line: Line) -> list[str]:
    """What can be done with a task that was sent."""
    return [
        f"{verb} {route.path_in(line)}"
        for route, operation in A2A.routes
        if operation.supported and "{id}" in route.path
        for verb in route.verbs
    ]


def _public_paths() -> Json:
    paths: Json = {}
    for endpoint in PUBLIC_ENDPOINTS:
        verb, path = endpoint.split()
        responses = {"200": _described("OK")}
        if path == "/ready":
            responses["503"] = _described("Something it needs is missing")
        about = {"operationId": endpoint, "security": [], "responses": responses}
        paths[path] = {verb.lower(): about}
    return paths


def _refused(statuses: Sequence[int], how: str) -> Json:
    return {str(status): {"$ref": f"#/components/responses/{how}"} for status in statuses}


def _refusal(error: Json, media_type: str) -> Json:
    return _described("An error of docs/reference/errors.md") | _json(error, media_type)


def _json(schema: Json, media_type: str = JSON) -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _described(words: str) -> Json:
    return {"description": words}
