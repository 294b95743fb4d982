"""Two workspace roots of one user: neither works on, shows or loses what belongs to the other.

Both use one OpenCode, as the sessions of all OpenCodes of a user are in one database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.steering import Json, control, pending, session_of
from tests.load.client import REST, STATES, Client, Refused, connected
from tests.postgres import Postgres
from tests.running import Service, Upstream, service

DEFAULT = {"A2A_TASK_STORE_DATABASE_URL": ""}  # where nobody says where
ONE_AT_A_TIME = {"OPENCODE_MAX_CONCURRENT_STREAMS": "1"}


@contextmanager
def serving(upstream: Upstream, home: Path, root: Path, **settings: str) -> Iterator[Service]:
    root.mkdir(exist_ok=True, parents=True)
    with service(replace(upstream, workspace=root), home, **settings) as running:
        yield running


def shared(folder: Path) -> dict[str, str]:
    return {"A2A_TASK_STORE_DATABASE_URL": f"sqlite:///{folder / 'shared.db'}"}


async def prompts(upstream: Upstream) -> list[list[str]]:
    """What OpenCode was asked: session, message, text."""
    found: list[list[str]] = (await control(upstream, "stats"))["prompts"]
    return found


async def directory_of(upstream: Upstream, session: str | None) -> str:
    found: Json = await session_of(upstream, session)
    return str(found["directory"])


async def every_task(client: Client) -> set[str]:
    return {task for state in STATES for task in await client.list(state)}


@pytest.mark.parametrize("state", ["default", "shared"])
async def test_a_start_in_another_root_leaves_queued_and_running_tasks_alone(
    breakable: Upstream, tmp_path: Path, state: str
) -> None:
    where = (DEFAULT if state == "default" else shared(tmp_path)) | ONE_AT_A_TIME
    here, there = tmp_path / "a", tmp_path / "b"
    with serving(breakable, tmp_path, here, **where) as first:
        async with connected(first) as clients:
            client = clients[REST]
            busy = await client.send("[[tokens:20]] [[hang]]", wait=False)
            await client.until(busy.id, "working")
            queued = [await client.send(f"queued {n}", wait=False) for n in range(2)]
        first.program.kill()
    before = await prompts(breakable)
    with serving(breakable, tmp_path, there, **where) as second:
        async with connected(second) as clients:
            client = clients[REST]
            own = await client.send("my own")
            assert own.state == "completed"
            assert await directory_of(breakable, own.session) == str(there)
            listed = await every_task(client)
            if state == "default":
                assert listed == {own.id}
                with pytest.raises(Refused) as refusal:
                    await client.get(busy.id)
                assert refusal.value.reason == "TASK_NOT_FOUND"
            else:
                assert listed == {own.id, busy.id, *(task.id for task in queued)}
                assert (await client.get(queued[0].id)).state == "submitted"
                for act in (
                    client.cancel(queued[0].id),
                    client.send("go on", taskId=busy.id),
                    client.send("go on", contextId=busy.context),
                    client.send("go on", contextId=queued[0].context),
                ):
                    with pytest.raises(Refused) as refusal:
                        await act
                    assert refusal.value.reason == "OTHER_WORKSPACE"
                    assert refusal.value.status == 409
                    assert str(here) in refusal.value.message
    assert [text for *_, text in (await prompts(breakable))[len(before) :]] == ["my own"]
    await control(breakable, "lose")  # the run that hangs
    with serving(breakable, tmp_path, here, **where) as third:
        async with connected(third) as clients:
            client = clients[REST]
            assert (await client.until(busy.id, "failed")).problem == "UPSTREAM_INTERRUPTED"
            for task in queued:
                done = await client.until(task.id, "completed")
                assert await directory_of(breakable, done.session) == str(here)


async def test_a_request_of_the_agent_is_answered_where_its_task_belongs(
    breakable: Upstream, tmp_path: Path, postgres: Postgres
) -> None:
    """Whoever is asked: on a server, the two are nodes of one service."""
    where = {"A2A_TASK_STORE_DATABASE_URL": await asyncio.to_thread(postgres.without_tasks)}
    with (
        serving(breakable, tmp_path, tmp_path / "a", **where) as first,
        serving(breakable, tmp_path, tmp_path / "b", **where) as second,
    ):
        async with connected(first) as ours, connected(second) as theirs:
            here, there = ours[REST], theirs[REST]
            task = await here.send("[[permission]]", wait=False)
            asked = await here.until(task.id, "input-required")
            there_listed = await _rpc(there, "opencode.permissions.list", {})
            assert there_listed["result"]["items"] == []
            (item,) = (await _rpc(here, "opencode.permissions.list", {}))["result"]["items"]
            assert asked.session in await pending(replace(breakable, workspace=tmp_path / "a"))
            reply = {"request_id": item["request_id"], "reply": "once"}
            answered = await _rpc(there, "a2a.interrupt.permission.reply", reply)
            assert "result" in answered, answered
            assert (await here.until(task.id, "completed")).state == "completed"


async def test_a_session_is_used_only_where_it_belongs(breakable: Upstream, tmp_path: Path) -> None:
    forbidden = ("SESSION_FORBIDDEN", "SESSION_NOT_FOUND", "OTHER_WORKSPACE")
    with (
        serving(breakable, tmp_path, tmp_path / "a", **DEFAULT) as outer,
        serving(breakable, tmp_path, tmp_path / "a" / "b", **DEFAULT) as inner,
    ):
        async with connected(outer) as ours, connected(inner) as theirs:
            for here, there in ((ours[REST], theirs[REST]), (theirs[REST], ours[REST])):
                session = (await here.send("mine")).session
                for method, params in (
                    ("opencode.sessions.get", {"session_id": session}),
                    ("opencode.sessions.unrevert", {"session_id": session}),
                ):
                    refused = await _rpc(there, method, params)
                    assert refused["error"]["data"]["type"] in forbidden, method
                before = await prompts(breakable)
                with pytest.raises(Refused) as refusal:
                    await there.send("go on", contextId=f"ctx:opencode-session:{session}")
                assert refusal.value.reason in forbidden
                assert await prompts(breakable) == before


async def test_a_root_is_the_same_by_any_of_its_names(breakable: Upstream, tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "link"
    with serving(breakable, tmp_path, root, **DEFAULT) as first:
        async with connected(first) as clients:
            done = await clients[REST].send("hello")
    link.symlink_to(root)
    for name in (f"{root}/", f"{link}/.", str(link)):
        named = DEFAULT | {"OPENCODE_WORKSPACE_ROOT": name}
        with serving(breakable, tmp_path, root, **named) as again:
            async with connected(again) as clients:
                assert (await clients[REST].get(done.id)).state == "completed"
    databases = list((tmp_path / "home/.local/state/opencode-a2a").rglob("tasks.db"))
    assert len(databases) == 1
    assert databases[0].parent.name.startswith("root-")


async def _rpc(client: Client, method: str, params: Json) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with client.http.post(client.url + "/", json=body) as answer:
        found: Json = await answer.json()
        return found
