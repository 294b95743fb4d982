"""The same operation under every address it has."""

from __future__ import annotations

import httpx
import pytest

from tests.api.forms import (
    FORMS,
    PUSH_NOT_SUPPORTED,
    REST_03,
    REST_1,
    RPC_03,
    RPC_1,
    TASK_NOT_FOUND,
    Form,
)
from tests.running import Service

LINES = pytest.mark.parametrize("form", [RPC_1, RPC_03], ids=lambda form: form.name)
REST = pytest.mark.parametrize("form", [REST_1, REST_03], ids=lambda form: form.name)


@pytest.mark.parametrize("writer", FORMS, ids=lambda form: form.name)
def test_a_task_is_the_same_whoever_looks(client: httpx.Client, form: Form, writer: Form) -> None:
    task = writer.send(client, "hello")
    seen = form.get(client, task["id"])
    assert seen["id"] == task["id"]
    assert seen["contextId"] == task["contextId"]
    assert seen["status"]["state"] == form.state("completed")
    assert seen["status"]["timestamp"] == task["status"]["timestamp"]
    assert [form.text("ECHO: hello")] == seen["artifacts"][0]["parts"]
    assert seen["history"][0][form.content] == [form.text("hello")]
    assert seen["history"][0]["role"] == ("user" if form.tagged else "ROLE_USER")


@LINES
def test_json_rpc_is_at_the_root_with_and_without_a_slash(
    client: httpx.Client, fake_service: Service, form: Form
) -> None:
    for url in (fake_service.url, fake_service.url + "/"):
        request = form.request(client, "get", {"id": "missing"})
        request.url = httpx.URL(url)
        form.refused(client.send(request), TASK_NOT_FOUND)


@LINES
@pytest.mark.parametrize("operation", ["send", "get", "cancel", "list"])
def test_a_notification_is_done_and_not_answered(
    client: httpx.Client, form: Form, operation: str
) -> None:
    if not form.offers(operation):
        return
    task = form.send(client, "[[hang]]", wait=False)
    params = {
        "send": form.sending("by the way"),
        "get": {"id": task["id"]},
        "cancel": {"id": task["id"]},
        "list": {},
    }[operation]
    body = {"jsonrpc": "2.0", "method": form.method(operation), "params": params}
    response = client.post("/", json=body, headers=form.version)
    assert response.status_code == 204
    assert response.content == b""
    if operation == "cancel":
        assert form.get(client, task["id"])["status"]["state"] == form.state("canceled")
    else:
        form.result(form.call(client, "cancel", {"id": task["id"]}))


@REST
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_a_task_can_be_followed_with_either_verb(
    client: httpx.Client, form: Form, verb: str
) -> None:
    task = form.send(client, "[[tokens:20]] [[rate:100]]", wait=False)
    path = form.route("subscribe").path.format(id=task["id"])
    with client.stream(verb, path) as response:
        frames = list(form.frames(response))
    assert frames[0].kind == "task"
    assert frames[-1].body["status"]["state"] == form.state("completed")


@pytest.mark.parametrize("tenant", ["acme", "a%20b", "v2"])
def test_every_1_0_route_has_a_twin_for_each_tenant(client: httpx.Client, tenant: str) -> None:
    form = REST_1
    sent = client.post(f"/{tenant}/message:send", json=form.sending("[[hang]]", wait=False))
    task_id = form.sent(sent)["id"]
    assert form.result(client.get(f"/{tenant}/tasks/{task_id}"))["id"] == task_id
    listed = form.result(client.get(f"/{tenant}/tasks", params={"pageSize": 1}))
    assert listed["pageSize"] == 1
    for verb in ("GET", "POST"):
        with client.stream(verb, f"/{tenant}/tasks/{task_id}:subscribe") as response:
            assert next(form.frames(response)).body["id"] == task_id
    canceled = form.result(client.post(f"/{tenant}/tasks/{task_id}:cancel"))
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    with client.stream("POST", f"/{tenant}/message:stream", json=form.sending("hello")) as response:
        assert next(form.frames(response)).kind == "task"
    for verb in ("GET", "POST"):
        path = f"/{tenant}/tasks/{task_id}/pushNotificationConfigs"
        form.refused(client.request(verb, path), PUSH_NOT_SUPPORTED)
    for verb in ("GET", "DELETE"):
        path = f"/{tenant}/tasks/{task_id}/pushNotificationConfigs/one"
        form.refused(client.request(verb, path), PUSH_NOT_SUPPORTED)
    assert form.result(client.get(f"/{tenant}/extendedAgentCard"))["name"]


@REST
def test_query_parameters_may_be_written_in_snake_case(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "hello")
    none = form.get(client, task["id"], history_length=0)
    assert ("history" in none) == (form.line == "0.3")  # zero is none in 1.0, all in 0.3
    listed = form.result(form.call(client, "list", {"page_size": 1, "include_artifacts": True}))
    assert listed["pageSize"] == 1
    assert "artifacts" in listed["tasks"][0]


def test_members_may_be_written_in_snake_case(client: httpx.Client, form: Form) -> None:
    asked = form.sending("hello")
    asked["message"]["message_id"] = asked["message"].pop("messageId")
    asked["configuration"] = {"history_length": 1, "accepted_output_modes": ["text/plain"]}
    assert form.sent(form.call(client, "send", asked))["contextId"]


def test_null_means_absent(client: httpx.Client, form: Form) -> None:
    nothing = dict.fromkeys(("contextId", "taskId", "metadata", "extensions", "referenceTaskIds"))
    part = form.text("hello") | {"metadata": None, "url": None, "file": None}
    asked = {"message": form.message(part, **nothing), "configuration": None, "metadata": None}
    assert form.sent(form.call(client, "send", asked))["status"]["state"] == form.state("completed")


@pytest.mark.parametrize("raw", ["+/8=", "-_8=", "+/8", "-_8", ""])
def test_bytes_may_be_in_either_base64(client: httpx.Client, form: Form, raw: str) -> None:
    part = form.file(raw=raw, media_type="image/png", filename="x.png")
    task = form.send(client, "look:", part)
    assert task["status"]["state"] == form.state("completed")


def test_unknown_members_are_ignored(client: httpx.Client, form: Form) -> None:
    asked = form.sending("hello", future={"a": [1]}) | {"tenant": "acme", "more": 1}
    assert form.sent(form.call(client, "send", asked))["status"]["state"] == form.state("completed")


def test_every_answer_names_its_request_in_the_log(
    client: httpx.Client, fake_service: Service, form: Form
) -> None:
    response = form.call(client, "get", {"id": "missing"})
    request_id = response.headers["x-request-id"]
    line = fake_service.program.wait_for(rf".*event=request .*request={request_id}")[0]
    assert "principal=default" in line
    assert "level=info" in line
