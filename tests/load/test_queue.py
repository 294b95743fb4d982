"""What happens when there is more to do than may be done at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.load.client import FORMS, REST, Client, Refused, connected
from tests.running import Service, Upstream, service


async def hanging(client: Client, **members: str) -> str:
    """A task that the agent works on until somebody cancels it."""
    task = await client.send("[[hang]]", wait=False, **members)
    return (await client.until(task.id, "working")).id


@pytest.fixture(scope="module")
def narrow(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that does one thing at a time and lets two wait."""
    limits = {"OPENCODE_MAX_CONCURRENT_STREAMS": "1", "A2A_MAX_QUEUED_TASKS": "2"}
    with service(fake, tmp_path_factory.mktemp("narrow"), **limits) as running:
        yield running


async def test_tasks_wait_visibly_in_order_and_what_is_too_much_is_refused(
    narrow: Service,
) -> None:
    async with connected(narrow) as clients:
        client = clients[REST]
        contexts = [(await client.send("hello")).context for _ in range(3)]

        running = await hanging(client)
        a_while = "[[tokens:30]] [[rate:300]]"
        waiting = [await client.send(a_while, wait=False, contextId=contexts[i]) for i in range(2)]
        for task in waiting:
            assert (await client.get(task.id)).state == "submitted"
        assert sorted(await client.list("submitted")) == sorted(task.id for task in waiting)

        for form in FORMS:
            with pytest.raises(Refused) as refusal:
                await clients[form].send("one too many")
            assert refusal.value.reason == "UPSTREAM_BUSY"
            assert refusal.value.status == 429
            assert int(refusal.value.retry_after or 0) > 0
            assert "OPENCODE_MAX_CONCURRENT_STREAMS" in refusal.value.message

        assert (await client.cancel(waiting[0].id)).state == "canceled"
        assert (await client.get(running)).state == "working"
        third = await client.send(a_while, wait=False, contextId=contexts[2])
        assert (await client.cancel(running)).state == "canceled"
        second = await client.until(waiting[1].id, "completed")
        third = await client.until(third.id, "completed")
        assert second.at < third.at, "who came first goes first"
        assert (await client.get(waiting[0].id)).state == "canceled"


async def test_a_burst_fills_the_queue_exactly(narrow: Service) -> None:
    async with connected(narrow) as clients:

        async def attempt(i: int) -> str | None:
            try:
                return (await clients[FORMS[i % 4]].send("[[hang]]", wait=False)).id
            except Refused as refusal:
                assert refusal.reason == "UPSTREAM_BUSY"
                return None

        found = await asyncio.gather(*(attempt(i) for i in range(24)))
        accepted = [task_id for task_id in found if task_id]
        assert len(accepted) == 3
        await asyncio.gather(*(clients[REST].cancel(task_id) for task_id in accepted))
        assert (await clients[REST].send("free again")).state == "completed"


async def test_cancelling_a_waiting_turn_leaves_the_running_one_alone(
    fake_service: Service,
) -> None:
    async with connected(fake_service) as clients:
        client = clients[REST]
        first = await client.get(await hanging(client))
        second = await client.send("after that", wait=False, contextId=first.context)
        third = await client.send("and then", wait=False, contextId=first.context)
        assert (await client.get(second.id)).state == "submitted"
        assert (await client.cancel(second.id)).state == "canceled"
        assert (await client.get(first.id)).state == "working"
        assert (await client.get(third.id)).state == "submitted"
        assert (await client.cancel(first.id)).state == "canceled"
        done = await client.until(third.id, "completed")
        assert done.answer == "ECHO: and then"
        assert done.session == first.session
