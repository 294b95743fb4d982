"""What becomes of a decision when something else happens: time, others, restarts, rules."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from a2a.types.a2a_pb2 import Task

from tests.e2e.asks import (
    INTERACTIVE,
    Callbacks,
    Mark,
    bash,
    data,
    interrupt,
    reply,
    request_id,
    sub_agent,
    tool,
)
from tests.e2e.behind import Behind
from tests.e2e.clients import LINES, PythonClient, Refusal, ask
from tests.e2e.seen import PATIENCE, answer, error, reaches, says, shared, state
from tests.features import is_2, require, tool_name
from tests.running import Service, Upstream, real_opencode, service

LINE = LINES[0]
GONE, EXPIRED = -32052, -32053
NAME = {"question": "What name?", "header": "Name", "options": []}
QUESTION = tool("question", questions=[NAME])
DENIED = "Permission denied: shell" if is_2() else "specified a rule which prevents"


async def until(client: PythonClient, task: Task, *states: str) -> Task:
    async with asyncio.timeout(2 * PATIENCE):  # OpenCode may have to start again
        while state(task) not in states:
            await asyncio.sleep(0.05)
            task = await client.get(task.id)
    return task


async def until_ready(running: Service) -> None:
    """Until the service hears OpenCode, which may have to start again."""
    async with asyncio.timeout(2 * PATIENCE), httpx.AsyncClient(timeout=60) as http:
        while (await http.get(f"{running.url}/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def parties(
    asking_opencode: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Two callers, and what they allow for good goes to OpenCode itself."""
    known = [
        {"scheme": "bearer", "principal": who, "token": f"{who}-token"} for who in ("alice", "bob")
    ]
    settings = {
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps(known),
        "A2A_PERMISSION_ALWAYS": "workspace",
    }
    with service(asking_opencode, tmp_path_factory.mktemp("parties"), **settings) as running:
        yield running


@asynccontextmanager
async def acting_as(who: str, parties: Service) -> AsyncIterator[tuple[PythonClient, Callbacks]]:
    theirs = replace(parties, token=f"{who}-token")
    async with PythonClient.connect(theirs, LINE) as client, Callbacks.of(theirs) as callbacks:
        yield client, callbacks


# -- who


async def test_what_another_caller_is_asked_does_not_exist(
    parties: Service, asking_opencode: Upstream
) -> None:
    mark = Mark(asking_opencode)
    async with (
        acting_as("alice", parties) as (alice, hers),
        acting_as("bob", parties) as (bob, his),
    ):
        paused, asked = await asyncio.gather(alice.send(ask(str(mark))), alice.send(ask(QUESTION)))
        permission, question = request_id(paused), request_id(asked)
        listed = await hers.pending()
        assert [item["request_id"] for item in listed] == [permission, question]
        assert [item["interrupt_type"] for item in listed] == ["permission", "question"]
        assert [item["task_id"] for item in listed] == [paused.id, asked.id]
        assert listed[0]["session_id"] == shared(paused)["session"]["id"]
        assert listed[0]["context_id"] == paused.context_id
        assert listed[0]["details"] == shared(paused)["interrupt"]["details"]
        assert listed[0]["expires_at"] == shared(paused)["interrupt"]["expires_at"]
        assert await his.pending() == []
        nowhere = await his.permit("per_nowhere", "once")
        for refused in (
            await his.permit(permission, "once"),
            await his.answer(question, ["Eve"]),
            await his.dismiss(question),
        ):
            assert (refused["code"], refused["message"]) == (GONE, nowhere["message"])
        for content in ("yes", data({"reply": "once", "request_id": permission})):
            with pytest.raises(Refusal) as refusal:
                await bob.send(reply(paused, content))
            assert refusal.value.code == -32001
        assert not mark.made
        assert (await hers.permit(permission, "once"))["ok"]
        assert (await hers.answer(question, ["Ada"]))["ok"]
        done, named = (
            await until(alice, paused, "completed"),
            await until(alice, asked, "completed"),
        )
        assert (state(done), mark.made) == ("completed", True)
        assert "Ada" in answer(named)
        assert await hers.pending() == []
        assert (await hers.permit(permission, "reject"))["code"] == GONE


