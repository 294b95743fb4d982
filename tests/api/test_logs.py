"""What a running service logs: as much as its operator asked for, and never more."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from opencode_a2a.app import LOGGED_BODY_BYTES
from tests.api.forms import FORMS, REST_1, RPC_1, Form, Json, line_to
from tests.running import Program, Service, Upstream, service

TOKEN = "token-5ecre7-of-alice"
PASSWORD = "password-5ecre7-of-bob"
PROVIDER = "provider-5ecre7-key"
PROMPT = "a-prompt-for-the-agent"
LOGIN = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
KNOWN = json.dumps(
    [
        {"scheme": "bearer", "token": TOKEN, "principal": "alice"},
        {"scheme": "basic", "username": "bob", "password": PASSWORD, "principal": "bob"},
    ]
)
SECRETS = ("5ecre7", LOGIN)


@pytest.fixture(scope="module")
def telling(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Everything that can be logged, as JSON."""
    with service(
        fake,
        tmp_path_factory.mktemp("telling"),
        A2A_STATIC_AUTH_CREDENTIALS=KNOWN,
        A2A_LOG_LEVEL="debug",
        A2A_LOG_PAYLOADS="true",
        A2A_LOG_FORMAT="json",
        ANTHROPIC_API_KEY=PROVIDER,
        serving=r'"event":"serving","url":"([^"]+)"',
    ) as running:
        yield running


