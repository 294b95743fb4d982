"""The composition that the conformance kits run against, with a client of our own."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.api.forms import FORMS, Form, Frame, Json, line_to
from tests.running import ROOT, TOKEN, Service, isolated, running


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "tests.conformance", "--port", "0", "--long", "1.5", "--hold"]
    env = isolated(tmp_path_factory.mktemp("home"), A2A_BEARER_TOKEN=TOKEN)
    with running(command, env, ROOT) as program:
        found = program.wait_for(r"playing at (\S+)")
        with line_to(Service(found[1], program)) as caller:
            yield caller


@pytest.fixture(params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


def state(form: Form, task: Json) -> str:
    """The state in 0.3's words, whatever the form calls it."""
    names = ("working", "input-required", "completed", "canceled", "failed")
    return next(name for name in names if form.state(name) == task["status"]["state"])


def texts(artifact: Json) -> list[str]:
    return [part["text"] for part in artifact["parts"]]


@pytest.mark.parametrize(
    ("scenario", "ends", "said"),
    [
        ("tck-complete-task", "completed", ["Hello from TCK"]),
        ("tck-artifact-text", "completed", ["Generated text content"]),
        ("tck-message-response", "completed", ["Direct message response"]),
        ("tck-stream-002", "completed", []),
        ("tck-stream-artifact-chunked", "completed", ["chunk-1 chunk-2"]),
        ("tck-reject-task", "failed", []),
    ],
)
def test_a_message_id_decides_what_is_done(
    client: httpx.Client, form: Form, scenario: str, ends: str, said: list[str]
) -> None:
    task = form.send(client, "TCK", messageId=f"{scenario}-1")
    assert state(form, task) == ends
    assert [text for artifact in task["artifacts"] for text in texts(artifact)] == said


def test_a_context_takes_one_task_after_another(client: httpx.Client, form: Form) -> None:
    context = f"context-of-{form.name}"
    for number in (1, 2):
        chosen = {"messageId": f"tck-complete-task-{number}", "contextId": context}
        assert state(form, form.send(client, "TCK", **chosen)) == "completed"


@pytest.mark.parametrize(
    ("scenario", "held"),
    [
        ("tck-artifact-file", "R2VuZXJhdGVk"),
        ("tck-artifact-file-url", "https://example.com/output.txt"),
        ("tck-stream-artifact-file", "R2VuZXJhdGVk"),
        ("tck-artifact-data", "'count': 42"),
    ],
)
def test_files_and_data_are_handed_over_as_they_are(
    client: httpx.Client, form: Form, scenario: str, held: str
) -> None:
    (artifact,) = form.send(client, "TCK", messageId=f"{scenario}-1")["artifacts"]
    (part,) = artifact["parts"]
    if (form.line, form.rpc) == ("0.3", False) and held.startswith(
        "R2"
    ):  # there bytes are encoded twice
        held = base64.b64encode(held.encode()).decode()
    assert held in str(part)
    assert ("output.txt" in str(part)) == ("file" in scenario)


def test_a_task_that_needs_input_asks_again_until_it_is_told_to_complete(
    client: httpx.Client, form: Form
) -> None:
    task = form.send(client, "TCK", messageId="tck-input-required-1")
    assert state(form, task) == "input-required"
    for text in ("one", "two"):
        more = form.send(client, text, messageId="tck-input-required-1", taskId=task["id"])
        assert state(form, more) == "input-required"
    done = form.send(client, "three", messageId="tck-complete-task-1", taskId=task["id"])
    assert state(form, done) == "completed"
    said = [m[form.content][0]["text"] for m in done["history"]]
    assert said == ["TCK", "one", "two", "three"]


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("tck-stream-001", "Stream hello from TCK"),
        ("tck-stream-003", "Stream task lifecycle"),
        ("tck-stream-ordering-001", "Ordered output"),
        ("tck-stream-artifact-text", "Streamed text content"),
        ("tck-stream-artifact-chunked", "chunk-1 chunk-2"),
    ],
)
def test_a_stream_is_the_task_then_work_then_text_then_the_end(
    client: httpx.Client, form: Form, scenario: str, said: str
) -> None:
    with form.following(client, "stream", form.sending("TCK", messageId=f"{scenario}-1")) as told:
        first, *rest = told
    artifacts = [frame.body for frame in rest if frame.kind == "artifact"]
    states = [state(form, frame.body) for frame in rest if frame.kind == "status"]
    assert first.kind == "task"
    assert states == ["working", "completed"]
    assert "".join(text for a in artifacts for text in texts(a["artifact"])) == said
    assert artifacts[-1]["lastChunk"]
    assert rest[0].kind == rest[-1].kind == "status"


def test_a_long_task_can_be_left_and_subscribed_to(client: httpx.Client, form: Form) -> None:
    started = time.monotonic()
    asked = form.sending("TCK", messageId="test-resubscribe-message-id-1", wait=False)
    task = form.sent(form.call(client, "send", asked))
    with form.following(client, "subscribe", {"id": task["id"]}) as told:
        frames: list[Frame] = list(told)
    assert state(form, frames[-1].body) == "completed"
    assert time.monotonic() - started >= 1.5


def test_held_tasks_can_be_continued_and_canceled(client: httpx.Client, form: Form) -> None:
    task = form.send(client, "Hello")
    assert state(form, task) == "input-required"
    assert state(form, form.send(client, "More", taskId=task["id"])) == "input-required"
    canceled = form.result(form.call(client, "cancel", {"id": task["id"]}))
    assert state(form, canceled) == "canceled"
