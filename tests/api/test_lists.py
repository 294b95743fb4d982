"""Reading tasks: one, and many."""

from __future__ import annotations

import uuid
from datetime import datetime

import httpx
import pytest

from tests.api.forms import FORMS, REST_1, RPC_1, Form, Json

LISTING = pytest.mark.parametrize(
    "form", [form for form in FORMS if form.offers("list")], ids=lambda form: form.name
)


def listed(client: httpx.Client, form: Form, **params: object) -> Json:
    page = form.result(form.call(client, "list", params))
    assert page.keys() == {"tasks", "nextPageToken", "pageSize", "totalSize"}
    assert isinstance(page["nextPageToken"], str)
    return page


def context_of(client: httpx.Client, form: Form, *texts: str) -> tuple[str, list[str]]:
    """Some tasks in a context of their own: its id and theirs, in the order they were made."""
    context = str(uuid.uuid4())
    return context, [form.send(client, text, contextId=context)["id"] for text in texts]


@LISTING
def test_a_list_has_all_its_members_and_no_artifacts(client: httpx.Client, form: Form) -> None:
    context, (task_id,) = context_of(client, form, "hello")
    page = listed(client, form, contextId=context)
    assert (page["nextPageToken"], page["pageSize"], page["totalSize"]) == ("", 50, 1)
    (task,) = page["tasks"]
    assert task["id"] == task_id
    assert task["contextId"] == context
    assert task["status"]["state"] == form.state("completed")
    assert "artifacts" not in task
    assert "history" not in task


@LISTING
def test_an_empty_list_has_all_its_members_too(client: httpx.Client, form: Form) -> None:
    page = listed(client, form, contextId="nobody was here")
    assert page == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@LISTING
def test_artifacts_and_history_come_when_asked_for(client: httpx.Client, form: Form) -> None:
    context, (task_id,) = context_of(client, form, "hello")
    whole = form.get(client, task_id)
    (with_artifacts,) = listed(client, form, contextId=context, includeArtifacts=True)["tasks"]
    assert with_artifacts["artifacts"] == whole["artifacts"]
    assert "history" not in with_artifacts
    (with_history,) = listed(client, form, contextId=context, historyLength=5)["tasks"]
    assert with_history["history"] == whole["history"]
    assert "artifacts" not in with_history
    (with_both,) = listed(client, form, contextId=context, historyLength=5, includeArtifacts=True)[
        "tasks"
    ]
    assert with_both == whole


@LISTING
def test_artifacts_asked_for_are_there_even_if_none(client: httpx.Client, form: Form) -> None:
    context = str(uuid.uuid4())
    task = form.send(client, "[[hang]]", wait=False, contextId=context)
    (found,) = listed(client, form, contextId=context, includeArtifacts=True)["tasks"]
    assert found["artifacts"] == []
    form.result(form.call(client, "cancel", {"id": task["id"]}))


@LISTING
def test_the_task_whose_status_changed_last_comes_first(client: httpx.Client, form: Form) -> None:
    context, (first, second, third) = context_of(client, form, "one", "two", "three")
    tasks = listed(client, form, contextId=context)["tasks"]
    assert [task["id"] for task in tasks] == [third, second, first]
    times = [datetime.fromisoformat(task["status"]["timestamp"]) for task in tasks]
    assert times == sorted(times, reverse=True)
    for task in tasks:
        assert task["status"]["timestamp"].endswith("Z")
        assert task["status"] == form.get(client, task["id"])["status"]

    # A task that is cancelled now changed last, though it was made first.
    context = str(uuid.uuid4())
    waiting = form.send(client, "[[hang]]", wait=False, contextId=context)["id"]
    queued = form.send(client, "[[hang]]", wait=False, contextId=context)["id"]
    for task_id in (queued, waiting):
        form.result(form.call(client, "cancel", {"id": task_id}))
    tasks = listed(client, form, contextId=context)["tasks"]
    assert [task["id"] for task in tasks] == [waiting, queued]


@LISTING
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_pages_show_every_task_once(client: httpx.Client, form: Form, size: int) -> None:
    context, made = context_of(client, form, "one", "two", "three", "four", "five")
    seen: list[str] = []
    token = ""
    for _ in range(6):
        page = listed(client, form, contextId=context, pageSize=size, pageToken=token)
        assert (page["pageSize"], page["totalSize"]) == (size, 5)
        seen += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            break
    assert seen == made[::-1]


