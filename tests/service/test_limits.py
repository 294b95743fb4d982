"""Who is stopped when a budget is used up, and who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date

import pytest

from opencode_a2a.domain.effects import Happened
from opencode_a2a.domain.events import (
    BlockKind,
    ChildStarted,
    MessageSeen,
    Speaker,
    StepFinished,
    TextSnapshot,
)
from opencode_a2a.domain.limits import DAY_MS, Limits, Spent, StepUsage
from opencode_a2a.domain.ports import UsageItem, UsageQuery
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import BlockText, Progress, Queued
from opencode_a2a.domain.values import (
    Failure,
    PermissionAsk,
    PermissionRule,
    Problem,
    TaskState,
    Text,
    Usage,
)
from opencode_a2a.errors import AuthorizationForbidden, BudgetExceeded
from opencode_a2a.service.limits import Limiter
from opencode_a2a.service.runner import Runner
from opencode_a2a.store.clock import now_ms
from tests.fakes.session import ScriptedSession
from tests.service.house import ALICE, BOB, answers, house

BUDGET = {"alice": Limits(tokens_per_day=10)}


def limiter() -> Limiter:
    return Limiter(of=lambda name: BUDGET.get(name, Limits()), has_budgets=lambda: True)


def step(usage: Usage, owner: str = "alice", task: str = "another") -> StepUsage:
    return StepUsage(owner, task, model="demo/demo", at=now_ms(), usage=usage)


def spend(limits: Limiter, owner: str = "alice") -> None:
    limits.count([step(Usage(8, 8), owner)])


def problem_of(task: Task) -> Failure | None:
    ended = task.ended
    return ended.problem.type if ended is not None and ended.problem is not None else None


async def test_all_tasks_of_the_caller_are_stopped_but_none_of_others() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        working, session = await at.working("c")
        waiting = await at.send("behind it", "c")
        others = await at.send("hello", "d", caller=BOB)
        answer = session.begin()
        said = TextSnapshot(session.ref.id, answer, "prt_1", BlockKind.TEXT, "so far", ended=True)
        session.say(said)
        await at.until_said(working, BlockText)
        spend(limits)
        task = await at.ended(working)
        assert (task.state, problem_of(task)) == (TaskState.FAILED, Failure.BUDGET_EXCEEDED)
        assert answers(task) == ["so far"]
        assert task.ended is not None
        assert "It renews at" in (task.ended.message or "")
        assert problem_of(await at.ended(waiting)) is Failure.BUDGET_EXCEEDED
        assert len(session.prompts) == 1, "what waited was not sent"
        assert not (await at.tasks.get(BOB, others)).state.terminal
        with pytest.raises(BudgetExceeded):
            await at.send("one more", "e")
        await at.send("one more", "e", caller=BOB)


async def test_a_budget_is_left_to_the_tasks_that_are_in_a_step() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        (first, one), (second, two) = [await at.working(context) for context in "cd"]
        end_step(one, "prt_1", Usage(4, 0))
        await at.until_said(first, Progress)
        end_step(two, "prt_2", Usage(3, 0))
        stopped = await at.ended(second)
        assert problem_of(stopped) is Failure.BUDGET_EXCEEDED
        assert stopped.ended is not None
        assert "(7 of 10 are used) is kept for the steps that its other tasks" in (
            stopped.ended.message or ""
        )
        waiting = await at.send("hello", "e")
        assert not (await at.tasks.get(ALICE, first)).state.terminal, "it has the rest"
        end_step(one, "prt_3", Usage(2, 0))
        assert await at.state(waiting) is TaskState.SUBMITTED, "there is no step left for it"
        end_step(one, "prt_4", Usage(4, 0))
        for task in (first, waiting):
            assert problem_of(await at.ended(task)) is Failure.BUDGET_EXCEEDED
        assert [each.used for each in await limits.budgets("alice")] == [13]


async def test_a_task_waits_until_the_budget_has_a_step_for_it() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        first, one = await at.working("c")
        end_step(one, "prt_1", Usage(5, 0))
        await at.until_said(first, Progress)
        waiting = await at.send("hello", "d")
        await at.until_said(waiting, Queued)
        one.answer("done")
        assert (await at.ended(first)).state is TaskState.COMPLETED
        await at.until(waiting, TaskState.WORKING)


async def test_an_answer_waits_while_the_budget_is_kept_for_another_task() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        ask = PermissionAsk("per_1", "ses_0", "bash", ("ls",))
        asking, _ = await at.asking(ask)
        other, session = await at.working("d")
        end_step(session, "prt_1", Usage(6, 0))
        await at.until_said(other, Progress)
        with pytest.raises(BudgetExceeded, match="is kept for the steps") as refused:
            await at.say(asking, Text("yes"))
        assert refused.value.retry_after == 10, "not until it renews"
        session.answer("done")
        await at.ended(other)
        assert (await at.say(asking, Text("yes"))).interrupts == {}


def end_step(session: ScriptedSession, part: str, usage: Usage) -> None:
    answer = session.begin()
    session.say(StepFinished(session.ref.id, answer, part, usage))


async def test_what_waits_for_a_person_waits_on_and_needs_the_budget_to_go_on() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        ask = PermissionAsk("per_1", "ses_0", "bash", ("ls",))
        task, _ = await at.asking(ask)
        spend(limits)
        with pytest.raises(BudgetExceeded):
            await at.say(task, Text("yes"))
        assert await at.state(task) is TaskState.INPUT_REQUIRED
        assert (await at.say(task, Text("no"))).interrupts == {}


async def test_a_task_of_which_one_sub_agent_asks_is_stopped_if_another_spends() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        task, session = await at.working("c")
        session.begin()
        parent, ask = session.ref.id, PermissionAsk("per_1", "ses_a", "bash", ("ls",))
        session.say(ChildStarted("ses_a", parent), ChildStarted("ses_b", parent))
        session.ask(ask)
        await at.until_open(task, ask)
        session.say(
            MessageSeen("ses_b", "msg_b", Speaker.AGENT, 5, "msg_x"),
            StepFinished("ses_b", "msg_b", "prt_b", Usage(8, 8)),
        )
        assert problem_of(await at.ended(task)) is Failure.BUDGET_EXCEEDED


async def test_a_task_that_cannot_be_stopped_does_not_save_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        broken, _ = await at.working("c")
        other, _ = await at.working("d")

        post = Runner.post

        def refuse(runner: Runner, happened: Happened) -> None:
            if runner.head.id == broken:
                raise RuntimeError("this cannot be encoded")
            post(runner, happened)

        with monkeypatch.context() as patch:
            patch.setattr(Runner, "post", refuse)
            spend(limits)
        assert problem_of(await at.ended(other)) is Failure.BUDGET_EXCEEDED


async def test_a_prompt_is_not_sent_for_a_caller_that_has_spent_its_budget_meanwhile() -> None:
    limits = limiter()
    async with house(limiter=limits) as at:
        await limits.check_budget("alice")
        limits.tasks = None  # nobody is told
        at.agent.gate.clear()
        task = await at.send("hello", "c")
        spend(limits)
        at.agent.gate.set()
        ended = await at.ended(task)
        assert problem_of(ended) is Failure.BUDGET_EXCEEDED
        assert at.agent.of("c").prompts == []


class Told:
    """Implements `CallersTasks` for a caller with no tasks here."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def others_at_work(self, caller: str, task: str) -> int:
        return 0

    def stop_task(self, task: str, problem: Problem) -> None:
        raise AssertionError("no task has spent anything")

    def stop_tasks_of(self, caller: str, problem: Problem, spending: str | None) -> None:
        self.stopped.append(caller)

    def hand_out_slots(self) -> None:
        pass


