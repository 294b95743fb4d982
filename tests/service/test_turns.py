"""Scheduler at work: who goes when, what is one task, and when it is over."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencode_a2a.domain.events import (
    BlockKind,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    TextDelta,
    TextSnapshot,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.phrases import CONTINUE_PROMPT
from opencode_a2a.domain.ports import Fetched
from opencode_a2a.domain.turn import LOST
from opencode_a2a.domain.updates import (
    BlockText,
    Continued,
    InterruptAnswered,
    Progress,
    Queued,
)
from opencode_a2a.domain.values import (
    Failure,
    FileUrl,
    Message,
    PermissionAsk,
    PermissionDecision,
    Role,
    TaskQuery,
    TaskState,
    Text,
)
from opencode_a2a.errors import (
    InterruptRequestNotFound,
    StoreUnavailable,
    UnsupportedOperation,
    UpstreamBusy,
    UpstreamUnreachable,
)
from opencode_a2a.service import runner, scheduler
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.interrupts import Interrupts
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.service.scheduler import MAX_WAITING_PROMPTS, Scheduler, SchedulerLimits
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.service.tasks import Request, Tasks
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import LEASE
from opencode_a2a.store.interrupts import SqlInterrupts
from opencode_a2a.store.log import SqlTaskLog
from tests.fakes.options import NoOptions
from tests.fakes.session import PATIENCE, ScriptedAgent, ScriptedSession
from tests.service.conftest import Hours
from tests.service.house import ALICE, BOB, House, NoFiles, answers, house, rename
from tests.store.support import Clock, claim_all

SUBMITTED, WORKING, COMPLETED = TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED
FAILED, ASKING = TaskState.FAILED, TaskState.INPUT_REQUIRED
QUICK = SchedulerLimits(quiet=0.05, retry=0.02, unreachable=0.1, abort=0.5)
AWAY = UpstreamUnreachable("OpenCode cannot be reached.")


# -- who goes when


async def test_a_task_that_waits_says_for_what() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        first, session = await at.working("c", "one")
        behind, elsewhere = await at.send("two", "c"), await at.send("three", "d")
        assert await at.until_said(behind, Queued) == [Queued(first)]
        assert await at.until_said(elsewhere, Queued) == [Queued()]
        task = await at.tasks.get(ALICE, behind)
        assert (task.state, task.queued) == (SUBMITTED, Queued(first))
        page = await at.tasks.list(TaskQuery("alice", context_id="c", state=SUBMITTED))
        assert f"Waiting until task {first}" in (page.rows[0].message or "")
        await at.tasks.cancel(ALICE, elsewhere)
        session.answer("ONE")
        await session.until_asked("two")
        assert (await at.until(behind, WORKING)).queued is None


async def test_a_session_has_one_turn_at_a_time_in_the_order_of_arrival() -> None:
    async with house() as at:
        first, session = await at.working("c", "one")
        second, third = await at.send("two", "c"), await at.send("three", "c")
        assert [await at.state(t) for t in (first, second, third)] == [
            WORKING,
            SUBMITTED,
            SUBMITTED,
        ]
        session.answer("ONE")
        await session.until_asked("two")
        assert await at.state(third) is SUBMITTED
        session.answer("TWO")
        await session.until_asked("three")
        session.answer("THREE")
        told = [answers(await at.ended(task)) for task in (first, second, third)]
        assert told == [["ONE"], ["TWO"], ["THREE"]]
        assert len(at.agent.sessions) == 1


async def test_contexts_do_not_wait_for_each_other() -> None:
    async with house() as at:
        _, one = await at.working("one")
        second, two = await at.working("two")
        two.answer("first")
        assert (await at.ended(second)).state is COMPLETED
        assert one.subscribed


async def test_with_one_slot_contexts_take_turns_in_the_order_of_arrival() -> None:
    async with house(SchedulerLimits(running=1)) as at:
        _, session = await at.working("a")
        waiting = []
        for context in "bcd":
            waiting.append(await at.send("hello", context))
            await at.agent.until(lambda: len(at.agent.sessions) == 1 + len(waiting))
        for context, task in zip("bcd", waiting, strict=True):
            assert await at.state(task) is SUBMITTED
            session.answer("done")
            session = at.agent.of(context)
            await session.until_asked("hello")
            await at.until(task, WORKING)


async def test_one_more_than_may_run_and_wait_is_refused_whoever_is_still_arriving() -> None:
    async with house(SchedulerLimits(running=1, queued=1)) as at:
        sent = await asyncio.gather(
            *(at.send("hello", f"c{i}") for i in range(8)), return_exceptions=True
        )
        refused = [result for result in sent if isinstance(result, UpstreamBusy)]
        assert len(refused) == 6
        assert all(refusal.retry_after for refusal in refused)


async def test_without_a_queue_a_free_slot_is_enough() -> None:
    async with house(SchedulerLimits(running=1, queued=0)) as at:
        first, session = await at.working("c")
        with pytest.raises(UpstreamBusy):
            await at.send("too much", "d")
        session.answer("done")
        await at.ended(first)
        await at.working("d")


async def test_a_task_that_waits_for_a_person_is_in_nobodys_way_until_it_goes_on() -> None:
    async with house(SchedulerLimits(running=1, queued=0)) as at:
        asking, asked = await at.working("a")
        ask = PermissionAsk("per_1", asked.ref.id, "bash")
        asked.ask(ask)
        await at.until_open(asking, ask)
        second, session = await at.working("b")  # there is room for another, and only one
        with pytest.raises(UpstreamBusy):
            await at.send("too much", "c")
        asked.say(InterruptClosed(asked.ref.id, ask.request_id, "once"))
        await at.until(asking, WORKING)
        session.answer("done")
        await at.ended(second)
        with pytest.raises(UpstreamBusy):  # who came back has the slot now
            await at.send("too much", "c")
        asked.answer("done")
        await at.ended(asking)
        await at.working("c")


async def test_there_is_an_end_to_tasks_that_wait_for_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "MAX_RESTING", 1)
    async with house() as at:
        task, session = await at.working("a")
        ask = PermissionAsk("per_1", session.ref.id, "bash")
        session.ask(ask)
        await at.until_open(task, ask)
        with pytest.raises(UpstreamBusy) as refused:
            await at.send("hello", "b")
        assert refused.value.retry_after


async def test_a_task_takes_so_many_more_messages_and_then_no_more() -> None:
    async with house() as at:
        task, _ = await at.working("a")
        for _ in range(MAX_WAITING_PROMPTS):
            await at.send("and this", "a", task=task)
        with pytest.raises(UpstreamBusy) as refused:
            await at.send("and this", "a", task=task)
        assert refused.value.retry_after


async def test_a_refused_send_gives_its_place_back() -> None:
    async with house(SchedulerLimits(running=1, queued=0)) as at:
        at.agent.trouble = AWAY
        for _ in range(3):
            with pytest.raises(UpstreamUnreachable):
                await at.send("hello", "c")
        at.agent.trouble = None
        await at.working("c")


# -- which session


async def test_two_sends_in_a_new_context_create_one_session() -> None:
    async with house() as at:
        at.agent.gate.clear()
        tasks = [await at.send("one", "c"), await at.send("two", "c")]
        await at.agent.until(lambda: at.agent.creating)
        at.agent.gate.set()
        await at.agent.until(lambda: at.agent.sessions)
        session = at.agent.of("c")
        for text in ("one", "two"):
            await session.until_asked(text)
            session.answer(text)
        for task in tasks:
            assert (await at.ended(task)).state is COMPLETED
        assert at.agent.creating == 1


async def test_a_session_that_could_not_be_made_is_tried_again_by_the_next() -> None:
    async with house(SchedulerLimits(unreachable=0, retry=0.01)) as at:
        at.agent.gate.clear()
        first = await at.send("hello", "c")
        await at.agent.until(lambda: at.agent.creating)
        at.agent.trouble = AWAY
        at.agent.gate.set()
        ended = (await at.ended(first)).ended
        assert ended is not None
        assert ended.problem is not None
        assert ended.problem.type is Failure.UPSTREAM_UNREACHABLE
        at.agent.trouble = None
        await at.working("c")


async def test_a_session_that_cannot_be_made_yet_is_waited_for() -> None:
    async with house(SchedulerLimits(retry=0.01)) as at:
        at.agent.gate.clear()
        task = await at.send("hello", "c")
        await at.agent.until(lambda: at.agent.creating)
        at.agent.trouble = AWAY
        at.agent.gate.set()
        await at.agent.until(lambda: at.agent.creating > 2)
        at.agent.trouble = None
        await at.until(task, WORKING)


async def test_the_same_context_of_another_caller_is_another_session() -> None:
    async with house() as at:
        await at.send("mine", "c", caller=ALICE)
        await at.send("mine", "c", caller=BOB)
        await at.agent.until(lambda: len(at.agent.sessions) == 2)


# -- one task, several prompts


async def test_a_message_to_a_working_task_is_its_next_prompt() -> None:
    async with house() as at:
        task, session = await at.working("c", "one")
        assert await at.send("two", task=task) == task
        session.answer("ONE")
        await session.until_asked("two")
        assert await at.state(task) is WORKING
        session.answer("TWO")
        done = await at.ended(task)
        assert (done.state, answers(done)) == (COMPLETED, ["ONE", "TWO"])
        assert len(done.messages) == 2
        assert await at.ends(task) == 1
        with pytest.raises(UnsupportedOperation):
            await at.send("three", task=task)


async def test_a_task_that_goes_on_after_a_lost_run_says_so() -> None:
    async with house(SchedulerLimits(quiet=0.02, retry=0.02)) as at:
        task, session = await at.working("c", "one")
        await at.send("two", task=task)
        answer = session.begin()
        where = (session.ref.id, answer, "prt_1")
        session.say(
            TextSnapshot(*where, BlockKind.TEXT, "", ended=False), TextDelta(*where, "Half of")
        )
        await at.until_said(task, BlockText)  # heard before it is found to be over
        session.stored = [Idle(session.ref.id)]
        await session.until_asked("two")
        session.answer("TWO")
        done = await at.ended(task)
        assert (done.state, answers(done)) == (COMPLETED, ["Half of", "TWO"])
        assert all(block.last for block in done.visible_blocks())
        told = [entry.update for entry in await at.entries(task)]
        (lost,) = [u for u in told if isinstance(u, Progress) and u.type == "run"]
        assert (lost.status, lost.message) == ("failed", LOST.message)
        second = next(u for u in told if isinstance(u, BlockText) and u.text == "TWO")
        assert told.index(lost) < told.index(second)


CONTINUING = SchedulerLimits(quiet=0.02, retry=0.02, continues=True)


async def test_an_agent_that_was_interrupted_is_asked_to_continue_once() -> None:
    async with house(CONTINUING) as at:
        task, session = await at.working("c", "one")
        session.begin()
        session.stored = [Idle(session.ref.id)]
        await session.until_asked(CONTINUE_PROMPT)
        assert session.prompts[0].message_id != session.prompts[1].message_id
        session.begin()
        done = await at.ended(task)  # it is lost again
        assert (done.state, len(session.prompts)) == (FAILED, 2)
        assert done.ended is not None
        assert done.ended.problem == LOST
        told = [entry.update for entry in await at.entries(task)]
        assert [u for u in told if isinstance(u, Continued)] == [
            Continued(session.prompts[1].message_id)
        ]
        assert len(done.messages) == 1, "no caller has said it"


async def test_a_message_to_a_waiting_task_is_prompted_after_its_first() -> None:
    async with house() as at:
        _, session = await at.working("c", "before")
        task = await at.send("one", "c")
        await at.send("two", task=task)
        for text in ("before", "one", "two"):
            await session.until_asked(text)
            session.answer(text.upper())
        assert answers(await at.ended(task)) == ["ONE", "TWO"]


async def test_a_message_that_cannot_be_stored_gives_up_its_place() -> None:
    async with house() as at:
        task, session = await at.working("c")
        await at.database.write(rename, "entries", "away")
        with pytest.raises(StoreUnavailable):
            await at.send("lost", task=task)
        await at.database.write(rename, "away", "entries")
        session.answer("done")
        done = await at.ended(task)
        assert (done.state, answers(done)) == (COMPLETED, ["done"])
        assert len(session.prompts) == len(done.messages) == 1


@asynccontextmanager
async def storing_nothing(at: House) -> AsyncIterator[None]:
    """A store that takes its time."""
    go_on = threading.Event()
    blocking = asyncio.create_task(at.database.write(lambda _: go_on.wait(PATIENCE)))
    try:
        yield
    finally:
        go_on.set()
        await blocking


async def test_a_task_that_cannot_be_stored_leaves_nothing() -> None:
    async with house() as at:
        await at.database.write(rename, "entries", "away")
        with pytest.raises(StoreUnavailable):
            await at.send("lost")
        await at.database.write(rename, "away", "entries")
        await at.agent.until(lambda: at.agent.made == 1 and not at.agent.sessions)


async def test_a_caller_who_leaves_while_its_task_is_stored_leaves_nothing() -> None:
    async with house() as at:
        async with storing_nothing(at):
            sending = asyncio.create_task(at.send("never mind"))
            await at.agent.until(lambda: bool(at.agent.sessions))
            (session,) = at.agent.sessions.values()
            sending.cancel()
            await asyncio.wait({sending})
        await at.agent.until(lambda: not at.agent.sessions)
        assert session.prompts == []


async def test_a_task_whose_context_has_others_waits_until_it_is_stored(tmp_path: Path) -> None:
    """Until then another process that works on the next one would not see it."""
    path = tmp_path / "tasks.db"
    async with house(url=f"sqlite:///{path}") as at:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing can be stored until then, but read
            sending = asyncio.create_task(at.send("hello", "c"))
            await asyncio.wait({sending}, timeout=0.2)  # enough to begin with it, were it so
            assert at.agent.creating == 0
            other.execute("ROLLBACK")
        task = await sending
        await at.agent.until(lambda: at.agent.made == 1)
        session = at.agent.of("c")
        await session.until_asked("hello")
        session.answer("done")
        assert answers(await at.ended(task)) == ["done"]


# -- when it is over


async def test_a_quiet_agent_is_looked_at_and_its_stored_answer_counts() -> None:
    async with house(QUICK) as at:
        task, session = await at.working("c")
        session.remember("said while nobody listened")
        done = await at.ended(task)
        assert (done.state, answers(done)) == (COMPLETED, ["said while nobody listened"])


async def test_an_idle_that_never_comes_is_not_waited_for_long() -> None:
    async with house(SchedulerLimits(retry=0.02)) as at:
        task, session = await at.working("c")
        session.begin()
        session.remember("said")
        *told, _ = session.told("said")
        session.say(*told)
        assert answers(await at.ended(task)) == ["said"]
        assert session.looks == 1


async def test_an_ordinary_turn_is_never_looked_at() -> None:
    async with house() as at:
        task, session = await at.working("c")
        session.answer("said")
        await at.ended(task)
        assert session.looks == 0


async def test_a_gap_is_closed_at_once() -> None:
    async with house() as at:  # nothing is quiet for fifteen seconds here
        task, session = await at.working("c")
        session.begin()
        session.remember("said in the gap")
        session.say(Gap(session.ref.id))
        assert answers(await at.ended(task)) == ["said in the gap"]
        assert session.looks == 1


async def test_an_agent_that_is_away_for_a_moment_is_waited_for() -> None:
    async with house(SchedulerLimits(quiet=0.02, retry=0.02, unreachable=60)) as at:
        task, session = await at.working("c")
        session.trouble = AWAY
        await session.until(lambda: session.looks > 3)
        assert await at.state(task) is WORKING
        session.remember("back again")
        session.trouble = None
        assert answers(await at.ended(task)) == ["back again"]


async def test_an_agent_that_stays_away_fails_the_task_and_frees_the_session() -> None:
    async with house(QUICK) as at:
        task, session = await at.working("c")
        later = await at.send("later", "c")
        session.trouble = AWAY
        ended = (await at.ended(task)).ended
        assert ended is not None
        assert ended.problem is not None
        assert ended.problem.type is Failure.UPSTREAM_UNREACHABLE
        assert session.aborts > 1, "it may still be at work"
        assert (await at.ended(later)).state is FAILED
        session.trouble = None
        await at.working("c", "again")


async def test_work_has_a_deadline(hours: Hours) -> None:
    async with house(SchedulerLimits(deadline=60, quiet=0.02)) as at:
        task, session = await at.working("c")
        later = await at.send("later", "c")
        session.last_words = "so far"
        hours.passed += 60
        done = await at.ended(task)
        assert done.ended is not None
        assert done.ended.problem is not None
        assert done.ended.problem.type is Failure.DEADLINE_EXCEEDED
        assert answers(done) == ["so far"]
        assert session.stopped == [set()]
        await session.until_asked("later")
        session.answer("in time")
        assert (await at.ended(later)).state is COMPLETED


async def test_the_time_a_person_takes_is_not_the_agents(hours: Hours) -> None:
    async with house(SchedulerLimits(deadline=60, quiet=0.02)) as at:
        task, session = await at.working("c")
        session.begin()
        for number in range(3):
            ask = PermissionAsk(f"per_{number}", session.ref.id, "bash")
            session.open_requests = frozenset({ask.request_id})
            session.say(InterruptAsked(session.ref.id, ask))
            await at.until(task, ASKING)
            hours.passed += 60
            await session.until_looks(session.looks + 2)  # the turn has seen the time, and goes on
            session.open_requests = frozenset()
            session.say(InterruptClosed(session.ref.id, ask.request_id, "once"))
            await at.until(task, WORKING)
        session.say(*session.told("allowed"))
        done = await at.ended(task)
        assert (done.state, answers(done)) == (COMPLETED, ["allowed"])


async def test_a_fault_of_ours_fails_the_task_and_nothing_else() -> None:
    async with house() as at:
        task, session = await at.working("c")
        later = await at.send("later", "c")
        session.stored = [object()]  # type: ignore[list-item]  # nothing a turn understands
        session.say(Gap(session.ref.id))
        ended = (await at.ended(task)).ended
        assert ended is not None
        assert ended.problem is not None
        assert ended.problem.type is Failure.INTERNAL
        await session.until_asked("later")
        session.answer("fine")
        assert (await at.ended(later)).state is COMPLETED


async def test_a_stop_of_the_service_is_no_end_and_the_next_start_goes_on(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(SchedulerLimits(grace=0), url, agent) as at:
        working, session = await at.working("c", "one")
        waiting = await at.send("two", "c")
    assert session.aborts == 0
    async with house(url=url, agent=agent) as at:
        assert await at.state(working) is WORKING
        session.remember("ONE")
        async with Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)):
            assert answers(await at.ended(working)) == ["ONE"]
            await session.until_asked("two")
            assert [prompt.parts for prompt in session.prompts] == [("one",), ("two",)]
            session.answer("TWO")
            assert answers(await at.ended(waiting)) == ["TWO"]


class OneFile:
    async def fetch(self, url: str, limit: int) -> Fetched:
        return Fetched(b"content", "text/plain")


async def test_a_file_that_is_gone_when_its_message_is_sent_at_last_fails_the_task(
    tmp_path: Path,
) -> None:
    """It waited for its turn when the service stopped; its file is fetched again, in vain."""
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        working, session = await at.working("c", "one")
        tasks = Tasks(
            agent=agent,
            log=at.log,
            scheduler=at.scheduler,
            interrupts=at.interrupts,
            options=NoOptions(),
            inputs=Inputs(OneFile(), 1 << 20, 1 << 20),
            clock=now_ms,
        )
        message = Message("m-2", Role.USER, (FileUrl("https://example.com/a.txt"),))
        waiting = (await tasks.send(ALICE, Request(message, "c"))).head.id
    async with (
        house(url=url, agent=agent) as at,
        Recovery.open(at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20)),
    ):
        session.remember("ONE")
        await at.ended(working)
        failed = (await at.ended(waiting)).ended
        assert failed is not None
        assert failed.problem is not None
        assert failed.problem.type is Failure.INPUT_UNAVAILABLE
        assert "message.parts[0]: There are no files here." in failed.problem.message
        await at.working("c", "three")


class Beating(SqlTaskLog):
    """A log whose signs of life can be waited for."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.beats: asyncio.Queue[None] = asyncio.Queue()

    async def renew_leases(self) -> Sequence[str]:
        asked = await super().renew_leases()
        self.beats.put_nowait(None)
        return asked


