"""The service between a scripted agent and a real log in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import Connection

from opencode_a2a.domain.catalog import Catalog
from opencode_a2a.domain.ports import Fetched, Refused
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import Ended, LogEntry, Update
from opencode_a2a.domain.values import (
    Caller,
    Interrupt,
    Message,
    Part,
    Role,
    TaskState,
    Text,
)
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.interrupts import Interrupts
from opencode_a2a.service.limits import Limiter
from opencode_a2a.service.peer_calls import PeerCalls
from opencode_a2a.service.scheduler import Scheduler, SchedulerLimits
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.service.tasks import Request, Tasks
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.interrupts import SqlInterrupts
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.usage import SqlUsage
from tests.fakes.options import NoOptions
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession

ALICE, BOB = Caller("alice"), Caller("bob")


@dataclass(frozen=True)
class FixedCatalog:
    """An agent of which only the catalog is used."""

    catalog: Catalog


class NoFiles:
    async def fetch(self, url: str, limit: int) -> Fetched:
        raise Refused("There are no files here.")


@dataclass
class House:
    agent: ScriptedAgent
    database: Database
    log: SqlTaskLog
    scheduler: Scheduler
    interrupts: Interrupts
    tasks: Tasks

    async def send(
        self,
        text: str,
        context: str | None = None,
        *,
        task: str | None = None,
        caller: Caller = ALICE,
    ) -> str:
        """Send a message; the id of its task."""
        message = Message(str(uuid.uuid4()), Role.USER, (Text(text),))
        async with asyncio.timeout(PATIENCE):
            sent = await self.tasks.send(caller, Request(message, context, task))
        return sent.head.id

    async def say(self, task: str, *parts: Part, caller: Caller = ALICE) -> Task:
        """An ordinary message on a task."""
        return await self.repeat(task, Message(str(uuid.uuid4()), Role.USER, parts), caller)

    async def repeat(self, task: str, message: Message, caller: Caller = ALICE) -> Task:
        async with asyncio.timeout(PATIENCE):
            return await self.tasks.send(caller, Request(message, task_id=task))

    async def asking(self, *asks: Interrupt, context: str = "c") -> tuple[str, ScriptedSession]:
        """A task whose agent waits for these."""
        task, session = await self.working(context)
        session.begin()
        session.ask(*asks)
        await self.until_open(task, *asks)
        return task, session

    async def until_open(self, task_id: str, *asks: Interrupt) -> Task:
        """The task once it waits for these and nothing else, as its log says."""
        wanted, cursor = {ask.request_id for ask in asks}, self.log.follow(task_id, 0)
        async with asyncio.timeout(PATIENCE):
            while (task := await self.tasks.get(ALICE, task_id)).interrupts.keys() != wanted:
                assert await cursor.read(), f"it ended {task.state}"
        return task

    async def until_said(self, task_id: str, *kinds: type[Update]) -> list[Update]:
        """What the log says of these kinds, once all of them were said."""
        cursor, said = self.log.follow(task_id, 0), list[Update]()
        async with asyncio.timeout(PATIENCE):
            while {type(update) for update in said} != {*kinds}:
                found = await cursor.read()
                assert found, f"it ended, and had said {said}"
                said += [e.update for e in found if isinstance(e.update, kinds)]
        return said

    async def working(self, context: str, text: str = "hello") -> tuple[str, ScriptedSession]:
        """A new task that the agent was asked to do, and its session."""
        before = {session: len(session.prompts) for session in self.agent.sessions.values()}
        task = await self.send(text, context)
        await self.agent.until(lambda: self._has(context))
        session = self.agent.of(context)
        await session.until(lambda: len(session.prompts) > before.get(session, 0))
        await session.until_asked(text)
        await self.until(task, TaskState.WORKING)
        return task, session

    def _has(self, context: str) -> bool:
        return any(s.ref.title.startswith(f"{context}/") for s in self.agent.sessions.values())

    async def state(self, task_id: str, caller: Caller = ALICE) -> TaskState:
        return (await self.tasks.get(caller, task_id)).state

    async def until(self, task_id: str, *states: TaskState, caller: Caller = ALICE) -> Task:
        """The task once it is in one of these states, as its log says."""
        cursor = self.log.follow(task_id, 0)
        async with asyncio.timeout(PATIENCE):
            while (task := await self.tasks.get(caller, task_id)).state not in states:
                assert await cursor.read(), f"it ended {task.state}"
        return task

    async def ended(self, task_id: str) -> Task:
        return await self.until(task_id, TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED)

    async def entries(self, task_id: str) -> list[LogEntry]:
        """The whole log of a task that has ended."""
        cursor, entries = self.log.follow(task_id, 0), list[LogEntry]()
        async with asyncio.timeout(PATIENCE):
            while found := await cursor.read():
                entries += found
        return entries

    async def ends(self, task_id: str) -> int:
        return sum(isinstance(e.update, Ended) for e in await self.entries(task_id))


@asynccontextmanager
async def house(
    limits: SchedulerLimits = SchedulerLimits(),  # noqa: B008 (it is frozen)
    url: str = "sqlite://",
    agent: ScriptedAgent | None = None,
    always: Literal["context", "workspace"] = "context",
    clock: Callable[[], int] = now_ms,
    peer_calls: PeerCalls | None = None,
    limiter: Limiter | None = None,
) -> AsyncIterator[House]:
    agent = agent or ScriptedAgent()
    async with (
        Database.open(url) as database,
        SqlTaskLog.open(database) as log,
        AsyncExitStack() as stack,
    ):
        scheduler = Scheduler(
            log=log,
            sessions=Sessions(agent, SqlBindings(database)),
            interrupts=SqlInterrupts(database),
            limits=replace(limits, grace=0),
            clock=clock,
            peer_calls=peer_calls,
            limiter=limiter,
        )
        if limiter is not None:
            limiter.store, log.on_usage = SqlUsage(database), limiter.count
        await stack.enter_async_context(scheduler.running())
        interrupts = Interrupts(
            log=log,
            scheduler=scheduler,
            store=SqlInterrupts(database),
            shares_always=lambda: always == "workspace",
            limiter=limiter,
        )
        tasks = Tasks(
            agent=agent,
            log=log,
            scheduler=scheduler,
            interrupts=interrupts,
            options=NoOptions(),
            inputs=Inputs(NoFiles(), 1 << 20, 1 << 20),
            clock=now_ms,
            limiter=limiter,
        )
        yield House(agent, database, log, scheduler, interrupts, tasks)


def rename(db: Connection, before: str, after: str) -> None:
    """Take a table away, and give it back: a store that fails, and recovers."""
    db.exec_driver_sql(f"ALTER TABLE {before} RENAME TO {after}")


def answers(task: Task) -> list[str]:
    return [block.text for block in task.visible_blocks()]