class OtherProcess:
    """Implements `UsageStore`: what others have counted."""

    def __init__(self) -> None:
        self.tokens = 0
        self.meanwhile: Callable[[], None] | None = None

    async def spent(self, day: date) -> dict[str, Spent]:
        found = Spent(day)
        found.add(day, tokens=self.tokens, cost=0)
        if self.meanwhile is not None:
            self.meanwhile()
        return {"alice": found}

    async def sums(self, query: UsageQuery) -> Sequence[UsageItem]:
        raise NotImplementedError


async def test_what_other_processes_count_is_learned_and_nothing_is_forgotten() -> None:
    store, told = OtherProcess(), Told()
    limits = limiter()
    limits.store, limits.tasks = store, told
    limits.count([step(Usage(6, 0))])
    store.tokens = 6
    await limits.check_budget("alice")
    assert [each.used for each in await limits.budgets("alice")] == [6]
    store.tokens = 12
    async with limits.refreshing():
        with pytest.raises(BudgetExceeded) as refused:
            await limits.check_budget("alice")
    assert refused.value.facts["used"] == 12
    assert told.stopped == ["alice"]


async def test_a_step_that_was_read_before_it_was_told_counts_once_in_the_end() -> None:
    store, limits = OtherProcess(), limiter()
    limits.store = store

    async def used() -> float:
        await limits._refresh()
        [budget] = await limits.budgets("alice")
        return budget.used

    store.tokens, store.meanwhile = 3, lambda: limits.count([step(Usage(3, 0))])
    assert await used() == 6, "it may be committed after the read: rather too much for a moment"
    store.meanwhile = None
    limits.count([step(Usage(3, 0))])  # and one more that the read has seen already
    assert await used() == 3