async def test_what_may_finish_while_the_service_stops_is_held_until_then() -> None:
    agent, clock = ScriptedAgent(), Clock()
    async with (
        asyncio.timeout(PATIENCE),
        Database.open("sqlite://") as database,
        SqlTaskLog.open(database, clock=clock) as another,
        Beating.open(database, clock=clock) as log,
        AsyncExitStack() as stack,
    ):
        assert isinstance(log, Beating)
        sessions, asked = Sessions(agent, SqlBindings(database)), SqlInterrupts(database)
        limits = SchedulerLimits(grace=PATIENCE, renewal=0.01)
        working = Scheduler(
            log=log, sessions=sessions, interrupts=asked, limits=limits, clock=clock
        )
        await stack.enter_async_context(working.running())
        interrupts = Interrupts(log=log, scheduler=working, store=asked)
        tasks = Tasks(
            agent=agent,
            log=log,
            scheduler=working,
            interrupts=interrupts,
            options=NoOptions(),
            inputs=Inputs(NoFiles(), 1 << 20, 1 << 20),
            clock=clock,
        )
        request = Request(Message("m-1", Role.USER, (Text("hello"),)), "c")
        task = await tasks.send(ALICE, request)
        await agent.until(lambda: agent.sessions)
        await agent.of("c").until_asked("hello")
        stopping = asyncio.create_task(stack.aclose())
        for _ in range(3):
            clock.now += LEASE
            while not log.beats.empty():
                log.beats.get_nowait()
            for _ in range(2):  # the first may have begun before
                await log.beats.get()
            assert await claim_all(another) == []
        agent.of("c").answer("HELLO")
        await stopping
        assert answers(await log.get(ALICE.principal, task.head.id)) == ["HELLO"]


