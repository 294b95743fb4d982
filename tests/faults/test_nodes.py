"""Nodes on one PostgreSQL, each with its own OpenCode: any of them is asked about anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.opencode import expected_text
from tests.faults.steering import control
from tests.load.client import REST, Client, Refused, Telling, connected, last
from tests.postgres import Postgres
from tests.running import TOKEN, Service, Upstream, fake_opencode, service

CALLER = {
    "scheme": "bearer",
    "token": TOKEN,
    "principal": "ada",
    "scopes": ["tasks:read", "tasks:write", "sessions:read", "admin"],
}


STRANGER = {
    "scheme": "bearer",
    "token": "stranger-" + "x" * 32,
    "principal": "eve",
    "scopes": ["tasks:read", "tasks:write", "sessions:read", "sessions:write"],
}


@dataclass(frozen=True)
class Fleet:
    upstreams: tuple[Upstream, Upstream]
    nodes: tuple[Service, Service]
    restarted: Sequence[Callable[[], AbstractContextManager[Service]]]  # each of the nodes

    async def prompts(self) -> list[int]:
        return [len((await control(each, "stats"))["prompts"]) for each in self.upstreams]

    async def until_prompted(self, times: int) -> list[int]:
        """A task is working a moment before its OpenCode has the prompt."""
        async with asyncio.timeout(120):
            while sum(prompts := await self.prompts()) < times:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return prompts


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.without_tasks()


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Two nodes for one workspace, and their OpenCodes. A lost node is given up soon."""
    with started(url, tmp_path, A2A_NODE_RETURN_SECONDS="2") as found:
        yield found


@contextmanager
def started(url: str, tmp_path: Path, **settings: str) -> Iterator[Fleet]:
    (tmp_path / "work").mkdir()
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    common = {
        "A2A_TASK_STORE_DATABASE_URL": url,
        "OPENCODE_WORKSPACE_ROOT": str(tmp_path / "work"),
        "A2A_STATIC_AUTH_CREDENTIALS": json.dumps([CALLER]),
        **settings,
    }
    own = [
        {**common, "A2A_NODE_NAME": name, "A2A_NODE_LABELS": label}
        for name, label in (("one", "big"), ("two", "gpu"))
    ]
    with (
        fake_opencode(folders[0]) as first,
        fake_opencode(folders[1]) as second,
        service(first, folders[0], **own[0]) as one,
        service(second, folders[1], **own[1]) as two,
    ):
        again = [
            partial(service, upstream, folder, **settings)
            for upstream, folder, settings in zip((first, second), folders, own, strict=True)
        ]
        yield Fleet((first, second), (one, two), again)


async def test_any_node_answers_any_request_about_any_task(fleet: Fleet) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        # A conversation goes on where its session is, whoever is asked.
        first = await here.send("one")
        for client in (there, here, there):
            again = await client.send("more", contextId=first.context)
            assert again.answer == "ECHO: more"
            assert again.session == first.session
        # A task can be steered, answered and canceled anywhere.
        for asked, other in ((here, there), (there, here)):
            waiting = await asked.send("[[permission]]", wait=False)
            await other.until(waiting.id, "input-required")
            await other.send("yes", taskId=waiting.id)
            assert (await asked.until(waiting.id, "completed")).state == "completed"
            hanging = await asked.send("[[hang]]", wait=False)
            await other.until(hanging.id, "working")
            assert (await other.cancel(hanging.id)).state == "canceled"
            with pytest.raises(Refused) as refused:
                await other.cancel(hanging.id)
            assert refused.value.reason == "TASK_NOT_CANCELABLE"
        steered = await here.send("[[tokens:200]] [[rate:100]]", wait=False)
        await there.until(steered.id, "working")
        await there.send("and this", taskId=steered.id, wait=False)
        done = await here.until(steered.id, "completed")
        assert done.answer == "ECHO: and this"
        # So are methods about a session.
        for client in (here, there):
            found = await _call(client, "opencode.sessions.get", session_id=first.session)
            assert found["item"]["metadata"]["shared"]["session"]["id"] == first.session


