"""Every method about sessions, on the real OpenCode, over JSON-RPC."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Any

import httpx
import pytest

from opencode_a2a.extensions.declared import STREAM_HINTS
from tests.extensions.conftest import SNAPSHOTS, Inside, Json, Line
from tests.running import Service

NOWHERE = "ses_doesNotExist000000000000"
NO_MESSAGE = "msg_doesNotExist000000000000"
MODEL = {"providerID": "demo", "modelID": "demo"}
NO_MODEL = {"providerID": "demo", "modelID": "demon"}


def fresh() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def talk(alice: Line) -> Json:
    """A conversation of two turns; the second wrote a file and made plans."""
    context = fresh()
    alice.converse("first", context)
    todos = [{"content": "plan it", "status": "in_progress", "priority": "high"}]
    write = {"filePath": "made.txt", "content": "one line\n"}
    plans = f"[[tool:todowrite {json.dumps({'todos': todos})}]]"
    task = alice.converse(f"{plans}[[tool:write {json.dumps(write)}]] second", context)
    session: str = task["metadata"]["shared"]["session"]["id"]
    messages = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    prompts = [m["messageId"] for m in messages if m["role"] == "user"]
    return {"session": session, "context": context, "messages": messages, "prompts": prompts}


def texts(message: Json) -> list[str]:
    return [part["text"] for part in message["parts"] if part["kind"] == "text"]


# -- reading


def test_a_session_is_shown_as_a_completed_task(alice: Line, talk: Json) -> None:
    item = alice.call("opencode.sessions.get", session_id=talk["session"])["item"]
    assert (item["kind"], item["id"]) == ("task", talk["session"])
    assert item["contextId"] == talk["context"]
    assert item["status"]["state"] == "completed"
    assert item["metadata"]["shared"]["session"] == {"id": talk["session"], "title": "first"}


def test_the_context_of_a_listed_session_continues_it(
    alice: Line, bob: Line, inside: Inside, talk: Json
) -> None:
    session, context = talk["session"], fresh()
    own = alice.session("one", context)
    listed = {item["id"]: item for item in alice.call("opencode.sessions.list", limit=100)["items"]}
    assert listed[session]["contextId"] == talk["context"]
    assert alice.session("two", listed[own]["contextId"]) == own
    messages = alice.call("opencode.sessions.messages.list", session_id=own)["items"]
    assert {message["contextId"] for message in messages} == {context}
    params = {"session_id": own, "message_id": messages[0]["messageId"]}
    assert alice.call("opencode.sessions.messages.get", **params)["item"]["contextId"] == context
    unreverted = alice.call("opencode.sessions.unrevert", session_id=own)["item"]
    assert unreverted["context_id"] == context
    forked = alice.call("opencode.sessions.fork", session_id=own)["item"]
    assert forked["context_id"] == f"ctx:opencode-session:{forked['id']}"
    nobodys = inside.session("by hand")
    for who in (alice, bob):
        item = who.call("opencode.sessions.get", session_id=nobodys)["item"]
        assert item["contextId"] == f"ctx:opencode-session:{nobodys}"
    assert context not in json.dumps(bob.call("opencode.sessions.list", limit=100))


def test_both_lines_read_it_in_their_own_words(alice: Line, talk: Json) -> None:
    params = {"session_id": talk["session"]}
    answer = alice.ask("opencode.sessions.get", params, **{"a2a-version": "1.0"})
    assert answer["result"]["item"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "kind" not in answer["result"]["item"]


def test_sessions_are_listed_latest_first(alice: Line, talk: Json) -> None:
    newer = alice.session("newer", fresh())
    listed = [item["id"] for item in alice.call("opencode.sessions.list")["items"]]
    assert listed.index(newer) < listed.index(talk["session"])
    assert [i["id"] for i in alice.call("opencode.sessions.list", limit=1)["items"]] == listed[:1]
    found = alice.call("opencode.sessions.list", search="newer")["items"]
    assert [item["id"] for item in found] == [newer]
    assert alice.call("opencode.sessions.list", start=9_999_999_999_999)["items"] == []


def test_a_list_can_be_of_one_directory(alice: Line, inside: Inside) -> None:
    below = inside.workspace / "below"
    below.mkdir(exist_ok=True)
    there = inside.session("below", below)
    for params in (
        {"directory": "below"},
        {"directory": str(below)},
        {"metadata": {"opencode": {"directory": "below"}, "other": {"is": "ignored"}}},
    ):
        listed = alice.call("opencode.sessions.list", **params)["items"]
        assert [item["id"] for item in listed] == [there]
    everywhere = alice.call("opencode.sessions.list", limit=100)["items"]
    assert there in {item["id"] for item in everywhere}


@pytest.mark.parametrize(
    "directory", ["..", "/", "missing", "README.md", "below/../..", "\0", "long" * 2_000]
)
def test_a_directory_outside_the_workspace_is_refused(alice: Line, directory: str) -> None:
    error = alice.refused("opencode.sessions.list", directory=directory)
    assert list(error["fields"]) == ["directory"]


def test_null_in_metadata_is_nothing(alice: Line) -> None:
    for nothing in (None, {"directory": None, "workspace": None}):
        alice.call("opencode.sessions.status", metadata={"opencode": nothing, "shared": None})
    error = alice.refused("opencode.sessions.status", metadata={"opencode": "here"})
    assert error["fields"] == {"metadata.opencode": "must be an object"}


def test_a_list_of_roots_leaves_out_sub_agents(alice: Line) -> None:
    task = {"description": "sub", "prompt": "hello", "subagent_type": "general"}
    session = alice.session(f"[[tool:task {json.dumps(task)}]] go", fresh())
    [child] = alice.call("opencode.sessions.children", session_id=session)["items"]
    all_of_them = {i["id"] for i in alice.call("opencode.sessions.list", limit=100)["items"]}
    roots = {i["id"] for i in alice.call("opencode.sessions.list", limit=100, roots=True)["items"]}
    assert {session, child["id"]} <= all_of_them
    assert session in roots
    assert child["id"] not in roots
    assert alice.call("opencode.sessions.get", session_id=child["id"])["item"]["id"] == child["id"]


def test_the_status_tells_who_is_at_work(alice: Line, inside: Inside) -> None:
    session = alice.session("hello", fresh())
    request = {"parts": [{"type": "text", "text": "[[hangmid:2]]"}]}
    with inside.awaiting("busy", session):
        started = alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    statuses = alice.call("opencode.sessions.status")["items"]
    assert {"session_id": session, "type": "busy"}.items() <= next(
        s for s in statuses if s["session_id"] == session
    ).items()
    attempts: dict[str, Json] = {
        "prompt_async": {"request": request},
        "command": {"request": {"command": "shout"}},
        "shell": {"request": {"agent": "build", "command": "true"}},
        "summarize": {"request": MODEL},
        "revert": {"request": {"messageID": started["message_id"]}},
        "unrevert": {},
        "delete": {},
    }
    for method, more in attempts.items():
        error = alice.refused(f"opencode.sessions.{method}", session_id=session, **more)
        assert error["type"] == "UPSTREAM_BUSY", method
    inside.http.post(f"/session/{session}/abort")
    later = alice.call("opencode.sessions.status", metadata={})["items"]
    assert next(s for s in later if s["session_id"] == session)["type"] == "idle"


def test_the_todos_are_the_agents(alice: Line, talk: Json) -> None:
    items = alice.call("opencode.sessions.todo", session_id=talk["session"])["items"]
    assert items == [{"content": "plan it", "status": "in_progress", "priority": "high"}]


def test_a_diff_is_of_one_message_or_the_latest(alice: Line) -> None:
    context = fresh()
    alice.converse("first", context, SNAPSHOTS)
    write = json.dumps({"filePath": "made.txt", "content": "one line\n"})
    task = alice.converse(f"[[tool:write {write}]] second", context, SNAPSHOTS)
    session = task["metadata"]["shared"]["session"]["id"]
    messages = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    prompts = [m["messageId"] for m in messages if m["role"] == "user"]
    latest = alice.call("opencode.sessions.diff", session_id=session)["items"]
    assert [(c["file"], c["additions"], c["status"]) for c in latest] == [
        (f"{SNAPSHOTS}/made.txt", 1, "added")
    ]
    assert "+one line" in latest[0]["patch"]
    named = alice.call("opencode.sessions.diff", session_id=session, message_id=prompts[1])
    assert named["items"] == latest
    first = alice.call("opencode.sessions.diff", session_id=session, message_id=prompts[0])
    assert first["items"] == []


def test_an_empty_session_has_no_diff_and_no_messages(alice: Line, inside: Inside) -> None:
    session = inside.session("empty")
    assert alice.call("opencode.sessions.diff", session_id=session)["items"] == []
    listed = alice.call("opencode.sessions.messages.list", session_id=session)
    assert listed == {"items": [], "next_cursor": None}


def test_messages_come_in_pages_from_the_newest_on(alice: Line, talk: Json) -> None:
    seen: list[Json] = []
    cursor: dict[str, Any] = {}
    while True:
        page = alice.call(
            "opencode.sessions.messages.list", session_id=talk["session"], limit=2, **cursor
        )
        assert 0 < len(page["items"]) <= 2
        seen = [*page["items"], *seen]
        if page["next_cursor"] is None:
            break
        cursor = {"before": page["next_cursor"]}
    assert [m["messageId"] for m in seen] == [m["messageId"] for m in talk["messages"]]
    assert texts(seen[0]) == ["first"]
    assert texts(seen[1]) == ["ECHO: first"]
    tools = [
        part["data"]
        for message in seen
        for part in message["parts"]
        if part.get("metadata", {}).get("shared", {}).get("stream") == {"block_type": "tool_call"}
    ]
    assert [(t["tool"], t["status"]) for t in tools] == [
        ("todowrite", "completed"),
        ("write", "completed"),
    ]


def test_one_message_is_the_same_as_in_the_list(alice: Line, talk: Json) -> None:
    one = talk["messages"][1]
    found = alice.call(
        "opencode.sessions.messages.get",
        session_id=talk["session"],
        message_id=one["messageId"],
    )
    assert found["item"] == one
    assert one["metadata"]["opencode"]["model"] == "demo/demo"


@pytest.mark.parametrize("cursor", ["nonsense", "?limit=1", "../..", "eyJ9"])
def test_a_cursor_that_is_none_is_named(alice: Line, talk: Json, cursor: str) -> None:
    error = alice.refused(
        "opencode.sessions.messages.list", session_id=talk["session"], before=cursor
    )
    assert list(error["fields"]) == ["before"]


# -- control


def test_a_prompt_returns_at_once_and_its_answer_is_in_the_messages(
    alice: Line, inside: Inside
) -> None:
    session = alice.session("hello", fresh())
    request = {
        "parts": [
            {"type": "text", "text": "look at this"},
            {"type": "file", "mime": "text/plain", "url": "data:text/plain,some%20words"},
            {"type": "file", "mime": "text/markdown", "url": "data:;base64,aGk=", "filename": "a"},
        ],
        "model": MODEL,
        "agent": "plan",
        "variant": "low",
        "system": "Be kind.",
    }
    with inside.awaiting("session.idle", session):
        done = alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    assert done["session_id"] == session
    items = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    asked = next(m for m in items if m["messageId"] == done["message_id"])
    assert texts(asked) == ["look at this"]
    files = [part["file"] for part in asked["parts"] if part["kind"] == "file"]
    assert [f["bytes"] for f in files] == ["c29tZSB3b3Jkcw==", "aGk="]
    assert asked["metadata"]["opencode"]["agent"] == "plan"
    assert items[-1]["role"] == "agent"


def test_a_message_nobody_answers_is_only_added(alice: Line, inside: Inside) -> None:
    session = alice.session("hello", fresh())
    request = {"parts": [{"type": "text", "text": "know this"}], "noReply": True}
    with inside.awaiting("message.part.updated", session):
        alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    items = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    assert texts(items[-1]) == ["know this"]


def test_a_sub_agent_can_be_named_or_sent(alice: Line, inside: Inside) -> None:
    session = alice.session("hello", fresh())
    for part in (
        {"type": "agent", "name": "general"},
        {"type": "subtask", "prompt": "hi", "description": "greet", "agent": "general"},
    ):
        request = {"parts": [{"type": "text", "text": "go"}, part]}
        with inside.awaiting("session.idle", session):
            alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    children = alice.call("opencode.sessions.children", session_id=session)["items"]
    assert len(children) == 1


def test_a_tool_can_be_taken_away_but_not_given(alice: Line, inside: Inside) -> None:
    session = alice.session("hello", fresh())
    request: Json = {"parts": [{"type": "text", "text": "x"}], "noReply": True}
    request["tools"] = {"bash": False}
    alice.call("opencode.sessions.prompt_async", session_id=session, request=request)
    rules = inside.http.get(f"/session/{session}").json()["permission"]
    assert {"permission": "bash", "pattern": "*", "action": "deny"} in rules
    request["tools"] = {"bash": True}
    asked = {"session_id": session, "request": request, "metadata": {"is": "not used"}}
    error = alice.refused("opencode.sessions.prompt_async", **asked)
    assert list(error["fields"]) == ["request.tools.bash"]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "file", "mime": "text/plain", "url": "file:///etc/hostname"}, "request.parts[0]"),
        ({"type": "file", "mime": "text/plain", "url": "http://127.0.0.1:1/x"}, "request.parts[0]"),
        ({"type": "file", "mime": "text/plain", "url": "data:;base64,*"}, "request.parts[0]"),
        ({"type": "agent", "name": "nobody"}, "request.parts[0].name"),
        (
            {"type": "subtask", "prompt": "x", "description": "x", "agent": "nobody"},
            "request.parts[0].agent",
        ),
        ({"type": "text", "text": "x", "id": "prt_1"}, "request.parts[0].text.id"),
        ({"type": "nonsense"}, "request.parts[0]"),
    ],
)
def test_a_part_that_cannot_be_handed_on_is_named(
    alice: Line, talk: Json, part: Json, field: str
) -> None:
    error = alice.refused(
        "opencode.sessions.prompt_async", session_id=talk["session"], request={"parts": [part]}
    )
    assert list(error["fields"]) == [field]


def test_a_file_of_an_unreadable_kind_is_refused(alice: Line, talk: Json) -> None:
    part = {"type": "file", "mime": "application/zip", "url": "data:;base64,aGk="}
    for method, request in {
        "prompt_async": {"parts": [part]},
        "command": {"command": "shout", "parts": [part]},
    }.items():
        error = alice.refused(
            f"opencode.sessions.{method}", session_id=talk["session"], request=request
        )
        assert error["type"] == "CONTENT_TYPE_NOT_SUPPORTED"


def test_a_command_is_run_and_answers(alice: Line) -> None:
    session = alice.session("hello", fresh())
    request = {"command": "shout", "arguments": "please", "agent": "build", "model": MODEL}
    item = alice.call("opencode.sessions.command", session_id=session, request=request)["item"]
    assert item["role"] == "agent"
    assert texts(item) == ["LOUD"]


def test_a_shell_command_shows_its_output_and_is_in_the_audit_log(
    alice: Line, full_service: Service
) -> None:
    session = alice.session("hello", fresh())
    secret = f"echo hi; : token={fresh()}"
    request = {"agent": "build", "command": secret}
    item = alice.call("opencode.sessions.shell", session_id=session, request=request)["item"]
    [data] = [part["data"] for part in item["parts"]]
    assert (data["tool"], data["status"], data["output"]) == ("bash", "completed", "hi\n")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    line = full_service.program.wait_for(rf".*audit\.session_shell.*{digest}.*ended.*")[0]
    assert re.search(rf"principal=alice .*session_id={session}|session_id={session}.*=alice", line)
    assert secret not in full_service.program.output


def test_a_session_is_summarized(alice: Line) -> None:
    session = alice.session("hello", fresh())
    done = alice.call("opencode.sessions.summarize", session_id=session, request=MODEL)
    assert done == {"ok": True}


# -- mutation


def test_a_fork_is_the_callers_own(alice: Line, bob: Line, talk: Json) -> None:
    session, prompts = talk["session"], talk["prompts"]
    whole = alice.call("opencode.sessions.fork", session_id=session)["item"]
    assert whole["id"] != session
    assert whole["title"] == "first (fork #1)"
    part = alice.call(
        "opencode.sessions.fork", session_id=session, request={"messageID": prompts[1]}
    )["item"]
    copied = alice.call("opencode.sessions.messages.list", session_id=part["id"])["items"]
    assert [texts(message) for message in copied] == [["first"], ["ECHO: first"]]
    for fork in (whole["id"], part["id"]):
        assert bob.refused("opencode.sessions.get", session_id=fork)["type"] == "SESSION_NOT_FOUND"


def test_a_conversation_goes_on_from_an_earlier_message(alice: Line) -> None:
    """By the ids that the history of its tasks has: in a fork, or in the same one."""
    context = fresh()
    alice.converse("first", context)
    second = alice.converse("second", context)
    headers = {"a2a-version": "1.0", "a2a-extensions": STREAM_HINTS.uri}
    task = alice.ask("GetTask", {"id": second["id"]}, **headers)["result"]
    at = task["history"][0]["metadata"]["opencode"]["message_id"]
    session = task["metadata"]["shared"]["session"]["id"]
    request = {"session_id": session, "request": {"messageID": at}}

    def said(session_id: str) -> list[list[str]]:
        messages = alice.call("opencode.sessions.messages.list", session_id=session_id)["items"]
        return [texts(message) for message in messages]

    before = [["first"], ["ECHO: first"]]
    fork = alice.call("opencode.sessions.fork", **request)["item"]
    alice.converse("another way", fork["context_id"])
    assert said(fork["id"]) == [*before, ["another way"], ["ECHO: another way"]]
    alice.call("opencode.sessions.revert", **request)
    alice.converse("second, better", context)
    assert said(session) == [*before, ["second, better"], ["ECHO: second, better"]]


def test_sharing_that_is_switched_off_says_so(alice: Line, talk: Json) -> None:
    error = alice.refused("opencode.sessions.share", session_id=talk["session"])
    assert error["type"] == "METHOD_DISABLED"
    item = alice.call("opencode.sessions.unshare", session_id=talk["session"])["item"]
    assert item["share_url"] is None


def test_sharing_that_the_environment_forbids_says_so_too(real_service: Service) -> None:
    with httpx.Client(base_url=real_service.url, headers=real_service.headers, timeout=60) as http:
        line = Line(http)
        error = line.refused("opencode.sessions.share", session_id=line.session("hi", fresh()))
        assert error["type"] == "METHOD_DISABLED"


def test_what_was_done_can_be_undone_and_redone(alice: Line, inside: Inside) -> None:
    context = fresh()
    alice.converse("before", context, SNAPSHOTS)
    write = json.dumps({"filePath": "undone.txt", "content": "x\n"})
    task = alice.converse(f"[[tool:write {write}]] now", context, SNAPSHOTS)
    session = task["metadata"]["shared"]["session"]["id"]
    items = alice.call("opencode.sessions.messages.list", session_id=session)["items"]
    target = [m["messageId"] for m in items if m["role"] == "user"][-1]
    made = inside.workspace / SNAPSHOTS / "undone.txt"
    assert made.exists()
    request = {"messageID": target}
    item = alice.call("opencode.sessions.revert", session_id=session, request=request)["item"]
    assert item["reverted_to"] == target
    assert not made.exists()
    item = alice.call("opencode.sessions.unrevert", session_id=session)["item"]
    assert item["reverted_to"] is None
    assert made.exists()


def test_a_session_is_renamed(alice: Line, talk: Json) -> None:
    session = alice.session("hello", fresh())
    request = {"title": "  The  hello\ncase "}
    item = alice.call("opencode.sessions.rename", session_id=session, request=request)["item"]
    assert item["title"] == "The hello case"
    [found] = alice.call("opencode.sessions.list", search="The hello case")["items"]
    assert found["metadata"]["shared"]["session"] == {"id": session, "title": "The hello case"}
    error = alice.refused("opencode.sessions.rename", session_id=session, request={"title": " \n "})
    assert list(error["fields"]) == ["request.title"]


def test_the_context_of_a_deleted_session_goes_on_in_a_new_one(alice: Line, inside: Inside) -> None:
    context = fresh()
    sub = {"description": "sub", "prompt": "hello", "subagent_type": "general"}
    task = alice.converse(f"[[tool:task {json.dumps(sub)}]] go", context)
    session = task["metadata"]["shared"]["session"]["id"]
    [child] = alice.call("opencode.sessions.children", session_id=session)["items"]
    assert alice.call("opencode.sessions.delete", session_id=session) == {"ok": True}
    for gone in (session, child["id"]):
        error = alice.refused("opencode.sessions.get", session_id=gone)
        assert error["type"] == "SESSION_NOT_FOUND"
        assert inside.http.get(f"/session/{gone}").status_code == 404
    error = alice.refused("opencode.sessions.delete", session_id=session)
    assert error["type"] == "SESSION_NOT_FOUND"
    again = alice.converse("again", context)
    assert again["metadata"]["shared"]["session"]["id"] != session
    kept = alice.ask("GetTask", {"id": task["id"]}, **{"a2a-version": "1.0"})["result"]
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
        (
            "prompt_async",
            {"request": {"parts": [{"type": "text", "text": "x"}], "variant": "x"}},
            "request.variant",
        ),
        (
            "prompt_async",
            {"request": {"parts": [{"type": "text", "text": "x"}], "agent": "x"}},
            "request.agent",
        ),
        (
            "prompt_async",
            {"request": {"parts": [{"type": "text", "text": "x"}], "model": NO_MODEL}},
            "request.model",
        ),
        ("prompt_async", {"request": {"parts": []}}, "request.parts"),
        (
            "prompt_async",
            {"request": {"parts": [{"type": "text", "text": "x"}], "format": {"type": "text"}}},
            "request.format",
        ),
        ("get", {"surplus": 1}, "surplus"),
        ("messages.list", {"limit": 101}, "limit"),
    ],
)
def test_what_does_not_exist_is_named_before_opencode_is_asked(
    alice: Line, talk: Json, method: str, more: Json, field: str
) -> None:
    error = alice.refused(f"opencode.sessions.{method}", session_id=talk["session"], **more)
    assert (error["type"], list(error["fields"])) == ("INVALID_PARAMS", [field])


def test_a_near_name_is_suggested(alice: Line, talk: Json) -> None:
    error = alice.refused(
        "opencode.sessions.summarize", session_id=talk["session"], request=NO_MODEL
    )
    assert "demo/demo" in error["fields"]["request"]


def test_switched_off_the_shell_says_which_setting_would_help(plain: Line) -> None:
    request = {"agent": "build", "command": "true"}
    error = plain.refused("opencode.sessions.shell", session_id=NOWHERE, request=request)
    assert (error["type"], error["setting"]) == ("METHOD_DISABLED", "A2A_ENABLE_SESSION_SHELL")