async def test_a_prompt_whose_answer_got_lost_is_not_sent_again() -> None:
    async with house(SchedulerLimits(retry=0.01)) as at:
        first, session = await at.working("c", "one")
        session.answer("ONE")
        await at.ended(first)
        session.mute = True
        second = await at.send("two", "c")
        await session.until_asked("two")
        session.answer("TWO")
        assert answers(await at.ended(second)) == ["TWO"]
        assert [prompt.parts for prompt in session.prompts] == [("one",), ("two",)]


async def test_an_answer_that_the_end_overtakes_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with house() as at:
        task, session = await at.working("c")
        session.begin()
        await at.send("second", task=task)
        first = PermissionAsk("per_1", session.ref.id, "bash")
        session.ask(first)
        await at.until_open(task, first)
        deliver = at.scheduler.deliver

        async def overtaken(task_id: str, answers: Sequence[InterruptAnswered]) -> bool:
            session.say(*session.told("done"))  # it has arrived, and nobody has heard it yet
            return await deliver(task_id, answers)

        monkeypatch.setattr(at.scheduler, "deliver", overtaken)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(InterruptRequestNotFound):
                await at.interrupts.decide(ALICE, "per_1", PermissionDecision("once"))
        monkeypatch.undo()
        await session.until_asked("second")
        session.begin()
        second = PermissionAsk("per_2", session.ref.id, "bash")
        session.ask(second)
        await at.until_open(task, second)
        async with asyncio.timeout(PATIENCE):
            await at.interrupts.decide(ALICE, "per_2", PermissionDecision("once"))


