"""Every method about sessions, on the real OpenCode, over JSON-RPC."""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from opencode_a2a.domain.release import FEATURES
from opencode_a2a.extensions.declared import STREAM_HINTS
from tests.extensions.conftest import (
    MODEL,
    SNAPSHOTS,
    V1,
    Json,
    Line,
    fresh,
    line_of,
    session_of,
    sub_agent,
    tool,
)
from tests.extensions.inside import Inside
from tests.features import available, require, tool_name
from tests.running import Service, Upstream

NOWHERE = "ses_doesNotExist000000000000"
NO_MESSAGE = "msg_doesNotExist000000000000"
NO_MODEL = {"providerID": "demo", "modelID": "demon"}
TEXT = {"type": "text", "text": "x"}
SUBTASK = {"type": "subtask", "prompt": "hi", "description": "greet", "agent": "general"}
HERE = {"opencode": {"directory": SNAPSHOTS}}


@pytest.fixture(scope="module")
def talk(alice: Line) -> Json:
    """A conversation of two turns; the second wrote a file and, where it can, made plans."""
    context = fresh()
    alice.converse("first", context)
    todos = [{"content": "plan it", "status": "in_progress", "priority": "high"}]
    plans = tool("todowrite", todos=todos) if available("todos") else ""
    write = tool("write", filePath="made.txt", content="one line\n")
    session = alice.session(f"{plans}{write} second", context)
    return {"session": session, "context": context, "messages": messages(alice, session)}


def messages(caller: Line, session: str) -> list[Json]:
    found: list[Json] = caller.call("sessions.messages.list", session_id=session)["items"]
    return found


def prompts(items: list[Json]) -> list[str]:
    return [message["messageId"] for message in items if message["role"] == "user"]


def texts(message: Json) -> list[str]:
    return [part["text"] for part in message["parts"] if part["kind"] == "text"]


def said(caller: Line, session: str) -> list[str]:
    return ["".join(texts(message)) for message in messages(caller, session)]


# -- reading


