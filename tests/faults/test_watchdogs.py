"""Silence and absence, with limits too short for anything but a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import Failure, Message, Role, TaskState, Text
from opencode_a2a.opencode.agent import OpenCode
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.interrupts import Interrupts
from opencode_a2a.service.scheduler import Scheduler, SchedulerLimits
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.service.tasks import Request, Tasks
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.interrupts import SqlInterrupts
from opencode_a2a.store.log import SqlTaskLog
from tests.fakes.opencode import LATE, FakeOpenCode, expected_text, serve
from tests.fakes.options import NoOptions
from tests.service.house import ALICE, NoFiles

TOKENS = 800
A_SECOND = f"[[tokens:{TOKENS}]] [[rate:800]]"
PATIENCE = 30.0


class Desk:
    """Where tasks are handed in and fetched: no edges, and OpenCode in the same process."""

    def __init__(self, fake: FakeOpenCode, opencode: OpenCode, tasks: Tasks) -> None:
        self.fake, self.opencode, self._tasks = fake, opencode, tasks

    async def send(self, text: str, context: str = "c") -> Task:
        message = Message("m", Role.USER, (Text(text),))
        return await self._tasks.send(ALICE, Request(message, context))

    async def spoken(self, task: Task) -> None:
        """Wait for the first words of an answer."""
        cursor = self._tasks.replay(task).cursor
        async with asyncio.timeout(PATIENCE):
            while not (await self._tasks.get(ALICE, task.head.id)).visible_blocks():
                await cursor.read()

    async def settled(self, task: Task) -> Task:
        async with asyncio.timeout(PATIENCE):
            return await self._tasks.settled(ALICE, task)

    async def connection(self, there: bool) -> None:
        await self.until(lambda: self.opencode.connected is there)

    async def until(self, so: Callable[[], bool]) -> None:
        """For what is only a flag."""
        async with asyncio.timeout(PATIENCE):
            while not so():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def desk(limits: SchedulerLimits, silence: float = 25.0) -> AsyncIterator[Desk]:
    async with (
        serve() as fake,
        Database.open("sqlite://") as database,
        SqlTaskLog.open(database) as log,
        OpenCode.connect(
            [Endpoint(fake.base_url)], Defaults("/project"), silence=silence
        ) as opencode,
        AsyncExitStack() as stack,
    ):
        scheduler = Scheduler(
            log=log,
            sessions=Sessions(opencode, SqlBindings(database)),
            interrupts=SqlInterrupts(database),
            limits=limits,
            clock=now_ms,
        )
        await stack.enter_async_context(scheduler.running())
        interrupts = Interrupts(log=log, scheduler=scheduler, store=SqlInterrupts(database))
        inputs = Inputs(NoFiles(), 1 << 20, 1 << 20)
        tasks = Tasks(
            agent=opencode,
            log=log,
            scheduler=scheduler,
            interrupts=interrupts,
            options=NoOptions(),
            inputs=inputs,
            clock=now_ms,
        )
        yield Desk(fake, opencode, tasks)


def whole(task: Task) -> bool:
    assert task.state is TaskState.COMPLETED, task.ended
    assert task.session is not None
    (block,) = task.visible_blocks()
    return block.text == expected_text(task.session.id, TOKENS)


async def test_a_connection_without_a_heartbeat_is_made_again_and_no_text_is_lost() -> None:
    async with desk(SchedulerLimits(), silence=0.3) as at:
        task = await at.send(A_SECOND)
        await at.spoken(task)
        at.fake.control("stall")
        await at.connection(there=False)
        at.fake.control("stall", on=False)
        assert whole(await at.settled(task))
        # Nothing more is said, so it is made again and again: never is an old one left.
        await at.until(lambda: at.opencode.connected and at.fake.control("stats")["consumers"] == 1)


async def test_an_answer_given_while_nothing_was_heard_is_found_in_the_store() -> None:
    """Although the connection looks alive: nobody has noticed yet."""
    async with desk(SchedulerLimits(quiet=0.2, retry=0.05)) as at:
        task = await at.send(A_SECOND)
        await at.spoken(task)
        at.fake.control("stall")
        assert whole(await at.settled(task))


@pytest.mark.parametrize("mark", ["[[noidle]]", "[[latemessage]]"])
async def test_an_end_nobody_announced_properly_is_found(mark: str) -> None:
    # Whatever is idle at two looks has lost its run: the late message must be there by then.
    async with desk(SchedulerLimits(quiet=0.2, retry=3 * LATE)) as at:
        assert whole(await at.settled(await at.send(f"{A_SECOND} {mark}")))
        assert whole(await at.settled(await at.send(A_SECOND)))


async def test_an_opencode_that_stays_away_is_given_up_and_its_context_goes_on() -> None:
    async with desk(SchedulerLimits(retry=0.05, unreachable=0.3)) as at:
        task = await at.send("[[tokens:10]] [[hang]]")
        await at.spoken(task)
        at.fake.control("fault", mode="down")
        ended = (await at.settled(task)).ended
        assert ended is not None
        assert ended.problem is not None
        assert ended.problem.type is Failure.UPSTREAM_UNREACHABLE
        at.fake.control("fault", mode="ok")
        at.fake.control("lose")  # it was away because it was restarted
        await at.connection(there=True)
        assert whole(await at.settled(await at.send(A_SECOND)))