@LISTING
def test_a_list_can_be_narrowed(client: httpx.Client, form: Form) -> None:
    context, (done,) = context_of(client, form, "hello")
    running = form.send(client, "[[hang]]", wait=False, contextId=context)["id"]
    with form.following(client, "subscribe", {"id": running}) as told:
        statuses = (frame.body["status"] for frame in told if frame.kind != "artifact")
        assert any(status["state"] == form.state("working") for status in statuses)

    def ids(**params: object) -> list[str]:
        return [task["id"] for task in listed(client, form, contextId=context, **params)["tasks"]]

    assert ids(status=form.state("completed")) == [done]
    assert ids(status=form.state("failed")) == []
    assert ids(status="TASK_STATE_REJECTED") == []
    assert ids(status="TASK_STATE_AUTH_REQUIRED") == []
    assert set(ids(status="TASK_STATE_UNSPECIFIED")) == {done, running}
    assert ids(status=form.state("working")) == [running]
    form.result(form.call(client, "cancel", {"id": running}))
    assert ids(status=form.state("canceled")) == [running]


@LISTING
def test_a_list_can_begin_at_a_moment(client: httpx.Client, form: Form) -> None:
    context, (task_id,) = context_of(client, form, "hello")
    at = form.get(client, task_id)["status"]["timestamp"]
    assert at.endswith("Z")
    millisecond = int(at[-4:-1])

    def total(moment: str) -> int:
        found = listed(client, form, contextId=context, statusTimestampAfter=moment)
        size: int = found["totalSize"]
        return size

    assert total(at) == 1
    assert total(at.replace("Z", "+00:00")) == 1
    assert total(f"{at[:-4]}{millisecond:03d}000Z") == 1
    assert total(f"{at[:-4]}{millisecond:03d}001Z") == 0, "a microsecond later is later"
    assert total("1970-01-01T00:00:00Z") == 1
    assert total("0001-01-01T00:00:00Z") == 1
    assert total("9999-12-31T23:59:59Z") == 0


@pytest.mark.parametrize("asked", range(6))
def test_a_history_is_as_long_as_asked_for(client: httpx.Client, form: Form, asked: int) -> None:
    task = form.send(client, "[[hang]]", wait=False)
    for text in ("second", "third"):
        form.send(client, text, wait=False, taskId=task["id"])
    texts = ["[[hang]]", "second", "third"]
    found = form.get(client, task["id"], historyLength=asked)
    told = [message[form.content][0]["text"] for message in found.get("history", [])]
    everything = asked == 0 and form.line == "0.3"
    assert told == (texts if everything else texts[len(texts) - min(asked, 3) :])
    assert ("history" in found) == bool(told)
    form.result(form.call(client, "cancel", {"id": task["id"]}))


@pytest.mark.parametrize("form", [RPC_1, REST_1], ids=lambda form: form.name)
def test_a_history_length_applies_to_sends_and_streams(client: httpx.Client, form: Form) -> None:
    asked = form.sending("hello")
    asked["configuration"] |= {"historyLength": 0}
    assert "history" not in form.sent(form.call(client, "send", asked))
    with form.following(client, "stream", asked) as frames:
        assert "history" not in next(frames).body


def test_a_page_of_whole_tasks_ends_before_it_is_too_large(client: httpx.Client) -> None:
    context, made = context_of(client, REST_1, *("x" * 700_000 for _ in range(5)))
    seen: list[str] = []
    token, pages = "", 0
    while token or not pages:
        answer = REST_1.call(
            client,
            "list",
            {
                "contextId": context,
                "includeArtifacts": True,
                "historyLength": 9,
                "pageToken": token,
            },
        )
        assert len(answer.content) < (4 << 20) + 1_000
        page = REST_1.result(answer)
        assert page["tasks"]
        assert page["totalSize"] == 5
        seen += [task["id"] for task in page["tasks"]]
        token, pages = page["nextPageToken"], pages + 1
    assert seen == made[::-1]
    assert pages > 1