def test_a_session_is_shown_as_a_completed_task_in_the_words_of_each_line(
    alice: Line, talk: Json
) -> None:
    params = {"session_id": talk["session"]}
    item = alice.call("sessions.get", **params)["item"]
    assert (item["kind"], item["id"]) == ("task", talk["session"])
    assert item["contextId"] == talk["context"]
    assert item["status"]["state"] == "completed"
    assert item["metadata"]["shared"]["session"] == {"id": talk["session"], "title": "first"}
    newer = alice.ask("opencode.sessions.get", params, **V1)["result"]["item"]
    assert newer["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "kind" not in newer


def test_the_context_of_a_listed_session_continues_it(
    alice: Line, bob: Line, inside: Inside, talk: Json
) -> None:
    session, context = talk["session"], fresh()
    own = alice.session("one", context)
    listed = {item["id"]: item for item in alice.call("sessions.list", limit=100)["items"]}
    assert listed[session]["contextId"] == talk["context"]
    assert alice.session("two", listed[own]["contextId"]) == own
    [first, *others] = messages(alice, own)
    assert {message["contextId"] for message in (first, *others)} == {context}
    params = {"session_id": own, "message_id": first["messageId"]}
    assert alice.call("sessions.messages.get", **params)["item"]["contextId"] == context
    assert alice.call("sessions.unrevert", session_id=own)["item"]["context_id"] == context
    forked = alice.call("sessions.fork", session_id=own)["item"]
    assert forked["context_id"] == f"ctx:opencode-session:{forked['id']}"
    nobodys = inside.session("by hand")
    for who in (alice, bob):
        item = who.call("sessions.get", session_id=nobodys)["item"]
        assert item["contextId"] == f"ctx:opencode-session:{nobodys}"
    assert context not in json.dumps(bob.call("sessions.list", limit=100))


def test_sessions_are_listed_latest_first(alice: Line, talk: Json) -> None:
    newer = alice.session("newer")
    listed = [item["id"] for item in alice.call("sessions.list")["items"]]
    assert listed.index(newer) < listed.index(talk["session"])
    assert [i["id"] for i in alice.call("sessions.list", limit=1)["items"]] == listed[:1]
    assert alice.listed(search="newer") == [newer]
    assert alice.listed(start=9_999_999_999_999) == []


def test_a_list_can_be_of_one_directory(alice: Line, inside: Inside) -> None:
    below = inside.workspace / "below"
    below.mkdir(exist_ok=True)
    session = inside.session("below", below)
    for params in (
        {"directory": "below"},
        {"directory": str(below)},
        {"metadata": {"opencode": {"directory": "below"}, "other": {"is": "ignored"}}},
    ):
        assert alice.listed(**params) == [session]
    assert session in alice.listed()


@pytest.mark.parametrize(
    "directory", ["..", "/", "missing", "README.md", "below/../..", "\0", "long" * 2_000]
)
def test_a_directory_outside_the_workspace_is_refused(alice: Line, directory: str) -> None:
    assert alice.refused_field("sessions.list", directory=directory) == "directory"


def test_null_in_metadata_is_nothing(alice: Line) -> None:
    for nothing in (None, {"directory": None, "workspace": None}):
        alice.call("sessions.status", metadata={"opencode": nothing, "shared": None})
    error = alice.refused("sessions.status", metadata={"opencode": "here"})
    assert error["fields"] == {"metadata.opencode": "must be an object"}


def test_a_list_of_roots_leaves_out_sub_agents(alice: Line) -> None:
    session = alice.session(f"{sub_agent('hello')} go")
    [child] = alice.call("sessions.children", session_id=session)["items"]
    assert {session, child["id"]} <= {*alice.listed()}
    assert {session, child["id"]} & {*alice.listed(roots=True)} == {session}
    assert alice.call("sessions.get", session_id=child["id"])["item"]["id"] == child["id"]


def test_the_status_tells_who_is_at_work_and_cannot_be_changed(alice: Line, inside: Inside) -> None:
    session = alice.session("hello")
    [prompt] = prompts(messages(alice, session))
    request = {"parts": [TEXT | {"text": "[[hangmid:2]]"}]}
    with inside.awaiting("busy", session):
        alice.call("sessions.prompt_async", session_id=session, request=request)

    def status() -> str:
        items = alice.call("sessions.status", metadata={})["items"]
        return str(next(each["type"] for each in items if each["session_id"] == session))

    assert status() == "busy"
    attempts: dict[str, Json] = {
        "prompt_async": {"request": request},
        "command": {"request": {"command": "shout"}},
        "shell": {"request": {"agent": "build", "command": "true"}},
        "summarize": {"request": MODEL},
        "revert": {"request": {"messageID": prompt}},
        "unrevert": {},
        "delete": {},
    }
    for method, more in attempts.items():
        error = alice.refused(f"sessions.{method}", session_id=session, **more)
        assert error["type"] == "UPSTREAM_BUSY", method
    inside.abort(session)
    assert status() == "idle"


def test_the_todos_are_the_agents(alice: Line, talk: Json) -> None:
    require("todos")
    items = alice.call("sessions.todo", session_id=talk["session"])["items"]
    assert items == [{"content": "plan it", "status": "in_progress", "priority": "high"}]


def test_what_a_message_changed_is_shown_undone_and_redone(alice: Line, inside: Inside) -> None:
    context = fresh()
    alice.converse("first", context, **HERE)
    write = tool("write", filePath="made.txt", content="one line\n")
    session = session_of(alice.converse(f"{write} second", context, **HERE))
    first, second = prompts(messages(alice, session))

    def diff(**params: str) -> list[Json]:
        found: list[Json] = alice.call("sessions.diff", session_id=session, **params)["items"]
        return found

    [change] = diff()
    assert (change["file"], change["additions"], change["status"]) == (
        f"{SNAPSHOTS}/made.txt",
        1,
        "added",
    )
    assert "+one line" in change["patch"]
    assert diff(message_id=second) == [change]
    assert diff(message_id=first) == []
    made = inside.workspace / SNAPSHOTS / "made.txt"
    request = {"messageID": second}
    item = alice.call("sessions.revert", session_id=session, request=request)["item"]
    assert (item["reverted_to"], made.exists()) == (second, False)
    item = alice.call("sessions.unrevert", session_id=session)["item"]
    assert (item["reverted_to"], made.exists()) == (None, True)


def test_an_empty_session_has_no_diff_and_no_messages(alice: Line, inside: Inside) -> None:
    session = inside.session("empty")
    assert alice.call("sessions.diff", session_id=session)["items"] == []
    listed = alice.call("sessions.messages.list", session_id=session)
    assert listed == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_messages_come_in_pages_from_the_newest_on(alice: Line, talk: Json, limit: int) -> None:
    seen: list[Json] = []
    cursor: dict[str, Any] = {}
    while not seen or cursor["before"] is not None:
        page = alice.call(
            "sessions.messages.list", session_id=talk["session"], limit=limit, **cursor
        )
        assert 0 < len(page["items"]) <= limit
        seen = [*page["items"], *seen]
        cursor = {"before": page["next_cursor"]}
    assert [m["messageId"] for m in seen] == [m["messageId"] for m in talk["messages"]]


def test_messages_have_texts_and_tool_calls(alice: Line, talk: Json) -> None:
    first, answer, *_ = talk["messages"]
    assert (texts(first), texts(answer)) == (["first"], ["ECHO: first"])
    assert answer["metadata"]["opencode"]["model"] == "demo/demo"
    params = {"session_id": talk["session"], "message_id": answer["messageId"]}
    assert alice.call("sessions.messages.get", **params)["item"] == answer
    tools = [
        (part["data"]["tool"], part["data"]["status"])
        for message in talk["messages"]
        for part in message["parts"]
        if part.get("metadata", {}).get("shared", {}).get("stream") == {"block_type": "tool_call"}
    ]
    assert [each for each in tools if each[0] != "todowrite"] == [("write", "completed")]


@pytest.mark.parametrize("cursor", ["nonsense", "?limit=1", "../..", "eyJ9"])
def test_a_cursor_that_is_none_is_named(alice: Line, talk: Json, cursor: str) -> None:
    params = {"session_id": talk["session"], "before": cursor}
    assert alice.refused_field("sessions.messages.list", **params) == "before"


# -- control


def test_a_prompt_returns_at_once_and_its_answer_is_in_the_messages(
    alice: Line, inside: Inside
) -> None:
    session = alice.session("hello")
    request = {
        "parts": [
            {"type": "text", "text": "look at this"},
            {"type": "file", "mime": "text/plain", "url": "data:text/plain,some%20words"},
            {"type": "file", "mime": "text/markdown", "url": "data:;base64,aGk=", "filename": "a"},
            {"type": "agent", "name": "general"},
        ],
        "model": MODEL,
        "agent": "plan",
        "variant": "low",
    }
    request |= {"system": "Be kind."} if available("system_text") else {}
    with inside.awaiting("idle", session):
        done = alice.call("sessions.prompt_async", session_id=session, request=request)
    assert done["session_id"] == session
    items = messages(alice, session)
    asked = next(m for m in items if m["messageId"] == done["message_id"])
    assert texts(asked) == ["look at this"]
    files = [part["file"] for part in asked["parts"] if part["kind"] == "file"]
    assert [f["bytes"] for f in files] == ["c29tZSB3b3Jkcw==", "aGk="]
    assert items[-1]["role"] == "agent"
    assert items[-1]["metadata"]["opencode"]["agent"] == "plan"


def test_a_message_nobody_answers_is_only_added(alice: Line, inside: Inside) -> None:
    context = fresh()
    session = alice.session("hello", context)
    request = {"parts": [TEXT | {"text": "know this"}], "noReply": True}
    with inside.awaiting("prompted", session):
        alice.call("sessions.prompt_async", session_id=session, request=request)
    assert not inside.is_busy(session)
    alice.converse("more", context)
    assert said(alice, session)[:3] == ["hello", "ECHO: hello", "know this"]


def test_a_subtask_is_given_to_a_sub_agent(alice: Line, inside: Inside) -> None:
    require("subtasks")
    session = alice.session("hello")
    with inside.awaiting("idle", session):
        request = {"parts": [TEXT, SUBTASK]}
        alice.call("sessions.prompt_async", session_id=session, request=request)
    assert len(alice.call("sessions.children", session_id=session)["items"]) == 1


@pytest.mark.parametrize(
    ("feature", "method", "request_"),
    [
        ("system_text", "prompt_async", {"parts": [TEXT], "system": "Be kind."}),
        ("subtasks", "prompt_async", {"parts": [SUBTASK]}),
        ("revert_of_parts", "revert", {"partID": "prt_0000"}),
    ],
)
def test_what_this_opencode_cannot_do_is_refused_with_the_reason(
    alice: Line, talk: Json, feature: str, method: str, request_: Json
) -> None:
    if available(feature):
        pytest.skip(f"this OpenCode has {feature}")
    if method == "revert":
        request_ = {"messageID": prompts(talk["messages"])[0], **request_}
    params = {"session_id": talk["session"], "request": request_}
    error = alice.ask(f"opencode.sessions.{method}", params)["error"]
    assert error["data"]["type"] == "METHOD_DISABLED"
    assert error["message"] == next(each.effect for each in FEATURES if each.name == feature)
    assert not said(alice, talk["session"])[-1].startswith("ECHO: x")


@pytest.mark.parametrize(
    ("taken", "call"),
    [
        ("bash", tool("bash", command="touch taken", description="x")),
        ("task", sub_agent(tool("bash", command="touch taken", description="x"))),
        ("edit", tool("write", filePath="taken", content="x")),
        ("write", tool("write", filePath="taken", content="x")),
    ],
)
def test_a_tool_can_be_taken_away_but_not_given(
    alice: Line, inside: Inside, taken: str, call: str
) -> None:
    """By the names of 1.x, whatever OpenCode calls its tools."""
    context = fresh()
    session = alice.session("hello", context)
    request: Json = {"parts": [TEXT], "noReply": True, "tools": {taken: False}}
    alice.call("sessions.prompt_async", session_id=session, request=request)
    alice.converse(call, context)
    assert not (inside.workspace / "taken").exists()
    params = {"session_id": session, "request": request | {"tools": {taken: True}}}
    assert alice.refused_field("sessions.prompt_async", **params) == f"request.tools.{taken}"


def test_rules_are_added_to_those_of_a_session(alice: Line, inside: Inside) -> None:
    """OpenCode 2 replaces them all at once: what is added meanwhile must not be lost."""
    session = inside.session("ruled")
    names = ["glob", "grep", "webfetch", "skill"]

    def take(name: str) -> None:
        request = {"parts": [TEXT], "noReply": True, "tools": {name: False}}
        alice.call("sessions.prompt_async", session_id=session, request=request)

    with ThreadPoolExecutor(len(names)) as at_once:
        assert list(at_once.map(take, names))
    denied = [{"permission": name, "pattern": "*", "action": "deny"} for name in names]
    assert all(rule in inside.rules(session) for rule in denied)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "file", "mime": "text/plain", "url": "file:///etc/hostname"}, "request.parts[0]"),
        ({"type": "file", "mime": "text/plain", "url": "http://127.0.0.1:1/x"}, "request.parts[0]"),
        ({"type": "file", "mime": "text/plain", "url": "data:;base64,*"}, "request.parts[0]"),
        ({"type": "agent", "name": "nobody"}, "request.parts[0].name"),
        (SUBTASK | {"agent": "nobody"}, "request.parts[0].agent"),
        (TEXT | {"id": "prt_1"}, "request.parts[0].text.id"),
        ({"type": "nonsense"}, "request.parts[0]"),
    ],
)
def test_a_part_that_cannot_be_handed_on_is_named(
    alice: Line, talk: Json, part: Json, field: str
) -> None:
    params = {"session_id": talk["session"], "request": {"parts": [part]}}
    assert alice.refused_field("sessions.prompt_async", **params) == field


