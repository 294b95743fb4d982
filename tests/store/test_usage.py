"""What callers have used: counted once, in the transaction that commits it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencode_a2a.domain.events import AgentEvent, ChildStarted, MessageSeen, Speaker, StepFinished
from opencode_a2a.domain.limits import StepUsage, day_of
from opencode_a2a.domain.ports import UsageItem, UsageQuery
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import LogEntry, Progress, Started
from opencode_a2a.domain.values import COST_DIGITS, AnsweredBy, ModelRef, Usage
from opencode_a2a.opencode.v1.wire import PartInfo, part_events
from opencode_a2a.store import statements
from opencode_a2a.store.codec import encode
from opencode_a2a.store.database import Conflict, Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.usage import SqlUsage, read_stored
from tests.store.support import DONE, HELLO, OWNER, Clock, claim_all, head, soon

USED = Usage(5, 4, 3, 2, 1, cost=0.1)
BY_MODEL = AnsweredBy(ModelRef("demo", "small"))
ALL = UsageQuery(None, by=frozenset({"day", "principal", "model"}))
NOON = 1_800_000_000_000  # of a day in January 2027


def finished(part: str, usage: Usage = USED, by: AnsweredBy | None = BY_MODEL) -> Progress:
    return Progress("step-finish", "completed", part_id=part, usage=usage, answered_by=by)


def row(steps: int, owner: str = OWNER, model: str = "demo/small", at: int = NOON) -> UsageItem:
    return UsageItem(
        steps=steps,
        input_tokens=5 * steps,
        output_tokens=4 * steps,
        reasoning_tokens=3 * steps,
        cache_read_tokens=2 * steps,
        cache_write_tokens=steps,
        total_tokens=15 * steps,
        cost=round(0.1 * steps, COST_DIGITS),
        day=day_of(at).isoformat(),
        model=model,
        principal=owner,
    )


async def test_steps_are_summed_by_day_caller_and_model(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    clock.now, told = NOON, list[StepUsage]()
    log.on_usage = told.extend
    usage = SqlUsage(database)
    async with soon():
        for task, owner in (("t", OWNER), ("u", "bob")):
            await log.create(head(task, owner=owner), [HELLO])
            await log.write(task, [finished(f"{task}1"), finished(f"{task}2")])
        await log.write("t", [finished("t3", by=None), finished("t4\0")])
        clock.now += 86_400_000
        await log.write("t", [finished("t5")])
        assert await usage.sums(ALL) == [
            row(1, model=""),
            row(3),
            row(2, "bob"),
            row(1, at=clock.now),
        ]
        assert len(told) == 7
        [total] = await usage.sums(UsageQuery(OWNER))
        assert (total.steps, total.cost) == (5, 0.5)
        first = day_of(NOON)
        [only] = await usage.sums(UsageQuery(OWNER, first=first, last=first))
        assert only.steps == 4
        assert await usage.sums(UsageQuery("carol")) == []
        spent = await usage.spent(day_of(clock.now))
    assert (spent[OWNER].tokens_today, spent[OWNER].tokens_this_month) == (15, 75)
    assert (spent["bob"].tokens_today, spent["bob"].cost_this_month) == (0, 200_000_000)


async def test_the_largest_step_of_the_month_is_known_after_a_restart(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    clock.now = NOON
    async with soon():
        await log.create(head("t"), [HELLO])
        for number, tokens in enumerate((4, 9, 2)):
            await log.write("t", [finished(f"{number}", Usage(tokens, 1, cost=tokens / 10))])
        clock.now += 86_400_000
        await log.write("t", [finished("last", Usage(3, 0))])
        found = (await SqlUsage(database).spent(day_of(clock.now)))[OWNER]
    assert (found.largest_step_tokens, found.largest_step_cost) == (10, 900_000_000)


async def test_the_same_step_counts_once_whoever_tells_of_it(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    clock.now, told = NOON, list[StepUsage]()
    log.on_usage = told.extend
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO])
        await log.write("t", [finished("1"), finished("1")])
        await log.write("u", [finished("1")])
        clock.outlast_leases()
        async with SqlTaskLog.open(database, clock=clock) as another:
            another.on_usage = told.extend
            await claim_all(another)
            await another.write("t", [finished("1"), finished("2")])
            log.append("t", [finished("3")])  # by the process that has lost the task
            await log.flushed("t")
        assert await SqlUsage(database).sums(ALL) == [row(2)]
    assert len(told) == 2


async def test_what_was_used_outlives_its_task(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    clock.now = NOON
    usage = SqlUsage(database)
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.write("t", [finished("1"), DONE])
        clock.now += 40 * 86_400_000
        await log.sweep(Retention())
        assert await usage.sums(ALL) == [row(1)]
        clock.now = NOON + 401 * 86_400_000
        await log.sweep(Retention(usage=0))
        assert await usage.sums(ALL) == [row(1)]
        await log.sweep(Retention())
        assert await usage.sums(ALL) == []


async def test_it_can_be_read_while_nothing_else_is_opened(path: Path, file_url: str) -> None:
    assert read_stored(file_url, ALL) is None
    clock = Clock(NOON)
    async with (
        soon(),
        Database.open(file_url) as database,
        SqlTaskLog.open(database, clock=clock) as log,
    ):
        await log.create(head("t"), [HELLO])
        await log.write("t", [finished("1")])
        assert read_stored(file_url, ALL) == [row(1)], "beside a service"
    assert read_stored(file_url, ALL) == [row(1)]


async def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a#b c"
    folder.mkdir()
    url = f"sqlite:///{folder}/tasks.db"
    async with soon(), Database.open(url):
        pass
    assert read_stored(url, ALL) == []


async def test_absurd_figures_of_a_provider_do_not_keep_other_tasks_from_writing(
    database: Database, log: SqlTaskLog
) -> None:
    tokens = {"input": 2**64 - 1, "output": -7}
    part = {"id": "p", "type": "step-finish", "sessionID": "s", "messageID": "m", "cost": 1e300}
    [absurd] = part_events(PartInfo.model_validate({**part, "tokens": tokens}))
    assert isinstance(absurd, StepFinished)
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO])
        log.append("t", [finished("1", absurd.usage)])
        await log.write("u", [finished("2")])
        [total] = await SqlUsage(database).sums(UsageQuery(OWNER))
    assert (total.steps, total.output_tokens) == (2, USED.output_tokens)


async def test_a_fault_of_whoever_is_told_does_not_stop_the_log(log: SqlTaskLog) -> None:
    told = list[Sequence[StepUsage]]()

    def fail(steps: Sequence[StepUsage]) -> None:
        told.append(steps)
        raise RuntimeError("a fault")

    log.on_usage = fail
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.write("t", [finished("1")])
        await log.write("t", [finished("2")])
        await log.write("t", [DONE])
    assert len(told) == 2


@pytest.mark.parametrize("steps", [("1", "2"), ("12", "34")])  # PostgreSQL gets several by COPY
async def test_a_task_that_is_refused_counts_nothing_and_the_others_count_once(
    database: Database, log: SqlTaskLog, steps: tuple[str, str]
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO])
        batches = [
            batch_of(log, "t", *map(finished, steps[0])),
            batch_of(log, "u", *map(finished, steps[1]), seq=1),  # a number that is taken
        ]
        lease = log._lease()
        with pytest.raises(Conflict):
            await database.write(statements.commit, batches, lease)
        refused = await database.write(statements.commit_apart, batches, lease)
        [total] = await SqlUsage(database).sums(UsageQuery(OWNER))
    assert (set(refused), total.steps) == ({"u"}, len(steps[0]))


def batch_of(log: SqlTaskLog, task: str, *updates: Progress, seq: int = 2) -> statements.Batch:
    entries = [LogEntry(seq + i, NOON, update) for i, update in enumerate(updates)]
    known, encoded = log._open[task].task, [encode(update) for update in updates]
    return statements.Batch(known, is_new=False, entries=entries, encoded=encoded)


# -- whatever happens in whatever order


@dataclass
class World:
    """What OpenCode has stored, and processes of the service that hear of it badly."""

    database: Database
    stack: AsyncExitStack
    clock: Clock = field(default_factory=lambda: Clock(NOON))
    stored: dict[int, list[AgentEvent]] = field(default_factory=dict)  # by task
    distinct: dict[str, tuple[str, str, Usage]] = field(default_factory=dict)  # by part
    turns: dict[int, Turn] = field(default_factory=dict)
    log: SqlTaskLog = field(init=False)

    async def begin(self) -> None:
        self.log = await self.stack.enter_async_context(
            SqlTaskLog.open(self.database, clock=self.clock)
        )
        for task in range(4):
            await self.log.create(head(f"t{task}", f"c{task}", owner=owner(task)), [HELLO])
            await self.log.write(f"t{task}", [Started(f"ses_{task}")])
            self.turns[task] = Turn(f"ses_{task}", "msg_1")
            prompt = MessageSeen(f"ses_{task}", "msg_1", Speaker.USER, 1)
            # A sub-agent that two tasks of one caller ask, one after the other.
            shared = ChildStarted(f"ses_child{task % 2}", f"ses_{task}")
            self.stored[task] = [prompt, shared]
            self.hear(task, self.stored[task])

    def step(self, task: int, *, of_child: bool, amount: int, heard: bool) -> None:
        session = f"ses_child{task % 2}" if of_child else f"ses_{task}"
        part = f"prt_{len(self.distinct)}"
        message, model = f"msg_of_{part}", f"m{amount % 3}"
        usage = Usage(amount, 2 * amount, cost=amount / 1000)
        by = AnsweredBy(ModelRef("p", model))
        seen = MessageSeen(session, message, Speaker.AGENT, 2, "msg_1", answered_by=by)
        events: list[AgentEvent] = [seen, StepFinished(session, message, part, usage)]
        self.distinct[part] = (owner(task), f"p/{model}", usage)
        both = (task, (task + 2) % 4) if of_child else (task,)
        for each in both:
            self.stored[each] += events
        if heard:
            self.hear(task, events)

    def hear(self, task: int, events: Sequence[AgentEvent]) -> None:
        for event in events:
            self.log.append(f"t{task}", self.turns[task].feed(event))

    async def kill(self, *, flushed: bool) -> None:
        """Another process takes over. Of what this one was about to write, some is lost."""
        if flushed:
            for task in self.turns:
                await self.log.flushed(f"t{task}")
        self.clock.outlast_leases()
        self.log = await self.stack.enter_async_context(
            SqlTaskLog.open(self.database, clock=self.clock)
        )
        for found in await claim_all(self.log):
            task = int(found.head.id[1:])
            self.turns[task] = Turn(f"ses_{task}", "msg_1")
            self.turns[task].resume(found)
            self.hear(task, self.stored[task][:2])

    async def sums(self) -> Counter[tuple[str, str, str]]:
        found = await SqlUsage(self.database).sums(ALL)
        counted = Counter[tuple[str, str, str]]()
        for each in found:
            assert each.principal is not None
            assert each.model is not None
            key = (each.principal, each.model)
            counted[*key, "steps"] += each.steps
            counted[*key, "tokens"] += each.total_tokens
            counted[*key, "cost"] += round(each.cost * 1000)
        return counted

    def expected(self) -> Counter[tuple[str, str, str]]:
        wanted = Counter[tuple[str, str, str]]()
        for principal, model, usage in self.distinct.values():
            wanted[principal, model, "steps"] += 1
            wanted[principal, model, "tokens"] += usage.total_tokens
            wanted[principal, model, "cost"] += round(usage.cost * 1000)
        return wanted


def owner(task: int) -> str:
    return f"caller{task % 2}"


TASKS = st.integers(0, 3)
ACTIONS = st.one_of(
    st.tuples(st.just("step"), TASKS, st.booleans(), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("again"), TASKS, st.integers(0, 40)),
    st.tuples(st.just("read"), TASKS),
    st.tuples(st.just("kill"), st.booleans()),
    st.tuples(st.just("pass"), st.integers(1, 3)),
)


async def play(actions: Sequence[tuple[object, ...]]) -> None:
    async with soon(), Database.open("sqlite://") as database, AsyncExitStack() as stack:
        world = World(database, stack)
        await world.begin()
        for action in actions:
            match action:
                case ("step", int(task), bool(of_child), int(amount), bool(heard)):
                    world.step(task, of_child=of_child, amount=amount, heard=heard)
                case ("again", int(task), int(start)):
                    world.hear(task, world.stored[task][start : start + 3])
                case ("read", int(task)):
                    world.hear(task, world.stored[task])
                case ("kill", bool(flushed)):
                    await world.kill(flushed=flushed)
                case ("pass", int(days)):
                    for task in world.turns:
                        await world.log.flushed(f"t{task}")
                    world.clock.now += days * 40_000_000
                case _:
                    raise AssertionError(action)
        for task in world.turns:
            world.hear(task, world.stored[task])
            await world.log.flushed(f"t{task}")
        assert await world.sums() == world.expected()


@given(st.lists(ACTIONS, max_size=25))
@settings(max_examples=60)
def test_the_sums_are_those_of_the_distinct_steps(actions: list[tuple[object, ...]]) -> None:
    """Lost, repeated and early events, kills with half of it unwritten, two processes at once."""
    asyncio.run(play(actions))


def test_days_are_those_of_utc() -> None:
    midnight = day_of(NOON).toordinal() * 86_400_000 - date(1970, 1, 1).toordinal() * 86_400_000
    assert day_of(midnight) == day_of(NOON)
    assert day_of(midnight - 1) == day_of(NOON) - timedelta(days=1)
