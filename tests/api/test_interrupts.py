"""Answering by the id of a request, finding what waits, and choosing extensions by a header."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.forms import (
    FORBIDDEN,
    INTERRUPT_EXPIRED,
    INTERRUPT_MISMATCH,
    INTERRUPT_NOT_FOUND,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RPC_03,
    RPC_1,
    Form,
    Json,
    Kind,
    Refusal,
    line_to,
)
from tests.running import Service, Upstream, service

PERMIT, ANSWER, DISMISS = (
    "a2a.interrupt.permission.reply",
    "a2a.interrupt.question.reply",
    "a2a.interrupt.question.reject",
)
PERMISSIONS, QUESTIONS = "opencode.permissions.list", "opencode.questions.list"
SPECIFIED = (
    "https://github.com/Intelligent-Internet/opencode-a2a/blob/main/"
    "docs/extension-specifications.md#"
)
INTERACTIVE, RECOVERY = (
    f"{SPECIFIED}shared-interactive-interrupt-v1",
    f"{SPECIFIED}opencode-interrupt-recovery-v1",
)
ALIAS, HITL = "urn:a2a:interactive-interrupt/v1", "https://kagent.dev/extensions/hitl/v1"
RPC = pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)


def call(client: httpx.Client, form: Form, method: str, params: Any, **body: Any) -> httpx.Response:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **body}
    kept = {name: value for name, value in request.items() if value is not ...}
    return client.post("/", json=kept, headers=form.version)


def result(client: httpx.Client, form: Form, method: str, **params: Any) -> Json:
    return form.result(call(client, form, method, params))


def refused(client: httpx.Client, form: Form, kind: Kind, method: str, **params: Any) -> Refusal:
    return form.refused(call(client, form, method, params), kind)


def asking(client: httpx.Client, form: Form, mark: str = "[[permission]]") -> tuple[Json, str]:
    """A task that waits for a person, and the id of what it waits for."""
    task = form.send(client, mark)
    assert task["status"]["state"] == form.state("input-required")
    return task, task["metadata"]["shared"]["interrupt"]["request_id"]


# -- callbacks


@RPC
def test_a_permission_is_decided_by_its_id(client: httpx.Client, form: Form) -> None:
    for reply, state in (("once", "completed"), ("always", "completed"), ("reject", "canceled")):
        task, request_id = asking(client, form)
        taken = result(client, form, PERMIT, request_id=request_id, reply=reply)
        assert taken == {"ok": True, "request_id": request_id}
        done = form.settled(client, task["id"])
        assert done["status"]["state"] == form.state(state)
        refused(client, form, INTERRUPT_NOT_FOUND, PERMIT, request_id=request_id, reply=reply)


@RPC
def test_a_refusal_may_say_why(client: httpx.Client, form: Form) -> None:
    task, request_id = asking(client, form)
    result(client, form, PERMIT, request_id=request_id, reply="reject", message="Not like this.")
    done = form.settled(client, task["id"])
    assert done["status"]["state"] == form.state("completed")
    assert "Not like this." in json.dumps(done["artifacts"])


@RPC
def test_a_question_is_answered_or_dismissed_by_its_id(client: httpx.Client, form: Form) -> None:
    task, request_id = asking(client, form, "[[question]]")
    result(client, form, ANSWER, request_id=request_id, answers=[["B"]])
    assert "Answers: [['B']]" in json.dumps(form.settled(client, task["id"])["artifacts"])
    task, request_id = asking(client, form, "[[question]]")
    result(client, form, DISMISS, request_id=request_id)
    done = form.settled(client, task["id"])
    assert done["status"]["state"] == form.state("canceled")


@RPC
def test_the_wrong_method_says_which_is_right(client: httpx.Client, form: Form) -> None:
    task, permission = asking(client, form)
    asked, question = asking(client, form, "[[question]]")
    for method, params in (
        (ANSWER, {"request_id": permission, "answers": [["A"]]}),
        (DISMISS, {"request_id": permission}),
    ):
        refusal = refused(client, form, INTERRUPT_MISMATCH, method, **params)
        assert refusal.facts == {"request_id": permission, "expected": "permission"}
    params = {"request_id": question, "reply": "once"}
    refusal = refused(client, form, INTERRUPT_MISMATCH, PERMIT, **params)
    assert refusal.facts == {"request_id": question, "expected": "question"}
    for each in (task, asked):
        form.result(form.call(client, "cancel", {"id": each["id"]}))
        gone = refused(
            client, form, INTERRUPT_NOT_FOUND, PERMIT, request_id=permission, reply="once"
        )
        assert gone.facts == {"request_id": permission}


FINE: Json = {"request_id": "per_0123456789", "reply": "once"}


@RPC
@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        (PERMIT, {"reply": "once"}, "request_id"),
        (PERMIT, {**FINE, "request_id": "ses_0123456789"}, "request_id"),
        (PERMIT, {**FINE, "request_id": "per_1/../../global"}, "request_id"),
        (PERMIT, {**FINE, "request_id": "per_" + "a" * 99}, "request_id"),
        (PERMIT, {**FINE, "request_id": 1}, "request_id"),
        (PERMIT, {"request_id": FINE["request_id"]}, "reply"),
        (PERMIT, {**FINE, "reply": "yes"}, "reply"),
        (PERMIT, {**FINE, "reply": True}, "reply"),
        (PERMIT, {**FINE, "message": 1}, "message"),
        (PERMIT, {**FINE, "message": "x" * 5000}, "message"),
        (PERMIT, {**FINE, "requestId": "per_1"}, "requestId"),
        (PERMIT, {**FINE, "metadata": []}, "metadata"),
        (ANSWER, {"request_id": "que_1"}, "answers"),
        (ANSWER, {"request_id": "que_1", "answers": "A"}, "answers"),
        (ANSWER, {"request_id": "que_1", "answers": ["A"]}, "answers[0]"),
        (ANSWER, {"request_id": "que_1", "answers": [["A"], [1]]}, "answers[1][0]"),
        (DISMISS, {"request_id": "que_1", "answers": []}, "answers"),
        (DISMISS, {}, "request_id"),
        (PERMISSIONS, {"limit": 5}, "limit"),
        (QUESTIONS, {"session_id": "ses_1"}, "session_id"),
        (PERMIT, ["per_1", "once"], "params"),
    ],
)
def test_a_wrong_parameter_is_named(
    client: httpx.Client, form: Form, method: str, params: Any, field: str
) -> None:
    refusal = form.refused(call(client, form, method, params), INVALID_PARAMS)
    assert list(refusal.fields) == [field]


@RPC
def test_answers_that_do_not_fit_are_named_too(client: httpx.Client, form: Form) -> None:
    task, request_id = asking(client, form, "[[question]]")
    wrong: list[list[list[str]]] = [[], [["A"], ["B"]], [[]], [["A", "B"]], [[" "]]]
    for answers in wrong:
        refusal = refused(
            client, form, INVALID_PARAMS, ANSWER, request_id=request_id, answers=answers
        )
        assert list(refusal.fields) == ["answers"]
    form.result(form.call(client, "cancel", {"id": task["id"]}))


def test_what_nobody_decided_in_time_is_expired(fake: Upstream, tmp_path: Path) -> None:
    with (
        service(fake, tmp_path, A2A_INTERRUPT_REQUEST_TTL_SECONDS="0.3") as hasty,
        line_to(hasty) as client,
    ):
        for form in (RPC_1, RPC_03):
            # By stream, which tells what was asked also to who hears of it too late.
            with form.following(client, "stream", form.sending("[[permission]]")) as frames:
                task_id = next(frames).body["id"]
                told = [frame.body.get("metadata", {}).get("shared", {}) for frame in frames]
            request_id = next(t["interrupt"]["request_id"] for t in told if "interrupt" in t)
            done = form.settled(client, task_id)
            assert "Nobody was there to decide in time." in json.dumps(done["artifacts"])
            params = {"request_id": request_id, "reply": "once"}
            refusal = refused(client, form, INTERRUPT_EXPIRED, PERMIT, **params)
            assert refusal.facts == {"request_id": request_id}


@RPC
def test_a_notification_is_done_and_not_answered(client: httpx.Client, form: Form) -> None:
    task, request_id = asking(client, form)
    params = {"request_id": request_id, "reply": "once"}
    response = call(client, form, PERMIT, params, id=...)
    assert (response.status_code, response.content) == (204, b"")
    assert form.settled(client, task["id"])["status"]["state"] == form.state("completed")


@RPC
def test_the_methods_are_named_where_one_is_unknown(client: httpx.Client, form: Form) -> None:
    refusal = form.refused(call(client, form, "a2a.interrupt.reply", {}), METHOD_NOT_FOUND)
    known = refusal.facts["supported_methods"]
    known = known.split(",") if isinstance(known, str) else known
    assert {PERMIT, ANSWER, DISMISS, PERMISSIONS, QUESTIONS} <= set(known)


# -- lists


@RPC
def test_lists_show_what_waits_oldest_first(guarded: Service, form: Form) -> None:
    with line_to(guarded, headers={"authorization": "Bearer alice-token"}) as alice:
        one, first = asking(alice, form)
        two, second = asking(alice, form)
        three, third = asking(alice, form, "[[question]]")
        listed = result(alice, form, PERMISSIONS)["items"]
        assert [item["request_id"] for item in listed] == [first, second]
        [item] = result(alice, form, QUESTIONS, metadata={})["items"]
        assert item == {
            "request_id": third,
            "session_id": three["metadata"]["shared"]["session"]["id"],
            "interrupt_type": "question",
            "task_id": three["id"],
            "context_id": three["contextId"],
            "details": three["metadata"]["shared"]["interrupt"]["details"],
            "expires_at": three["metadata"]["shared"]["interrupt"]["expires_at"],
            "subagent": None,
        }
        form.result(form.call(alice, "cancel", {"id": one["id"]}))
        form.send(alice, "yes", taskId=two["id"])
        form.send(alice, "A", taskId=three["id"])
        for method in (PERMISSIONS, QUESTIONS):
            assert result(alice, form, method) == {"items": []}


# -- who


@pytest.fixture(scope="module")
def reader(guarded: Service) -> Iterator[httpx.Client]:
    with line_to(guarded, headers={"authorization": "Bearer reader-token"}) as found:
        yield found


@pytest.fixture(scope="module")
def writer(guarded: Service) -> Iterator[httpx.Client]:
    with line_to(guarded, headers={"authorization": "Bearer writer-token"}) as found:
        yield found


@RPC
def test_scopes_say_who_may_decide_and_who_may_look(
    reader: httpx.Client, writer: httpx.Client, form: Form
) -> None:
    for method in (PERMIT, ANSWER, DISMISS):
        refusal = refused(reader, form, FORBIDDEN, method)
        assert refusal.facts == {"required_scope": "tasks:write"}
    for method in (PERMISSIONS, QUESTIONS):
        assert result(reader, form, method) == {"items": []}
        refusal = refused(writer, form, FORBIDDEN, method)
        assert refusal.facts == {"required_scope": "tasks:read"}
    _, request_id = asking(writer, form)
    assert result(writer, form, PERMIT, request_id=request_id, reply="once")["ok"]


@RPC
def test_the_requests_of_somebody_else_do_not_exist(
    alice: httpx.Client, bob: httpx.Client, form: Form
) -> None:
    task, request_id = asking(alice, form)
    params = {"request_id": request_id, "reply": "once"}
    theirs = refused(bob, form, INTERRUPT_NOT_FOUND, PERMIT, **params)
    nobodys = refused(bob, form, INTERRUPT_NOT_FOUND, PERMIT, request_id="per_1", reply="once")
    assert theirs.message == nobodys.message
    assert request_id not in str(result(bob, form, PERMISSIONS))
    form.result(form.call(alice, "cancel", {"id": task["id"]}))


# -- choosing extensions


@pytest.mark.parametrize("header", ["A2A-Extensions", "x-a2a-extensions"])
@pytest.mark.parametrize(
    ("asked", "active"),
    [
        (INTERACTIVE, INTERACTIVE),
        (ALIAS, INTERACTIVE),
        (f"urn:unknown/v1 ,  {ALIAS},{INTERACTIVE}", INTERACTIVE),
        (f"{HITL}, {RECOVERY}", f"{RECOVERY}, {HITL}"),
        ("urn:unknown/v1", None),
        ("", None),
    ],
)
def test_what_is_active_is_said_in_the_header_it_was_asked_for_in(
    client: httpx.Client, form: Form, header: str, asked: str, active: str | None
) -> None:
    for operation, status in (("send", 200), ("get", 404), ("stream", 200)):
        params = {"id": "none"} if operation == "get" else form.sending("hello")
        request = form.request(client, operation, params)
        request.headers[header] = asked
        response = client.send(request)
        assert response.status_code in (status, 200)
        assert response.headers.get(header) == active
        others = {"a2a-extensions", "x-a2a-extensions"} - {header.lower()}
        assert not others & {*response.headers}, "only in that spelling"


def test_both_headers_count(client: httpx.Client, form: Form) -> None:
    request = form.request(client, "send", form.sending("hello"))
    request.headers = httpx.Headers(
        [
            *request.headers.raw,
            (b"a2a-extensions", HITL.encode()),
            (b"a2a-extensions", b"urn:x"),
            (b"x-a2a-extensions", ALIAS.encode()),
        ]
    )
    response = client.send(request)
    for header in ("a2a-extensions", "x-a2a-extensions"):
        assert response.headers[header].split(", ") == [INTERACTIVE, HITL]


@pytest.mark.parametrize("active", [True, False])
def test_the_stream_of_who_activated_it_goes_on_behind_the_question(
    client: httpx.Client, form: Form, active: bool
) -> None:
    request = form.request(client, "stream", form.sending("[[permission]]"))
    if active:
        request.headers["A2A-Extensions"] = ALIAS
    response = client.send(request, stream=True)
    try:
        frames = form.frames(response)
        task_id = next(frames).body["id"]
        asked = next(
            frame.body
            for frame in frames
            if "interrupt" in frame.body.get("metadata", {}).get("shared", {})
        )
        assert asked["status"]["state"] == form.state("input-required")
        if form.line == "0.3":
            assert asked["final"] is not active
        if active:
            form.send(client, "perhaps", taskId=task_id)
            again = next(frames).body
            assert (
                again["metadata"]["shared"]["interrupt"] == asked["metadata"]["shared"]["interrupt"]
            )
            request_id = asked["metadata"]["shared"]["interrupt"]["request_id"]
            result(client, RPC_1, PERMIT, request_id=request_id, reply="once")
        rest = list(frames)
        if not active:
            assert rest == []
            form.result(form.call(client, "cancel", {"id": task_id}))
            return
        assert rest[-1].body["status"]["state"] == form.state("completed")
        if form.line == "0.3":
            finals = [frame.body["final"] for frame in rest if frame.kind == "status"]
            assert finals == [False] * (len(finals) - 1) + [True]
    finally:
        response.close()


def test_a_replay_across_a_question_that_was_answered_is_not_final_there(
    client: httpx.Client, form: Form
) -> None:
    task, _ = asking(client, form)
    assert form.send(client, "yes", taskId=task["id"])["status"]["state"] == form.state("completed")
    request = form.request(client, "subscribe", {"id": task["id"]})
    request.headers["Last-Event-ID"] = "1"
    response = client.send(request, stream=True)
    try:
        first, *rest = form.frames(response)
    finally:
        response.close()
    states = [frame.body["status"]["state"] for frame in rest if frame.kind == "status"]
    assert form.state("input-required") in states
    assert states[-1] == form.state("completed")
    if form.line == "0.3":
        finals = [frame.body["final"] for frame in rest if frame.kind == "status"]
        assert finals == [False] * (len(finals) - 1) + [True]
    assert first.kind == "task"


def test_a_reader_of_a_waiting_task_gets_it_and_leaves_or_stays(
    client: httpx.Client, form: Form
) -> None:
    task, request_id = asking(client, form)
    if form.line == "0.3":  # in 1.0 everybody stays: see below
        with form.following(client, "subscribe", {"id": task["id"]}) as frames:
            assert [frame.kind for frame in frames] == ["task"]
    request = form.request(client, "subscribe", {"id": task["id"]})
    request.headers["X-A2A-Extensions"] = INTERACTIVE
    response = client.send(request, stream=True)
    try:
        frames = form.frames(response)
        assert next(frames).body["metadata"]["shared"]["interrupt"]["request_id"] == request_id
        started = time.monotonic()
        result(client, RPC_1, PERMIT, request_id=request_id, reply="once")
        assert [*frames][-1].body["status"]["state"] == form.state("completed")
        assert time.monotonic() - started < 10
    finally:
        response.close()


def test_who_subscribes_to_a_waiting_task_in_1_0_sees_it_go_on(
    client: httpx.Client, form: Form
) -> None:
    if form.line == "0.3":
        pytest.skip("0.3 says the task and closes")
    task, request_id = asking(client, form)
    with form.following(client, "subscribe", {"id": task["id"]}) as frames:
        assert next(frames).body["status"]["state"] == form.state("input-required")
        result(client, RPC_1, PERMIT, request_id=request_id, reply="once")
        assert [*frames][-1].body["status"]["state"] == form.state("completed")