async def _call(client: Client, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"a2a-version": "1.0"}
    async with client.http.post(client.url + "/", json=body, headers=headers) as response:
        answer = await response.json()
    assert "error" not in answer, answer
    return answer["result"]


def _at(label: str) -> dict[str, Any]:
    return {"opencode": {"node": label}}


async def test_a_caller_names_a_label_or_a_node(fleet: Fleet) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        before = await fleet.prompts()
        first = await there.send("one", metadata=_at("big"))
        for client in (here, there):
            assert (await client.send("more", metadata=_at("gpu"))).answer == "ECHO: more"
            assert (await client.send("more", metadata=_at("two"))).answer == "ECHO: more"
            again = await client.send("again", contextId=first.context, metadata=_at("big"))
            assert again.session == first.session
            with pytest.raises(Refused, match="labels of running nodes are big, gpu") as refused:
                await client.send("nowhere", metadata=_at("huge"))
            assert refused.value.reason == "INVALID_PARAMS"
            with pytest.raises(Refused, match="does not move; use a new context") as refused:
                await client.send("elsewhere", contextId=first.context, metadata=_at("gpu"))
            assert refused.value.reason == "INVALID_PARAMS"
        assert await fleet.prompts() == [before[0] + 3, before[1] + 4]
        await _call(there, "opencode.nodes.drain", node="one")
        assert await asyncio.to_thread(one.program.process.wait, 60) == 0
        with pytest.raises(Refused, match="no node that takes new work has"):
            await there.send("nobody takes it", metadata=_at("big"))


async def test_a_stranger_does_not_learn_that_there_is_a_session_whose_node_is_away(
    url: str, tmp_path: Path
) -> None:
    credentials = json.dumps([CALLER, STRANGER])
    with started(url, tmp_path, A2A_STATIC_AUTH_CREDENTIALS=credentials) as fleet:
        one, two = fleet.nodes
        async with connected(one) as ours, connected(two) as theirs:
            there = theirs[REST]
            first = await ours[REST].send("secret", metadata=_at("one"))
            assert first.session is not None
            one.program.kill()
            await _nodes_once(there, lambda nodes: nodes["one"]["state"] == "gone")
            owned = await _asked(there, CALLER, "opencode.sessions.get", session_id=first.session)
            assert "NODE_UNAVAILABLE" in owned
            nowhere = first.session[:-4] + "0000"
            named, unknown = [await _said_of(there, each) for each in (first.session, nowhere)]
            assert named == unknown
            assert "SESSION_NOT_FOUND" in named[0]


async def _said_of(client: Client, session: str) -> list[str]:
    """What a stranger is told who names a session, in all ways."""
    said = [await _asked(client, STRANGER, "opencode.sessions.get", session_id=session)]
    for message in _messages_to(session):
        said.append(await _asked(client, STRANGER, "SendMessage", message=message))
    return [each.replace(session, "ID") for each in said]


def _messages_to(session: str) -> list[dict[str, Any]]:
    """The ways to name a session in a message."""
    message = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}
    named = {"metadata": {"shared": {"session": {"id": session}}}}
    return [
        {**message, "messageId": f"m-1-{session}", **named},
        {**message, "messageId": f"m-2-{session}", "contextId": f"ctx:opencode-session:{session}"},
    ]


