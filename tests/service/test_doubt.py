"""A commit whose outcome is unknown, as callers meet it: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path

import pytest

from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import (
    Message,
    PermissionAsk,
    PermissionDecision,
    Role,
    TaskQuery,
    TaskState,
    Text,
)
from opencode_a2a.errors import OutcomeUnknown, StoreError, TaskHandover, UnsupportedOperation
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.scheduler import SchedulerLimits
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.service.tasks import Request
from opencode_a2a.store import log as log_module
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from tests.fakes.driver import Driver
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.service.house import ALICE, House, NoFiles, answers, house
from tests.store.support import settled

HELLO = Message("m-1", Role.USER, (Text("hello"),))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(log_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(log_module, "DOUBT_SECONDS", 0.1)
    return Driver.installed(monkeypatch)


LIMITS = SchedulerLimits(quiet=0.05, retry=0.02)


def recovering(at: House) -> AbstractAsyncContextManager[Recovery]:
    """Take up from now on what nobody holds. It writes too, so not before the driver has failed."""
    return Recovery.open(
        at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20), every=0.05
    )


async def again(at: House, request: Request) -> Task:
    """The same request, until it is answered."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await at.tasks.send(ALICE, request)
            except (StoreError, TaskHandover):
                await asyncio.sleep(0.02)


async def prompted(at: House) -> ScriptedSession:
    """The session that has a prompt."""
    await at.agent.until(lambda: any(s.prompts for s in at.agent.sessions.values()))
    (session,) = [s for s in at.agent.sessions.values() if s.prompts]
    return session


@pytest.mark.parametrize(
    "request_",
    [
        Request(HELLO),
        Request(HELLO, idempotency_key="k"),
        Request(HELLO, context_id="c"),
    ],
    ids=["message id", "key", "context"],
)
@pytest.mark.parametrize("stored", [True, False])
async def test_a_task_of_unknown_outcome_runs_once_and_the_same_request_finds_it(
    tmp_path: Path, driver: Driver, request_: Request, stored: bool
) -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(house(LIMITS, f"sqlite:///{tmp_path / 'tasks.db'}"))
        at.agent.gate.clear()  # so that the task is what is written next
        driver.lose(commits=stored, stuck=True)
        with pytest.raises(OutcomeUnknown):
            await at.tasks.send(ALICE, request_)
        with suppress(StoreError):
            early = await at.tasks.send(ALICE, request_)
            assert stored, early  # what can be read is found at once
        at.agent.gate.set()
        driver.mend()
        await stack.enter_async_context(recovering(at))
        task = await again(at, request_)
        if stored or request_.keys(0):  # else it is as good as new, each time
            assert (await again(at, request_)).head.id == task.head.id
        session = await prompted(at)
        session.answer("done")
        assert answers(await at.ended(task.head.id)) == ["done"]
        page = await at.tasks.list(TaskQuery(ALICE.principal))
        assert [row.head.id for row in page.rows] == [task.head.id]
        # The session that was opened for a task that was not stored is deleted in its own time.
        await at.agent.until(lambda: [len(s.prompts) for s in at.agent.sessions.values()] == [1])


@pytest.mark.parametrize("stored", [True, False])
async def test_a_session_that_is_not_needed_is_forgotten_also_if_nobody_heard_that_it_was_bound(
    tmp_path: Path, driver: Driver, stored: bool
) -> None:
    """Else the context would go on in a session that was deleted."""
    agent = ScriptedAgent()
    async with Database.open(f"sqlite:///{tmp_path / 'tasks.db'}") as database:
        bindings = SqlBindings(database)
        sessions = Sessions(agent, bindings)
        driver.lose(commits=stored)
        with pytest.raises(OutcomeUnknown):
            await sessions.serving("alice", "c", title="title", fresh=True)
        await sessions.forget("alice", "c")
        assert agent.sessions == {}
        assert await bindings.session_of("alice", "c") is None


@pytest.mark.parametrize("stored", [True, False])
async def test_a_message_of_unknown_outcome_to_a_working_task_is_prompted_once(
    tmp_path: Path, driver: Driver, stored: bool
) -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(house(LIMITS, f"sqlite:///{tmp_path / 'tasks.db'}"))
        task, session = await at.working("c", "first")
        more = Request(Message("m-2", Role.USER, (Text("more"),)), task_id=task)
        await at.log.flushed(task)
        driver.lose(commits=stored, stuck=True)
        with pytest.raises(OutcomeUnknown):
            await at.tasks.send(ALICE, more)
        driver.mend()
        await stack.enter_async_context(recovering(at))
        assert (await again(at, more)).head.id == task
        session.remember("FIRST")
        await session.until_asked("more")
        session.answer("MORE")
        assert (await at.ended(task)).state is TaskState.COMPLETED
        assert [prompt.parts for prompt in session.prompts] == [("first",), ("more",)]
        assert session.aborts == 0


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_of_unknown_outcome_is_delivered_once(
    tmp_path: Path, driver: Driver, stored: bool
) -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(house(LIMITS, f"sqlite:///{tmp_path / 'tasks.db'}"))
        ask = PermissionAsk("per_1", "ses_0", "bash")
        task, session = await at.asking(ask)
        await at.log.flushed(task)
        once = PermissionDecision("once")
        driver.lose(commits=stored, stuck=True)
        with pytest.raises(OutcomeUnknown):
            await at.interrupts.decide(ALICE, "per_1", once)
        assert session.settled == []
        driver.mend()
        await stack.enter_async_context(recovering(at))
        if not stored:
            await settled(at.log, task)
            await at.interrupts.decide(ALICE, "per_1", once)
        await session.until(lambda: session.settled)
        await at.agent.until(lambda: session.subscribed)
        session.answer("done")
        assert (await at.ended(task)).state is TaskState.COMPLETED
        assert session.settled == [("per_1", once)]
        with pytest.raises(UnsupportedOperation):
            await at.say(task, Text("yes"))
