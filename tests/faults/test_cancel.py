"""Cancelling, in every bad moment there is."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from tests.faults.steering import aborted, control, pending, stored
from tests.load.client import ENDS, FORMS, REST, Client, Refused, connected, last
from tests.running import Service, Upstream, service


async def hanging(client: Client, text: str = "[[hang]]") -> str:
    task = await client.send(text, wait=False)
    return (await client.until(task.id, "working")).id


async def test_a_hanging_run_is_aborted_and_its_context_goes_on(
    breakable: Upstream, service_on_it: Service, client: Client
) -> None:
    async with connected(service_on_it) as clients:
        for form, each in clients.items():
            task = await client.get(await hanging(each, "[[tokens:20]] [[hang]]"))
            assert (await each.cancel(task.id)).state == "canceled"
            assert await aborted(breakable, task.session), form
            again = await each.send("and now?", contextId=task.context)
            assert (again.answer, again.session) == ("ECHO: and now?", task.session)


async def test_an_unanswered_permission_is_refused_with_the_cancel(
    breakable: Upstream, client: Client
) -> None:
    waiting = await client.send("[[permission]]")
    assert waiting.state == "input-required"
    assert waiting.session in await pending(breakable)
    assert (await client.cancel(waiting.id)).state == "canceled"
    assert await aborted(breakable, waiting.session)
    assert waiting.session not in await pending(breakable)


async def test_without_opencode_a_cancel_is_still_answered_soon(
    breakable: Upstream, service_on_it: Service, client: Client
) -> None:
    task = await hanging(client)
    await control(breakable, "fault", mode="down")
    started = time.monotonic()
    assert (await client.cancel(task)).state == "canceled"
    assert time.monotonic() - started < 10, "it waited for what cannot come"
    assert (await client.get(task)).state == "canceled"


async def test_an_opencode_that_does_not_answer_delays_a_cancel_only_so_long(
    breakable: Upstream, tmp_path: Path
) -> None:
    """Whether it hangs while it works, or while it is asked to."""
    with service(breakable, tmp_path) as running:
        async with connected(running) as clients:
            client = clients[REST]
            known = await client.send("hello")
            working = await hanging(client)
            await control(breakable, "fault", mode="slow", seconds=60)
            try:
                asked = await client.send("hi", wait=False, contextId=known.context)
                await client.until(asked.id, "working")
                started = time.monotonic()
                ends = await asyncio.gather(client.cancel(working), client.cancel(asked.id))
                took = time.monotonic() - started
            finally:
                await control(breakable, "fault", mode="ok")
    assert [end.state for end in ends] == ["canceled", "canceled"]
    assert took < 30


async def test_whoever_is_first_decides_the_end_when_a_cancel_meets_completion(
    service_on_it: Service, client: Client
) -> None:
    dice = random.Random(50)

    async def race(each: Client, delay: float) -> str:
        async with each.stream("[[tokens:40]] [[rate:800]]") as telling:
            task_id = (await anext(telling)).id
            following = asyncio.create_task(last(telling))
            await asyncio.sleep(delay)
            try:
                answered = (await each.cancel(task_id)).state
            except Refused as refusal:
                assert refusal.reason == "TASK_NOT_CANCELABLE"
                answered = "completed"
            told = await following
        assert told.ends == 1, "a second end"
        assert told.state in ("completed", "canceled"), (told.state, told.problem)
        assert told.state == answered
        after = await each.get(task_id)
        assert (after.state, after.answer) == (told.state, told.answer)
        return told.state

    async with connected(service_on_it) as clients:
        ends, longest = set[str](), 0.15
        for _ in range(5):
            delays = [dice.uniform(0, longest) for _ in range(10)]
            racing = [race(clients[FORMS[i % 4]], delay) for i, delay in enumerate(delays)]
            won = set(await asyncio.gather(*racing))
            if len(won) == 1:  # how long the text takes depends on the machine
                longest *= 2 if "canceled" in won else 0.5
            ends |= won
    assert ends == {"completed", "canceled"}, "both must happen for this to prove anything"


async def test_a_client_that_leaves_a_blocking_send_leaves_the_task_running(
    client: Client,
) -> None:
    before = set(await client.list("completed"))
    sending = asyncio.create_task(client.send("[[tokens:300]] [[rate:150]]"))
    working: list[str] = []
    async with asyncio.timeout(60):
        while not working:
            working = await client.list("working")
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    (task_id,) = working
    assert (await client.until(task_id, *ENDS)).state == "completed"
    assert set(await client.list("completed")) - before == {task_id}


async def test_two_quick_sends_in_a_new_context_share_one_session(
    breakable: Upstream, client: Client
) -> None:
    for i in range(5):
        context = f"quick-{i}"
        told = await asyncio.gather(
            *(client.send(f"message {n}", contextId=context) for n in range(3))
        )
        assert {task.state for task in told} == {"completed"}
        (session,) = {task.session for task in told}
        roles = [message["info"]["role"] for message in await stored(breakable, session)]
        assert roles == ["user", "assistant"] * 3, "one at a time"
        assert [task.answer for task in told] == [f"ECHO: message {n}" for n in range(3)]
