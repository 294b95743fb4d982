"""Push configs and their cursors: who sends, from where, and how long things are kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from opencode_a2a.domain.push import (
    Claimed,
    DeadLetter,
    PushConfig,
    PushCursor,
    PushTarget,
    TooManyConfigs,
)
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import Started
from opencode_a2a.domain.values import TaskState
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.push import SqlPush
from tests.store.support import DONE, HELLO, OWNER, Clock, delta, head, soon

TARGET = PushTarget("https://example.com/hook", token="t")
STARTED = Started("ses_1")
SHORT = Retention(replay=60, tasks=3_600)
DAYS = 86_400_000


@pytest.fixture
def push(database: Database, clock: Clock) -> SqlPush:
    return SqlPush(database, clock)


def config(task: Task, name: str = "c", target: PushTarget = TARGET) -> PushConfig:
    return PushConfig(task.head, name, target=target, created_at=1_000)


def cursor(task: Task, name: str = "c", seq: int = 0) -> PushCursor:
    return PushCursor(task.head.id, name, seq=seq, state=TaskState.SUBMITTED)


async def put(
    push: SqlPush, task: Task, name: str = "c", target: PushTarget = TARGET
) -> PushCursor:
    found = cursor(task, name)
    await push.put(config(task, name, target), found, most=10)
    return found


async def test_what_is_due_are_the_changes_of_state_after_the_cursor(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, delta("x"), DONE])
        told = await put(push, task)
        due = await push.due(told)
        assert due is not None
        assert [entry.seq for entry in due.entries] == [2, 4]
        assert due.task is not None
        assert due.task.blocks["b"].text == "x"
        told.passed(due.entries[0])
        await push.save([told], [])
        due = await push.due(told)
        assert due is not None
        assert [entry.seq for entry in due.entries] == [4]


async def test_who_asks_for_every_event_gets_every_entry(log: SqlTaskLog, push: SqlPush) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, delta("x")])
        due = await push.due(await put(push, task, target=replace(TARGET, every_event=True)))
        assert due is not None
        assert [entry.seq for entry in due.entries] == [1, 2, 3]
        assert due.task is None


async def test_a_config_is_replaced_where_it_is_and_counted_once(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        told.seq = 2
        await push.save([told], [])
        other = replace(TARGET, url="https://example.org/")
        await push.put(config(task, target=other), cursor(task), most=1)
        assert [each.target for each in await push.of_task(OWNER, "t")] == [other]
        due = await push.due(told)
        assert due is not None
        assert due.entries == []
        with pytest.raises(TooManyConfigs):
            await push.put(config(task, "d"), cursor(task, "d"), most=1)
        assert await push.of_task("bob", "t") == []


async def test_a_config_that_is_set_again_goes_on_where_it_is_and_with_who_holds_it(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        told = await put(push, task)
        told.seq = 2
        await push.save([told], [])
        again = cursor(task, seq=3)
        assert await push.put(config(task), again, most=1) == told
        other = SqlPush(database, clock)
        assert await other.put(config(task), again, most=1) is None
        told.seq, told.over = 3, True
        await push.save([told], [])
        assert await push.put(config(task), cursor(task), most=1) == told, "it was told the end"


async def test_what_a_dead_process_was_sending_is_claimed_where_it_stopped(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        told.seq, told.attempts, told.next_at = 2, 3, 5_000
        await push.save([told], [])
        other = SqlPush(database, clock)
        assert await other.claim([]) == Claimed(changed=[]), "its lease holds"
        clock.outlast_leases()
        assert (await other.claim([])).taken == [told]
        assert (await push.claim([])).taken == ()
        await other.release()
        assert (await push.claim([])).taken == [told]


async def test_of_two_processes_that_claim_at_once_one_gets_the_config(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        told = await put(push, await log.create(head("t"), [HELLO, STARTED]))
        await push.release()
        others = [SqlPush(database, clock) for _ in range(4)]
        found = await asyncio.gather(*(each.claim([]) for each in others))
        assert [list(each.taken) for each in found if each.taken] == [[told]]


async def test_who_has_lost_a_config_is_told_so_and_moves_nothing(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        assert await push.save([told], []) == set()
        clock.outlast_leases()
        other = SqlPush(database, clock)
        await other.claim([])
        assert await push.save([replace(told, seq=2)], [letter(task)]) == {told.key}
        assert await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9) == []
        assert (await push.claim([told.key])).lost == {told.key}
        await other.release()
        assert (await push.claim([])).taken == [told]


async def test_a_process_notices_what_another_has_written_about_a_task(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO])
        told = await put(push, task)
        told.status_at = clock.now
        await push.save([told], [])
        assert (await push.claim([told.key])).changed == []
        clock.now += 1
        await log.write("t", [STARTED])
        assert (await push.claim([told.key])).changed == [told]


async def test_a_cursor_never_goes_back(log: SqlTaskLog, push: SqlPush) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        told = await put(push, task)
        await push.save([replace(told, seq=3, over=True)], [])
        await push.save([replace(told, seq=2)], [])
        await push.release()
        assert (await push.claim([])).taken == (), "it was told the end"


async def test_events_are_kept_while_they_are_owed_to_a_receiver(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        told = await put(push, task)
        clock.now += DAYS
        await log.sweep(SHORT)
        assert await log.as_of("t", 2) is not None
        told.seq, told.over = 3, True
        await push.save([told], [letter(task)])
        await log.sweep(SHORT)
        assert await log.as_of("t", 2) is not None, "for the dead letter"
        (dead,) = await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9)
        due = await push.dead_entry(dead)
        assert due is not None
        assert [entry.seq for entry in due.entries] == [2]
        await push.redelivered(dead)
        await log.sweep(SHORT)
        assert await log.as_of("t", 2) is None


def letter(task: Task) -> DeadLetter:
    return DeadLetter(config(task), 2, at=1_000, attempts=3, error="HTTP 500")


async def test_what_nobody_takes_is_forgotten_with_its_task(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        await put(push, task)
        await push.save([], [letter(task)])
        clock.now += 15 * DAYS
        await log.sweep(SHORT)
        assert await log.as_of("t", 2) is None
        assert await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9) == []
        assert await push.of_task(OWNER, "t") == []
        assert (await push.claim([])).taken == ()


async def test_of_a_task_that_lost_its_entries_the_end_is_due(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        clock.now += 120_000
        await log.sweep(SHORT)
        due = await push.due(await put(push, task))
        assert due is not None
        assert [entry.update for entry in due.entries] == [DONE]
        assert due.task is not None


async def test_a_deleted_config_takes_its_dead_letters_with_it(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        await push.save([], [letter(task)])
        await push.delete("bob", "t", "c")
        assert len(await push.of_task(OWNER, "t")) == 1
        await push.delete(OWNER, "t", "c")
        assert await push.due(told) is None
        assert await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9) == []