async def _asked(client: Client, caller: dict[str, Any], method: str, **params: Any) -> str:
    """The error that a caller gets."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"a2a-version": "1.0", "authorization": f"Bearer {caller['token']}"}
    async with client.http.post(client.url + "/", json=body, headers=headers) as response:
        return json.dumps((await response.json())["error"], sort_keys=True)


async def test_a_stream_is_the_same_from_every_node(fleet: Fleet) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        task = await ours[REST].send("[[tokens:600]] [[rate:300]]", wait=False)
        async with (
            ours[REST].subscribe(task.id) as near,
            theirs[REST].subscribe(task.id) as far,
        ):
            told = await asyncio.gather(last(near), last(far))
        done = await theirs[REST].get(task.id)
        assert told[0].answer == told[1].answer == expected_text(done.session or "", 600)
        assert told[0].numbers[-1] == told[1].numbers[-1]


async def test_what_a_node_leaves_fails_in_time_and_its_contexts_go_on_elsewhere(
    fleet: Fleet,
) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        contexts = [await client.send("My name is Ada.") for client in (here, there, here, there)]
        stuck = [await here.send("[[hang]]", wait=False) for _ in range(4)]
        await fleet.until_prompted(len(contexts) + len(stuck))
        one.program.kill()
        # Those of the dead node fail, and those of the other one go on hanging.
        states = {task.id: "working" for task in stuck}
        async with asyncio.timeout(200):
            while "failed" not in states.values():
                await asyncio.sleep(0.2)
                states = {task.id: (await there.get(task.id)).state for task in stuck}
        failed = [task.id for task in stuck if states[task.id] == "failed"]
        assert 0 < len(failed) < 4
        assert (await there.get(failed[0])).problem == "UPSTREAM_INTERRUPTED"
        moved = 0
        for first in contexts:
            again = await there.send("What is my name?", contextId=first.context)
            assert again.state == "completed"
            told = "My name is Ada." in again.answer
            assert told is (again.session != first.session)
            moved += told
        assert 0 < moved < 4, "a conversation stays in its session, if that is there"


async def test_every_node_lists_all_nodes(fleet: Fleet) -> None:
    async with connected(fleet.nodes[0]) as ours, connected(fleet.nodes[1]) as theirs:
        here, there = ours[REST], theirs[REST]
        for task in [await here.send("[[hang]]", wait=False) for _ in range(4)]:
            await here.until(task.id, "working")
        found = await _nodes_once(here, lambda nodes: sum(n["load"] for n in nodes.values()) == 4)
        assert {node["state"] for node in found.values()} == {"running"}
        assert found["one"]["opencode"] != found["two"]["opencode"]
        for name, client in (("one", here), ("two", there)):
            said = await _nodes(client)
            assert [each for each, node in said.items() if node["answers"]] == [name]
        fleet.nodes[0].program.kill()
        await _nodes_once(there, lambda nodes: nodes["one"]["state"] == "gone")


async def _nodes_once(
    client: Client, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The nodes by name, once this is true of them."""
    async with asyncio.timeout(60):
        while True:
            found = await _nodes(client)
            if condition(found):
                return found
            await asyncio.sleep(0.2)


async def _nodes(client: Client) -> dict[str, Any]:
    return {node["name"]: node for node in (await _call(client, "opencode.nodes.list"))["items"]}


async def test_sessions_of_all_nodes_are_listed_by_any(fleet: Fleet) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        made = [
            (await here.send(f"number {n}", metadata=_at(name))).session
            for n, name in enumerate(("one", "two", "one", "two"))
        ]
        for client in (here, there):
            found = await _call(client, "opencode.sessions.list")
            assert [item["id"] for item in found["items"]] == made[::-1]
            assert found["missing"] == []
            newest = await _call(client, "opencode.sessions.list", limit=1)
            assert [item["id"] for item in newest["items"]] == made[-1:]
            status = await _call(client, "opencode.sessions.status")
            assert {item["session_id"] for item in status["items"]} == set(made)
        gone = (await _nodes(there))["one"]["opencode"]
        one.program.kill()
        await _nodes_once(there, lambda nodes: nodes["one"]["state"] == "gone")
        found = await _call(there, "opencode.sessions.list")
        assert [item["id"] for item in found["items"]] == [made[3], made[1]]
        assert found["missing"] == [gone]


