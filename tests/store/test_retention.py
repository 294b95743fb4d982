"""How long rows are kept, and that the file gets smaller when they are deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencode_a2a.domain.ports import Key
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import LogEntry, Update
from opencode_a2a.domain.values import TaskQuery
from opencode_a2a.errors import TaskNotFound
from opencode_a2a.store import statements
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from tests.domain.logs import STEADY, in_pieces, visible
from tests.store.support import DONE, HELLO, OWNER, Clock, delta, head, numbers, rest, soon, step

HOURS = Retention(replay=60, tasks=3_600, keys=7_200)


async def exists(log: SqlTaskLog, task_id: str) -> bool:
    try:
        await log.get(OWNER, task_id)
    except TaskNotFound:
        return False
    return True


async def test_everything_goes_after_its_time_and_not_before(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        began = clock.now
        await log.create(head("open"), [HELLO], [Key("open", "d", began)])
        await log.create(head("t"), [HELLO, delta("x"), DONE])

        clock.now = began + 60_000
        await log.sweep(HOURS)
        assert numbers(await rest(log.follow("t", 0))) == [1, 2, 3]
        assert await log.as_of("t", 2) is not None
        clock.now += 1
        await log.sweep(HOURS)
        assert await log.as_of("t", 2) is None
        assert (await log.get(OWNER, "t")).blocks["b"].text == "x"

        clock.now = began + 3_600_000
        await log.sweep(HOURS)
        assert await exists(log, "t")
        clock.now += 1
        await log.sweep(HOURS)
        assert not await exists(log, "t")
        assert await rest(log.follow("t", 0)) == []
        assert (await log.list(TaskQuery(OWNER))).total == 1

        clock.now = began + 7_200_000
        await log.sweep(HOURS)
        assert await log.known(OWNER, "open") == ("open", "d")
        clock.now += 1
        await log.sweep(HOURS)
        assert await log.known(OWNER, "open") is None
        assert (
            await log.as_of("open", 1) is not None
        )  # a running task is kept, however long it runs


async def test_a_task_without_a_time_is_kept_for_ever(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        await log.create(head("t"), [HELLO, DONE])
        clock.now += 10**12
        await log.sweep(Retention(replay=0, tasks=0))
        assert await exists(log, "t")
        assert await log.as_of("t", 1) is None


async def test_a_key_does_not_outlive_its_task(log: SqlTaskLog, clock: Clock) -> None:
    """Otherwise a repeated request would be answered with a deleted task."""
    async with soon():
        await log.create(head("t"), [HELLO, DONE], [Key("k", "d", clock.now)])
        await log.create(head("u"), [HELLO, DONE], [Key("l", "d", clock.now + 3_600_000)])
        clock.now += 3_600_001
        await log.sweep(HOURS)
        assert not await exists(log, "t")
        assert await log.known(OWNER, "k") is None
        await log.create(head("again"), [HELLO], [Key("k", "d", clock.now)])
        assert await log.known(OWNER, "k") == ("again", "d")


async def test_many_keys_go_in_small_steps(
    database: Database, log: SqlTaskLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "SWEEP_ROWS", 4)
    async with soon():
        await log.create(head("t"), [HELLO], [Key(f"k-{n}", "d", n) for n in range(12)])
        steps = [await database.write(statements.forget_keys, 10) for _ in range(4)]
        assert steps == [4, 4, 2, 0]
        left = [n for n in range(12) if await log.known(OWNER, f"k-{n}") is not None]
        assert left == [10, 11]


async def test_the_file_shrinks(path: Path, file_url: str, clock: Clock) -> None:
    def size() -> int:
        return sum(found.stat().st_size for found in path.parent.iterdir())

    async with (
        asyncio.timeout(120),
        Database.open(file_url) as database,
        SqlTaskLog.open(database, clock=clock) as log,
    ):
        for n in range(200):
            task = f"t-{n}"
            await log.create(head(task), [HELLO])
            for _ in range(4):
                await log.write(task, [delta("x" * 25_000), step(1)])
            await log.write(task, [DONE])
        full = await asyncio.to_thread(size)
        clock.now += 1
        await log.sweep(Retention(replay=0))
        folded = await asyncio.to_thread(size)
        await log.sweep(Retention(replay=0, tasks=0.000_5))
        empty = await asyncio.to_thread(size)
        assert (await log.list(TaskQuery(OWNER))).total == 0
        for n in range(200):
            await log.create(head(f"u-{n}"), [HELLO, DONE])
    closed = await asyncio.to_thread(size)
    assert full > 40_000_000
    assert folded < 0.75 * full
    # The file shrinks with the next checkpoint of its journal, and when that is depends on sizes.
    assert empty < 0.65 * full
    assert closed < 2_000_000


@settings(STEADY, max_examples=30)
@given(in_pieces(), st.data())
def test_a_task_as_of_an_entry_is_the_fold_of_the_entries_until_then(
    pieces: list[list[Update]], data: st.DataObject
) -> None:
    async def check() -> None:
        clock = Clock()
        async with (
            soon(),
            Database.open("sqlite://") as database,
            SqlTaskLog.open(database, clock=clock) as log,
        ):
            task = await log.create(head("t"), [HELLO])
            for piece in pieces:
                clock.now += 1
                log.append("t", piece)
                await log.flushed("t")
            received: list[LogEntry] = []
            cursor = log.follow("t", 0)
            while len(received) < task.last_seq:
                received.extend(await cursor.read())
            for seq in range(1, task.last_seq + 1):
                then = await log.as_of("t", seq)
                assert then is not None
                assert then.last_seq == seq
                assert visible(then) == visible(Task.of(head("t"), received[:seq]))
            if task.ended is not None:
                clock.now += 1
                await log.sweep(Retention(replay=0))
                seq = data.draw(st.integers(1, task.last_seq))
                assert await log.as_of("t", seq) is None
            assert await log.as_of("unknown", 1) is None

    asyncio.run(check())
