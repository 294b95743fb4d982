"""The same request again, also where two processes hear it at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from opencode_a2a.domain.ports import Fetched, Files
from opencode_a2a.domain.values import FileUrl, Message, Role, Text
from opencode_a2a.errors import IdempotencyConflict
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.tasks import Request, Tasks
from opencode_a2a.store.clock import now_ms
from tests.fakes.options import NoOptions
from tests.fakes.session import PATIENCE, ScriptedAgent
from tests.service.house import ALICE, House, NoFiles, house


@dataclass
class Meanwhile:
    """Files that come only after something else has happened."""

    happens: Callable[[], Awaitable[object]]

    async def fetch(self, url: str, limit: int) -> Fetched:
        await self.happens()
        return Fetched(b"content", "text/plain")


def tasks_of(at: House, files: Files) -> Tasks:
    return Tasks(
        agent=at.agent,
        log=at.log,
        scheduler=at.scheduler,
        interrupts=at.interrupts,
        options=NoOptions(),
        inputs=Inputs(files, 1 << 20, 1 << 20),
        clock=now_ms,
    )


async def test_a_message_that_another_process_has_taken_is_not_added_again(tmp_path: Path) -> None:
    """While a repetition is made ready, the holder takes the message and hands the task over."""
    agent, url = ScriptedAgent(), f"sqlite:///{tmp_path}/tasks.db"
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        first = await stack.enter_async_context(house(url=url, agent=agent))
        task, _ = await first.working("c")
        message = Message("m-2", Role.USER, (FileUrl("https://example.com/a.txt"),))
        request = Request(message, task_id=task, idempotency_key="k")
        async with house(url=url, agent=agent) as second:

            async def handed_over() -> None:
                await tasks_of(first, Meanwhile(lambda: asyncio.sleep(0))).send(ALICE, request)
                await stack.aclose()
                await Recovery(
                    second.log, second.scheduler, Inputs(NoFiles(), 1 << 20, 1 << 20)
                ).resume_expired()
                assert second.log.is_mine(task)

            sent = await tasks_of(second, Meanwhile(handed_over)).send(ALICE, request)
            assert sent.head.id == task
            assert [added.message_id for added in sent.messages][1:] == ["m-2"]


async def test_what_is_stored_under_a_key_is_found_for_the_same_message_only() -> None:
    async with asyncio.timeout(PATIENCE), house() as at:
        request = Request(Message("m-1", Role.USER, (Text("hello"),)), idempotency_key="k")
        assert await at.tasks.find(ALICE, request) is None
        task = await at.tasks.send(ALICE, request)
        found = await at.tasks.find(ALICE, request)
        assert found is not None and found.head.id == task.head.id
        other = Request(Message("m-2", Role.USER, (Text("bye"),)), idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await at.tasks.find(ALICE, other)
