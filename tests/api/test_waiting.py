"""How long a send waits for its task, and for whom; what a task that waits says about it."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.forms import REST_1, Form, Json, line_to
from tests.running import Service, Upstream, service


def cancel(client: httpx.Client, form: Form, *tasks: Json) -> None:
    for task in tasks:
        form.result(form.call(client, "cancel", {"id": task["id"]}))


def test_who_prefers_not_to_wait_gets_the_task_as_it_stands(
    client: httpx.Client, form: Form
) -> None:
    for preference in ("wait=1", "respond-async", 'foo; bar="a", WAIT="0" ;x, wait=600'):
        request = form.request(client, "send", form.sending("[[hang]]"))
        request.headers["prefer"] = preference
        task = form.sent(client.send(request))
        assert task["status"]["state"] in (form.state("submitted"), form.state("working"))
        cancel(client, form, task)


def test_who_prefers_to_wait_longer_than_it_takes_gets_the_answer(
    client: httpx.Client, form: Form
) -> None:
    for preference in ("wait=60", "wait=soon", "handling=lenient"):
        request = form.request(client, "send", form.sending("hello"))
        request.headers["prefer"] = preference
        assert form.sent(client.send(request))["status"]["state"] == form.state("completed")


@pytest.fixture(scope="module")
def impatient(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service where no send waits for long, and one task runs at a time."""
    bounds = {"A2A_MAX_SEND_WAIT_SECONDS": "0.5", "OPENCODE_MAX_CONCURRENT_STREAMS": "1"}
    with service(fake, tmp_path_factory.mktemp("impatient"), **bounds) as running:
        yield running


def test_a_deployment_can_bound_how_long_sends_wait(impatient: Service, form: Form) -> None:
    with line_to(impatient) as client:
        task = form.send(client, "[[hang]]")
        assert task["status"]["state"] in (form.state("submitted"), form.state("working"))
        cancel(client, form, task)


def until_queued(client: httpx.Client, form: Form, task: Json) -> Json:
    """The task once it says what it waits for."""
    deadline = time.monotonic() + 60
    while "queue" not in (task := form.get(client, task["id"])).get("metadata", {}).get(
        "opencode", {}
    ):
        assert time.monotonic() < deadline, task
        time.sleep(0.02)
    return task


def test_a_queued_task_says_what_it_waits_for(impatient: Service, form: Form) -> None:
    with line_to(impatient) as client:
        first = form.send(client, "[[hang]]")
        behind = form.send(client, "hello", contextId=first["contextId"])
        other = form.send(client, "hello")
        for task, mark, words in (
            (behind, {"reason": "context", "task_id": first["id"]}, first["id"]),
            (other, {"reason": "slot"}, "slot"),
        ):
            told = until_queued(client, form, task)
            assert told["status"]["state"] == form.state("submitted")
            assert words in json.dumps(told["status"]["message"])
            assert told["metadata"]["opencode"]["queue"] == mark
        cancel(client, form, first)
        done = form.settled(client, behind["id"])
        assert done["status"]["state"] == form.state("completed")
        assert "queue" not in json.dumps(done)
        with form.following(client, "stream", form.sending("[[hang]]")) as frames:
            running = next(frames).body
            with form.following(client, "stream", form.sending("hello")) as waiting:
                queued = next(frame for frame in waiting if "queue" in json.dumps(frame.body))
                assert queued.body["status"]["state"] == form.state("submitted")
                assert queued.body["metadata"]["opencode"]["queue"] == {"reason": "slot"}
                cancel(client, form, running)
                *_, last = waiting
        assert last.body["status"]["state"] == form.state("completed")


def test_a_new_task_can_be_asked_for_in_the_context_of_a_waiting_one(
    client: httpx.Client, form: Form
) -> None:
    asking = form.send(client, "[[permission]]")
    options = {"metadata": {"opencode": {"newTask": True}}}
    params = form.sending("yes", wait=False, contextId=asking["contextId"], **options)
    new = form.sent(form.call(client, "send", params))
    assert new["id"] != asking["id"]
    done = form.send(client, "allow", contextId=asking["contextId"])
    assert (done["id"], done["status"]["state"]) == (asking["id"], form.state("completed"))
    assert form.settled(client, new["id"])["status"]["state"] == form.state("completed")
    params = form.sending("yes", contextId=asking["contextId"])
    params["metadata"] = {"opencode": {"newTask": "yes"}}
    answer = form.call(client, "send", params)
    assert "metadata.opencode.newTask" in answer.text, "it is true or false"


def test_nothing_stays_open_for_a_client_that_has_left(
    fake_service: Service, client: httpx.Client
) -> None:
    tenant, form = f"left-{uuid.uuid4()}", REST_1
    body = json.dumps(form.sending("[[hang]]", contextId=tenant)).encode()
    address = urlsplit(fake_service.url)
    head = (
        f"POST /{tenant}/message:send HTTP/1.1\r\nHost: {address.netloc}\r\nA2A-Version: 1.0\r\n"
        f"Authorization: {fake_service.headers['authorization']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=60) as leaving:
        leaving.sendall(head.encode() + body)
        tasks: list[Json] = []
        deadline = time.monotonic() + 60
        while not tasks:
            assert time.monotonic() < deadline
            tasks = form.result(form.call(client, "list", {"contextId": tenant}))["tasks"]
    # The log has a line for each request that is over, and 499 says that nobody heard the answer.
    fake_service.program.wait_for(rf"path=/{tenant}/message:send status=499")
    assert form.get(client, tasks[0]["id"])["status"]["state"] != form.state("canceled")
    cancel(client, form, *tasks)
