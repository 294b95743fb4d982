"""What is shown of a peer's events: lists in, lists out."""

from __future__ import annotations

from typing import Any

import pytest

from opencode_a2a.outbound.failures import (
    AuthRequired,
    InputRequired,
    TaskCanceled,
    TaskFailed,
    TaskNotCompleted,
    TaskRejected,
)
from opencode_a2a.outbound.transcript import (
    Changes,
    Data,
    File,
    Note,
    Request,
    Shown,
    Text,
    Todos,
    Tool,
    Transcript,
)
from tests.outbound.agents import piece, status, task

Json = dict[str, Any]


def shown(*events: Json) -> list[Shown]:
    transcript = Transcript()
    return [each for event in events for each in transcript.feed(event)]


def artifact(name: str, *parts: Json, kind: str = "", append: bool = False) -> Json:
    made: Json = {"artifactId": name, "parts": list(parts)}
    if kind:
        made["metadata"] = {"shared": {"stream": {"block_type": kind}}}
    return {"artifactUpdate": {"taskId": "t", "artifact": made, "append": append}}


def test_a_snapshot_after_a_break_shows_only_what_is_new() -> None:
    found = shown(
        task("WORKING"),
        piece("One ", append=False),
        piece("two "),
        task("WORKING", "One ", "two ", "three "),
        piece("four."),
    )
    assert [each.text for each in found if isinstance(each, Text)] == [
        *("One ", "two ", "three ", "four."),
    ]


def test_a_text_that_begins_again_replaces_what_was_shown() -> None:
    transcript = Transcript()
    transcript.feed(piece("Helo", append=False))
    assert transcript.feed(piece("Hello", append=False)) == [
        Text("answer", "a", "Hello", replaces=True)
    ]
    assert transcript.answer == "Hello"


def test_reasoning_is_no_part_of_the_answer() -> None:
    transcript = Transcript()
    (thought,) = transcript.feed(artifact("r", {"text": "hm"}, kind="reasoning"))
    assert thought == Text("reasoning", "r", "hm")
    transcript.feed(artifact("x", {"text": "yes"}, kind="text"))
    assert transcript.answer == "yes"


def test_a_call_of_a_tool_is_shown_when_it_changes_and_its_output_is_not() -> None:
    def call(**more: Any) -> Json:
        return {"data": {"call_id": "c", "tool": "bash", **more}}

    found = shown(
        artifact("c", call(status="running", title="ls"), kind="tool_call"),
        artifact(
            "c",
            call(status="running", output="a", output_start=0),
            kind="tool_call",
            append=True,
        ),
        artifact("c", call(status="completed", title="ls", output="a"), kind="tool_call"),
    )
    assert found == [Tool("c", "bash", "running", "ls"), Tool("c", "bash", "completed", "ls")]


def test_changes_files_and_data_are_shown_once() -> None:
    diff = {"text": "+new\n", "mediaType": "text/x-diff"}
    picture = {"raw": "AAAA", "filename": "a.png", "mediaType": "image/png"}
    other = {"url": "https://example.com/b", "mediaType": "text/plain"}
    events = (
        artifact("changes", diff, {"data": {"files": []}}),
        artifact("f", picture, other),
        artifact("d", {"data": {"n": 1}}),
    )
    assert shown(*events, *events) == [
        Changes("+new\n"),
        File("a.png", "image/png", None, "AAAA"),
        File("", "text/plain", "https://example.com/b"),
        Data({"n": 1}),
    ]


def test_what_an_agent_says_while_it_works_is_a_note_and_its_last_words_may_be_the_answer() -> None:
    transcript = Transcript()
    assert transcript.feed(status("WORKING", "Looking …")) == [Note("Looking …")]
    assert transcript.feed(status("WORKING", "Looking …")) == []
    (answer,) = transcript.feed(status("COMPLETED", "Found it."))
    assert answer == Text("answer", "status", "Found it.")
    transcript.check()


def test_todos_usage_and_session_are_read_from_metadata() -> None:
    transcript = Transcript()
    todos = [{"content": "a", "status": "completed"}, {"content": "b", "status": "pending"}]
    working = status("WORKING")
    working["statusUpdate"]["metadata"] = {
        "shared": {"progress": {"type": "todo", "todos": todos}, "session": {"id": "ses_1"}}
    }
    assert transcript.feed(working) == [Todos((("a", True), ("b", False)))]
    done = status("COMPLETED")
    done["statusUpdate"]["metadata"] = {"shared": {"usage": {"input_tokens": 3}}}
    transcript.feed(done)
    assert (transcript.usage, transcript.session_id) == ({"input_tokens": 3}, "ses_1")


def test_what_is_asked_is_known_until_it_is_answered() -> None:
    transcript = Transcript()
    asked = status("INPUT_REQUIRED", "May I?")
    interrupt = {"request_id": "per_1", "type": "permission", "phase": "asked"}
    asked["statusUpdate"]["metadata"] = {"shared": {"interrupt": interrupt}}
    transcript.feed(asked)
    assert (transcript.requests, transcript.paused) == ((Request("per_1", "permission"),), True)
    transcript.begin()
    assert (transcript.requests, transcript.paused) == ((), False)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("FAILED", TaskFailed),
        ("REJECTED", TaskRejected),
        ("CANCELED", TaskCanceled),
        ("INPUT_REQUIRED", InputRequired),
        ("AUTH_REQUIRED", AuthRequired),
    ],
)
def test_a_task_that_has_not_completed_is_an_error(
    state: str, error: type[TaskNotCompleted]
) -> None:
    transcript = Transcript()
    transcript.feed(status(state))
    with pytest.raises(error, match=r"\."):
        transcript.check()


@pytest.mark.parametrize("odd", [7.0, "x", [1.0], {"a": 1.0}, True, None])
def test_metadata_of_strangers_may_be_anything(odd: Any) -> None:
    names = ("usage", "session", "interrupt", "interrupts", "progress", "stream")
    for metadata in (odd, {"shared": odd}, {"shared": dict.fromkeys(names, odd)}):
        event, made = status("WORKING"), artifact("a", {"text": "Hi"})
        event["statusUpdate"]["metadata"] = metadata
        made["artifactUpdate"]["artifact"]["metadata"] = metadata
        assert shown(event, made) == [Text("answer", "a", "Hi")]


@pytest.mark.parametrize("event", [{}, {"task": 7}, {"statusUpdate": {"status": {}}}, {"x": {}}])
def test_what_is_not_understood_is_passed_over(event: Json) -> None:
    assert shown(event) == []
