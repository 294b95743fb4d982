"""Two processes on one store: each task is one process's at a time, and a file is for one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.fakes.opencode import expected_text
from tests.faults.steering import control
from tests.load.client import REST, connected
from tests.postgres import Postgres
from tests.running import Upstream, service

TOKENS = 1500


async def test_a_second_process_takes_over_only_what_the_first_leaves(
    breakable: Upstream, tmp_path: Path, postgres: Postgres
) -> None:
    before = len((await control(breakable, "stats"))["prompts"])
    url = {"A2A_TASK_STORE_DATABASE_URL": await asyncio.to_thread(postgres.without_tasks)}
    with (
        service(breakable, tmp_path, **url) as first,
        service(breakable, tmp_path, **url) as second,
    ):
        async with connected(first) as ours, connected(second) as theirs:
            here, there = ours[REST], theirs[REST]
            long = await here.send(f"[[tokens:{TOKENS}]] [[rate:300]]", wait=False)
            queued = await here.send("after it", wait=False, contextId=long.context)
            await here.until(long.id, "working")
            # It is visible over there, and can be stopped, but it is not run there.
            assert (await there.get(long.id)).state == "working"
            hanging = await here.send("[[hang]]", wait=False)
            await here.until(hanging.id, "working")
            assert (await there.cancel(hanging.id)).state == "canceled"
            first.program.kill()
            done = await there.until(long.id, "completed")
            assert done.session is not None
            assert done.answer == expected_text(done.session, TOKENS)
            assert (await there.until(queued.id, "completed")).answer == "ECHO: after it"
    prompts = (await control(breakable, "stats"))["prompts"][before:]
    assert len(prompts) == len({message for _, message, _ in prompts}) == 3


async def test_a_second_process_on_one_file_is_refused(breakable: Upstream, tmp_path: Path) -> None:
    refusal = r"tasks\.db is in use by another service \(process (\d+) on"
    with service(breakable, tmp_path) as first:
        with service(breakable, tmp_path, serving=refusal) as second:
            assert second.url == str(first.program.process.pid)
            assert second.program.process.wait(60) == 1
        async with connected(first) as clients:
            assert (await clients[REST].send("hello")).answer == "ECHO: hello"
    with service(breakable, tmp_path):
        pass


async def test_a_process_waits_for_the_one_before_to_end(
    breakable: Upstream, tmp_path: Path
) -> None:
    with service(breakable, tmp_path) as first:
        async with connected(first) as clients:
            task = await clients[REST].send("[[hang]]", wait=False)
            await clients[REST].until(task.id, "working")
        waits = r"event=(store\.waits_for_other)"
        with service(breakable, tmp_path, serving=waits) as waiting:
            first.program.kill()  # only now, so that the second cannot miss it
            url = waiting.program.wait_for(r"event=serving url=(\S+)")[1]
            async with connected(replace(waiting, url=url)) as clients:
                assert (await clients[REST].cancel(task.id)).state == "canceled"


async def test_a_clean_stop_hands_running_tasks_to_the_next(
    breakable: Upstream, tmp_path: Path
) -> None:
    with service(breakable, tmp_path, A2A_SHUTDOWN_GRACE_SECONDS="0") as first:
        async with connected(first) as clients:
            task = await clients[REST].send(f"[[tokens:{TOKENS}]] [[rate:600]]", wait=False)
            await clients[REST].until(task.id, "working")
        assert first.program.stop() == 0
    with service(breakable, tmp_path) as second:
        async with connected(second) as clients:
            done = await clients[REST].until(task.id, "completed")
            assert done.session is not None
            assert done.answer == expected_text(done.session, TOKENS)
