"""The service is stopped, killed, or cannot write: nothing is left hanging."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import sys
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.chaos.disk import SmallDisk
from tests.fakes.opencode import expected_text
from tests.faults.steering import control
from tests.load.client import FORMS, PATIENCE, REST, Client, Refused, Telling, connected, last
from tests.running import Program, Service, Upstream, insist, service


async def states_of(client: Client, tasks: list[Telling]) -> list[str]:
    return [(await client.get(task.id)).state for task in tasks]


async def test_after_a_kill_everything_goes_on_where_it_was(
    breakable: Upstream, tmp_path: Path
) -> None:
    with service(breakable, tmp_path, OPENCODE_MAX_CONCURRENT_STREAMS="3") as running:
        async with connected(running) as clients:
            client = clients[REST]
            done = await client.send("before")
            asked = await client.send("[[permission]]")
            long = [
                await clients[form].send("[[tokens:1200]] [[rate:200]]", wait=False)
                for form in FORMS
            ]
            async with asyncio.timeout(PATIENCE):  # who waits for a person holds no slot
                states = await states_of(client, long)
                while states.count("working") < 3:
                    await asyncio.sleep(0.02)
                    states = await states_of(client, long)
            assert sorted(states) == ["submitted", "working", "working", "working"]
            running.program.kill()
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as db, db:
        db.execute("UPDATE tasks SET held_until = held_until + 3600000 WHERE held_until > 0")
    # Who has the file for itself need not wait for the leases of the process that had it before.
    with service(breakable, tmp_path) as restarted:
        async with connected(restarted) as clients:
            client = clients[REST]
            assert (await client.get(done.id)).answer == "ECHO: before"
            assert (await client.get(asked.id)).state == "input-required"
            for task in long:
                ended = await client.until(task.id, "completed")
                assert ended.session is not None
                assert ended.answer == expected_text(ended.session, 1200)
            for task in (done, long[0], long[3]):
                again = await client.send("after", contextId=task.context)
                assert again.answer == "ECHO: after"
                assert again.session == (await client.get(task.id)).session
            await control(breakable, "lose")
            lost = await client.until(asked.id, "failed")
            assert lost.problem == "UPSTREAM_INTERRUPTED"
            assert "same context" in lost.note
            again = await client.send("after", contextId=asked.context)
            assert again.answer == "ECHO: after"


async def open_streams(client: Client, count: int) -> list[aiohttp.ClientResponse]:
    params = client.form.sending("[[hang]]")
    streams = []
    for _ in range(count):
        response = await client.http.post(f"{client.url}/message:stream", json=params)
        await response.content.readany()
        streams.append(response)
    return streams


async def exit_of(program: Program, number: signal.Signals) -> int:
    """The exit code after a signal, which must come in time."""
    program.process.send_signal(number)
    return await asyncio.to_thread(program.process.wait, 60)


async def until_deaf(running: Service) -> None:
    """Wait until it takes no connections any more: it has heard that it should stop."""
    anew = aiohttp.TCPConnector(force_close=True)
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession(connector=anew) as http:
        with suppress(aiohttp.ClientConnectionError):
            while True:
                async with http.get(f"{running.url}/health"):
                    await asyncio.sleep(0.02)


async def until_delayed(upstream: Upstream, end: str) -> None:
    """Wait until a slow OpenCode was asked for a path with this end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            delayed = (await control(upstream, "stats"))["delayed"]
            if any(path.endswith(end) for path in delayed):
                return
            await asyncio.sleep(0.02)


