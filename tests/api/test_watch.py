"""One stream for all of a caller's tasks: what it carries, for whom, and how to come back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.api.forms import FORBIDDEN, INVALID_PARAMS, RPC_03, RPC_1, TASK_NOT_FOUND, Form, Json
from tests.running import ROOT
from tests.watching import Page, opening

SLOW = "[[tokens:60]] [[rate:120]]"  # half a second of text


@pytest.fixture(params=[RPC_1, RPC_03], ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


def context() -> str:
    return f"watched-{uuid.uuid4()}"


def answer(task: Json) -> str:
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def validator() -> Draft202012Validator:
    document = json.loads((ROOT / "tests" / "published" / "openapi.json").read_bytes())
    components = {"components": document["components"]}
    return Draft202012Validator({"$ref": "#/components/schemas/WatchEvent", **components})


def test_it_begins_with_what_is_open_and_tells_everything_that_changes(
    client: httpx.Client, form: Form
) -> None:
    before = form.send(client, "[[hang]]", wait=False)
    page = Page(form)
    with page.watching(client) as results:
        while not page.is_ready:
            next(results)
        assert page.state(before["id"]) in (form.state("submitted"), form.state("working"))
        task = form.send(client, "hello")
        while page.state(task["id"]) != form.state("completed"):
            next(results)
        form.result(form.call(client, "cancel", {"id": before["id"]}))
        while page.state(before["id"]) != form.state("canceled"):
            next(results)
    summary = page.summaries[task["id"]]
    whole = form.get(client, task["id"])
    for member in ("id", "contextId", "status", "metadata"):
        assert summary[member] == whole[member]
    assert summary["metadata"]["shared"]["usage"]
    assert summary["metadata"]["shared"]["session"]["title"] == "hello"
    assert summary["metadata"]["opencode"]["model"]
    states = [
        result["summary"]["status"]["state"]
        for result in page.results
        if result.get("summary", {}).get("id") == task["id"]
    ]
    order = [form.state(name) for name in ("submitted", "working", "completed")]
    assert states == sorted(states, key=order.index)
    assert not page.texts, "nobody is followed"
    schema = validator()
    for result in page.results:
        schema.validate(result)


def test_what_waits_for_a_person_is_in_the_summary(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "[[permission]]")
    page = Page(form)
    page.until(client, lambda: page.is_ready)
    summary = page.summaries[task["id"]]
    assert summary["status"]["state"] == form.state("input-required")
    assert (
        summary["metadata"]["shared"]["interrupt"]
        == (form.get(client, task["id"])["metadata"]["shared"]["interrupt"])
    )
    request_id = summary["metadata"]["shared"]["interrupt"]["request_id"]
    body = {"jsonrpc": "2.0", "id": 1, "method": "a2a.interrupt.permission.reply"}
    with page.watching(client) as results:
        client.post("/", json={**body, "params": {"request_id": request_id, "reply": "once"}})
        while page.state(task["id"]) != form.state("completed"):
            next(results)
    assert "interrupt" not in page.summaries[task["id"]]["metadata"]["shared"]


def test_a_followed_context_is_told_as_a_subscription_tells_it(
    client: httpx.Client, form: Form
) -> None:
    """Also if the context has no task yet when it is followed."""
    page, named = Page(form), context()
    with page.watching(client, follow={"contexts": [named]}) as results:
        while not page.is_ready:
            next(results)
        task = form.send(client, SLOW, wait=False, contextId=named)
        another = form.send(client, "and then?", wait=False, contextId=named)
        while page.ended != {task["id"], another["id"]}:
            next(results)
    assert page.text(task["id"]) == answer(form.get(client, task["id"]))
    assert page.text(another["id"]) == "ECHO: and then?"
    events = [result["event"] for result in page.results if "event" in result]
    bodies = [event if form.tagged else next(iter(event.values())) for event in events]
    mine = [body for body in bodies if body.get("taskId") == task["id"]]
    headers = form.version | {"last-event-id": "1"}
    request = form.request(client, "subscribe", {"id": task["id"]})
    request.headers.update(headers)
    response = client.send(request)
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    told = [json.loads(line)["result"] for line in data[1:]]
    assert mine == [event if form.tagged else next(iter(event.values())) for event in told]


def test_coming_back_after_any_event_loses_nothing(client: httpx.Client, form: Form) -> None:
    named = context()
    task = form.send(client, SLOW, wait=False, contextId=named)
    follow: Json = {"contexts": [named]}
    page, streams = Page(form), 0

    def is_done() -> bool:
        return task["id"] in page.ended and page.state(task["id"]) == form.state("completed")

    while not is_done():
        streams += 1
        with page.watching(client, follow=follow) as results:
            for number, _ in enumerate(results, 1):
                if number == streams or is_done():
                    break  # the connection is gone, each time one event later
    assert streams > 1
    assert page.text(task["id"]) == answer(form.get(client, task["id"]))
    seen = {result["summary"]["id"] for result in page.results if "summary" in result}
    assert task["id"] in seen


def test_what_ended_meanwhile_is_told_to_who_comes_back(client: httpx.Client, form: Form) -> None:
    page, named = Page(form), context()
    page.until(client, lambda: page.is_ready, follow={"contexts": [named]})
    hanging = form.send(client, "[[hang]]", wait=False)
    done = [form.send(client, f"number {n}", contextId=named) for n in range(3)]
    form.result(form.call(client, "cancel", {"id": hanging["id"]}))
    page.is_ready = False
    page.until(client, lambda: page.is_ready, follow={"contexts": [named]})
    assert page.state(hanging["id"]) == form.state("canceled")
    for number, task in enumerate(done):
        assert page.state(task["id"]) == form.state("completed")
        assert page.text(task["id"]) == f"ECHO: number {number}"


def test_since_begins_with_what_has_ended_since_then(client: httpx.Client, form: Form) -> None:
    done = form.send(client, "hello")
    since = done["status"]["timestamp"]
    page = Page(form)
    page.until(client, lambda: page.is_ready, since=since)
    assert page.state(done["id"]) == form.state("completed")
    assert page.summaries[done["id"]]["metadata"]["shared"]["usage"]
    plain = Page(form)
    plain.until(client, lambda: plain.is_ready)
    assert done["id"] not in plain.summaries, "it had ended before"


def test_one_stream_carries_fifty_tasks_at_once(client: httpx.Client) -> None:
    page, followed = Page(RPC_1), context()
    with page.watching(client, follow={"contexts": [followed]}) as results:
        while not page.is_ready:
            next(results)
        tasks = [RPC_1.send(client, SLOW, wait=False, contextId=followed)]
        tasks += [RPC_1.send(client, SLOW, wait=False) for _ in range(49)]
        waiting = {task["id"] for task in tasks}
        while waiting or tasks[0]["id"] not in page.ended:
            next(results)
            done = RPC_1.state("completed")
            waiting = {task_id for task_id in waiting if page.state(task_id) != done}
    assert page.text(tasks[0]["id"]) == answer(RPC_1.get(client, tasks[0]["id"]))
    assert set(page.texts) == {tasks[0]["id"]}, "only what is followed is told in full"


def test_another_callers_tasks_do_not_exist(alice: httpx.Client, bob: httpx.Client) -> None:
    named = context()
    hers = RPC_1.send(alice, "[[hang]]", wait=False, contextId=named)
    page = Page(RPC_1)
    with page.watching(bob, follow={"contexts": [named]}, since="2020-01-01T00:00:00Z") as results:
        while not page.is_ready:
            next(results)
        RPC_1.result(RPC_1.call(alice, "cancel", {"id": hers["id"]}))
        his = RPC_1.send(bob, "hello", contextId=named)  # the same name, another context
        while his["id"] not in page.ended:
            next(results)
    assert hers["id"] not in page.summaries
    assert set(page.texts) == {his["id"]}
    cursor = {"after": f"1;{hers['id']}=1", "follow": {"contexts": [named]}}
    stolen = Page(RPC_1)
    stolen.until(bob, lambda: stolen.is_ready, **cursor)
    assert hers["id"] not in stolen.texts
    refused(bob, TASK_NOT_FOUND, follow={"tasks": [hers["id"]]})
    refused(bob, TASK_NOT_FOUND, follow={"tasks": ["no-such-task"]})


def test_only_an_admin_watches_others(alice: httpx.Client) -> None:
    for principal in ("bob", "*"):
        refused(alice, FORBIDDEN, principal=principal)
    page = Page(RPC_1)
    page.until(alice, lambda: page.is_ready, principal="alice")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"after": "x"}, "after"),
        ({"after": "1;a=b"}, "after"),
        ({"after": "1;a=1;"}, "after"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-01-31T12:00:00"}, "since"),
        ({"follow": {"tasks": ["t"] * 17}}, "follow.tasks"),
        ({"follow": {"contexts": [""]}}, "follow.contexts[0]"),
        ({"follow": []}, "follow"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_parameters_are_refused_by_name(
    client: httpx.Client, params: dict[str, Any], field: str
) -> None:
    assert field in refused(client, INVALID_PARAMS, **params).fields


def refused(client: httpx.Client, kind: Any, **params: Any) -> Any:
    with opening(client, RPC_1, **params) as response:
        response.read()
        return RPC_1.refused(response, kind)
