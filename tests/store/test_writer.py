"""The writer of the log goes on, whatever goes wrong around a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import pytest

from opencode_a2a.domain.ports import UsageQuery
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import InterruptOpened, LogEntry, Progress, Update
from opencode_a2a.domain.values import PermissionAsk, Usage
from opencode_a2a.errors import OutcomeUnknown, StoreUnavailable
from opencode_a2a.store import log as log_module
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.usage import SqlUsage
from tests.store.support import (
    DONE,
    HELLO,
    OWNER,
    Clock,
    claimed_ids,
    head,
    numbers,
    rest,
    soon,
    step,
)

ASKED = InterruptOpened(PermissionAsk("per_1", "ses_1", "bash"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", (0.01,))


def _break_on_commit(log: SqlTaskLog) -> None:
    def fail(task_id: str, entries: Sequence[LogEntry]) -> None:
        raise ValueError(task_id)

    log.on_commit = fail


def _break_on_change(log: SqlTaskLog) -> None:
    def fail(task: Task, entries: Sequence[LogEntry]) -> None:
        raise ValueError(task)

    log.on_change = fail


@pytest.mark.parametrize("break_hook", [_break_on_commit, _break_on_change])
async def test_a_hook_that_fails_harms_neither_the_writer_nor_readers(
    log: SqlTaskLog, break_hook: Callable[[SqlTaskLog], None]
) -> None:
    async with soon():
        break_hook(log)
        await asyncio.gather(*(log.create(head(name), [HELLO]) for name in ("a", "b", "c")))
        for name in ("a", "b", "c"):
            reading = asyncio.create_task(rest(log.follow(name, 0)))
            log.append(name, [step(1)])
            await log.flushed(name)
            await log.write(name, [DONE])
            assert numbers(await reading) == [1, 2, 3]


@dataclass(slots=True)
class BreakingClock(Clock):
    broken: bool = False
    breaks_after: int = -1  # calls from now; -1 means never

    def __call__(self) -> int:
        if self.breaks_after == 0:
            self.breaks_after = -1
            raise ZeroDivisionError
        self.breaks_after = max(-1, self.breaks_after - 1)
        return self.now


async def test_a_batch_that_cannot_be_made_is_refused_and_the_writer_goes_on(
    database: Database,
) -> None:
    clock = BreakingClock()
    async with soon(), SqlTaskLog.open(database, clock=clock) as log:
        await log.create(head("t"), [HELLO])
        clock.breaks_after = 0
        with pytest.raises(StoreUnavailable):
            await log.write("t", [step(1)])
        await log.flushed("t")
        assert not log.is_mine("t")
        assert await claimed_ids(log) == ["t"]
        reading = asyncio.create_task(rest(log.follow("t", 0)))
        await log.write("t", [step(2), DONE])
        assert numbers(await reading) == [1, 2, 3]
        assert (await log.get(OWNER, "t")).ended == DONE


async def test_what_cannot_be_published_is_read_from_the_table(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is broken in memory is claimed again from its rows."""
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("other"), [HELLO])
        broken = log.follow("t", 1)
        reading = asyncio.create_task(rest(broken))
        # Nothing that the service writes does this; a fault of it would.
        monkeypatch.setattr(Task, "apply", _failing(Task.apply, "t"))
        log.append("other", [step(1)])
        log.append("t", [step(1)])
        with pytest.raises(OutcomeUnknown):
            await log.write("t", [step(2)])
        await log.write("other", [DONE])
        monkeypatch.undo()
        assert numbers(await rest(log.follow("other", 0))) == [1, 2, 3]
        assert await claimed_ids(log) == ["t"]
        await log.write("t", [DONE])
        assert numbers(await reading) == [2, 3, 4]


def _failing(
    apply: Callable[[Task, LogEntry], None], task_id: str
) -> Callable[[Task, LogEntry], None]:
    def fail(task: Task, entry: LogEntry) -> None:
        if task.head.id == task_id:
            raise ValueError(task_id)
        apply(task, entry)

    return fail


@pytest.mark.parametrize("update", [DONE, ASKED], ids=["an end", "a question"])
async def test_a_fault_over_one_task_in_a_commit_does_not_stop_the_others(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch, update: Update
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO])
        with monkeypatch.context() as broken:
            # To store these, the writer works out what becomes of the task.
            broken.setattr(Task, "apply", _failing(Task.apply, "t"))
            log.append("t", [update])
            for n in range(5):
                await log.write("u", [step(n)])
            await log.flushed("t")
        assert numbers(await rest_of_page(log, "u")) == [1, 2, 3, 4, 5, 6]
        assert not log.is_mine("t")
        assert await claimed_ids(log) == ["t"]
        await log.write("t", [update])
        assert numbers(await rest_of_page(log, "t")) == [1, 2]


async def test_usage_that_cannot_be_summed_up_stops_no_other_task(log: SqlTaskLog) -> None:
    def used(part: str, cost: float) -> Progress:
        usage = Usage(5, 4, 3, 2, 1, cost=cost)
        return Progress("step-finish", "completed", part_id=part, usage=usage)

    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO])
        log.append("t", [used("one", inf)])
        await log.write("u", [used("two", 0.25)])
        await log.flushed("t")
        assert not log.is_mine("t")
        (row,) = await SqlUsage(log._database).sums(UsageQuery(OWNER))
        assert (row.steps, row.cost) == (1, 0.25)


async def rest_of_page(log: SqlTaskLog, task_id: str) -> list[LogEntry]:
    return list(await log.follow(task_id, 0).read())


@pytest.mark.parametrize("step_of_writer", ["_make_batches", "_interest.channels"])
async def test_after_a_fault_that_comes_again_and_again_nobody_waits_for_ever(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch, step_of_writer: str
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(20):
        await log.create(head("t"), [HELLO])
        with monkeypatch.context() as broken:
            broken.setattr(*_place(log, step_of_writer), fail)
            with pytest.raises(StoreUnavailable):
                await log.write("t", [step(1)])
            with pytest.raises(StoreUnavailable):
                await log.create(head("u"), [HELLO])
        await log.create(head("u"), [HELLO])


def _place(log: SqlTaskLog, name: str) -> tuple[object, str]:
    owner, _, attribute = name.rpartition(".")
    return (getattr(log, owner) if owner else log), attribute


async def test_after_any_other_fault_the_writer_goes_on_and_nobody_waits_for_ever(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = 1

    def fail_once(*_: object) -> None:
        nonlocal faults
        faults -= 1
        if faults >= 0:
            raise ZeroDivisionError

    async with soon():
        await log.create(head("t"), [HELLO])
        monkeypatch.setattr(log, "_count_commit", fail_once)  # after a commit, before it is shown
        reading = asyncio.create_task(rest(log.follow("t", 1)))
        with pytest.raises(OutcomeUnknown):
            await log.write("t", [step(1)])
        await log.create(head("u"), [HELLO, DONE])
        assert await claimed_ids(log) == ["t"]
        await log.write("t", [DONE])
        assert numbers(await reading) == [2, 3]