async def test_a_task_leaves_nothing_behind_that_is_still_being_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "BACKGROUND_SECONDS", 0.01)
    async with house() as at:
        before = asyncio.all_tasks()
        task, session = await at.working("c")
        session.begin()
        ask = PermissionAsk("per_1", session.ref.id, "bash")
        session.ask(ask)
        await at.until_open(task, ask)
        session.ear.clear()  # the agent takes no answer
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(
                at.interrupts.decide(ALICE, "per_1", PermissionDecision("once")),
                _end_while_delivering(session),
                return_exceptions=True,
            )
            assert (await at.ended(task)).state is TaskState.COMPLETED
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)


async def _end_while_delivering(session: ScriptedSession) -> None:
    await session.until(lambda: session.being_told)
    session.say(*session.told("done"))


async def test_a_prompt_that_ends_while_its_task_rests_leaves_no_trace_in_the_queue() -> None:
    async with house(SchedulerLimits(running=1, queued=0)) as at:
        task, session = await at.working("a")
        session.begin()
        await at.send("second", task=task)
        ask = PermissionAsk("per_1", session.ref.id, "bash")
        session.ask(ask)
        await at.until_open(task, ask)
        other, working = await at.working("b")
        session.open_requests = frozenset()
        aborted = session.told("")[1]
        assert isinstance(aborted, MessageSeen)
        session.say(replace(aborted, finish=None, aborted=True), Idle(session.ref.id))
        await session.until_asked("second")
        session.answer("done")
        await at.ended(task)
        working.answer("done")
        await at.ended(other)
        last, session = await at.working("c")  # there is room for one, and only one
        with pytest.raises(UpstreamBusy):
            await at.send("too much", "d")
        session.answer("done")
        await at.ended(last)


async def test_what_cannot_be_stored_does_not_keep_the_task_working() -> None:
    deep: dict[str, object] = {}
    for _ in range(400):
        deep = {"x": deep}
    async with house(SchedulerLimits(abort=0.1)) as at:
        task, session = await at.working("c")
        answer = session.begin()
        session.deaf = True
        call = ToolCall("call_1", "mcp", "running", input=deep)
        session.say(ToolSnapshot(session.ref.id, answer, "prt_1", call))
        assert (await at.ended(task)).state is FAILED