async def test_passed_through_always_holds_for_everybody_in_the_workspace(
    parties: Service, asking_service: Service
) -> None:
    require("shared_always")
    command = bash("printf passed-through")
    async with acting_as("alice", parties) as (alice, _), acting_as("bob", parties) as (bob, _):
        paused = await alice.send(ask(command))
        assert state(await alice.send(reply(paused, "always"))) == "completed"
        assert state(await bob.send(ask(command))) == "completed", "as the setting says"


async def test_always_does_not_reach_opencode_itself(
    asking_service: Service, parties: Service, behind_asking: Behind
) -> None:
    async with (
        PythonClient.connect(asking_service, LINE) as client,
        acting_as("bob", parties) as (bob, _),
    ):
        paused = await client.send(ask(bash("expr 1 + 1")))
        assert state(await client.send(reply(paused, "always"))) == "completed"
        same = await client.send(ask(bash("expr 2 + 2"), context=paused.context_id))
        assert (state(same), answer(same)) == ("completed", "TOOL RESULT: 4\n")
        more = await client.send(ask(bash("expr 2 + 2 && date"), context=paused.context_id))
        assert state(more) == "input-required", "every command of a line must be allowed"
        await client.cancel(more.id)
        lines = await client.send(ask(bash("expr 2 + 2\ndate"), context=more.context_id))
        assert state(lines) == "input-required", "every line, too"
        await client.cancel(lines.id)
        for other, context in ((client, ""), (bob, paused.context_id)):
            asked = await other.send(ask(bash("expr 3 + 3"), context=context))
            assert state(asked) == "input-required"
            await other.cancel(asked.id)
    assert await behind_asking.saved() == []


# -- time


async def test_what_nobody_decides_in_time_is_refused(
    asking_opencode: Upstream, behind_asking: Behind, tmp_path: Path
) -> None:
    mark = Mark(asking_opencode)
    with service(asking_opencode, tmp_path, A2A_INTERRUPT_REQUEST_TTL_SECONDS="1.5") as hasty:
        async with (
            PythonClient.connect(hasty, LINE, a2a_extensions=INTERACTIVE) as client,
            Callbacks.of(hasty) as callbacks,
            client.stream(ask(str(mark))) as stream,
            client.stream(ask(QUESTION)) as asking,
        ):
            asked = interrupt(await stream.until(reaches("input-required")))
            unanswered = interrupt(await asking.until(reaches("input-required")))
            event = await stream.until(interrupt)
            assert (interrupt(event)["phase"], interrupt(event)["resolution"]) == (
                "resolved",
                "expired",
            )
            done = await stream.rest()
            assert state(done) == "completed", "the agent is told, and goes on without it"
            assert "Nobody was there to decide in time." in answer(done)
            failed = await asking.rest()
            assert (state(failed), error(failed)["type"]) == ("failed", "DEADLINE_EXCEEDED")
            assert "A2A_INTERRUPT_REQUEST_TTL_SECONDS" in says(failed)
            assert (await callbacks.permit(asked["request_id"], "once"))["code"] == EXPIRED
            late = await callbacks.answer(unanswered["request_id"], ["Ada"])
            assert late["code"] == EXPIRED
            assert not mark.made
            for task in (done, failed):
                assert await behind_asking.waiting(shared(task)["session"]["id"]) == []
                again = await client.send(ask("hello", context=task.context_id))
                assert answer(again) == "ECHO: hello"


# -- the task ends first


