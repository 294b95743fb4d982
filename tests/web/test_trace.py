"""One line per request, and an answer in shape even when something breaks inside."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from opencode_a2a.contract.dispatch import Contract
from opencode_a2a.domain import scopes
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import Caller
from opencode_a2a.inbound.card import CardFacts
from opencode_a2a.inbound.failures import failure
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.inbound.operations import Operations
from opencode_a2a.inbound.published import Published
from opencode_a2a.inbound.routes import add_routes, application
from opencode_a2a.observe import metrics
from opencode_a2a.observe.tracing import SpanRef
from opencode_a2a.service.tasks import Tasks
from opencode_a2a.web.auth import Authenticator, Credential, Credentials
from opencode_a2a.web.trace import Trace

SECRET = "the password is hunter2"
BROKEN = RuntimeError(SECRET)


class BrokenTasks:
    """Stands where `Tasks` would, and has a bug."""

    async def get(self, caller: Caller, task_id: str) -> Task:
        raise BROKEN


async def works(request: Request) -> Response:
    return PlainTextResponse("fine")


async def breaks(request: Request) -> Response:
    raise BROKEN


async def breaks_midway(request: Request) -> Response:
    async def pieces() -> Any:
        yield b"first"
        raise BROKEN

    return StreamingResponse(pieces())


def service() -> ASGIApp:
    """The whole edge, in the order in which the service has it."""
    facts = CardFacts("http://test", "", "", "", (), (), ())
    api = Api(Published(facts, Contract((), ())))
    operations = Operations(cast(Tasks, BrokenTasks()), api.published.card, asyncio.Future())

    async def broken_check() -> bool:
        raise BROKEN

    for path, endpoint in (("/w", works), ("/b", breaks), ("/m", breaks_midway)):
        api.add(endpoint, path, ("GET",), summary="", describe=None)
    health = Health({"store": broken_check})
    add_routes(api, operations, health, 1024)
    known = Credentials([Credential.bearer("token", Caller("alice", frozenset(scopes.Scope)))])
    guarded = Authenticator(
        application(api), credentials=known, is_public=api.is_public, on_error=failure
    )
    return Trace(guarded, failure)


def client(app: ASGIApp | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=cast(Any, app or service())),
        base_url="http://x",
        headers={"authorization": "Bearer token"},
    )


def rpc(method: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "x"}}


async def test_a_request_is_one_line() -> None:
    with capture_logs() as logs:
        async with client() as there:
            response = await there.get("/w?token=hidden")
    (line,) = logs
    assert response.text == "fine"
    assert (line["event"], line["method"], line["path"], line["status"]) == (
        "request",
        "GET",
        "/w",
        200,
    )
    assert line["principal"] == "alice"
    assert line["ms"] >= 0
    assert "hidden" not in str(logs)


async def test_a_long_path_fills_no_log() -> None:
    with capture_logs() as logs:
        async with client() as there:
            await there.get("/" + "x" * 30_000, headers={"authorization": "Bearer wrong"})
    (line,) = [line for line in logs if line["event"] == "request"]
    assert line["status"] == 401
    assert len(str(logs)) < 1_000


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([f"00-{TRACE}-b7ad6b7169203331-01"], True),
        ([f"cc-{TRACE}-b7ad6b7169203331-01-what-comes-later"], True),
        ([], False),
        (["nonsense"], False),
        ([f"00-{TRACE.upper()}-b7ad6b7169203331-01"], False),
        ([f"ff-{TRACE}-b7ad6b7169203331-01"], False),
        ([f"00-{'0' * 32}-b7ad6b7169203331-01"], False),
        ([f"00-{TRACE}-{'0' * 16}-01"], False),
        ([f"00-{TRACE}-b7ad6b7169203331-01"] * 2, False),
    ],
)
async def test_a_request_belongs_to_the_trace_that_it_names_or_begins_one(
    given: list[str], *, taken: bool
) -> None:
    seen: list[tuple[SpanRef, dict[str, Any]]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["state"]["trace"], get_contextvars()))
        await PlainTextResponse("fine")(scope, receive, send)

    async with client(Trace(look, failure)) as there:
        answer = await there.get("/", headers=[("traceparent", each) for each in given])
    request_id = answer.headers["x-request-id"]
    logged = {"request": request_id} | ({"trace_id": TRACE} if taken else {})
    named = SpanRef(TRACE, "b7ad6b7169203331", sampled=True)
    assert seen == [(named if taken else SpanRef(request_id), logged)]


async def test_a_stranger_has_no_name_in_the_log() -> None:
    with capture_logs() as logs:
        async with client() as there:
            await there.get("/w", headers={"authorization": "Bearer wrong"})
    (line,) = logs
    assert (line["status"], line["principal"]) == (401, None)


async def test_every_answer_has_a_number_of_its_own() -> None:
    async with client() as there:
        first, second = await there.get("/w"), await there.get("/nothing")
    numbers = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(numbers) == 2


@pytest.mark.parametrize(
    ("verb", "path", "body", "where"),
    [
        ("POST", "/", rpc("GetTask"), "rpc"),
        ("POST", "/", rpc("tasks/get"), "rpc"),
        ("GET", "/tasks/x", None, "rest-1.0"),
        ("GET", "/v1/tasks/x", None, "rest-0.3"),
        ("GET", "/ready", None, "rest-1.0"),
        ("GET", "/b", None, "rest-1.0"),
    ],
)
async def test_a_bug_is_answered_in_shape_and_kept_for_the_log(
    verb: str, path: str, body: Any, where: str
) -> None:
    before = metrics.REGISTRY.get_sample_value("opencode_a2a_internal_errors_total")
    with capture_logs() as logs:
        async with client() as there:
            response = await there.request(verb, path, json=body)
    assert (
        metrics.REGISTRY.get_sample_value("opencode_a2a_internal_errors_total") == (before or 0) + 1
    )
    assert response.status_code == (200 if where == "rpc" else 500)
    assert SECRET not in response.text
    assert "RuntimeError" not in response.text
    answer = response.json()
    match where:
        case "rpc":
            assert (answer["jsonrpc"], answer["id"]) == ("2.0", 1)
            assert answer["error"]["code"] == -32603
            assert isinstance(answer["error"]["data"], list if "Get" in str(body) else dict)
        case "rest-1.0":
            assert answer["error"]["status"] == "INTERNAL"
            assert response.headers["content-type"] == "application/a2a+json"
        case _:
            assert answer["code"] == -32603
            assert response.headers["content-type"] == "application/json"
    broken = [line for line in logs if line["event"] == "request.internal_error"]
    assert [(line["log_level"], line["path"]) for line in broken] == [("error", path)]
    assert logs[-1]["event"] == "request"
    assert logs[-1]["status"] == response.status_code


async def test_an_answer_under_way_is_cut_rather_than_continued_with_another() -> None:
    """The server closes the connection on this, so the client knows that the rest is missing."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/m",
        "raw_path": b"/m",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer token")],
        "client": None,
    }
    with capture_logs() as logs, pytest.raises(RuntimeError):
        await service()(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[1]["body"] == b"first"
    assert [line["event"] for line in logs] == ["request.internal_error", "request"]


async def test_a_bug_outside_the_application_is_answered_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise BROKEN

    with capture_logs() as logs:
        async with client(Trace(app, failure)) as there:
            response = await there.get("/tasks")
    assert response.status_code == 500
    request_id = response.headers["x-request-id"]
    assert response.json()["error"]["message"].endswith(f"under the request id {request_id}.")
    assert [line["event"] for line in logs] == ["request.internal_error", "request"]


async def test_a_client_that_leaves_while_it_speaks_is_no_error() -> None:
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer token"), (b"content-type", b"application/json")],
        "client": None,
    }
    with capture_logs() as logs:
        await service()(scope, receive, send)
    assert [(line["event"], line["status"]) for line in logs] == [("request", 499)]
