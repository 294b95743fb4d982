"""Two callers and an admin: what each can see and stop of the others', by every method."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from opencode_a2a.extensions import ALL
from opencode_a2a.inbound.operations import A2A
from tests.access.conftest import Guarded
from tests.api.forms import RPC_1
from tests.named import is_test
from tests.watching import Page

Json = dict[str, Any]
ERROR = {"1.0": lambda e: e["data"][0]["reason"], "0.3": lambda e: e["data"]["type"]}


def rpc(guarded: Guarded, token: str, method: str, params: Json) -> Json:
    """The answer to a method; of a stream its first event."""
    headers = {"authorization": f"Bearer {token}"}
    if method[0].isupper():
        headers["A2A-Version"] = "1.0"
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with httpx.stream("POST", guarded.url, json=body, headers=headers, timeout=60) as response:
        if response.headers["content-type"].startswith("text/event-stream"):
            line = next(each for each in response.iter_lines() if each.startswith("data:"))
            found: Json = json.loads(line[5:])
            return found
        response.read()
        answer: Json = response.json()
        return answer


def send(guarded: Guarded, token: str, text: str) -> Json:
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    wait = {"configuration": {"returnImmediately": True}}
    task: Json = rpc(guarded, token, "SendMessage", {"message": message, **wait})["result"]["task"]
    return task


@pytest.fixture
def hers(guarded: Guarded) -> Iterator[Json]:
    """A task of Alice's that is being worked on."""
    task = send(guarded, "alice-token", "[[hang]] hello")
    yield task
    rpc(guarded, "alice-token", "CancelTask", {"id": task["id"]})


def push(task: Json) -> Json:
    return {"taskId": task["id"], "id": "x", "url": "https://example.com"}


def old_push(task: Json) -> Json:
    return {"id": task["id"], "pushNotificationConfigId": "x"}


def message_to(task: Json, *, old: bool) -> Json:
    part = {"kind": "text", "text": "x"} if old else {"text": "x"}
    role = "user" if old else "ROLE_USER"
    message = {"messageId": "m", "role": role, "parts": [part], "taskId": task["id"]}
    return {"message": message | ({"kind": "message"} if old else {})}


# Each method of A2A, with the parameters that name a task of Alice's.
ABOUT: dict[str, Callable[[Json], Json]] = {
    "SendMessage": lambda task: message_to(task, old=False),
    "SendStreamingMessage": lambda task: message_to(task, old=False),
    "message/send": lambda task: message_to(task, old=True),
    "message/stream": lambda task: message_to(task, old=True),
    **dict.fromkeys(("GetTask", "CancelTask", "SubscribeToTask"), lambda task: {"id": task["id"]}),
    **dict.fromkeys(
        ("tasks/get", "tasks/cancel", "tasks/resubscribe"), lambda task: {"id": task["id"]}
    ),
    "ListTasks": lambda task: {"contextId": task["contextId"]},
    **dict.fromkeys((name for name in A2A.methods if "Push" in name), push),
    **dict.fromkeys((name for name in A2A.methods if "/push" in name), old_push),
    "tasks/pushNotificationConfig/set": lambda task: {
        "taskId": task["id"],
        "pushNotificationConfig": {"url": "https://example.com"},
    },
    **dict.fromkeys(
        ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"), lambda task: {}
    ),
}
TO_EVERYBODY = {"GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"}
ADMINS = ("GetTask", "SubscribeToTask", "CancelTask", "tasks/get", "tasks/resubscribe")


def test_the_table_has_every_method() -> None:
    assert sorted(ABOUT) == sorted(A2A.methods)


@pytest.mark.parametrize("method", sorted(set(ABOUT) - TO_EVERYBODY))
def test_a_task_of_another_does_not_exist(guarded: Guarded, hers: Json, method: str) -> None:
    answer = rpc(guarded, "bob-token", method, ABOUT[method](hers))
    if method == "ListTasks":
        assert answer["result"]["tasks"] == []
        return
    reason = ERROR["1.0" if method[0].isupper() else "0.3"](answer["error"])
    assert reason == "TASK_NOT_FOUND"
    unchanged = rpc(guarded, "alice-token", "GetTask", {"id": hers["id"]})["result"]
    assert unchanged["status"]["state"] in ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED")


