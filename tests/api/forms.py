"""The four forms of the protocol, so that one test body proves them all.

A `Form` knows what its line and transport call things: how to ask, how to read an
answer, a stream or a refusal. Reading checks the shape on the way.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import httpx
from jsonschema import Draft202012Validator

from tests.running import ROOT, Service

Json = dict[str, Any]

JSON = "application/json"
A2A_JSON = "application/a2a+json"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


class Kind(NamedTuple):
    """A situation: its name, its JSON-RPC code, its HTTP status over REST."""

    reason: str
    code: int
    http: int


PARSE_ERROR = Kind("PARSE_ERROR", -32700, 400)
INVALID_REQUEST = Kind("INVALID_REQUEST", -32600, 400)
METHOD_NOT_FOUND = Kind("METHOD_NOT_SUPPORTED", -32601, 404)
INVALID_PARAMS = Kind("INVALID_PARAMS", -32602, 400)
TASK_NOT_FOUND = Kind("TASK_NOT_FOUND", -32001, 404)
TASK_NOT_CANCELABLE = Kind("TASK_NOT_CANCELABLE", -32002, 400)
PUSH_NOT_SUPPORTED = Kind("PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400)
UNSUPPORTED_OPERATION = Kind("UNSUPPORTED_OPERATION", -32004, 400)
CONTENT_TYPE_NOT_SUPPORTED = Kind("CONTENT_TYPE_NOT_SUPPORTED", -32005, 400)
VERSION_NOT_SUPPORTED = Kind("VERSION_NOT_SUPPORTED", -32009, 400)
INTERRUPT_NOT_FOUND = Kind("INTERRUPT_REQUEST_NOT_FOUND", -32052, 404)
INTERRUPT_EXPIRED = Kind("INTERRUPT_REQUEST_EXPIRED", -32053, 410)
INTERRUPT_MISMATCH = Kind("INTERRUPT_TYPE_MISMATCH", -32054, 409)
FORBIDDEN = Kind("AUTHORIZATION_FORBIDDEN", -32056, 403)
UNAUTHENTICATED = Kind("UNAUTHENTICATED", -32057, 401)
UPSTREAM_UNREACHABLE = Kind("UPSTREAM_UNREACHABLE", -32060, 503)
UPSTREAM_BUSY = Kind("UPSTREAM_BUSY", -32064, 429)
RATE_LIMITED = Kind("RATE_LIMITED", -32071, 429)
LIMIT_EXCEEDED = Kind("LIMIT_EXCEEDED", -32085, 429)
BUDGET_EXCEEDED = Kind("BUDGET_EXCEEDED", -32086, 429)
PAYLOAD_TOO_LARGE = Kind("PAYLOAD_TOO_LARGE", -32073, 413)
REQUEST_HEAD_TOO_LARGE = Kind("REQUEST_HEAD_TOO_LARGE", -32075, 431)
REQUEST_TIMEOUT = Kind("REQUEST_TIMEOUT", -32076, 408)
CALL_TOO_DEEP = Kind("CALL_TOO_DEEP", -32084, 508)
HOST_NOT_ALLOWED = Kind("HOST_NOT_ALLOWED", -32077, 403)
ORIGIN_NOT_ALLOWED = Kind("ORIGIN_NOT_ALLOWED", -32078, 403)

OUR_OWN = (
    INTERRUPT_NOT_FOUND,
    INTERRUPT_EXPIRED,
    INTERRUPT_MISMATCH,
    FORBIDDEN,
    UNAUTHENTICATED,
    UPSTREAM_UNREACHABLE,
    UPSTREAM_BUSY,
    RATE_LIMITED,
    LIMIT_EXCEEDED,
    BUDGET_EXCEEDED,
    PAYLOAD_TOO_LARGE,
    REQUEST_HEAD_TOO_LARGE,
    REQUEST_TIMEOUT,
    HOST_NOT_ALLOWED,
    ORIGIN_NOT_ALLOWED,
    CALL_TOO_DEEP,
)
SEEN_BY_GATEWAYS = (401, 403, 408, 413, 429, 431)  # JSON-RPC answers 200 otherwise

STATUS_NAMES = {
    400: ("INVALID_ARGUMENT", "FAILED_PRECONDITION"),
    401: ("UNAUTHENTICATED",),
    403: ("PERMISSION_DENIED",),
    404: ("NOT_FOUND",),
    405: ("UNIMPLEMENTED",),
    408: ("DEADLINE_EXCEEDED",),
    413: ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"),
    429: ("RESOURCE_EXHAUSTED",),
    431: ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"),
    502: ("UNAVAILABLE",),
    503: ("UNAVAILABLE",),
    504: ("DEADLINE_EXCEEDED",),
    508: ("FAILED_PRECONDITION",),
}


@dataclass(frozen=True)
class Refusal:
    """An error answer, whatever its shape was."""

    reason: str
    message: str
    fields: dict[str, str]
    facts: Json
    code: int | None  # REST 1.0 has none


class Frame(NamedTuple):
    """One event of a stream: its number, what it is, and its body."""

    id: int
    kind: Literal["task", "status", "artifact"]
    body: Json


def published(shape: str) -> Draft202012Validator:
    """What is published of a shape, and nothing more: a member that is sent must be declared.

    The published schemas allow others, so that clients do not break when there are new ones.
    """
    document = json.loads((ROOT / "tests" / "published" / "openapi.json").read_bytes())
    components = {"components": _closed(document["components"])}
    return Draft202012Validator({"$ref": f"#/components/schemas/{shape}", **components})


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed["additionalProperties"] = False
    return closed


# What an event must look like, on any line.
SHAPES = {
    "task": published("Task"),
    "status": published("StatusUpdate"),
    "artifact": published("ArtifactUpdate"),
}


class Route(NamedTuple):
    verb: str
    path: str


ROUTES = {
    "send": Route("POST", "/message:send"),
    "stream": Route("POST", "/message:stream"),
    "get": Route("GET", "/tasks/{id}"),
    "list": Route("GET", "/tasks"),
    "cancel": Route("POST", "/tasks/{id}:cancel"),
    "subscribe": Route("POST", "/tasks/{id}:subscribe"),
    "push.create": Route("POST", "/tasks/{task_id}/pushNotificationConfigs"),
    "push.get": Route("GET", "/tasks/{task_id}/pushNotificationConfigs/{config_id}"),
    "push.list": Route("GET", "/tasks/{task_id}/pushNotificationConfigs"),
    "push.delete": Route("DELETE", "/tasks/{task_id}/pushNotificationConfigs/{config_id}"),
    "card": Route("GET", "/extendedAgentCard"),
}
METHODS = {
    "1.0": {
        "send": "SendMessage",
        "stream": "SendStreamingMessage",
        "get": "GetTask",
        "list": "ListTasks",
        "cancel": "CancelTask",
        "subscribe": "SubscribeToTask",
        "push.create": "CreateTaskPushNotificationConfig",
        "push.get": "GetTaskPushNotificationConfig",
        "push.list": "ListTaskPushNotificationConfigs",
        "push.delete": "DeleteTaskPushNotificationConfig",
        "card": "GetExtendedAgentCard",
    },
    "0.3": {
        "send": "message/send",
        "stream": "message/stream",
        "get": "tasks/get",
        "cancel": "tasks/cancel",
        "subscribe": "tasks/resubscribe",
        "push.create": "tasks/pushNotificationConfig/set",
        "push.get": "tasks/pushNotificationConfig/get",
        "push.list": "tasks/pushNotificationConfig/list",
        "push.delete": "tasks/pushNotificationConfig/delete",
        "card": "agent/getAuthenticatedExtendedCard",
    },
}
MEMBERS: dict[str, Literal["task", "status", "artifact"]] = {
    "task": "task",
    "statusUpdate": "status",
    "status-update": "status",
    "artifactUpdate": "artifact",
    "artifact-update": "artifact",
}


@dataclass(frozen=True)
class Form:
    line: Literal["1.0", "0.3"]
    rpc: bool

    @property
    def name(self) -> str:
        return f"{'rpc' if self.rpc else 'rest'}-{self.line}"

    @property
    def tagged(self) -> bool:
        """Whether objects say their `kind`."""
        return self.rpc and self.line == "0.3"

    @property
    def version(self) -> dict[str, str]:
        return {"a2a-version": self.line}

    @property
    def media_type(self) -> str:
        return A2A_JSON if self.line == "1.0" and not self.rpc else JSON

    # -- asking

    def route(self, operation: str) -> Route:
        verb, path = ROUTES[operation]
        if self.line == "0.3":
            path = "/v1/card" if operation == "card" else "/v1" + path
        return Route(verb, path)

    def method(self, operation: str) -> str:
        return METHODS[self.line][operation]

    def offers(self, operation: str) -> bool:
        return not self.rpc or operation in METHODS[self.line]

    def request(
        self, client: httpx.Client, operation: str, params: Json | None = None, rpc_id: Any = 1
    ) -> httpx.Request:
        """`params` as the JSON-RPC form has them; REST spreads them over path, query and body."""
        given = dict(params or {})
        if self.rpc:
            body = {"jsonrpc": "2.0", "id": rpc_id, "method": self.method(operation)}
            return client.build_request(
                "POST", "/", json={**body, "params": given}, headers=self.version
            )
        verb, path = self.route(operation)
        task_id, config_id = given.pop("id", "none"), given.pop("config", "none")
        path = path.format(id=task_id, task_id=task_id, config_id=config_id)
        if verb == "GET":
            query = {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()}
            return client.build_request(verb, path, params=query, headers=self.version)
        if verb == "POST" and (given or operation in ("send", "stream")):
            return client.build_request(verb, path, json=given, headers=self.version)
        return client.build_request(verb, path, headers=self.version)

    def call(
        self, client: httpx.Client, operation: str, params: Json | None = None, rpc_id: Any = 1
    ) -> httpx.Response:
        return client.send(self.request(client, operation, params, rpc_id))

    def text(self, text: str) -> Json:
        return {"kind": "text", "text": text} if self.tagged else {"text": text}

    def file(self, *, url: str | None = None, raw: str | None = None, **about: str) -> Json:
        """A file part; `about` may have `media_type` and `filename`."""
        media_type, name = about.get("media_type"), about.get("filename")
        if self.line == "1.0":
            part: Json = {"url": url, "raw": raw, "mediaType": media_type, "filename": name}
            return {k: v for k, v in part.items() if v is not None}
        members = ("uri", "bytes") if self.rpc else ("fileWithUri", "fileWithBytes")
        file = dict(zip(members, (url, raw), strict=True)) | {"mimeType": media_type, "name": name}
        part = {"file": {k: v for k, v in file.items() if v is not None}}
        return {"kind": "file", **part} if self.tagged else part

    @property
    def content(self) -> str:
        """The member of a message that holds its parts."""
        return "content" if self.line == "0.3" and not self.rpc else "parts"

    def message(self, *parts: Json | str, **members: Any) -> Json:
        told = [self.text(part) if isinstance(part, str) else part for part in parts]
        body = {
            "messageId": str(uuid.uuid4()),
            "role": "user" if self.tagged else "ROLE_USER",
            self.content: told,
            **members,
        }
        return {"kind": "message", **body} if self.tagged else body

    def sending(self, *parts: Json | str, wait: bool = True, **members: Any) -> Json:
        """The parameters of a send; `members` go into the message."""
        waiting = {"blocking": wait} if self.line == "0.3" else {"returnImmediately": not wait}
        return {"message": self.message(*parts, **members), "configuration": waiting}

    # -- reading

    def result(self, response: httpx.Response, rpc_id: Any = 1) -> Json:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == self.media_type
        body: Json = response.json()
        if not self.rpc:
            return body
        assert body.keys() == {"jsonrpc", "id", "result"}, body
        assert (body["jsonrpc"], body["id"]) == ("2.0", rpc_id)
        assert type(body["id"]) is type(rpc_id)
        result: Json = body["result"]
        return result

    def sent(self, response: httpx.Response) -> Json:
        """The task in the answer to a send."""
        result = self.result(response)
        if self.tagged:
            assert result["kind"] == "task"
        else:
            assert result.keys() == {"task"}
        task: Json = result if self.tagged else result["task"]
        SHAPES["task"].validate(task)
        return task

    def send(self, client: httpx.Client, *parts: Json | str, **options: Any) -> Json:
        return self.sent(self.call(client, "send", self.sending(*parts, **options)))

    def get(self, client: httpx.Client, task_id: str, **params: Any) -> Json:
        task = self.result(self.call(client, "get", {"id": task_id, **params}))
        SHAPES["task"].validate(task)
        return task

    def state(self, name: str) -> str:
        """What this form calls a state."""
        if self.tagged:
            return name
        proto = f"TASK_STATE_{name.upper().replace('-', '_')}"
        return "TASK_STATE_CANCELLED" if self.line == "0.3" and name == "canceled" else proto

    def settled(self, client: httpx.Client, task_id: str, seconds: float = 60.0) -> Json:
        """The task once it has ended; polled, as a client without streams does."""
        ends = [self.state(name) for name in ("completed", "failed", "canceled")]
        deadline = time.monotonic() + seconds
        while (task := self.get(client, task_id))["status"]["state"] not in ends:
            assert time.monotonic() < deadline, task["status"]
            time.sleep(0.02)
        return task

    @contextmanager
    def following(
        self,
        client: httpx.Client,
        operation: str,
        params: Json,
        rpc_id: Any = 1,
    ) -> Iterator[Iterator[Frame]]:
        """The events of a stream, as they come."""
        request = self.request(client, operation, params, rpc_id)
        response = client.send(request, stream=True)
        try:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield self.frames(response, rpc_id)
        finally:
            response.close()

    def frames(self, response: httpx.Response, rpc_id: Any = 1) -> Iterator[Frame]:
        last = -1
        for block in blocks(response):
            if block.startswith(":"):
                continue
            found = re.fullmatch(r"id: (\d+)\ndata: (.*)", block)
            assert found, f"not an event: {block!r}"
            frame = Frame(int(found[1]), *self.event(json.loads(found[2]), rpc_id))
            assert frame.id > last, "event numbers must rise"
            SHAPES[frame.kind].validate(frame.body)
            last = frame.id
            yield frame

    def event(self, data: Json, rpc_id: Any) -> tuple[Literal["task", "status", "artifact"], Json]:
        if self.rpc:
            assert data.keys() == {"jsonrpc", "id", "result"}, data
            assert data["jsonrpc"] == "2.0"
            assert data["id"] == rpc_id
            assert type(data["id"]) is type(rpc_id)
            data = data["result"]
        if self.tagged:
            return MEMBERS[data["kind"]], data
        ((member, body),) = data.items()
        return MEMBERS[member], body

    def refused(
        self, response: httpx.Response, kind: Kind, rpc_id: Any = 1, http: int | None = None
    ) -> Refusal:
        """Check that an answer is this error, in exactly this form's shape."""
        refusal = self.refusal(response, rpc_id, http or kind.http)
        assert refusal.reason == kind.reason, refusal
        if refusal.code is not None:
            assert refusal.code == kind.code, refusal
        return refusal

    def refusal(
        self, response: httpx.Response, rpc_id: Any = 1, http: int | None = None
    ) -> Refusal:
        body = response.json()
        assert response.headers["content-type"] == self.media_type, response.headers
        if response.status_code in (429, 503):
            assert int(response.headers["retry-after"]) > 0
        if response.status_code == 401:
            assert response.headers["www-authenticate"]
        if not self.rpc:
            if http is not None:
                assert response.status_code == http, (response.status_code, body)
            return rest_refusal(self.line, response.status_code, body)
        if http is not None:
            expected = http if http in (*SEEN_BY_GATEWAYS, 405) else 200
            assert response.status_code == expected, (response.status_code, body)
        assert body.keys() == {"jsonrpc", "id", "error"}, body
        assert (body["jsonrpc"], body["id"]) == ("2.0", rpc_id), body
        assert type(body["id"]) is type(rpc_id)
        return rpc_refusal(self.line, body["error"])