@pytest.fixture(scope="module")
def quiet(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Everything but what people say."""
    with service(
        fake,
        tmp_path_factory.mktemp("quiet"),
        A2A_STATIC_AUTH_CREDENTIALS=KNOWN,
        A2A_LOG_LEVEL="debug",
        OPENCODE_MAX_CONCURRENT_STREAMS="1",
    ) as running:
        yield running


def alice(running: Service) -> httpx.Client:
    return line_to(running, headers={"authorization": f"Bearer {TOKEN}"})


def lines(program: Program, request_id: str, event: str) -> list[Json]:
    """What the log says about a request; the line that ends it has been waited for."""
    program.wait_for(rf'"event":"request",.*"{request_id}"|"{request_id}".*"event":"request"')
    found = [json.loads(line) for line in program.output.splitlines() if line.startswith("{")]
    return [line for line in found if (line.get("request"), line["event"]) == (request_id, event)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_bodies_are_logged_without_secrets_and_cut(telling: Service, form: Form) -> None:
    with alice(telling) as client:
        text = f"{PROMPT} {TOKEN} {PASSWORD} {LOGIN} {PROVIDER} Bearer {TOKEN}" + " long" * 1_000
        data: Json = {"data": {"password": "hunter2", "api_key": "hunter2", "n": 1}}
        data = {"kind": "data", **data} if form.tagged else data
        response = form.call(client, "send", form.sending(text, data if form.rpc else "more"))
        request_id = response.headers["x-request-id"]
    (asked,) = lines(telling.program, request_id, "payload.request")
    assert PROMPT in asked["body"]
    assert "hunter2" not in asked["body"]
    assert asked["bytes"] > LOGGED_BODY_BYTES
    (told,) = lines(telling.program, request_id, "payload.response")
    assert told["status"] == 200
    for line in (asked, told):
        assert len(line["body"].encode()) <= LOGGED_BODY_BYTES + len(" …".encode())
    for secret in SECRETS:
        assert secret not in telling.program.output


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_stream_is_logged_as_it_goes(telling: Service, form: Form) -> None:
    with alice(telling) as client:
        request = form.request(client, "stream", form.sending("[[tokens:5]] [[rate:50]]"))
        response = client.send(request, stream=True)
        frames = list(form.frames(response))
        response.close()
    events = lines(telling.program, response.headers["x-request-id"], "payload.event")
    assert 1 < len(events) <= len(frames)
    assert events[0]["body"].startswith(f"id: {frames[0].id}\ndata: {{")
    assert all(len(line["body"].encode()) <= LOGGED_BODY_BYTES + 4 for line in events)


def test_who_is_not_known_fills_no_log(telling: Service) -> None:
    nonsense = "nonsense-of-nobody"
    with line_to(telling, headers={}) as nobody:
        response = RPC_1.call(nobody, "send", RPC_1.sending(nonsense))
        assert response.status_code == 401
        card = nobody.get("/.well-known/agent-card.json")
        assert card.status_code == 200
    assert lines(telling.program, response.headers["x-request-id"], "payload.request") == []
    assert nonsense not in telling.program.output
    assert lines(telling.program, card.headers["x-request-id"], "payload.response") == []


def test_every_line_is_json(telling: Service) -> None:
    with alice(telling) as client:
        RPC_1.send(client, "hello")
        key = client.get("/-----BEGIN%20PRIVATE%20KEY-----").headers["x-request-id"]
    telling.program.wait_for(r'"event":"task.ended"')
    (said,) = lines(telling.program, key, "request")
    assert (said["path"], said["status"]) == ("/[redacted]", 404)
    for line in telling.program.output.splitlines():
        found = json.loads(line)
        assert {"timestamp", "level", "event"} <= found.keys()


def test_debug_tells_what_happens_and_not_what_is_said(quiet: Service) -> None:
    with alice(quiet) as client:
        REST_1.send(client, f"[[text:{PROMPT}-answer]] {PROMPT}")
        one = RPC_1.send(client, "[[hang]]", wait=False)
        with RPC_1.following(client, "subscribe", {"id": one["id"]}) as frames:
            while next(frames).body["status"]["state"] != RPC_1.state("working"):
                pass
            two = RPC_1.send(client, "hello", wait=False)
            three = RPC_1.send(client, "hello", wait=False, contextId=one["contextId"])
            slot = quiet.program.wait_for(rf".*event=task.waits task={two['id']}.*")[0]
            older = quiet.program.wait_for(rf".*event=task.waits task={three['id']}.*")[0]
        for task in (one, two, three):
            REST_1.call(client, "cancel", {"id": task["id"]})
    assert "OPENCODE_MAX_CONCURRENT_STREAMS" in slot
    assert f"older={one['id']}" in older
    for line in (
        r"event=opencode.call method=POST path=/session/ses_\w+/prompt_async status=204 ms=[\d.]+",
        r"event=store.commit tasks=1 entries=\d+ ms=[\d.]+",
        r"event=request.understood operation=CancelTask line=1.0 version=1.0",  # over REST
        r"event=request.understood operation=SubscribeToTask line=1.0",  # over JSON-RPC
    ):
        quiet.program.wait_for(line)
    output = quiet.program.output
    for hidden in (*SECRETS, PROMPT, "payload."):
        assert hidden not in output


NASTY = "x%0a%0dtimestamp=2026-01-01T00:00:00Z%20level=info%20event=forged%1b%5b2J%e2%80%ae%c2%85"


def test_nothing_of_a_stranger_can_pass_for_a_line(quiet: Service) -> None:
    with alice(quiet) as client:
        url = f"{quiet.url}/tasks/{NASTY}"
        raw = httpx.URL(url).copy_with(raw_path=f"/tasks/{NASTY}?A2A-Version={NASTY}".encode())
        client.get(raw)
        client.get(httpx.URL(url).copy_with(raw_path=f"/{NASTY}".encode()))
        body = {"jsonrpc": "2.0", "method": "x\nevent=forged\x1b[2J\u202e", "params": {}}
        client.post("/", json=body)
        last = client.get("/health").headers["x-request-id"]
    head = f"GET /tasks/x HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer {TOKEN}\r\n"
    address = httpx.URL(quiet.url)
    with socket.create_connection((address.host, address.port or 80), 60) as caller:
        caller.sendall(f"{head}A2A-Version: \x1b[2J\u0085\r\nConnection: close\r\n\r\n".encode())
        while caller.recv(65536):
            pass
    quiet.program.wait_for(rf"request={last}")
    for line in quiet.program.output.splitlines():
        assert line.isprintable()
        assert re.match(r"timestamp=\S+ level=\w+ event=(?!forged)", line), line
    assert "event=forged" in quiet.program.output, "it is there, inside of other lines"


def test_payloads_are_not_logged_unless_they_are_asked_for(fake: Upstream, tmp_path: Path) -> None:
    with service(fake, tmp_path) as running, line_to(running) as client:
        RPC_1.send(client, PROMPT)
        running.program.wait_for("event=task.ended")
    assert PROMPT not in running.program.output
    assert "payload." not in running.program.output
