"""JSON-RPC requests without an id: they are carried out, and never answered.

A notification is a valid request without an `id`. What is not valid JSON, or no request at all,
is answered under `"id": null`, as JSON-RPC says: nobody can know whether it was meant as one.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.domain.values import Caller
from opencode_a2a.inbound.failures import failure
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.inbound.operations import Operations
from opencode_a2a.inbound.routes import add_routes, application
from opencode_a2a.observe.tracing import SpanRef
from opencode_a2a.web.trace import Trace
from tests.api.forms import (
    INVALID_REQUEST,
    PARSE_ERROR,
    RPC_03,
    RPC_1,
    TASK_NOT_FOUND,
    Form,
    Json,
    line_to,
)
from tests.running import TOKEN, Service

RPC = pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)


def notify(client: httpx.Client, form: Form, method: str, params: Any = ...) -> httpx.Response:
    body = {"jsonrpc": "2.0", "method": method} | ({} if params is ... else {"params": params})
    return client.post("/", json=body, headers=form.version)


def assert_unanswered(response: httpx.Response) -> None:
    assert (response.status_code, response.content) == (204, b""), response.text
    assert "content-type" not in response.headers


def tasks_of(client: httpx.Client, context: str) -> list[Json]:
    found: list[Json] = RPC_1.result(RPC_1.call(client, "list", {"contextId": context}))["tasks"]
    return found


FAILING: dict[str, tuple[str, Any]] = {
    "unknown method": ("no.such.method", {}),
    "unknown task": ("get", {"id": "missing"}),
    "nothing to cancel": ("cancel", {"id": "missing"}),
    "nothing to follow": ("subscribe", {"id": "missing"}),
    "no params": ("send", ...),
    "wrong params": ("send", {"message": {"parts": "text"}}),
    "wrong params of a stream": ("stream", {"message": 1}),
    "params that are no object": ("get", [1]),
    "push": ("push.create", {"id": "missing"}),
    "an extension's wrong params": ("opencode.sessions.get", {"session_id": 1}),
    "an extension's unknown session": ("opencode.sessions.get", {"session_id": "ses_none"}),
    "a disabled method": ("opencode.sessions.shell", {"session_id": "ses_x", "request": {}}),
}


@RPC
@pytest.mark.parametrize("what", FAILING)
def test_a_notification_that_fails_is_not_answered(
    client: httpx.Client, form: Form, what: str
) -> None:
    name, params = FAILING[what]
    method = name if "." in name and not name.startswith("push") else form.method(name)
    assert_unanswered(notify(client, form, method, params))


@RPC
def test_a_notification_in_an_unknown_version_is_not_answered(
    client: httpx.Client, form: Form
) -> None:
    body = {"jsonrpc": "2.0", "method": form.method("get"), "params": {"id": "missing"}}
    assert_unanswered(client.post("/", json=body, headers={"a2a-version": "9.9"}))


@RPC
def test_a_notification_without_the_scope_is_not_answered(guarded: Service, form: Form) -> None:
    with line_to(guarded, headers={"authorization": "Bearer reader-token"}) as reader:
        context = str(uuid.uuid4())
        params = form.sending("hello", contextId=context)
        assert_unanswered(notify(reader, form, form.method("send"), params))
        assert tasks_of(reader, context) == []


@RPC
@pytest.mark.parametrize("operation", ["send", "stream"])
def test_a_message_sent_as_a_notification_starts_its_task_and_waits_for_nothing(
    client: httpx.Client, form: Form, operation: str
) -> None:
    context = str(uuid.uuid4())
    params = form.sending("[[hang]]", contextId=context)
    assert_unanswered(notify(client, form, form.method(operation), params))
    (task,) = tasks_of(client, context)
    assert_unanswered(notify(client, form, form.method("subscribe"), {"id": task["id"]}))
    form.result(form.call(client, "cancel", {"id": task["id"]}))


@RPC
def test_the_log_has_why_a_notification_failed(
    client: httpx.Client, fake_service: Service, form: Form
) -> None:
    response = notify(client, form, form.method("get"), {"id": "missing"})
    request_id = response.headers["x-request-id"]
    said = rf".*event=notification.failed .*request={request_id}.*"
    line = fake_service.program.wait_for(said)[0]
    assert f"type={TASK_NOT_FOUND.reason}" in line
    assert f"method={form.method('get')}" in line


class _AsCaller:
    """Stands where the authentication stands."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller("anybody", frozenset({"tasks:read", "tasks:write"}))
        scope["state"] = {"trace": SpanRef(""), **scope.get("state", {}), "caller": caller}
        await self._app(scope, receive, send)