async def test_a_drained_node_gets_no_new_work_and_stops(fleet: Fleet) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        working = await here.send("[[permission]]", wait=False)
        await there.until(working.id, "input-required")
        found = await _nodes_once(here, lambda nodes: any(n["load"] for n in nodes.values()))
        (busy,) = [name for name, node in found.items() if node["load"]]
        said = await _call(there, "opencode.nodes.drain", node=busy)
        assert {n["name"]: n["state"] for n in said["items"]}[busy] == "draining"
        await _call(there, "opencode.nodes.resume", node=busy)
        assert {node["state"] for node in (await _nodes(here)).values()} == {"running"}
        await there.send("yes", taskId=working.id)
        await here.until(working.id, "completed")
        before = await fleet.prompts()
        await _call(there, "opencode.nodes.drain", node="one")
        assert await asyncio.to_thread(one.program.process.wait, 60) == 0
        fresh = [await there.send("hello") for _ in range(3)]
        assert {task.answer for task in fresh} == {"ECHO: hello"}
        assert await fleet.prompts() == [before[0], before[1] + 3]
        with pytest.raises(OSError):
            await here.send("nobody hears this")
        for method in ("opencode.nodes.drain", "opencode.nodes.resume"):
            with pytest.raises(AssertionError, match="no running node has this name or id"):
                await _call(there, method, node="one")


async def test_a_task_says_that_it_waits_for_its_node(url: str, tmp_path: Path) -> None:
    with started(url, tmp_path) as fleet:
        one, two = fleet.nodes
        async with connected(two) as theirs:
            there = theirs[REST]
            task = await there.send("[[hang]]", wait=False, metadata=_at("one"))
            await fleet.until_prompted(1)
            async with asyncio.timeout(120), there.subscribe(task.id) as stream:
                one.program.kill()
                async for told in stream:
                    if told.note:
                        break
                assert told.state == "working"
                assert told.note.startswith("The node that has this task is not running")
                found = await _call(there, "GetTask", id=task.id)
                assert found["status"]["message"]["parts"][0]["text"] == told.note
                assert found["metadata"]["opencode"]["node"]["state"] == "lost"
                listed = await _call(there, "ListTasks")
                assert listed["tasks"][0]["status"]["message"]["parts"][0]["text"] == told.note
                with pytest.raises(Refused) as refused:
                    await there.cancel(task.id)
                assert refused.value.reason == "NODE_UNAVAILABLE"
                with fleet.restarted[0]():
                    async for told in stream:
                        if not told.note:
                            break
                    found = await _call(there, "GetTask", id=task.id)
                    assert "node" not in found.get("metadata", {}).get("opencode", {})
                    assert (await there.cancel(task.id)).state == "canceled"
        assert await fleet.prompts() == [1, 0]


async def test_what_a_lost_node_has_not_begun_is_begun_once_by_another_one(
    postgres: Postgres, url: str, tmp_path: Path
) -> None:
    with started(url, tmp_path, OPENCODE_MAX_CONCURRENT_STREAMS="1") as fleet:
        one, two = fleet.nodes
        async with connected(one) as ours, connected(two) as theirs:
            here, there = ours[REST], theirs[REST]
            stuck = [
                await here.send("[[hang]]", wait=False, metadata=_at(name))
                for name in ("one", "two")
            ]
            for task in stuck:
                await there.until(task.id, "working")
            (tmp_path / "work" / "part").mkdir()
            part = {"opencode": {"directory": "part"}}
            queued = [await here.send(f"question {n}", wait=False, metadata=part) for n in range(6)]
            at_one = "SELECT count(*) FROM tasks WHERE opencode = (SELECT opencode FROM nodes "
            (held,) = postgres.say(f"{at_one} WHERE name = 'one')")[0]
            assert held != 1, "some of them wait at the node that is killed"
            one.program.kill()
            await there.cancel(stuck[1].id)
            for n, task in enumerate(queued):
                done = await there.until(task.id, "completed")
                assert done.answer == f"ECHO: question {n}"
                where = f"SELECT directory FROM sessions WHERE session_id = '{done.session}'"
                assert postgres.say(where) == [(str(tmp_path / "work" / "part"),)]
            assert await fleet.prompts() == [1, 7]