async def test_told_to_stop_it_leaves_in_order_although_streams_are_open(
    breakable: Upstream, tmp_path: Path
) -> None:
    """By SIGTERM, by Ctrl-C, or at once when somebody insists."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for directory in (one, two, three):
        directory.mkdir()
    with (
        service(breakable, one) as terminated,
        service(breakable, two) as interrupted,
        service(breakable, three, A2A_SHUTDOWN_GRACE_SECONDS="300") as hurried,
    ):
        async with AsyncExitStack() as stack:
            for running in (terminated, interrupted, hurried):
                clients = await stack.enter_async_context(connected(running))
                for stream in await open_streams(clients[REST], 5):
                    stack.callback(stream.close)
            hurried.program.process.send_signal(signal.SIGINT)
            await until_deaf(hurried)
            codes = await asyncio.gather(
                exit_of(terminated.program, signal.SIGTERM),
                exit_of(interrupted.program, signal.SIGINT),
                asyncio.to_thread(insist, hurried.program.process),
            )
    assert [*codes] == [0, 0, 1]  # who is hurried leaves things undone
    for running in (terminated, interrupted, hurried):
        for word in ("Traceback", "CancelledError", "Unclosed"):
            assert word not in running.program.output
    for directory in (one, two, three):
        with closing(sqlite3.connect(directory / "tasks.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    await control(breakable, "lose")


@pytest.mark.skipif(not SmallDisk.possible(), reason="needs the right to mount")
async def test_it_starts_on_a_full_disk_and_goes_on_once_there_is_room(
    breakable: Upstream, tmp_path: Path
) -> None:
    with SmallDisk.mounted(tmp_path / "disk") as disk:
        store = {"A2A_TASK_STORE_DATABASE_URL": f"sqlite:///{disk.folder / 'tasks.db'}"}
        with service(breakable, tmp_path, **store) as running:
            async with connected(running) as clients:
                done = await clients[REST].send("before")
                left = await clients[REST].send("[[hang]]", wait=False)
                await clients[REST].until(left.id, "working")
                running.program.kill()
        await control(breakable, "lose")
        disk.fill()
        with service(breakable, tmp_path, **store) as running:
            async with connected(running) as clients:
                client = clients[REST]
                assert (await client.get(done.id)).answer == "ECHO: before"
                assert (await client.get(left.id)).state == "working"
                with pytest.raises(Refused) as refusal:
                    await client.send("hello")
                assert refusal.value.reason == "STORE_UNAVAILABLE"
                disk.free()
                assert (await client.until(left.id, "failed")).problem == "UPSTREAM_INTERRUPTED"
                assert (await client.send("hello")).state == "completed"
        assert "Traceback" not in running.program.output


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
async def test_a_full_disk_refuses_new_tasks_and_delays_running_ones(
    breakable: Upstream, tmp_path: Path
) -> None:
    tokens = 900
    with service(breakable, tmp_path) as running:
        pid = running.program.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        async with connected(running) as clients:
            client = clients[REST]
            async with client.stream(f"[[tokens:{tokens}]] [[rate:600]]") as telling:
                async for told in telling:
                    if told.answer:
                        break
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))  # no file may grow
                refusals = await asyncio.gather(
                    *(clients[form].send("hello") for form in FORMS), return_exceptions=True
                )
                for form, refusal in zip(FORMS, refusals, strict=True):
                    assert isinstance(refusal, Refused)
                    assert refusal.reason == "STORE_UNAVAILABLE"
                    assert refusal.status == (200 if form.rpc else 503)
                    assert int(refusal.retry_after or 0) > 0
                assert (await client.get(told.id)).state == "working", "reading goes on"
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
                told = await last(telling)
            assert told.state == "completed"
            assert told.session is not None
            assert told.answer == expected_text(told.session, tokens)
            assert (await client.send("hello")).state == "completed"
    assert "Traceback" not in running.program.output


async def test_who_is_still_waiting_when_the_service_must_stop_is_told_so(
    breakable: Upstream, tmp_path: Path
) -> None:
    with service(breakable, tmp_path, A2A_SHUTDOWN_GRACE_SECONDS="0") as running:
        async with connected(running) as clients:
            client = clients[REST]
            task = await client.send("[[hang]]", wait=False)
            await client.until(task.id, "working")
            await control(breakable, "fault", mode="slow")
            canceling = asyncio.create_task(client.cancel(task.id))
            await until_delayed(breakable, "/abort")
            code = await exit_of(running.program, signal.SIGTERM)
            with pytest.raises(Refused) as refusal:
                await canceling
    await control(breakable, "fault", mode="ok")
    assert (code, refusal.value.status) == (0, 503)
