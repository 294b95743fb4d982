"""Metrics, the audit log and JSON lines of a real process, on the fake OpenCode."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from opencode_a2a.observe.metrics import METRICS
from tests.receivers import receiver
from tests.running import Service, Upstream, service, until_ready

OPERATOR, ALICE, PROMETHEUS, ADMIN = (
    f"{name}-token-{'x' * 16}" for name in ("op", "alice", "prom", "admin")
)
CREDENTIALS = [
    {"scheme": "bearer", "token": ALICE, "principal": "alice"},
    {"scheme": "bearer", "token": PROMETHEUS, "principal": "prom", "scopes": ["metrics:read"]},
    {
        "scheme": "bearer",
        "token": ADMIN,
        "principal": "root",
        "scopes": ["tasks:read", "tasks:write", "admin"],
    },
]
# What does not happen in this module: other tests see to it that these are counted.
ELSEWHERE = {
    "outbound_calls_total",  # tests/service/test_peer_calls.py
    "outbound_call_duration_seconds",
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@dataclass(frozen=True)
class Watched:
    """A service with JSON logs and an audit log, and clients of it."""

    run: Service
    audit: Path

    def client(self, token: str = ALICE) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}", "A2A-Version": "1.0"}
        return httpx.Client(base_url=self.run.url, headers=headers, timeout=60)

    def send(self, text: str, **more: str) -> dict[str, Any]:
        """The task of a message, when it rests."""
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
        with self.client() as alice:
            headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}
            answer = alice.post("/message:send", json={"message": message | more}, headers=headers)
            task: dict[str, Any] = answer.json()["task"]
            return task

    def audited(self, act: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line["act"] == act]

    def metrics(self) -> dict[str, float]:
        """Every sample, by name and labels."""
        with self.client(PROMETHEUS) as prometheus:
            answer = prometheus.get("/metrics")
        assert answer.status_code == 200, answer.text
        return {
            f"{sample.name.removeprefix('opencode_a2a_')}{sorted(sample.labels.values())}": (
                sample.value
            )
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (line for line in self.run.program.output.splitlines() if line.startswith("{"))
        return [line for line in map(json.loads, lines) if line["event"] == event]


@pytest.fixture(scope="module")
def watched(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    settings = {
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(CREDENTIALS),
        "A2A_LOG_FORMAT": "json",
        "A2A_AUDIT_LOG": str(folder / "audit.log"),
        "A2A_CLIENT_ALLOWED_HOSTS": "127.0.0.1",
        "A2A_PUSH": "true",
        "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1",
    }
    with service(fake, folder, **settings) as run:
        found = Watched(run, folder / "audit.log")
        with found.client() as alice:
            until_ready(alice)
        yield found


def test_every_declared_metric_is_really_produced(watched: Watched, fake: Upstream) -> None:
    watched.send("[[tokens:20]] [[tool:bash]]")
    watched.send("[[tokens:20]] [[cutfeed]]")  # a gap, which is reconciled
    watched.send("[[error:500]] [[tokens:1]]")
    waits = watched.send("[[permission]]")
    watched.send("yes", taskId=waits["id"], contextId=waits["contextId"])
    link = {"parts": [{"url": f"{fake.base_url}/nothing", "mediaType": "text/plain"}]}
    with watched.client() as alice:
        message = {"messageId": "f", "role": "ROLE_USER"} | link
        assert alice.post("/message:send", json={"message": message}).status_code == 400
        with receiver() as webhook:
            message = {"messageId": "p", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            told = {"taskPushNotificationConfig": {"url": webhook.url}}
            sent = alice.post("/message:send", json={"message": message, "configuration": told})
            assert sent.status_code == 200
            webhook.wait_for_end()
    produced = {re.sub(r"_(bucket|sum|count)?\[.*|\[.*", "", key) for key in watched.metrics()}
    wanted = {name.removeprefix("opencode_a2a_") for name in METRICS}
    assert wanted - produced == ELSEWHERE


def test_what_a_task_did_is_in_the_metrics(watched: Watched) -> None:
    before = watched.metrics()
    watched.send("[[tokens:20]]")
    after = watched.metrics()

    def grown(key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert grown("requests_total['1.0', 'SendMessage', 'ok', 'rest']") == 1
    assert grown("tasks_ended_total['', 'completed']") == 1
    assert grown("tokens_total['alice', 'fake/fake-model', 'output']") == 20
    assert grown("log_commit_entries_count[]") >= 1
    assert grown("opencode_requests_total['POST /session/{id}/prompt_async', 'ok']") == 1
    assert after["opencode_connected[]"] == 1
    assert after["tasks['working']"] == 0


def test_open_streams_and_waiting_people_are_seen(watched: Watched) -> None:
    sent_before = watched.metrics()["stream_bytes_total[]"]
    message = {"messageId": "s", "role": "ROLE_USER", "parts": [{"text": "[[hang]]"}]}
    with (
        watched.client() as alice,
        alice.stream("POST", "/message:stream", json={"message": message}) as answer,
    ):
        lines = answer.iter_lines()  # as long as it is there, the stream is open
        first = next(line for line in lines if line.startswith("data:"))
        deadline = time.monotonic() + 60
        while (seen := watched.metrics())["tasks['working']"] != 1:
            assert time.monotonic() < deadline
        assert seen["streams[]"] == 1
        assert seen["stream_bytes_total[]"] >= sent_before + len(first)
        assert seen["readers[]"] >= 1
        assert seen["connections['known']"] >= 1
    task_id = json.loads(first.removeprefix("data:"))["task"]["id"]
    with watched.client() as alice:
        assert alice.post(f"/tasks/{task_id}:cancel").status_code == 200
    (line,) = watched.audited("CancelTask")
    assert (line["principal"], line["task"], line["outcome"]) == ("alice", task_id, "ok")


def test_the_metrics_need_their_scope(watched: Watched) -> None:
    with watched.client() as alice, watched.client("wrong-token") as stranger:
        refused = alice.get("/metrics")
        assert refused.status_code == 403
        assert "metrics:read" in refused.text
        assert stranger.get("/metrics").status_code == 401
    (line, *_) = watched.audited("login")
    assert (line["outcome"], line["principal"], line["address"]) == ("refused", None, "127.0.0.1")
    assert "wrong-token" not in watched.audit.read_text()


def test_a_read_is_not_in_the_audit_log(watched: Watched) -> None:
    """Also where it needs a scope that allows changes."""
    method = "opencode.nodes.list"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
    with watched.client(ADMIN) as admin:
        admin.post("/", json=body)
        admin.post("/tasks/missing:cancel", json={})
    assert watched.audited("CancelTask")
    assert watched.audited(method) == []


def test_the_audit_log_says_who_answered_what(watched: Watched) -> None:
    waits = watched.send("[[permission]] do it")
    watched.send("yes", taskId=waits["id"], contextId=waits["contextId"])
    line = watched.audited("permission.answer")[-1]
    assert (line["principal"], line["task"], line["outcome"]) == ("alice", waits["id"], "once")
    assert line["permission"] == "bash"
    assert "do it" not in watched.audit.read_text()
    sent = watched.audited("SendMessage")[-1]
    assert sent["request"]
    assert sent["trace_id"] == TRACE


def test_nothing_of_a_request_is_in_the_lines_of_the_next_one_on_its_connection(
    watched: Watched,
) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "[[tokens:1]]"}]}
    body = json.dumps({"message": message, "configuration": {"returnImmediately": True}})
    head = f"Host: localhost\r\nA2A-Version: 1.0\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n"
    pipelined = (
        f"POST /message:send HTTP/1.1\r\n{head}Authorization: Bearer {ALICE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        "GET /tasks?after=pipelined HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Authorization: Bearer wrong\r\n\r\n"
    )
    address = httpx.URL(watched.run.url)
    with socket.create_connection((address.host, address.port or 0), timeout=60) as connection:
        connection.sendall(pipelined.encode())
        with connection.makefile("rb") as answers:
            answered = answers.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", answered) == [b"200", b"401"]
    with watched.client() as alice:  # a body so large that its reading is paused
        big = {**message, "parts": [{"text": "[[tokens:1]] " + "x" * 1_000_000}]}
        alice.post("/message:send", json={"message": big}).raise_for_status()
        wrong = alice.get("/tasks", headers={"authorization": "Bearer wrong"})
        assert wrong.status_code == 401
    refused = watched.audited("login")[-2:]
    assert [set(line) & {"task", "context", "trace_id"} for line in refused] == [set(), set()]


def test_a_send_is_audited_when_it_is_stored_also_if_its_client_leaves(watched: Watched) -> None:
    message = {"messageId": "leaves", "role": "ROLE_USER", "parts": [{"text": "[[hang]]"}]}
    body = json.dumps({"message": message})
    request = (
        "POST /message:send HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\n"
        f"X-Request-Id: leaves\r\nAuthorization: Bearer {ALICE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    before = len(watched.audited("SendMessage"))
    address = httpx.URL(watched.run.url)
    with socket.create_connection((address.host, address.port or 0), timeout=60) as connection:
        connection.sendall(request.encode())
        deadline = time.monotonic() + 60
        while len(watched.audited("SendMessage")) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        (line,) = watched.audited("SendMessage")[before:]  # though it has no answer yet
    assert line["outcome"] == "ok"
    watched.run.program.wait_for(rf'"status":499.*{line["request"]}')
    assert len(watched.audited("SendMessage")) == before + 1
    with watched.client() as alice:
        alice.post(f"/tasks/{line['task']}:cancel").raise_for_status()


def test_every_line_of_the_log_says_what_it_is_about(watched: Watched) -> None:
    task = watched.send("[[tokens:1]]")
    for event in ("task.ended", "request"):  # the latter comes after the answer
        watched.run.program.wait_for(rf'"event":"{event}".*"task":"{task["id"]}"')
    (ended,) = [line for line in watched.logged("task.ended") if line["task"] == task["id"]]
    assert ended["context"] == task["contextId"]
    assert ended["session"].startswith("ses_")
    assert (ended["principal"], ended["trace_id"]) == ("alice", TRACE)
    of_request = [line for line in watched.logged("request") if line.get("task") == task["id"]]
    assert {line["request"] for line in of_request} == {ended["request"]}


def test_a_moved_audit_log_is_begun_again_at_sighup(watched: Watched) -> None:
    moved = watched.audit.with_suffix(".1")
    watched.audit.rename(moved)
    watched.run.program.process.send_signal(signal.SIGHUP)
    watched.run.program.wait_for("settings.reloaded")
    (line,) = watched.audited("settings.reload")
    assert (line["principal"], line["operator"], line["outcome"]) == (None, True, "ok")
    assert moved.stat().st_size > 0


@pytest.mark.parametrize(("setting", "status"), [("off", 404), ("open", 200), ("127.0.0.1:0", 404)])
def test_the_setting_says_who_gets_the_metrics(
    fake: Upstream, tmp_path: Path, setting: str, status: int
) -> None:
    with service(fake, tmp_path, A2A_METRICS=setting) as run:
        headers = {} if setting == "open" else run.headers
        assert httpx.get(f"{run.url}/metrics", headers=headers).status_code == status
        if status == 404 and setting != "off":
            found = run.program.wait_for(r"event=metrics.serving url=(\S+)")
            answer = httpx.get(found[1])
            assert "opencode_a2a_info" in answer.text
            assert httpx.get(found[1].removesuffix("/metrics")).status_code == 404