@pytest.mark.parametrize("method", ADMINS)
def test_an_admin_has_it_and_the_log_says_so(guarded: Guarded, hers: Json, method: str) -> None:
    answer = rpc(guarded, "ops-token", method, {"id": hers["id"]})
    assert hers["id"] in json.dumps(answer["result"])
    said = rf"event=audit\.admin principal=ops .*target={hers['id']} owner=alice"
    guarded.service.program.wait_for(said)


def test_an_admin_lists_the_tasks_of_one_or_of_everybody(guarded: Guarded, hers: Json) -> None:
    his = send(guarded, "bob-token", "hello")

    def listed(token: str, **params: str) -> dict[str, Json]:
        tasks = rpc(guarded, token, "ListTasks", {"pageSize": 100, **params})["result"]["tasks"]
        return {task["id"]: task for task in tasks}

    everybody = listed("ops-token", principal="*")
    assert everybody[hers["id"]]["metadata"]["opencode"]["principal"] == "alice"
    assert everybody[his["id"]]["metadata"]["opencode"]["principal"] == "bob"
    alices = listed("ops-token", principal="alice")
    assert hers["id"] in alices
    assert his["id"] not in alices
    assert listed("ops-token") == {}  # its own
    assert hers["id"] in listed("alice-token", principal="alice")
    said = r"event=audit\.admin principal=ops action=.list tasks. .*owner=\*"
    guarded.service.program.wait_for(said)


def test_an_admin_watches_the_tasks_of_one_or_of_everybody(guarded: Guarded, hers: Json) -> None:
    login = {"authorization": "Bearer ops-token"}
    with httpx.Client(base_url=guarded.url, headers=login, timeout=60) as admin:
        for whose in ("*", "alice"):
            page = Page(RPC_1)
            with page.watching(admin, principal=whose, follow={"tasks": [hers["id"]]}) as results:
                while not page.is_ready:
                    next(results)
                his = send(guarded, "bob-token", f"hello {whose}")
                while whose == "*" and his["id"] not in page.summaries:
                    next(results)
            summary = page.summaries[hers["id"]]
            assert summary["metadata"]["opencode"]["principal"] == "alice"
            assert hers["id"] in page.texts
            assert (his["id"] in page.summaries) is (whose == "*")
        own = Page(RPC_1)
        own.until(admin, lambda: own.is_ready)
        assert own.summaries == {}
    said = r"event=audit\.admin principal=ops action=.watch tasks. .*owner=\*"
    guarded.service.program.wait_for(said)


@pytest.mark.parametrize("whose", ["*", "alice", "nobody"])
def test_nobody_else_can_ask_for_the_tasks_of_others(guarded: Guarded, whose: str) -> None:
    answer = rpc(guarded, "bob-token", "ListTasks", {"principal": whose})
    assert ERROR["1.0"](answer["error"]) == "AUTHORIZATION_FORBIDDEN"
    assert answer["error"]["data"][0]["metadata"]["required_scope"] == "admin"
    refused = guarded.get(f"/tasks?principal={whose}", "bob-token", A2A_Version="1.0")
    assert refused.status_code == 403


def test_an_admin_can_send_nothing_and_continue_nothing(guarded: Guarded, hers: Json) -> None:
    for method in ("SendMessage", "SendStreamingMessage", "message/send", "message/stream"):
        error = rpc(guarded, "ops-token", method, ABOUT[method](hers))["error"]
        assert ERROR["1.0" if method[0].isupper() else "0.3"](error) == "AUTHORIZATION_FORBIDDEN"


def test_who_is_only_admin_has_no_other_method(guarded: Guarded) -> None:
    for method in ("opencode.sessions.list", "opencode.permissions.list", "opencode.models.list"):
        error = rpc(guarded, "ops-token", method, {})["error"]
        assert ERROR["0.3"](error) == "AUTHORIZATION_FORBIDDEN"


# -- methods of extensions

