"""Push notifications when the service is killed, or changes its mind about an address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load.client import REST, connected
from tests.push_campaign import Plan, run
from tests.receivers import Answer, Received, Receiver, receiver, state_of
from tests.running import Upstream, service

PUSH = {"A2A_PUSH": "true", "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1"}


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


async def start(running_url: str, token: str, webhook: Receiver, text: str) -> str:
    """A task that this receiver is told about; its id."""
    import httpx

    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {
        "message": message,
        "configuration": {
            "returnImmediately": True,
            "taskPushNotificationConfig": {"url": webhook.url},
        },
    }
    headers = {"authorization": f"Bearer {token}", "a2a-version": "1.0"}
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{running_url}/message:send", json=params, headers=headers)
    task_id: str = answer.json()["task"]["id"]
    return task_id


async def test_what_was_committed_and_not_taken_is_sent_after_a_kill(
    breakable: Upstream, tmp_path: Path, webhook: Receiver
) -> None:
    killed = threading.Event()

    def wait(_: Received) -> Answer | None:
        killed.wait(60)
        return None  # nobody hears an answer

    webhook.behaviour = wait
    with service(breakable, tmp_path, **PUSH) as running:
        async with connected(running) as clients:
            task_id = await start(running.url, running.token, webhook, "hello")
            await clients[REST].until(task_id, "completed")
            (first,) = await asyncio.to_thread(webhook.wait_for_attempt, 1)
            running.program.kill()
    killed.set()
    webhook.behaviour = lambda _: (204, {})
    with service(breakable, tmp_path, **PUSH):
        got = await asyncio.to_thread(webhook.wait_for_end)
    assert [state_of(each) for each in got] == ["working", "completed"]
    assert got[0].headers["webhook-id"] == first.headers["webhook-id"], "known by its id"
    assert got[0].body == first.body


async def test_an_address_is_checked_again_before_every_attempt(
    breakable: Upstream, tmp_path: Path, webhook: Receiver
) -> None:
    with service(breakable, tmp_path, **PUSH) as running:
        webhook.behaviour = lambda _: (503, {})
        await start(running.url, running.token, webhook, "hello")
        await asyncio.to_thread(webhook.wait_for_attempt, 1)
    tried = len(webhook.received)
    webhook.behaviour = lambda _: (204, {})
    settings = PUSH | {"A2A_PUSH_PRIVATE_HOSTS": "", "A2A_LOG_LEVEL": "debug"}
    with service(breakable, tmp_path, **settings) as running:
        await asyncio.to_thread(
            running.program.wait_for, r"event=push\.failed.*public network|must be https"
        )
        assert len(webhook.received) == tried


async def test_receivers_that_misbehave_get_everything_although_the_service_is_killed(
    tmp_path: Path,
) -> None:
    ledger = await run(Plan(tasks=12, kills=1, seed=7, at_once=6), tmp_path)
    assert ledger.wrong == []
    assert ledger.counts["kills"] == 1
    assert ledger.counts["configs"] == 36
    assert ledger.counts["taken"] >= ledger.counts["events owed"] > 36
