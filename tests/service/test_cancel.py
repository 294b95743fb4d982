"""Cancelling a turn, whatever it is doing."""

from __future__ import annotations

import asyncio

import pytest

from opencode_a2a.domain.events import InterruptAsked
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import PermissionAsk, TaskState
from opencode_a2a.errors import OutcomeUnknown, TaskNotCancelable, UpstreamUnreachable
from opencode_a2a.service.scheduler import SchedulerLimits
from tests.fakes.session import PATIENCE
from tests.service.house import ALICE, House, answers, house, rename

SUBMITTED, WORKING, COMPLETED = TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED
CANCELED = TaskState.CANCELED
AWAY = UpstreamUnreachable("OpenCode cannot be reached.")


async def cancel(at: House, task_id: str) -> Task:
    async with asyncio.timeout(PATIENCE):
        return await at.tasks.cancel(ALICE, task_id)


async def test_a_waiting_turn_goes_and_the_running_one_does_not_notice() -> None:
    async with house() as at:
        running, session = await at.working("c", "one")
        waiting, last = await at.send("two", "c"), await at.send("three", "c")
        assert (await cancel(at, waiting)).state is CANCELED
        assert [await at.state(task) for task in (running, last)] == [WORKING, SUBMITTED]
        session.answer("ONE")
        await session.until_asked("three")
        assert (session.aborts, len(session.prompts)) == (0, 2)


async def test_a_running_turn_is_aborted_and_what_it_asked_for_is_refused() -> None:
    async with house() as at:
        task, session = await at.working("c")
        session.begin()
        session.say(InterruptAsked(session.ref.id, PermissionAsk("per_1", session.ref.id, "bash")))
        await at.until(task, TaskState.INPUT_REQUIRED)
        assert (await cancel(at, task)).state is CANCELED
        assert session.stopped == [set()]
        assert await at.ends(task) == 1
        _, same = await at.working("c", "again")
        assert same is session


async def test_a_task_can_be_canceled_in_the_moment_it_is_made() -> None:
    async with house() as at:
        task = await at.send("hello", "c")
        assert (await cancel(at, task)).state is CANCELED


async def test_a_task_can_be_canceled_while_its_session_is_made() -> None:
    async with house() as at:
        at.agent.gate.clear()
        task = await at.send("hello", "c")
        await at.agent.until(lambda: at.agent.creating)
        assert (await cancel(at, task)).state is CANCELED
        at.agent.gate.set()
        await at.working("c")


async def test_an_abort_does_not_overtake_the_prompt_it_is_for() -> None:
    async with house() as at:
        first, session = await at.working("c")
        session.answer("done")
        await at.ended(first)
        session.gate.clear()
        task = await at.send("slow to arrive", "c")
        await session.until(lambda: session.subscribed)
        canceling = asyncio.create_task(cancel(at, task))
        await at.until(task, WORKING)
        assert session.aborts == 0
        session.gate.set()
        assert (await canceling).state is CANCELED
        assert (session.aborts, session.asked) == (1, "slow to arrive")


async def test_a_prompt_that_never_arrives_does_not_keep_a_cancel_waiting() -> None:
    async with house(SchedulerLimits(abort=0.05)) as at:
        first, session = await at.working("c")
        session.answer("done")
        await at.ended(first)
        session.gate.clear()
        task = await at.send("never arrives", "c")
        await session.until(lambda: session.subscribed)
        assert (await cancel(at, task)).state is CANCELED


@pytest.mark.parametrize("trouble", [AWAY, None])
async def test_whatever_the_agent_does_about_it_the_task_is_canceled(
    trouble: UpstreamUnreachable | None,
) -> None:
    async with house(SchedulerLimits(abort=0.05)) as at:
        task, session = await at.working("c")
        session.trouble = trouble
        session.deaf = True
        assert (await cancel(at, task)).state is CANCELED


async def test_an_agent_that_is_lost_during_a_cancel_makes_no_failure_of_it() -> None:
    async with house() as at:
        first, session = await at.working("c")
        session.answer("done")
        await at.ended(first)
        session.line.clear()
        task = await at.send("hello", "c")
        await at.until(task, WORKING)
        canceling = asyncio.create_task(cancel(at, task))
        session.trouble = AWAY
        session.line.set()
        assert (await canceling).state is CANCELED


async def test_a_task_that_was_done_first_stays_done() -> None:
    async with house() as at:
        task, session = await at.working("c")
        session.answer("just in time")
        session.deaf = True
        with pytest.raises(TaskNotCancelable) as refusal:
            await cancel(at, task)
        assert refusal.value.facts["state"] == "completed"
        done = await at.tasks.get(ALICE, task)
        assert (done.state, answers(done)) == (COMPLETED, ["just in time"])
        assert await at.ends(task) == 1


async def test_everybody_who_cancels_gets_the_same_answer() -> None:
    async with house() as at:
        task, session = await at.working("c")
        ends = await asyncio.gather(*(cancel(at, task) for _ in range(5)))
        assert {end.state for end in ends} == {CANCELED}
        assert session.aborts == 1
        with pytest.raises(TaskNotCancelable):
            await cancel(at, task)


async def test_a_canceled_task_asks_nothing_more() -> None:
    async with house() as at:
        task, session = await at.working("c", "one")
        await at.send("two", task=task)
        assert (await cancel(at, task)).state is CANCELED
        assert len(session.prompts) == 1


async def test_an_end_that_cannot_be_recorded_is_not_reported() -> None:
    async with house(SchedulerLimits(abort=0.05, record=0.05)) as at:
        task, _ = await at.working("c")
        await at.database.write(rename, "entries", "away")
        with pytest.raises(OutcomeUnknown):  # nobody says that nothing was changed
            await cancel(at, task)
        await at.database.write(rename, "away", "entries")
        assert (await at.ended(task)).state is CANCELED


async def test_an_answer_to_half_of_what_was_asked_does_not_complete_a_canceled_task() -> None:
    async with house() as at:
        task, session = await at.working("c", "one")
        await at.send("two", task=task)
        session.deaf = True
        canceling = asyncio.create_task(cancel(at, task))
        await session.until(lambda: session.aborts)
        session.answer("ONE")
        assert (await canceling).state is CANCELED
        assert answers(await at.tasks.get(ALICE, task)) == ["ONE"]