async def test_after_a_cancel_nothing_runs_and_nothing_can_be_allowed(
    asking_service: Service, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    one, two, three = (Mark(asking_opencode) for _ in range(3))
    async with (
        PythonClient.connect(asking_service, LINE) as client,
        Callbacks.of(asking_service) as callbacks,
    ):
        paused = await client.send(ask(f"{one} {two} {sub_agent(str(three))}"))
        nested = await client.send(ask(sub_agent(str(three))))
        for task in (paused, nested):
            assert state(await client.cancel(task.id)) == "canceled"
            assert (await callbacks.permit(request_id(task), "once"))["code"] == GONE
            with pytest.raises(Refusal) as refusal:
                await client.send(reply(task, "yes"))
            assert refusal.value.code == -32004
            assert not await behind_asking.busy(shared(task)["session"]["id"])
            known = [waiting["id"] for waiting in await behind_asking.waiting_anywhere()]
            assert request_id(task) not in known, "a zombie would run when approved"
        again = await client.send(ask("hello", context=paused.context_id))
        assert answer(again) == "ECHO: hello"
        assert [mark.made for mark in (one, two, three)] == [False, False, False]


async def test_what_is_settled_in_opencode_itself_is_reported_as_it_was(
    asking_service: Service, asking_opencode: Upstream, behind_asking: Behind
) -> None:
    one, two = Mark(asking_opencode), Mark(asking_opencode)
    async with (
        PythonClient.connect(asking_service, LINE, a2a_extensions=INTERACTIVE) as client,
        Callbacks.of(asking_service) as callbacks,
        client.stream(ask(f"{one} {two} {QUESTION}")) as stream,
    ):
        for how, kind, body in (
            ("once", "permission", {"reply": "once"}),
            ("reject", "permission", {"reply": "reject", "message": "not so"}),
            ("answered", "question", {"answers": [["Ada"]]}),
        ):
            asked = interrupt(await stream.until(reaches("input-required")))["request_id"]
            [waiting] = [w for w in await behind_asking.waiting_anywhere() if w["id"] == asked]
            if kind == "permission":
                await behind_asking.permit(waiting, **body)
            else:
                await behind_asking.answer(waiting, "Ada")
            told = interrupt(await stream.until(interrupt))
            assert (told["request_id"], told["phase"], told["resolution"]) == (
                asked,
                "resolved",
                how,
            )
            late = await callbacks.call(f"a2a.interrupt.{kind}.reply", request_id=asked, **body)
            assert late["code"] == GONE
        done = await stream.rest()
        assert (state(done), one.made, two.made) == ("completed", True, False)


# -- restarts


async def test_a_killed_service_still_takes_the_answer(
    asking_opencode: Upstream, tmp_path: Path
) -> None:
    one, two, three = (Mark(asking_opencode) for _ in range(3))
    with service(asking_opencode, tmp_path) as first:
        async with PythonClient.connect(first, LINE) as client:
            tasks = [
                await client.send(ask(prompt))
                for prompt in (str(one), sub_agent(str(two)), f"{three} {QUESTION}")
            ]
            assert {state(task) for task in tasks} == {"input-required"}
        first.program.kill()
    with service(asking_opencode, tmp_path) as second:
        async with (
            PythonClient.connect(second, LINE) as client,
            Callbacks.of(second) as callbacks,
        ):
            by_message, by_id, longer = tasks
            listed = await callbacks.pending()
            assert {item["task_id"] for item in listed} == {task.id for task in tasks}
            for task in tasks:
                still = await client.get(task.id)
                assert (state(still), says(still)) == ("input-required", says(task))
            done = await client.send(reply(by_message, "yes"))
            assert (state(done), one.made) == ("completed", True)
            assert (await callbacks.permit(request_id(by_id), "once"))["ok"]
            assert state(await until(client, by_id, "completed")) == "completed"
            assert two.made
            asked = await client.send(reply(longer, "yes"))
            assert (state(asked), three.made) == ("input-required", True)
            assert "Ada" in answer(await client.send(reply(longer, "Ada")))


async def test_a_killed_opencode_ends_the_task_honestly(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    with real_opencode(
        tmp_path / "opencode", permission={"bash": "ask"}, snapshot=False
    ) as upstream:
        # Not in the environment: whoever has the password there is ended together with OpenCode.
        (secrets / "opencode_auth_password").write_text(upstream.password or "")
        nameless, mark = replace(upstream, password=None), Mark(upstream)
        with service(nameless, tmp_path, CREDENTIALS_DIRECTORY=str(secrets)) as running:
            async with (
                PythonClient.connect(running, LINE) as client,
                Callbacks.of(running) as callbacks,
            ):
                paused = await client.send(ask(str(mark)))
                assert state(paused) == "input-required"
                assert upstream.pid is not None
                os.kill(upstream.pid, signal.SIGKILL)
                failed = await until(client, paused, "failed")
                assert error(failed)["type"] == "UPSTREAM_INTERRUPTED"
                assert "same context" in says(failed)
                assert (await callbacks.permit(request_id(paused), "once"))["code"] == GONE
                assert await callbacks.pending() == []
                assert not mark.made
                await until_ready(running)
                again = await client.send(ask("hello", context=paused.context_id))
                assert answer(again) == "ECHO: hello"


# -- rules


async def test_the_rules_of_a_deployment_hold_in_new_sessions(
    opencode: Upstream, behind: Behind, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("from outside\n")
    rules = [
        {"permission": "external_directory", "pattern": f"{tmp_path}/*", "action": "allow"},
        {"permission": "bash", "pattern": "touch *", "action": "ask"},
        {"permission": "bash", "pattern": "uname *", "action": "deny"},
    ]
    with service(opencode, tmp_path, A2A_PERMISSION_RULES=json.dumps(rules)) as ruled:
        async with PythonClient.connect(ruled, LINE) as client:
            allowed = await client.send(ask(tool("read", filePath=f"{tmp_path}/outside.txt")))
            assert state(allowed) == "completed"
            assert "from outside" in answer(allowed)
            assert await behind.rules(shared(allowed)["session"]["id"]) == [
                rule | {"permission": tool_name(rule["permission"])} for rule in rules
            ]
            mark, context = Mark(opencode), allowed.context_id
            asked = await client.send(ask(str(mark), context=context))
            assert (state(asked), mark.made) == ("input-required", False)
            await client.cancel(asked.id)
            denied = await client.send(ask(bash("uname -s"), context=context))
            assert (state(denied), DENIED in answer(denied)) == ("completed", True)


async def test_a_sub_agent_inherits_what_the_rules_of_a_deployment_deny(
    opencode: Upstream, tmp_path: Path
) -> None:
    rules = [
        {"permission": "bash", "pattern": "touch *", "action": "ask"},
        {"permission": "bash", "pattern": "uname *", "action": "deny"},
    ]
    with service(opencode, tmp_path, A2A_PERMISSION_RULES=json.dumps(rules)) as ruled:
        async with PythonClient.connect(ruled, LINE) as client:
            denied = await client.send(ask(sub_agent(bash("uname -s"))))
            assert (state(denied), DENIED in answer(denied)) == ("completed", True)
            # OpenCode 1.x hands only refusals on to a sub-agent: what is to be asked for there,
            # too, belongs into its own configuration. Should this change, say so in the guide.
            mark = Mark(opencode)
            asked = await client.send(ask(sub_agent(str(mark)), context=denied.context_id))
            assert (state(asked), mark.made) == (
                ("input-required", False) if is_2() else ("completed", True)
            )
            if is_2():
                await client.cancel(asked.id)


async def test_the_rules_come_along_to_forks_and_to_sessions_that_are_taken_up(
    opencode: Upstream, behind: Behind, tmp_path: Path
) -> None:
    rules = [{"permission": "bash", "pattern": "*", "action": "ask"}]
    with service(opencode, tmp_path, A2A_PERMISSION_RULES=json.dumps(rules)) as ruled:
        async with (
            PythonClient.connect(ruled, LINE) as client,
            Callbacks.of(ruled) as callbacks,
        ):
            first = await client.send(ask("hello"))
            origin = shared(first)["session"]["id"]
            fork = (await callbacks.call("opencode.sessions.fork", session_id=origin))["item"]["id"]
            for session in (fork, await behind.create("by hand")):
                mark = Mark(opencode)
                task = await client.send(ask(str(mark), context=f"ctx:opencode-session:{session}"))
                assert (state(task), mark.made) == ("input-required", False)
                await client.cancel(task.id)