SESSIONS = "tests/extensions/test_access.py::test_a_session_of_another_does_not_exist"
SESSION_LISTS = "tests/extensions/test_access.py::test_lists_show_ones_own_only"
WORKTREES = (
    "tests/extensions/test_worktrees.py::test_what_one_caller_had_made_does_not_exist_for_another"
)
FINISH = "tests/extensions/test_isolation.py::test_a_whole_round_of_an_isolated_context"
REQUESTS = (
    "tests/access/test_two_callers.py::test_what_the_agent_asks_one_caller_is_not_for_another"
)
USAGE = (
    "tests/api/test_limits.py::test_nobody_sees_what_others_have_used_unless_the_credential_says_so"
)
DEAD_LETTERS = (
    "tests/api/test_push.py::test_what_nobody_takes_in_time_is_a_dead_letter_and_can_be_sent_again"
)
NODES = "tests/access/test_two_callers.py::test_only_an_admin_sees_and_drains_nodes"
WATCHING = "tests/api/test_watch.py::test_another_callers_tasks_do_not_exist"
METHODS = {method.name: method for extension in ALL for method in extension.methods}
# Methods that name nothing of anybody's: what they answer is the same for all, or new.
SAME_FOR_ALL = {
    *("opencode.providers.list", "opencode.models.list", "opencode.agents.list"),
    *("opencode.commands.list", "opencode.projects.list", "opencode.projects.current"),
    *("opencode.workspaces.create", "opencode.worktrees.create"),
}
SHOWN_BY = {
    **{name: SESSIONS for name, m in METHODS.items() if "session_id" in m.params.model_fields},
    "opencode.sessions.list": SESSION_LISTS,
    "opencode.sessions.status": SESSION_LISTS,
    **dict.fromkeys((n for n in METHODS if n.startswith("a2a.interrupt.")), REQUESTS),
    "opencode.permissions.list": REQUESTS,
    "opencode.questions.list": REQUESTS,
    "opencode.workspaces.list": WORKTREES,
    "opencode.workspaces.remove": WORKTREES,
    "opencode.worktrees.list": WORKTREES,
    "opencode.worktrees.remove": WORKTREES,
    "opencode.worktrees.reset": WORKTREES,
    "opencode.worktrees.finish": FINISH,
    "opencode.usage.get": USAGE,
    "opencode.push.deadletters.list": DEAD_LETTERS,
    "opencode.push.deadletters.redeliver": DEAD_LETTERS,
    "opencode.tasks.watch": WATCHING,
    **dict.fromkeys((n for n in METHODS if n.startswith("opencode.nodes.")), NODES),
}


def test_only_an_admin_sees_and_drains_nodes(guarded: Guarded) -> None:
    (node,) = rpc(guarded, "ops-token", "opencode.nodes.list", {})["result"]["items"]
    assert (node["state"], node["answers"]) == ("running", True)
    error = rpc(guarded, "bob-token", "opencode.nodes.list", {})["error"]
    assert ERROR["0.3"](error) == "AUTHORIZATION_FORBIDDEN"
    # The only node of a service without a server is stopped by whoever started it.
    for method in ("opencode.nodes.drain", "opencode.nodes.resume"):
        error = rpc(guarded, "ops-token", method, {"node": node["name"]})["error"]
        assert ERROR["0.3"](error) == "METHOD_DISABLED"
        assert error["data"]["setting"] == "A2A_TASK_STORE_DATABASE_URL"


def test_for_every_method_a_test_tries_it_on_what_is_anothers() -> None:
    assert sorted({*SHOWN_BY, *SAME_FOR_ALL}) == sorted(METHODS)
    assert not [test for test in SHOWN_BY.values() if not is_test(test)]


@pytest.mark.parametrize(
    ("asks", "listed", "answers"),
    [
        (
            "[[permission]]",
            "opencode.permissions.list",
            {"a2a.interrupt.permission.reply": {"reply": "once"}},
        ),
        (
            "[[question]]",
            "opencode.questions.list",
            {
                "a2a.interrupt.question.reply": {"answers": [["yes"]]},
                "a2a.interrupt.question.reject": {},
            },
        ),
    ],
)
def test_what_the_agent_asks_one_caller_is_not_for_another(
    guarded: Guarded, asks: str, listed: str, answers: dict[str, Json]
) -> None:
    message = {"messageId": asks, "role": "ROLE_USER", "parts": [{"text": asks}]}
    task = rpc(guarded, "alice-token", "SendMessage", {"message": message})["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    [request] = rpc(guarded, "alice-token", listed, {})["result"]["items"]
    assert rpc(guarded, "bob-token", listed, {})["result"]["items"] == []
    for method, params in answers.items():
        named = {"request_id": request["request_id"], **params}
        error = rpc(guarded, "bob-token", method, named)["error"]
        assert ERROR["0.3"](error) == "INTERRUPT_REQUEST_NOT_FOUND"
    still = rpc(guarded, "alice-token", "GetTask", {"id": task["id"]})["result"]
    assert still["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    rpc(guarded, "ops-token", "CancelTask", {"id": task["id"]})
