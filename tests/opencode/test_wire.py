"""OpenCode's words, one by one, and what they mean here."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from opencode_a2a.domain import events as ev
from opencode_a2a.domain.values import (
    AnsweredBy,
    Choice,
    Failure,
    FileBytes,
    FileChange,
    FileUrl,
    ModelRef,
    PermissionAsk,
    Question,
    QuestionAsk,
    SubAgent,
    Text,
    TodoItem,
    Usage,
)
from opencode_a2a.opencode import answers
from opencode_a2a.opencode.answers import scrub
from opencode_a2a.opencode.v1 import wire
from opencode_a2a.opencode.v1.wire import parent_of, session_of, translate

SESSION, MESSAGE, PART = "ses_1", "msg_1", "prt_1"
Json = dict[str, Any]


def told(type_: str, **properties: Any) -> list[ev.AgentEvent]:
    return list(translate({"type": type_, "properties": {"sessionID": SESSION, **properties}}))


def part(type_: str, **fields: Any) -> list[ev.AgentEvent]:
    own = {"id": PART, "sessionID": SESSION, "messageID": MESSAGE, "type": type_, **fields}
    return told("message.part.updated", part=own)


def message(role: str, **fields: Any) -> ev.MessageSeen:
    info = {"id": MESSAGE, "sessionID": SESSION, "role": role, "time": {"created": 5}, **fields}
    (seen,) = told("message.updated", info=info)
    assert isinstance(seen, ev.MessageSeen)
    return seen


# -- events as such


def test_an_unknown_event_means_nothing() -> None:
    assert told("session.next.something", anything=1) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "message.updated", "properties": {"info": {"id": MESSAGE}}},
        {"type": "message.part.updated", "properties": {"part": {"type": "text"}}},
        {"type": "session.status", "properties": {"sessionID": SESSION, "status": {"type": "?"}}},
        {"type": "message.part.delta", "properties": {"sessionID": SESSION}},
        {"type": "permission.asked", "properties": {"id": "per_1"}},
    ],
    ids=lambda broken: broken["type"],
)
def test_a_known_event_with_a_broken_body_is_a_change_of_contract(broken: Json) -> None:
    with pytest.raises((ValidationError, KeyError)):
        translate(broken)


def test_an_event_belongs_to_its_session_or_to_none() -> None:
    assert session_of({"type": "x", "properties": {"sessionID": SESSION}}) == SESSION
    assert session_of({"type": "server.heartbeat", "properties": {}}) is None


def test_a_session_may_have_been_started_by_another() -> None:
    created = {"sessionID": "ses_2", "info": {"id": "ses_2", "parentID": SESSION}}
    assert parent_of({"type": "session.created", "properties": created}) == SESSION
    assert told("session.created", info=created["info"]) == [ev.ChildStarted("ses_2", SESSION)]
    assert parent_of({"type": "session.created", "properties": {"info": {"id": "ses_3"}}}) is None
    assert told("session.created", info={"id": "ses_3"}) == []


# -- messages


def test_a_message_says_who_speaks() -> None:
    assert message("user").speaker is ev.Speaker.USER
    assert message("user", summary={"diffs": []}).speaker is ev.Speaker.USER
    assert message("assistant").speaker is ev.Speaker.AGENT
    assert message("assistant", summary=True).speaker is ev.Speaker.HOUSEKEEPING


def test_a_message_says_what_it_answers_and_how_it_ended() -> None:
    begun = message("assistant", parentID="msg_0")
    assert begun == ev.MessageSeen(SESSION, MESSAGE, ev.Speaker.AGENT, 5, "msg_0")
    done = message("assistant", time={"created": 5, "completed": 9}, finish="stop")
    assert (done.completed, done.finish, done.problem, done.aborted) == (True, "stop", None, False)
    model = {"providerID": "p", "modelID": "m", "agent": "plan", "variant": "high"}
    by = message("assistant", **model).answered_by
    assert by == AnsweredBy(ModelRef("p", "m"), agent="plan", variant="high")
    assert message("assistant", summary=True, **model).answered_by == by


def test_an_aborted_message_has_no_problem_and_a_failed_one_has() -> None:
    aborted = message("assistant", error={"name": "MessageAbortedError", "data": {"message": "x"}})
    assert (aborted.aborted, aborted.problem) == (True, None)
    failed = message("assistant", error={"name": "UnknownError", "data": {"message": "x"}})
    assert not failed.aborted
    assert failed.problem is not None


# -- parts


def test_a_delta_of_a_text_is_translated_and_of_anything_else_is_not() -> None:
    where = {"messageID": MESSAGE, "partID": PART}
    assert told("message.part.delta", **where, field="text", delta="Hi") == [
        ev.TextDelta(SESSION, MESSAGE, PART, "Hi")
    ]
    assert told("message.part.delta", **where, field="input", delta="{") == []


@pytest.mark.parametrize("kind", [ev.BlockKind.TEXT, ev.BlockKind.REASONING])
def test_a_text_is_open_until_it_has_an_end(kind: ev.BlockKind) -> None:
    where = (SESSION, MESSAGE, PART, kind)
    assert part(kind.value, text="", time={"start": 1}) == [ev.TextSnapshot(*where, "", False)]
    assert part(kind.value, text="Hi", time={"start": 1, "end": 2}) == [
        ev.TextSnapshot(*where, "Hi", True)
    ]


@pytest.mark.parametrize("mark", ["synthetic", "ignored"])
def test_a_text_that_is_not_meant_for_people_means_nothing(mark: str) -> None:
    assert part("text", text="Called the Read tool", **{mark: True}) == []


def test_parts_of_no_interest_mean_nothing() -> None:
    assert part("snapshot", snapshot="abc") == []
    assert part("something-new") == []


def test_a_file_is_reported_whatever_hands_it_over() -> None:
    picture = FileBytes("eA==", "image/png", "x.png")
    file = {"mime": "image/png", "url": "data:image/png;base64,eA==", "filename": "x.png"}
    assert part("file", **file) == [ev.FileSnapshot(SESSION, MESSAGE, PART, picture)]
    plain = part("file", mime="text/plain", url="data:,a%20b")
    assert plain == [ev.FileSnapshot(SESSION, MESSAGE, PART, FileBytes("YSBi", "text/plain"))]
    away = FileUrl("https://example.com/x.png", "image/png")
    attachments = [file, {"mime": "image/png", "url": "https://example.com/x.png"}]
    state = {"status": "completed", "attachments": attachments}
    _, *handed = part("tool", tool="read", callID="call_1", state=state)
    assert handed == [
        ev.FileSnapshot(SESSION, MESSAGE, f"{PART}-file-1", picture),
        ev.FileSnapshot(SESSION, MESSAGE, f"{PART}-file-2", away),
    ]


def test_a_file_that_is_too_large_is_only_named() -> None:
    url = "data:image/png;base64," + "A" * answers.FILE_LIMIT
    (told,) = part("file", mime="image/png", url=url, filename="x.png")
    assert isinstance(told, ev.FileSnapshot)
    assert told.part == Text("x.png is too large to be handed over.")


REJECTED = "The user rejected permission to use this specific tool call."
CORRECTED = f"{REJECTED[:-1]} with the following feedback: no"


def tool(tool: str = "bash", **state: Any) -> ev.ToolSnapshot:
    (snapshot,) = part("tool", tool=tool, callID="call_1", state={"status": "running", **state})
    assert isinstance(snapshot, ev.ToolSnapshot)
    return snapshot


def test_a_tool_call_is_reported_whole() -> None:
    done = tool(
        status="completed",
        title="echo hi",
        input={"command": "echo hi", "description": "say hi"},
        output="hi\n",
        metadata={"output": "hi\n", "exit": 0},
        time={"start": 5, "end": 9},
    )
    given = {"command": "echo hi", "description": "say hi"}
    assert done.call == ev.ToolCall(
        "call_1", "bash", "completed", "echo hi", "say hi", given, "hi\n", None, 5, 9
    )
    assert done.child is None


def test_a_pending_tool_call_says_only_what_it_is() -> None:
    assert tool(status="pending", input={}).call == ev.ToolCall("call_1", "bash", "pending")


def test_a_running_tool_shows_its_output_so_far() -> None:
    assert tool(metadata={"output": "...\n\none\n"}).call.output == "...\n\none\n"
    long = "x" * wire.OUTPUT_WINDOW
    assert tool(metadata={"output": f"...\n\n{long}"}).call.output == long, "its latest"
    assert tool(metadata={"output": 3}).call.output is None


def test_a_failed_tool_says_why() -> None:
    assert tool(status="error", error="Tool execution aborted").call.error == (
        "Tool execution aborted"
    )


@pytest.mark.parametrize(
    ("call", "stops", "refused"),
    [
        (tool(status="error", error="The user dismissed this question"), True, True),
        (tool(status="error", error=REJECTED), True, True),
        (tool(status="error", error=CORRECTED), False, True),
        (tool(status="error", error="File not found"), False, False),
        (tool(status="error", error="Tool execution aborted"), False, False),
        (tool(status="completed", output="done"), False, False),
        (tool("StructuredOutput", status="completed"), True, False),
        (tool("StructuredOutput"), False, False),
    ],
)
def test_a_run_stops_with_a_refusal_or_with_an_answer_in_a_tool(
    call: ev.ToolSnapshot, stops: bool, refused: bool
) -> None:
    assert (call.stops, call.refused) == (stops, refused)


def test_only_the_task_tool_starts_sub_agents() -> None:
    given = {"subagent_type": "general", "prompt": "Look"}
    called = tool("task", metadata={"sessionId": "ses_2"}, input=given)
    assert called.child == SubAgent("ses_2", "general", called.call.call_id)
    assert tool("task", metadata={"sessionId": "ses_2"}, input={"subagent_type": 7}).child == (
        SubAgent("ses_2", None, called.call.call_id)
    )
    assert tool("task", metadata={"sessionId": 2}).child is None
    assert tool("mcp_tool", metadata={"sessionId": "ses_of_somebody"}).child is None


def test_the_other_parts_of_a_step() -> None:
    where = (SESSION, MESSAGE, PART)
    tokens = {"input": 5, "output": 4, "reasoning": 3, "cache": {"read": 2, "write": 1}}
    assert part("step-start", snapshot="abc") == [ev.StepStarted(*where)]
    assert part("step-finish", reason="stop", tokens=tokens, cost=0.5) == [
        ev.StepFinished(*where, Usage(5, 4, 3, 2, 1, 0.5), may_be_last=True)
    ]
    [finished] = part("step-finish", reason="tool-calls", tokens=tokens)
    assert isinstance(finished, ev.StepFinished)
    assert not finished.may_be_last  # another step follows, with what the tools have said
    assert part("patch", hash="abc", files=["a"]) == [ev.FilesChanged(SESSION, MESSAGE)]
    assert part("compaction", auto=True) == [ev.Compacting(SESSION, done=False, part_id=PART)]
    assert told("session.compacted") == [ev.Compacting(SESSION, done=True)]
    assert told("message.part.removed", messageID=MESSAGE, partID=PART) == [ev.PartRemoved(*where)]


@pytest.mark.parametrize(
    ("tokens", "cost", "usage"),
    [
        ({"input": 2**63, "cache": {"read": 2**64 - 1}}, 1e10, Usage(10**9, 0, 0, 10**9, 0, 1e4)),
        ({"input": -5, "output": 3, "cache": {"write": -1}}, -0.5, Usage(0, 3)),
        ({}, float("inf"), Usage(cost=1e4)),
        ({}, float("nan"), Usage()),
    ],
)
def test_figures_that_cannot_be_are_cut_off(tokens: Json, cost: float, usage: Usage) -> None:
    [finished] = part("step-finish", tokens=tokens, cost=cost)
    assert isinstance(finished, ev.StepFinished)
    assert finished.usage == usage


# -- sessions


def test_the_status_of_a_session() -> None:
    waiting = {"type": "retry", "attempt": 2, "message": "too many requests", "next": 99}
    assert told("session.status", status={"type": "busy"}) == [ev.Busy(SESSION)]
    assert told("session.status", status={"type": "idle"}) == [ev.Idle(SESSION)]
    assert told("session.idle") == [ev.Idle(SESSION)]
    assert told("session.status", status=waiting) == [
        ev.Retrying(SESSION, 2, "too many requests", 99)
    ]


def test_titles_and_todos() -> None:
    assert told("session.updated", info={"id": SESSION, "title": "New"}) == [
        ev.TitleChanged(SESSION, "New")
    ]
    todo = {"content": "x", "status": "pending", "priority": "high"}
    assert told("todo.updated", todos=[todo]) == [
        ev.TodosChanged(SESSION, (TodoItem("x", "pending", "high"),))
    ]


def test_an_error_without_a_session_is_nobodys() -> None:
    error = {"name": "UnknownError", "data": {"message": "x"}}
    assert translate({"type": "session.error", "properties": {"error": error}}) == ()


def test_an_abort_is_not_an_error() -> None:
    aborted = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
    assert told("session.error", error=aborted) == []
    (erred,) = told("session.error", error={"name": "APIError", "data": {"message": "x"}})
    assert isinstance(erred, ev.SessionErred)


def test_where_opencode_has_interrupted_itself_what_is_stored_tells_what_came_of_it() -> None:
    message = "Error: All fibers interrupted without error"
    error = {"name": "UnknownError", "data": {"message": message}}
    assert told("session.error", error=error) == [ev.Gap(SESSION)]


# -- what is asked


def test_a_permission_names_what_is_wanted() -> None:
    asked = told(
        "permission.asked",
        id="per_1",
        permission="edit",
        patterns=["new.txt"],
        metadata={"filepath": "/srv/new.txt", "diff": "+line", "command": 7},
        always=["*"],
        tool={"messageID": "msg_1", "callID": "call_1"},
    )
    ask = PermissionAsk(
        "per_1",
        SESSION,
        "edit",
        ("new.txt",),
        filepath="/srv/new.txt",
        diff="+line",
        always=("*",),
        call_id="call_1",
    )
    assert asked == [ev.InterruptAsked(SESSION, ask)]


def test_a_question_comes_with_its_choices() -> None:
    item = {"question": "Which?", "header": "Pick", "options": [{"label": "A"}], "multiple": True}
    (asked,) = told("question.asked", id="que_1", questions=[item])
    question = Question("Pick", "Which?", (Choice("A"),), multiple=True)
    assert asked == ev.InterruptAsked(SESSION, QuestionAsk("que_1", SESSION, (question,)))


def test_how_a_request_was_closed() -> None:
    assert told("permission.replied", requestID="per_1", reply="always") == [
        ev.InterruptClosed(SESSION, "per_1", "always")
    ]
    assert told("question.replied", requestID="que_1", answers=[["A"]]) == [
        ev.InterruptClosed(SESSION, "que_1", "answered")
    ]
    assert told("question.rejected", requestID="que_1") == [
        ev.InterruptClosed(SESSION, "que_1", "rejected")
    ]


def test_a_file_change() -> None:
    diff = {"file": "a.txt", "patch": "+x", "additions": 1, "deletions": 0, "status": "added"}
    change = answers.file_change(answers.DiffInfo.model_validate(diff))
    assert change == FileChange("a.txt", 1, 0, "added", "+x")


# -- what went wrong


def problem(name: str, message: str = "", **data: Any) -> Any:
    error = {"name": name, "data": {"message": message, **data}}
    return wire.problem(wire.ErrorInfo.model_validate(error))


@pytest.mark.parametrize(
    ("name", "status", "failure"),
    [
        ("APIError", 400, Failure.PROVIDER_ERROR),
        ("APIError", 401, Failure.PROVIDER_AUTH),
        ("APIError", 402, Failure.PROVIDER_QUOTA),
        ("APIError", 403, Failure.PROVIDER_AUTH),
        ("APIError", 429, Failure.PROVIDER_QUOTA),
        ("APIError", 500, Failure.PROVIDER_ERROR),
        ("APIError", None, Failure.PROVIDER_ERROR),
        ("ProviderAuthError", None, Failure.PROVIDER_AUTH),
        ("ContextOverflowError", None, Failure.CONTEXT_OVERFLOW),
        ("MessageOutputLengthError", None, Failure.OUTPUT_LIMIT),
        ("ContentFilterError", None, Failure.PROVIDER_ERROR),
        ("StructuredOutputError", None, Failure.PROVIDER_ERROR),
        ("SomethingNew", None, Failure.PROVIDER_ERROR),
    ],
)
def test_a_failure_has_a_word_for_machines(name: str, status: int | None, failure: Failure) -> None:
    found = problem(name, statusCode=status)
    assert (found.type, found.upstream_status) == (failure, status)
    assert "It said" not in found.message


def test_a_failure_passes_on_what_was_said_and_nothing_else() -> None:
    found = problem(
        "APIError",
        "overloaded",
        statusCode=500,
        responseHeaders={"x-secret": "header"},
        responseBody="secret body",
        metadata={"url": "http://10.0.0.1/v1"},
    )
    assert found.message == "The model could not answer. It said: overloaded"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("overloaded, try again", "overloaded, try again"),
        ("  first line\n    at Stack.trace (/srv/app.js:1)", "first line"),
        ("cannot reach http://10.0.0.1:8080/v1?key=1 now", "cannot reach […] now"),
        ("ENOENT /home/user/.config/x.json", "ENOENT […]"),
        ("bad key sk-abc123", "bad key […]"),
        ("token 0123456789abcdef0123456789abcdef", "token […]"),
        ("connect ECONNREFUSED 10.1.2.3:8080", "connect ECONNREFUSED […]"),
        ("connect ECONNREFUSED ::1:8080 or [fe80::1]:80", "connect ECONNREFUSED […] or […]"),
        ("no route to 2001:db8:0:0:0:0:0:1", "no route to […]"),
        ("getaddrinfo ENOTFOUND llm.internal.corp", "getaddrinfo ENOTFOUND […]"),
        ("getaddrinfo ENOTFOUND llm", "getaddrinfo ENOTFOUND […]"),
        ("proxy:3128 and llm.corp:443 said no to bob@corp.example", "[…] and […] said no to […]"),
        ("cannot load C:\\Program Files\\llm\\key.txt now", "cannot load […] now"),
        (r"cannot load \\server\share", "cannot load […]"),
        ("Authorization: Bearer abc123", "Authorization: […]"),
        ("refused Bearer abc123", "refused Bearer […]"),
        ('{"apiKey":"abc"}', '{"apiKey":[…]'),
        ("x-api-key=abc, OPENAI_API_KEY = abc", "x-api-key=[…] OPENAI_API_KEY = […]"),
        ("Incorrect API key provided: abc.", "Incorrect API key provided: […]"),
        ("password is hunter2, secret 'abc'", "password is […] secret […]"),
        ("The API key is invalid; no token was sent", "The API key is invalid; no token was sent"),
        ("max_tokens: 9000 > 8192, at 12:30:00", "max_tokens: 9000 > 8192, at 12:30:00"),
        ("no model gpt-4.1-mini, e.g. for 1.5 s", "no model gpt-4.1-mini, e.g. for 1.5 s"),
        ("Select another model from the list", "Select another model from the list"),
        ('Failed query: insert into "part" ("id") values (?)', ""),
        ("SQLITE_ERROR: SELECT id,\n secret\n FROM session", ""),
        ('near "x": select "id" from "session"', ""),
        ("could not select id from part where id = 1", ""),
        ("could not INSERT INTO part VALUES (1)", ""),
        ("could not update part set data = 1", ""),
        ("could not delete from part where id = 1", ""),
        ("x " * 400, "x " * 150),
        ("", ""),
    ],
)
def test_a_strangers_message_is_scrubbed(said: str, kept: str) -> None:
    assert scrub(said) == kept


@pytest.mark.parametrize("title", ["", "New session - 2026-11-15T18:12:45.491Z"])
def test_a_title_that_nobody_has_made_is_none(title: str) -> None:
    assert told("session.updated", info={"id": SESSION, "title": title}) == []
