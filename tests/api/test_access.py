"""Who may do what: credentials, scopes, and what belongs to somebody else."""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from urllib.parse import unquote

import httpx
import pytest
from starlette.routing import Route

from opencode_a2a.app import publication
from opencode_a2a.config import load
from opencode_a2a.inbound.console import Console
from opencode_a2a.inbound.health import Health
from opencode_a2a.inbound.openapi import Api
from opencode_a2a.inbound.operations import Operations
from opencode_a2a.inbound.routes import add_routes
from opencode_a2a.web.logins import DELAY_SECONDS, FREE_FAILURES, MAX_WAITING_PER_ADDRESS
from tests.api.forms import (
    FORBIDDEN,
    FORMS,
    RATE_LIMITED,
    REST_03,
    REST_1,
    ROUTES,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNAUTHENTICATED,
    Form,
    Json,
    line_to,
)
from tests.running import Service

PUBLIC = ("/health", "/ready", "/.well-known/agent-card.json", "/.well-known/agent.json")
CHALLENGE = 'Bearer realm="opencode-a2a", Basic realm="opencode-a2a"'


def basic(login: bytes) -> bytes:
    return b"Basic " + base64.b64encode(login)


WRONG = {
    "wrong token": b"Bearer wrong",
    "empty": b"",
    "scheme only": b"Bearer",
    "token only": b"alice-token",
    "another scheme": b"Digest alice-token",
    "bearer as basic": b"Basic alice-token",
    "token as password": basic(b"alice:alice-token"),
    "password as token": b"Bearer bob:bob:secret \xc3\xa9",
    "wrong password": basic(b"bob:wrong"),
    "wrong user": basic("eve:bob:secret é".encode()),
    "latin-1 password": basic("bob:bob:secret é".encode("latin-1")),
    "no colon": basic(b"bob"),
    "not base64": b"Basic !!!",
    "cut base64": basic(b"bob:bob")[:-1],
    "prefix": b"Bearer alice-toke",
    "more": b"Bearer alice-token2",
    "two tokens": b"Bearer alice-token alice-token",
    "non-ascii": "Bearer älice-tøken".encode(),
    "not utf-8": b"Bearer \xff\xfe\xe9",
    "non-ascii scheme": "Béarer alice-token".encode(),
    "huge": b"Bearer " + b"a" * 30_000,
    "huge basic": basic(b"bob:" + b"a" * 20_000),
}


@pytest.mark.parametrize("operation", ["send", "stream", "get", "cancel", "subscribe", "card"])
def test_nothing_is_done_without_a_credential(
    nobody: httpx.Client, form: Form, operation: str
) -> None:
    response = form.call(nobody, operation, {"id": "x"} if "{id}" in ROUTES[operation].path else {})
    form.refused(response, UNAUTHENTICATED, rpc_id=None)
    assert response.headers["www-authenticate"] == CHALLENGE


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_credential_is_refused(nobody: httpx.Client, form: Form, case: str) -> None:
    request = form.request(nobody, "get", {"id": "x"})
    request.headers = httpx.Headers([*request.headers.raw, (b"authorization", WRONG[case])])
    response = nobody.send(request)
    refusal = form.refused(response, UNAUTHENTICATED, rpc_id=None)
    assert response.headers["www-authenticate"] == CHALLENGE
    assert refusal.facts == {"challenge": CHALLENGE}
    assert "Authorization: Bearer " in refusal.message
    assert "Authorization: Basic " in refusal.message
    said = WRONG[case].decode("latin-1").split()[1:]
    assert not any(secret in response.text for secret in said)


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer alice-token",
        b"bearer alice-token",
        b"BEARER   alice-token",
        basic("bob:bob:secret é".encode()),
        b"basic" + basic("bob:bob:secret é".encode())[5:],
    ],
)
def test_a_right_credential_is_taken(nobody: httpx.Client, form: Form, header: bytes) -> None:
    request = form.request(nobody, "get", {"id": "missing"})
    request.headers = httpx.Headers([*request.headers.raw, (b"authorization", header)])
    form.refused(nobody.send(request), TASK_NOT_FOUND)


VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
TENANTS = (
    *("console", "console/", "docs", "health", "ready", "metrics", "openapi.json", ".well-known"),
    *("v1", "v1/console", "console/docs", ".well-known/agent.json", "console%2Ftasks", "someone"),
)


def routes_of_the_application(monkeypatch: pytest.MonkeyPatch) -> Sequence[Route]:
    monkeypatch.setenv("A2A_BEARER_TOKEN", "x")
    api = Api(publication(load(), "http://127.0.0.1:8000"))
    add_routes(api, cast(Operations, None), Health({}), 1024, console=Console(None))
    return api.routes


def is_open(verb: str, path: str) -> bool:
    """What is documented as open to everybody."""
    path = unquote(path)
    documented = path in {*PUBLIC, "/console"} or path.startswith("/console/")
    return documented and verb in ("GET", "HEAD")


def test_every_route_but_the_public_ones_needs_a_credential(
    nobody: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the method, and whatever a tenant is called."""
    templates = {route.path for route in routes_of_the_application(monkeypatch)}
    assert {"/", "/v1/tasks/{id}", "/{tenant}/tasks/{id}:cancel", "/console"} <= templates
    paths = {
        re.sub(r"{[^}]*}", "x", template.replace("{tenant}", tenant))
        for template in templates
        for tenant in TENANTS
    }
    wrong = []
    for path in sorted(paths):
        for verb in VERBS:
            response = nobody.request(verb, path)
            expected = (200, 404) if is_open(verb, path) else (401,)
            if response.status_code not in expected:
                wrong.append((verb, path, response.status_code))
    assert wrong == []


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/console/message:send"),
        ("POST", "/console/message:stream"),
        ("POST", "/console/tasks/x:cancel"),
        ("DELETE", "/console/tasks/x/pushNotificationConfigs/y"),
    ],
)
def test_a_tenant_named_like_a_public_path_is_a_tenant(
    nobody: httpx.Client, alice: httpx.Client, verb: str, path: str
) -> None:
    REST_1.refused(nobody.request(verb, path, json={}), UNAUTHENTICATED)
    assert alice.request(verb, path, json={}).status_code in (400, 404)


def test_an_unknown_path_says_no_more_than_a_known_one(nobody: httpx.Client) -> None:
    for path in ("/nothing", "/tasks", "/admin"):
        REST_1.refused(nobody.get(path), UNAUTHENTICATED)


def test_a_body_is_not_read_before_the_caller_is_known(nobody: httpx.Client, form: Form) -> None:
    path = "/" if form.rpc else form.route("send").path
    response = nobody.post(path, content=b"\xff" * 2_000_000, headers=form.version)
    form.refused(response, UNAUTHENTICATED, rpc_id=None)


@pytest.mark.parametrize("path", PUBLIC)
@pytest.mark.parametrize("verb", ["GET", "HEAD"])
def test_some_paths_are_open_to_everybody(nobody: httpx.Client, path: str, verb: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        response = nobody.request(verb, path, headers=headers)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert bool(response.content) == (verb == "GET")


def test_health_says_nothing_but_that_it_lives(nobody: httpx.Client, alice: httpx.Client) -> None:
    for client in (nobody, alice):
        assert client.get("/health").json() == {"status": "ok"}


def test_readiness_has_details_for_callers_only(nobody: httpx.Client, alice: httpx.Client) -> None:
    assert nobody.get("/ready").json() == {"status": "ready"}
    wrong = nobody.get("/ready", headers={"authorization": "Bearer wrong"})
    assert wrong.json() == {"status": "ready"}
    told = alice.get("/ready").json()
    assert told["status"] == "ready"
    assert told["checks"] == {"store": True, "opencode": True}


def test_the_openapi_document_is_for_callers(nobody: httpx.Client, alice: httpx.Client) -> None:
    REST_1.refused(nobody.get("/openapi.json"), UNAUTHENTICATED)
    first = alice.get("/openapi.json")
    assert first.json()["openapi"].startswith("3.1")
    again = alice.get("/openapi.json", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304


# -- scopes


@pytest.fixture(scope="module")
def reader(guarded: Service) -> Iterator[httpx.Client]:
    with line_to(guarded, headers={"authorization": "Bearer reader-token"}) as found:
        yield found


@pytest.fixture(scope="module")
def writer(guarded: Service) -> Iterator[httpx.Client]:
    with line_to(guarded, headers={"authorization": "Bearer writer-token"}) as found:
        yield found


@pytest.mark.parametrize("operation", ["send", "stream", "cancel"])
def test_a_reader_changes_nothing(reader: httpx.Client, form: Form, operation: str) -> None:
    params = {"id": "x"} if operation == "cancel" else form.sending("hello")
    refusal = form.refused(form.call(reader, operation, params), FORBIDDEN)
    assert refusal.facts == {"required_scope": "tasks:write"}


def test_a_reader_reads(reader: httpx.Client, form: Form) -> None:
    for operation in ("get", "subscribe"):
        form.refused(form.call(reader, operation, {"id": "x"}), TASK_NOT_FOUND)
    if form.offers("list"):
        assert form.result(form.call(reader, "list"))["tasks"] == []


@pytest.mark.parametrize("operation", ["get", "subscribe", "list"])
def test_a_writer_without_the_scope_to_read_reads_nothing(
    writer: httpx.Client, form: Form, operation: str
) -> None:
    if not form.offers(operation):
        return
    params = {} if operation == "list" else {"id": form.send(writer, "hello")["id"]}
    refusal = form.refused(form.call(writer, operation, params), FORBIDDEN)
    assert refusal.facts == {"required_scope": "tasks:read"}


# -- what another caller owns does not exist


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("who", ["alice", "bob"])
def test_a_task_of_somebody_else_does_not_exist(
    form: Form, who: str, ended: bool, request: pytest.FixtureRequest
) -> None:
    owner: httpx.Client = request.getfixturevalue(who)
    other: httpx.Client = request.getfixturevalue("bob" if who == "alice" else "alice")
    task = form.send(owner, "hello" if ended else "[[hang]]", wait=ended)
    missing = form.refused(form.call(other, "get", {"id": "x"}), TASK_NOT_FOUND)
    for operation in ("get", "cancel", "subscribe"):
        refusal = form.refused(form.call(other, operation, {"id": task["id"]}), TASK_NOT_FOUND)
        assert refusal.message == missing.message
        assert refusal.facts == {"task_id": task["id"]}
    for context in ({}, {"contextId": task["contextId"]}, {"contextId": "another"}):
        for operation in ("send", "stream"):
            asked = form.sending("mine now", taskId=task["id"], **context)
            form.refused(form.call(other, operation, asked), TASK_NOT_FOUND)
    if form.offers("list"):
        page = form.result(form.call(other, "list", {"contextId": task["contextId"]}))
        assert (page["tasks"], page["totalSize"]) == ([], 0)
        mine = form.result(form.call(owner, "list", {"contextId": task["contextId"]}))
        assert [found["id"] for found in mine["tasks"]] == [task["id"]]
    if not ended:
        canceled = form.result(form.call(owner, "cancel", {"id": task["id"]}))
        assert canceled["status"]["state"] == form.state("canceled")
    assert len(form.get(owner, task["id"])["history"]) == 1


def test_a_context_of_the_same_name_is_another_conversation(
    alice: httpx.Client, bob: httpx.Client, form: Form
) -> None:
    first = form.send(alice, "hello")
    again = form.send(alice, "hello", contextId=first["contextId"])
    other = form.send(bob, "hello", contextId=first["contextId"])
    sessions = [t["metadata"]["shared"]["session"]["id"] for t in (first, again, other)]
    assert sessions[0] == sessions[1] != sessions[2]


# Ways to say more than the id of a task, none of which must mean anything. {id} is another's.
TRICKS: dict[str, tuple[dict[str, str], Json]] = {
    "a tenant": ({}, {"id": "{id}", "tenant": "alice"}),
    "an owner": ({}, {"id": "{id}", "owner": "alice", "principal": "alice"}),
    "metadata": ({}, {"id": "{id}", "metadata": {"shared": {"principal": "alice"}}}),
    "the number of an event": ({"Last-Event-ID": "1"}, {"id": "{id}"}),
    "the number of no event": ({"Last-Event-ID": "9" * 18}, {"id": "{id}"}),
    "a name in a header": ({"X-Forwarded-User": "alice", "X-Principal": "alice"}, {"id": "{id}"}),
    "a key": ({"Idempotency-Key": "{id}"}, {"id": "{id}"}),
    "capitals": ({}, {"id": "{ID}"}),
    "a space": ({}, {"id": "{id} "}),
    "a wildcard": ({}, {"id": "%25"}),
    "a resource name": ({}, {"id": "tasks%2F{id}", "name": "tasks/{id}"}),
}


@pytest.fixture(scope="module")
def hung(alice: httpx.Client) -> Iterator[Json]:
    """A task of Alice that goes on, and must go on."""
    task = REST_1.send(alice, "[[hang]]", wait=False)
    yield task
    assert REST_1.get(alice, task["id"])["status"]["state"] == REST_1.state("working")
    REST_1.result(REST_1.call(alice, "cancel", {"id": task["id"]}))


@pytest.mark.parametrize("operation", ["get", "cancel", "subscribe"])
@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_reaches_a_task_of_somebody_else(
    hung: Json, bob: httpx.Client, form: Form, trick: str, operation: str
) -> None:
    told = json.dumps(TRICKS[trick]).replace("{id}", hung["id"])
    headers, params = json.loads(told.replace("{ID}", hung["id"].upper()))
    request = form.request(bob, operation, params)
    request.headers.update(headers)
    response = bob.send(request)
    assert hung["contextId"] not in response.text
    refusal = form.refusal(response, http=None if form.rpc else response.status_code)
    assert refusal.reason in ("TASK_NOT_FOUND", "METHOD_NOT_SUPPORTED")


@pytest.mark.parametrize("prefix", ["", "/alice", "/v1", "/default"])
def test_a_body_or_a_query_cannot_name_another_task_than_the_path(
    hung: Json, bob: httpx.Client, prefix: str
) -> None:
    mine, form = REST_1.send(bob, "hello"), REST_03 if prefix == "/v1" else REST_1
    path = f"{prefix}/tasks/{mine['id']}"
    read = form.result(bob.get(path, params={"id": hung["id"]}, headers=form.version))
    assert read["id"] == mine["id"]
    canceled = bob.post(f"{path}:cancel", json={"id": hung["id"]}, headers=form.version)
    assert form.refused(canceled, TASK_NOT_CANCELABLE).facts["task_id"] == mine["id"]
    theirs = f"{prefix}/tasks/{hung['id']}"
    for response in (
        bob.get(theirs, params={"id": mine["id"]}, headers=form.version),
        bob.post(f"{theirs}:cancel", json={"id": mine["id"]}, headers=form.version),
        bob.get(f"{theirs}:subscribe", params={"after": "1"}, headers=form.version),
    ):
        form.refused(response, TASK_NOT_FOUND)


def test_a_cursor_of_somebody_else_leads_through_ones_own_tasks(
    alice: httpx.Client, bob: httpx.Client, form: Form
) -> None:
    if not form.offers("list"):
        return
    theirs = {form.send(alice, "hello")["id"] for _ in range(3)}
    mine = {form.send(bob, "hello")["id"] for _ in range(2)}
    newest = {form.send(alice, "hello")["id"] for _ in range(2)}
    page = form.result(form.call(alice, "list", {"pageSize": 2}))
    assert {task["id"] for task in page["tasks"]} == newest
    asked = {"pageSize": 100, "pageToken": page["nextPageToken"], "includeArtifacts": True}
    seen = form.result(form.call(bob, "list", asked))
    found = {task["id"] for task in seen["tasks"]}
    assert mine <= found
    assert not found & (theirs | newest)
    assert seen["totalSize"] == form.result(form.call(bob, "list", {}))["totalSize"]


def test_a_key_or_a_message_id_of_somebody_else_is_free(
    alice: httpx.Client, bob: httpx.Client, form: Form
) -> None:
    """A repeated request is known by its key, or by its message in its context: its own."""
    key, context = str(uuid.uuid4()), str(uuid.uuid4())
    message_id = str(uuid.uuid4())

    def send(client: httpx.Client) -> str:
        asked = form.sending("hello", messageId=message_id, contextId=context)
        request = form.request(client, "send", asked)
        request.headers["Idempotency-Key"] = key
        found: str = form.sent(client.send(request))["id"]
        return found

    first, other = send(alice), send(bob)
    assert first != other
    assert (send(alice), send(bob)) == (first, other)


def test_a_reference_to_a_task_of_somebody_else_shows_nothing_of_it(
    hung: Json, bob: httpx.Client, form: Form
) -> None:
    told = form.send(bob, "hello", referenceTaskIds=[hung["id"]])
    assert hung["contextId"] not in json.dumps(told)


def test_who_does_not_own_a_waiting_task_cannot_answer_it(
    alice: httpx.Client, bob: httpx.Client, form: Form
) -> None:
    task = form.send(alice, "[[permission]]")
    for operation in ("send", "stream"):
        for context in ({}, {"contextId": task["contextId"]}):
            asked = form.sending("yes", taskId=task["id"], **context)
            form.refused(form.call(bob, operation, asked), TASK_NOT_FOUND)
    # In a context of the same name Bob has a conversation of his own, where nothing waits.
    other = form.send(bob, "yes", contextId=task["contextId"])
    assert other["status"]["state"] == form.state("completed")
    still = form.get(alice, task["id"])
    assert still["status"]["state"] == form.state("input-required")
    assert len(still["history"]) == 1
    form.result(form.call(alice, "cancel", {"id": task["id"]}))


# -- guessing


def test_after_many_failed_logins_a_right_guess_takes_as_long_as_a_wrong_one(
    guarded: Service, addresses: Callable[[], str]
) -> None:
    limits = httpx.Limits(max_connections=None)
    transport = httpx.HTTPTransport(local_address=addresses(), limits=limits, verify=False)
    with (
        line_to(guarded, headers={}, transport=transport) as guesser,
        ThreadPoolExecutor(2 * FREE_FAILURES) as pool,
    ):

        def guess(token: str, form: Form = REST_1) -> tuple[Form, httpx.Response, float]:
            """The answer, and how many seconds it took."""
            request = form.request(guesser, "get", {"id": "missing"})
            request.headers["authorization"] = f"Bearer {token}"
            began = time.monotonic()
            return form, guesser.send(request), time.monotonic() - began

        REST_1.refused(guess("alice-token")[1], TASK_NOT_FOUND)
        for _ in pool.map(guess, (f"guess-{n}" for n in range(2 * FREE_FAILURES))):
            pass  # of which the second half has been slowed down already

        wrong = pool.submit(guess, "another")
        # Who was known there before is not locked out by somebody else's guesses.
        REST_1.refused(guess("alice-token")[1], TASK_NOT_FOUND)
        assert guesser.get("/health").status_code == 200
        assert not wrong.done(), "alice had to wait"

        guesses = [pool.submit(guess, f"another-{n}", FORMS[n % 4]) for n in range(40)]
        answers = [guessed.result() for guessed in guesses]
        waited = [answer for answer in answers if answer[1].status_code == 401]
        assert 0 < len(waited) <= MAX_WAITING_PER_ADDRESS
        for form, response, seconds in waited:
            form.refused(response, UNAUTHENTICATED, rpc_id=None)
            assert seconds >= DELAY_SECONDS
        refused = [answer for answer in answers if answer not in waited]
        for form, response, _ in refused:
            refusal = form.refused(response, RATE_LIMITED, rpc_id=None)
            assert response.headers["www-authenticate"] == CHALLENGE
            assert int(response.headers["retry-after"]) == DELAY_SECONDS
            assert "Authorization: Bearer " in refusal.message
            assert "Authorization: Basic " in refusal.message

        _, response, seconds = guess("reader-token")
        REST_1.refused(response, TASK_NOT_FOUND)
        assert seconds >= DELAY_SECONDS, "it was right, and was told so no sooner"


def test_asking_without_a_credential_is_no_guess(nobody: httpx.Client) -> None:
    for _ in range(40):
        REST_1.refused(nobody.get("/tasks"), UNAUTHENTICATED)