def test_a_file_of_an_unreadable_kind_is_refused(alice: Line, talk: Json) -> None:
    part = {"type": "file", "mime": "application/zip", "url": "data:;base64,aGk="}
    for method, more in {"prompt_async": {}, "command": {"command": "shout"}}.items():
        params = {"session_id": talk["session"], "request": {"parts": [part], **more}}
        error = alice.refused(f"sessions.{method}", **params)
        assert error["type"] == "CONTENT_TYPE_NOT_SUPPORTED"


def test_a_shell_command_shows_its_output_and_is_in_the_audit_log(
    alice: Line, full_service: Service
) -> None:
    session = alice.session("hello")
    secret = f"echo hi; : token={fresh()}"
    request = {"agent": "build", "command": secret}
    item = alice.call("sessions.shell", session_id=session, request=request)["item"]
    [data] = [part["data"] for part in item["parts"]]
    shown = (data["tool"], data["status"], data["output"])
    assert shown == (tool_name("bash"), "completed", "hi\n")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    line = full_service.program.wait_for(rf".*audit\.session_shell.*{digest}.*ended.*")[0]
    assert re.search(rf"principal=alice .*session_id={session}|session_id={session}.*=alice", line)
    assert secret not in full_service.program.output


def test_a_session_is_summarized(alice: Line) -> None:
    session = alice.session("hello")
    done = alice.call("sessions.summarize", session_id=session, request=MODEL)
    assert done == {"ok": True}


