"""A session that somebody deletes in OpenCode: its context goes on in a new one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from opencode_a2a.domain.events import Gap
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import Started
from opencode_a2a.domain.values import Failure, TaskState
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.scheduler import SchedulerLimits
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.service.house import House, NoFiles, answers, house

QUICK = SchedulerLimits(quiet=0.02, retry=0.02, abort=60)  # no goodbye takes so long


def interrupted(task: Task) -> bool:
    ended = task.ended
    return bool(ended and ended.problem and ended.problem.type is Failure.UPSTREAM_INTERRUPTED)


async def another(at: House, text: str) -> ScriptedSession:
    """The second session of the context, once it was asked this."""
    await at.agent.until(lambda: len(at.agent.sessions) == 2)
    session = at.agent.of("c")
    await session.until_asked(text)
    return session


async def test_the_next_message_of_its_context_goes_on_in_a_new_session() -> None:
    async with house() as at:
        first, old = await at.working("c", "one")
        old.answer("ONE")
        await at.ended(first)
        old.deleted = True
        second = await at.send("two", "c")
        new = await another(at, "two")
        new.answer("TWO")
        done = await at.ended(second)
        assert (done.state, answers(done)) == (TaskState.COMPLETED, ["TWO"])
        assert done.session is not None
        assert done.session.id == new.ref.id
        third, last = await at.working("c", "three")
        assert last is new
        last.answer("THREE")
        await at.ended(third)
    assert len(old.prompts) == 1


async def test_a_steered_task_goes_on_in_a_new_session_too() -> None:
    async with house() as at:
        task, old = await at.working("c", "one")
        await at.send("two", "c", task=task)
        old.deleted = True
        old.answer("ONE")
        new = await another(at, "two")
        new.answer("TWO")
        assert answers(await at.ended(task)) == ["ONE", "TWO"]
        started = [e.update for e in await at.entries(task) if isinstance(e.update, Started)]
        assert [start.session for start in started] == [old.ref.id, new.ref.id]


@pytest.mark.parametrize("told", [True, False])
async def test_a_running_task_of_it_ends_and_says_why(told: bool) -> None:
    """At once when OpenCode tells, at the next look otherwise."""
    async with house(SchedulerLimits(abort=60) if told else QUICK) as at:
        task, session = await at.working("c")
        session.begin()
        session.deleted = True
        if told:
            session.say(Gap(session.ref.id))
        async with asyncio.timeout(PATIENCE):
            assert interrupted(await at.ended(task))
        assert session.aborts == 1, "it may still be at work"
        await at.send("and now?", "c")
        await another(at, "and now?")


async def test_what_may_have_been_done_there_is_not_done_again(tmp_path: Path) -> None:
    agent, url = ScriptedAgent(), f"sqlite:///{tmp_path}/tasks.db"
    async with house(agent=agent, url=url) as at:
        task, session = await at.working("c")
    session.deleted = True
    async with (
        house(QUICK, agent=agent, url=url) as at,
        Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)),
    ):
        assert interrupted(await at.ended(task))
        assert len(agent.sessions) == 1