def _application(monkeypatch: pytest.MonkeyPatch, tasks: Any) -> ASGIApp:
    monkeypatch.setenv("A2A_BEARER_TOKEN", TOKEN)
    published = publication(load(), "http://127.0.0.1:8000")
    api = Api(published)
    stopping = asyncio.get_running_loop().create_future()
    operations = Operations(tasks, published.card, stopping)
    add_routes(api, operations, Health({}), 1024)
    return application(api)


@RPC
async def test_a_notification_that_breaks_something_here_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    """Its neighbour with an id is: both meet a service whose tasks are not there."""
    app = _AsCaller(_application(monkeypatch, None))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    body = {"jsonrpc": "2.0", "method": form.method("get"), "params": {"id": "x"}}
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        assert_unanswered(await client.post("/", json=body, headers=form.version))
        answer = await client.post("/", json=body | {"id": 7}, headers=form.version)
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, -32603)


class _Slow:
    """Stands where `Tasks` would, and comes to no end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def cancel(self, caller: Caller, task_id: str) -> None:
        self.begun.set()
        await asyncio.Event().wait()


@RPC
async def test_a_notification_that_the_service_stops_on_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    slow = _Slow()
    app = Trace(_AsCaller(_application(monkeypatch, slow)), failure)
    transport = httpx.ASGITransport(app)
    body = {"jsonrpc": "2.0", "method": form.method("cancel"), "params": {"id": "x"}}
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        asking = asyncio.create_task(client.post("/", json=body, headers=form.version))
        await slow.begun.wait()
        asking.cancel()
        assert_unanswered(await asking)


@RPC
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"method": "x"},
        {"jsonrpc": "1.0", "method": "x"},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "method": 1, "params": {}},
        {"jsonrpc": "2.0", "id": True, "method": "x"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "x"},
        [],
        [{"jsonrpc": "2.0", "method": "x"}],
        "x",
    ],
    ids=str,
)
def test_what_is_no_request_is_answered_under_null(
    client: httpx.Client, form: Form, body: Any
) -> None:
    response = client.post("/", json=body, headers=form.version)
    form.refused(response, INVALID_REQUEST, rpc_id=None)


@RPC
def test_what_cannot_be_read_is_answered_under_null(client: httpx.Client, form: Form) -> None:
    headers = {"content-type": "application/json", **form.version}
    response = client.post("/", content=b'{"jsonrpc": "2.0", "method": ', headers=headers)
    form.refused(response, PARSE_ERROR, rpc_id=None)


@RPC
def test_an_id_that_is_null_is_an_id(client: httpx.Client, form: Form) -> None:
    response = form.call(client, "get", {"id": "missing"}, rpc_id=None)
    form.refused(response, TASK_NOT_FOUND, rpc_id=None)


def test_a_notification_needs_a_credential_and_a_bounded_body(
    client: httpx.Client, nobody: httpx.Client
) -> None:
    """Refused before anybody has read it: these are answers of HTTP."""
    body = {"jsonrpc": "2.0", "method": "GetTask", "params": {"id": "missing"}}
    assert nobody.post("/", json=body).status_code == 401
    large = body | {"params": {"id": "x" * 16_777_216}}
    assert client.post("/", json=large).status_code == 413