# -- mutation


def test_a_fork_is_the_callers_own(alice: Line, bob: Line, talk: Json) -> None:
    params = {"session_id": talk["session"]}
    whole = alice.call("sessions.fork", **params)["item"]
    assert whole["id"] != talk["session"]
    assert whole["title"] == "first (fork #1)"
    request = {"messageID": prompts(talk["messages"])[1]}
    part = alice.call("sessions.fork", **params, request=request)["item"]
    assert said(alice, part["id"]) == ["first", "ECHO: first"]
    for fork in (whole["id"], part["id"]):
        assert bob.refused("sessions.get", session_id=fork)["type"] == "SESSION_NOT_FOUND"


def test_a_conversation_goes_on_from_an_earlier_message(alice: Line) -> None:
    """By the ids that the history of its tasks has: in a fork, or in the same one."""
    context = fresh()
    alice.converse("first", context)
    second = alice.converse("second", context)
    headers = {**V1, "a2a-extensions": STREAM_HINTS.uri}
    task = alice.ask("GetTask", {"id": second["id"]}, **headers)["result"]
    at = task["history"][0]["metadata"]["opencode"]["message_id"]
    session = session_of(task)
    params = {"session_id": session, "request": {"messageID": at}}
    before = ["first", "ECHO: first"]
    fork = alice.call("sessions.fork", **params)["item"]
    alice.converse("another way", fork["context_id"])
    assert said(alice, fork["id"]) == [*before, "another way", "ECHO: another way"]
    alice.call("sessions.revert", **params)
    alice.converse("second, better", context)
    assert said(alice, session) == [*before, "second, better", "ECHO: second, better"]


