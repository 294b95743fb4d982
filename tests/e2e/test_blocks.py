"""Who sees which blocks: on every form of the protocol, by every way to look at a task."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.forms import FORMS, REST_1, Form, Frame, Json, line_to
from tests.e2e.seen import SHELL
from tests.running import Service, Upstream, service

HINTS = "urn:a2a:stream-hints/v1"
BASH = '[[tool:bash {"command": "echo one", "description": "Says one"}]]'
WORK = f"[[reason:2]] [[say:Let me see.]] {BASH}"
TEXTS = ["answer", "answer"]
EVERYTHING = ["reasoning", "answer", SHELL, "answer"]


@pytest.fixture(params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.fixture(scope="session")
def plain(real_service: Service) -> Iterator[httpx.Client]:
    with line_to(real_service) as client:
        yield client


@pytest.fixture
def hinted(real_service: Service, form: Form) -> Iterator[httpx.Client]:
    """Over JSON-RPC with the header of the line, over REST with that of the other one."""
    header = "a2a-extensions" if (form.line == "1.0") is form.rpc else "x-a2a-extensions"
    headers = real_service.headers | {header: f"urn:unknown/v1, {HINTS}"}
    with line_to(real_service, headers=headers) as client:
        yield client


def names(task: Json) -> list[str]:
    return [artifact["name"] for artifact in task["artifacts"]]


def begun(frames: list[Frame]) -> list[str]:
    """The names of the artifacts that began in a stream, in order."""
    seen = {f.body["artifact"]["artifactId"]: f for f in frames if f.kind == "artifact"}
    return [frame.body["artifact"]["name"] for frame in seen.values()]


def progress(frames: list[Frame]) -> list[Json]:
    marks = (frame.body.get("metadata", {}).get("shared", {}) for frame in frames)
    return [mark["progress"] for mark in marks if "progress" in mark]


def listed(form: Form, client: httpx.Client, context: str) -> Json:
    wanted = {"contextId": context, "includeArtifacts": True}
    (task,) = form.result(form.call(client, "list", wanted))["tasks"]
    found: Json = task
    return found


def test_each_request_says_what_it_wants_to_see(
    plain: httpx.Client, hinted: httpx.Client, form: Form
) -> None:
    asked = form.sending(WORK)
    with form.following(plain, "stream", asked) as events:
        frames = list(events)
    task_id, context = frames[0].body["id"], frames[0].body["contextId"]
    assert begun(frames) == TEXTS
    assert progress(frames) == []
    assert all("metadata" not in f.body["artifact"] for f in frames if f.kind == "artifact")
    assert frames[-1].body["status"]["state"] == form.state("completed")
    assert frames[-1].body.get("final") == (True if form.line == "0.3" else None)
    with form.following(hinted, "stream", form.sending(WORK)) as events:
        others = list(events)
    assert begun(others) == EVERYTHING
    assert {mark["type"] for mark in progress(others)} == {"step-start", "step-finish", "phase"}
    for client, shown in ((plain, TEXTS), (hinted, EVERYTHING)):
        assert names(form.get(client, task_id)) == shown
        if form.offers("list"):
            assert names(listed(form, client, context)) == shown


def test_a_message_can_activate_what_its_own_answer_shows(plain: httpx.Client, form: Form) -> None:
    task = form.send(plain, WORK, extensions=[HINTS])
    assert names(task) == EVERYTHING
    assert names(form.get(plain, task["id"])) == TEXTS


def test_a_stream_is_resumed_in_another_form(
    plain: httpx.Client, hinted: httpx.Client, form: Form
) -> None:
    """Numbers are those of the log, whatever a client sees of it."""
    with form.following(plain, "stream", form.sending(WORK)) as events:
        frames = list(events)
    task_id = frames[0].body["id"]
    start = [frame.kind for frame in frames].index("artifact")
    for client, shown in ((plain, TEXTS), (hinted, EVERYTHING)):
        request = form.request(client, "subscribe", {"id": task_id})
        request.headers["last-event-id"] = str(frames[start - 1].id)
        response = client.send(request, stream=True)
        try:
            first, *rest = form.frames(response)
        finally:
            response.close()
        assert (first.kind, first.body["artifacts"]) == ("task", [])
        assert begun(rest) == shown
        if client is plain:
            assert rest == frames[start:]
        else:
            assert {frame.id for frame in rest} > {frame.id for frame in frames[start:]}


@pytest.mark.parametrize(
    ("modes", "shown"),
    [
        (["text/plain"], ["answer"]),
        (["text/*", "application/json"], ["answer"]),
        (["text/plain", "text/x-diff"], ["changes", "answer"]),
    ],
)
def test_who_names_the_type_of_a_diff_gets_the_changes(
    snapshot_service: Service, modes: list[str], shown: list[str]
) -> None:
    name = f"notes/new-{uuid.uuid4()}.txt"
    write = json.dumps({"filePath": name, "content": "first\n"})
    asked = REST_1.sending(f"[[tool:write {write}]] [[text:Done.]]")
    asked["configuration"]["acceptedOutputModes"] = modes
    with line_to(snapshot_service) as client:
        with REST_1.following(client, "stream", asked) as events:
            frames = list(events)
        task = REST_1.get(client, frames[0].body["id"])
    assert names(task) == shown
    assert sorted(begun(frames)) == sorted(shown)
    assert task["artifacts"][-1]["parts"] == [{"text": "Done."}]
    if "changes" in shown:
        (diff,) = task["artifacts"][0]["parts"]
        assert diff["text"].endswith("+first\n")
        assert diff["mediaType"] == "text/x-diff"


def test_a_setting_shows_everything_to_everybody(opencode: Upstream, tmp_path: Path) -> None:
    with (
        service(opencode, tmp_path, A2A_STREAM_BLOCKS="all") as running,
        line_to(running) as client,
    ):
        with REST_1.following(client, "stream", REST_1.sending(WORK)) as events:
            frames = list(events)
        assert begun(frames) == EVERYTHING
        assert progress(frames)
        assert names(REST_1.get(client, frames[0].body["id"])) == EVERYTHING
        card = REST_1.result(REST_1.call(client, "card"))
    profile = next(
        each["params"]
        for each in card["capabilities"]["extensions"]
        if each["uri"].endswith("#a2a-compatibility-profile-v1")
    )
    assert profile["service_behaviors"]["blocks"]["without_stream_hints"] == "every block"