def rpc_refusal(line: str, error: Json) -> Refusal:
    assert error.keys() == {"code", "message", "data"}, error
    assert isinstance(error["code"], int)
    if line == "1.0":
        return _typed(error["message"], error["data"], error["code"])
    return _free(error)


def rest_refusal(line: str, status: int, body: Json) -> Refusal:
    if line == "0.3":
        assert body.keys() == {"code", "message", "data", "type"}, body
        assert isinstance(body["type"], str)
        return _free(body)
    assert body.keys() == {"error"}, body
    error = body["error"]
    assert error.keys() == {"code", "status", "message", "details"}, error
    assert error["code"] == status
    assert error["status"] in STATUS_NAMES[status], error
    return _typed(error["message"], error["details"], None)


def _typed(message: str, details: Any, code: int | None) -> Refusal:
    """google.rpc details: one ErrorInfo of strings only, and perhaps one BadRequest."""
    assert isinstance(details, list)
    assert [d["@type"] for d in details] in ([ERROR_INFO], [ERROR_INFO, BAD_REQUEST]), details
    info = details[0]
    assert info.keys() == {"@type", "reason", "domain", "metadata"}, info
    ours = info["reason"] in [kind.reason for kind in OUR_OWN]
    assert info["domain"] == ("opencode-a2a" if ours else "a2a-protocol.org"), info
    assert all(isinstance(v, str) for v in info["metadata"].values()), info
    violations = details[1]["fieldViolations"] if len(details) == 2 else []
    assert all(v.keys() == {"field", "description"} for v in violations), violations
    fields = {v["field"]: v["description"] for v in violations}
    return _spoken(Refusal(info["reason"], message, fields, info["metadata"], code))


