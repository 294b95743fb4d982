"""One caller's queue is in no other caller's way: not for a slot, not at the door, not later."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from opencode_a2a.domain.events import InterruptClosed
from opencode_a2a.domain.values import Caller, PermissionAsk, Prompt, TaskState, Text
from opencode_a2a.errors import OutcomeUnknown, UpstreamBusy
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.scheduler import SchedulerLimits
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.service.house import ALICE, BOB, House, NoFiles, house, rename

CAROL = Caller("carol")


class Order:
    """Whose prompts the agent got, in the order in which it got them; each context is `who/n`."""

    def __init__(self, agent: ScriptedAgent, *prompted: str) -> None:
        self._agent = agent
        self.prompted = list(prompted)

    async def next(self) -> ScriptedSession:
        """The session that is prompted next."""
        await self._agent.until(self._new)
        (session,) = self._new()  # one slot, one prompt
        self.prompted.append(_context(session))
        return session

    def _new(self) -> list[ScriptedSession]:
        sessions = self._agent.sessions.values()
        return [s for s in sessions if s.prompts and _context(s) not in self.prompted]


def _context(session: ScriptedSession) -> str:
    return session.ref.title.rpartition("/")[0]


async def queued(at: House, caller: Caller, count: int) -> None:
    """So many tasks of a caller, each in a context of its own, ready but for a slot."""
    before = len(at.agent.sessions)
    for number in range(before, before + count):
        await at.send("hello", f"{caller.principal}/{number:03}", caller=caller)
    await at.agent.until(lambda: len(at.agent.sessions) == before + count)


async def until_all_wait(at: House, count: int) -> None:
    """Nothing else tells that so many tasks are ready but for a slot."""
    async with asyncio.timeout(PATIENCE):
        while sum(map(len, at.scheduler._admission._waiting.values())) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_who_has_one_task_waits_for_one_slot_behind_two_hundred_of_another() -> None:
    async with house(SchedulerLimits(running=1, queued=256)) as at:
        order = Order(at.agent)
        await queued(at, ALICE, 1)
        session = await order.next()
        await queued(at, ALICE, 200)
        await queued(at, BOB, 2)
        await queued(at, CAROL, 1)
        await until_all_wait(at, 203)
        for _ in range(6):
            session.answer("done")
            session = await order.next()
        assert [name[0] for name in order.prompted] == list("abcabaa")
        of_alice = [name for name in order.prompted if name[0] == "a"]
        assert of_alice == ["alice/000", "alice/001", "alice/002", "alice/003"]


async def test_more_messages_to_a_task_do_not_keep_its_slot_from_other_callers() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        task, session = await at.working("alice")
        await queued(at, BOB, 1)
        await until_all_wait(at, 1)
        await at.say(task, Text("more"))
        await at.say(task, Text("even more"))
        session.answer("done")
        bobs = await Order(at.agent, "alice").next()
        assert _context(bobs) == "bob/001"
        assert session.asked == "hello", "it waits, and goes on where it was"
        bobs.answer("done")
        for text in ("more", "even more"):  # nobody waits any more
            await session.until_asked(text)
            session.answer("done")
        assert (await at.ended(task)).state is TaskState.COMPLETED


async def test_two_callers_who_go_on_sending_to_their_tasks_take_turns() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        alices, session = await at.working("alice")
        bobs = await at.send("hello", "bob", caller=BOB)
        await until_all_wait(at, 1)
        other = at.agent.of("bob")
        for number in range(5):
            await at.say(alices, Text(f"more {number}"))
            session.answer("done")
            await other.until_asked(f"more {number - 1}" if number else "hello")
            await at.say(bobs, Text(f"more {number}"), caller=BOB)
            other.answer("done")
            await session.until_asked(f"more {number}")
            assert len(other.prompts) == number + 1


async def test_a_task_that_gave_way_can_be_canceled() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        task, session = await at.working("alice")
        await queued(at, BOB, 1)
        await until_all_wait(at, 1)
        await at.say(task, Text("more"))
        session.answer("done")
        bobs = await Order(at.agent, "alice").next()
        assert (await at.tasks.cancel(ALICE, task)).state is TaskState.CANCELED
        assert len(session.prompts) == 1
        assert bobs.subscribed


async def test_a_newcomer_does_not_wait_for_who_has_every_slot() -> None:
    async with house(SchedulerLimits(running=3)) as at:
        await queued(at, ALICE, 8)
        sessions = at.agent.sessions.values()
        await at.agent.until(lambda: sum(bool(s.prompts) for s in sessions) == 3)
        for caller in (BOB, CAROL):
            task = await at.send("hello", caller.principal, caller=caller)
            await at.until(task, TaskState.WORKING, caller=caller)
        await at.agent.until(lambda: sum(bool(s.prompts) for s in sessions) == 5)


async def test_tasks_whose_questions_are_all_answered_at_once_keep_nobody_out() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        waiting = []
        for number in range(4):
            task, session = await at.working(f"alice/{number}")
            ask = PermissionAsk(f"per_{number}", session.ref.id, "bash")
            session.ask(ask)
            await at.until_open(task, ask)
            waiting.append((task, session, ask))
        bobs = await at.send("hello", "bob", caller=BOB)
        await at.until(bobs, TaskState.WORKING, caller=BOB)
        carols = await at.send("hello", "carol", caller=CAROL)
        await until_all_wait(at, 1)
        for _, session, ask in waiting:
            session.say(InterruptClosed(session.ref.id, ask.request_id, "once"))
        for task, *_ in waiting:
            await at.until(task, TaskState.WORKING)
        at.agent.of("bob").answer("done")  # and none of Alice's
        await at.until(carols, TaskState.WORKING, caller=CAROL)


async def test_a_canceled_task_takes_no_slot_while_its_end_cannot_be_recorded() -> None:
    async with house(SchedulerLimits(running=1, abort=0.05, record=0.05)) as at:
        task, session = await at.working("a")
        second, third = await at.send("hello", "b"), await at.send("hello", "c")
        await until_all_wait(at, 2)
        await at.database.write(rename, "entries", "away")
        with pytest.raises(OutcomeUnknown):
            await at.tasks.cancel(ALICE, second)
        session.ask(PermissionAsk("per_1", session.ref.id, "bash"))  # the slot is free
        await until_all_wait(at, 0)
        await at.database.write(rename, "away", "entries")
        await at.agent.of("c").until_asked("hello")
        assert (await at.ended(second)).state is TaskState.CANCELED
        assert await at.state(task) is TaskState.INPUT_REQUIRED
        assert await at.state(third) is TaskState.WORKING


async def test_a_task_that_comes_back_twice_at_once_leaves_its_context_free() -> None:
    async def prepare(message_id: str) -> Prompt:
        raise AssertionError("OpenCode has this prompt already")

    async with house(SchedulerLimits(quiet=0.05)) as at:
        task, session = await at.working("c")
        found = await at.tasks.get(ALICE, task)
        prompted = [replace(prompt, parts=()) for prompt in session.prompts]
        session.remember("done")
        for _ in range(2):  # the second comes before the first has begun
            at.scheduler.resume(found, "hello", prompted, prepare)
        assert (await at.ended(task)).state is TaskState.COMPLETED
        await at.send("next", "c")
        await session.until_asked("next")


async def test_a_full_queue_is_full_only_for_who_has_filled_it() -> None:
    async with house(SchedulerLimits(running=1, queued=4, queued_per_caller=2)) as at:
        await queued(at, ALICE, 5)
        with pytest.raises(UpstreamBusy) as refused:
            await at.send("too much", "alice/9")
        assert refused.value.facts == {"bound": "queue", "setting": "A2A_MAX_QUEUED_TASKS"}
        assert "(4, all of them yours)" in refused.value.message
        await queued(at, BOB, 2)
        for caller, waiting in ((BOB, 2), (ALICE, 4)):
            with pytest.raises(UpstreamBusy) as refused:
                await at.send("too much", "another", caller=caller)
            setting = "A2A_MAX_QUEUED_TASKS"
            assert refused.value.facts == {"bound": "caller", "setting": setting}
            assert f"({waiting})" in refused.value.message
            assert setting in refused.value.message
            assert refused.value.retry_after
        await queued(at, CAROL, 1)


async def test_whoever_lets_many_tasks_wait_for_answers_is_alone_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opencode_a2a.service.scheduler.MAX_RESTING", 1)
    async with house() as at:
        task, session = await at.working("a")
        ask = PermissionAsk("per_1", session.ref.id, "bash")
        session.ask(ask)
        await at.until_open(task, ask)
        with pytest.raises(UpstreamBusy):
            await at.send("hello", "b")
        await at.send("hello", "b", caller=BOB)


async def test_after_a_restart_the_callers_take_turns_too(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    limits = SchedulerLimits(running=1, quiet=0.05)
    async with house(limits, url, agent) as at:
        order = Order(agent)
        await queued(at, ALICE, 1)
        session = await order.next()
        await queued(at, ALICE, 20)
        await queued(at, BOB, 2)
    async with (
        house(limits, url, agent) as at,
        Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)),
    ):
        await agent.until(lambda: session.subscribed)  # what had begun goes on first
        await until_all_wait(at, 22)
        for _ in range(5):
            session.answer("done")
            session = await order.next()
        assert [name[0] for name in order.prompted] == list("ababaa")