def test_a_step_counts_on_the_day_of_its_commit() -> None:
    limits = limiter()
    limits._is_read = True
    yesterday = replace(step(Usage(99, 0)), at=now_ms() - DAY_MS)
    limits.count([yesterday])
    assert limits.budget_problem("alice") is None


def test_a_list_of_patterns_alone_makes_a_caller_choose() -> None:
    limits = Limiter(of=lambda _: Limits(agents=("p*",), models=("demo/*",)))
    assert limits.agent_for("alice", default="plan") == "plan"
    with pytest.raises(AuthorizationForbidden, match=r"Name one in metadata.opencode.agent: p\*"):
        limits.agent_for("alice", default="build")
    with pytest.raises(AuthorizationForbidden):
        limits.model_for("alice", default=None)


def test_where_agents_are_limited_one_is_named_for_opencode_may_default_to_another() -> None:
    limits = Limiter(of=lambda name: Limits(agents=("build",)) if name == "alice" else Limits())
    assert limits.agent_for("alice", default="build") == "build"
    assert limits.agent_for("bob", default="build") is None


@pytest.mark.parametrize(("permission", "refused"), [("bash", True), ("*", True), ("edit", False)])
def test_a_caller_whose_agent_may_not_run_everything_has_no_shell(
    permission: str, refused: bool
) -> None:
    rule = PermissionRule(permission, "rm *", "deny")
    limits = Limiter(of=lambda _: Limits(permission_rules=(rule,)))
    with pytest.raises(AuthorizationForbidden) if refused else nullcontext():
        limits.check_shell("alice")


async def test_callers_of_whom_nothing_must_be_known_are_forgotten() -> None:
    limits = Limiter(of=lambda _: Limits(requests_per_minute=600, stream_minutes_per_day=1))
    now = now_ms()
    limits.clock = lambda: now
    async with limits.refreshing():
        for number in range(100):
            name = f"caller-{number}"
            spend(limits, name)
            limits.check_request(name)
            limits.close_stream(name, limits.open_stream(name))
        still_open = limits.open_stream("caller-0")
        now += DAY_MS
        limits.look_soon()
        while limits._look.is_set():  # noqa: ASYNC110 (until it has looked)
            await asyncio.sleep(0)
        assert (len(limits._spent), len(limits._rates), len(limits._streams)) == (0, 0, 1)
        limits.close_stream("caller-0", still_open)