def _free(error: Json) -> Refusal:
    facts = dict(error["data"])
    reason, fields = facts.pop("type"), facts.pop("fields", {})
    return _spoken(Refusal(reason, error["message"], fields, facts, error["code"]))


def _spoken(refusal: Refusal) -> Refusal:
    """Whatever is wrong is said in words, and never in a stack trace's."""
    assert all(map(str.strip, (refusal.message, *refusal.fields.values()))), refusal
    for word in ("Traceback", "Error(", "sqlalchemy", "pydantic", 'File "'):
        assert word not in refusal.message, refusal
    return refusal


def blocks(response: httpx.Response) -> Iterator[str]:
    """The blocks of a stream (events and comments), each without its closing blank line."""
    rest = ""
    for chunk in response.iter_text():
        *whole, rest = (rest + chunk).split("\n\n")
        yield from whole
    assert rest == "", f"cut off: {rest!r}"


def line_to(service: Service, **options: Any) -> httpx.Client:
    """A client of a service, with its credential."""
    options.setdefault("headers", service.headers)
    # Without TLS: loading the certificates of all authorities would take 30 ms of CPU time.
    return httpx.Client(base_url=service.url, timeout=60, verify=False, **options)


RPC_1, RPC_03 = Form("1.0", True), Form("0.3", True)
REST_1, REST_03 = Form("1.0", False), Form("0.3", False)
FORMS = (RPC_1, RPC_03, REST_1, REST_03)