def test_sharing_that_is_switched_off_says_so(alice: Line, talk: Json) -> None:
    params = {"session_id": talk["session"]}
    assert alice.refused("sessions.share", **params)["type"] == "METHOD_DISABLED"
    if available("sharing"):
        assert alice.call("sessions.unshare", **params)["item"]["share_url"] is None


def test_sharing_that_the_environment_forbids_says_so_too(
    opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require("sharing")
    with line_of(opencode, tmp_path_factory.mktemp("unshared")) as caller:
        error = caller.refused("sessions.share", session_id=caller.session("hi"))
    assert error["type"] == "METHOD_DISABLED"


def test_a_session_is_renamed(alice: Line) -> None:
    session = alice.session("hello")
    request = {"title": "  The  hello\ncase "}
    item = alice.call("sessions.rename", session_id=session, request=request)["item"]
    assert item["title"] == "The hello case"
    [found] = alice.call("sessions.list", search="The hello case")["items"]
    assert found["metadata"]["shared"]["session"] == {"id": session, "title": "The hello case"}
    blank = {"title": " \n "}
    field = alice.refused_field("sessions.rename", session_id=session, request=blank)
    assert field == "request.title"


def test_the_context_of_a_deleted_session_goes_on_in_a_new_one(alice: Line, inside: Inside) -> None:
    context = fresh()
    task = alice.converse(f"{sub_agent('hello')} go", context)
    session = session_of(task)
    [child] = alice.call("sessions.children", session_id=session)["items"]
    assert alice.call("sessions.delete", session_id=session) == {"ok": True}
    for gone in (session, child["id"]):
        for method in ("sessions.get", "sessions.delete"):
            assert alice.refused(method, session_id=gone)["type"] == "SESSION_NOT_FOUND"
        assert inside.get(gone) is None
    assert alice.session("again", context) != session
    kept = alice.ask("GetTask", {"id": task["id"]}, **V1)["result"]
    assert kept["status"]["state"] == "TASK_STATE_COMPLETED"


# -- refusals


@pytest.mark.parametrize(
    ("method", "more", "field"),
    [
        ("diff", {"message_id": NO_MESSAGE}, "message_id"),
        ("messages.get", {"message_id": NO_MESSAGE}, "message_id"),
        ("fork", {"request": {"messageID": NO_MESSAGE}}, "request.messageID"),
        ("revert", {"request": {"messageID": NO_MESSAGE}}, "request.messageID"),
        ("summarize", {"request": NO_MODEL}, "request"),
        ("shell", {"request": {"agent": "nobody", "command": "true"}}, "request.agent"),
        (
            "shell",
            {"request": {"agent": "build", "command": "true", "model": NO_MODEL}},
            "request.model",
        ),
        ("command", {"request": {"command": "nonsense"}}, "request.command"),
        ("command", {"request": {"command": "shout", "agent": "x"}}, "request.agent"),
        ("command", {"request": {"command": "shout", "model": NO_MODEL}}, "request.model"),
        ("command", {"request": {"command": "shout", "variant": "x"}}, "request.variant"),
        ("prompt_async", {"request": {"parts": [TEXT], "variant": "x"}}, "request.variant"),
        ("prompt_async", {"request": {"parts": [TEXT], "agent": "x"}}, "request.agent"),
        ("prompt_async", {"request": {"parts": [TEXT], "model": NO_MODEL}}, "request.model"),
        ("prompt_async", {"request": {"parts": []}}, "request.parts"),
        ("prompt_async", {"request": {"parts": [TEXT], "format": {}}}, "request.format"),
        ("get", {"surplus": 1}, "surplus"),
        ("messages.list", {"limit": 101}, "limit"),
    ],
)
def test_what_does_not_exist_is_named_before_opencode_is_asked(
    alice: Line, talk: Json, method: str, more: Json, field: str
) -> None:
    params = {"session_id": talk["session"], **more}
    assert alice.refused_field(f"sessions.{method}", **params) == field


def test_a_near_name_is_suggested(alice: Line, talk: Json) -> None:
    error = alice.refused("sessions.summarize", session_id=talk["session"], request=NO_MODEL)
    assert "demo/demo" in error["fields"]["request"]


def test_switched_off_the_shell_says_which_setting_would_help(plain: Line) -> None:
    request = {"agent": "build", "command": "true"}
    error = plain.refused("sessions.shell", session_id=NOWHERE, request=request)
    assert (error["type"], error["setting"]) == ("METHOD_DISABLED", "A2A_ENABLE_SESSION_SHELL")