async def test_a_message_whose_node_dies_before_it_is_stored_is_taken_by_another_one_once(
    postgres: Postgres, url: str, tmp_path: Path
) -> None:
    """It has no key and no context, so the client could not send it again."""
    with started(url, tmp_path) as fleet:
        one, two = fleet.nodes
        async with connected(one) as ours:
            here = ours[REST]
            busy = await here.send("[[hang]]", wait=False, metadata=_at("one"))
            await here.until(busy.id, "working")
            # Nobody can store a task now: the other node takes the message, and gets no further.
            with postgres.locked("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE"):
                sending = asyncio.create_task(here.send("hello"))
                async with asyncio.timeout(60):
                    taken = "SELECT 1 FROM commands WHERE taken_at IS NOT NULL"
                    while not postgres.say(taken):  # noqa: ASYNC110 (tells nobody)
                        await asyncio.sleep(0.05)
                two.program.kill()
            assert (await sending).answer == "ECHO: hello"
            assert await fleet.prompts() == [2, 0]


async def test_a_conversation_is_retold_also_if_its_new_node_is_killed_before(
    url: str, tmp_path: Path
) -> None:
    settings = {"OPENCODE_MAX_CONCURRENT_STREAMS": "1", "A2A_NODE_RETURN_SECONDS": "2"}
    with started(url, tmp_path, **settings) as fleet:
        one, two = fleet.nodes
        async with connected(two) as theirs:
            there = theirs[REST]
            first = await there.send("My name is Ada.", metadata=_at("one"))
            stuck = await there.send("[[hang]]", wait=False, metadata=_at("two"))
            await there.until(stuck.id, "working")
            one.program.kill()
            waiting = await _sent_elsewhere(there, "What is my name?", first.context)
            two.program.kill()
        with fleet.restarted[1]() as again:
            async with connected(again) as theirs:
                there = theirs[REST]
                await there.until(stuck.id, "working")
                assert (await there.cancel(stuck.id)).state == "canceled"
                done = await there.until(waiting.id, "completed")
                assert done.answer.count("User: My name is Ada.") == 1
                found = await _call(there, "GetTask", id=waiting.id)
                assert found["metadata"]["opencode"]["retold"] is True
                more = await there.send("And again?", contextId=first.context)
                assert "Ada" not in more.answer
                assert more.session == done.session
        assert await fleet.prompts() == [1, 3]


async def _sent_elsewhere(client: Client, text: str, context: str) -> Telling:
    """Send a message in the context of a lost node, once that is given up."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await client.send(text, contextId=context, wait=False)
            except Refused as exc:
                assert exc.reason == "NODE_UNAVAILABLE", exc
            await asyncio.sleep(0.2)


async def test_no_other_opencode_is_asked_to_go_on_with_what_a_dead_node_left(
    fleet: Fleet,
) -> None:
    one, two = fleet.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        for task in [await here.send("[[hang]]", wait=False) for _ in range(4)]:
            await there.until(task.id, "working")
        prompts = await fleet.until_prompted(4)
        one.program.kill()
        fresh = await there.send("alive")
        assert fresh.answer == "ECHO: alive"
        assert await fleet.prompts() == [prompts[0], prompts[1] + 1]


async def test_of_two_nodes_at_one_opencode_any_does_everything(
    breakable: Upstream, postgres: Postgres, tmp_path: Path
) -> None:
    url = await asyncio.to_thread(postgres.without_tasks)
    folders = [tmp_path / name for name in ("one", "two")]
    before = len((await control(breakable, "stats"))["prompts"])
    with (
        service(breakable, folders[0], A2A_TASK_STORE_DATABASE_URL=url) as one,
        service(breakable, folders[1], A2A_TASK_STORE_DATABASE_URL=url) as two,
    ):
        async with connected(one) as ours, connected(two) as theirs:
            here, there = ours[REST], theirs[REST]
            asked = await here.send("[[permission]]", wait=False)
            await there.until(asked.id, "input-required")
            await there.send("yes", taskId=asked.id)
            await here.until(asked.id, "completed")
            long = await here.send("[[tokens:900]] [[rate:300]]", wait=False)
            await there.until(long.id, "working")
            await there.send("and this", taskId=long.id, wait=False)
            one.program.kill()
            done = await there.until(long.id, "completed")
            assert done.answer == "ECHO: and this"
    prompts = (await control(breakable, "stats"))["prompts"][before:]
    assert len(prompts) == len({message for _, message, _ in prompts}) == 3
