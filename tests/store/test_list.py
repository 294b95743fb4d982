"""Listing: newest first, filtered, in pages, and only one's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, delete, event, update

from opencode_a2a.domain.ports import TaskRow
from opencode_a2a.domain.updates import Ended, InterruptOpened, InterruptResolved, Started
from opencode_a2a.domain.values import PermissionAsk, SessionRef, TaskQuery, TaskState
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.tables import entries, tasks
from tests.store.support import DONE, FAILED, HELLO, OWNER, Clock, delta, head, soon

ASK = PermissionAsk("per_1", "ses_1", "bash", command="make clean")


async def listed(log: SqlTaskLog, query: TaskQuery) -> list[str]:
    page = await log.list(query)
    assert page.total == len(page.rows)
    return [row.head.id for row in page.rows]


async def pages(log: SqlTaskLog, query: TaskQuery) -> list[list[TaskRow]]:
    found = []
    after = None
    while True:
        page = await log.list(
            TaskQuery(query.owner, query.context_id, query.state, query.since, query.limit, after)
        )
        found.append(list(page.rows))
        after = page.next
        if after is None:
            return found


async def test_the_newest_status_comes_first(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        assert await listed(log, TaskQuery(OWNER)) == []
        for now, task in enumerate(["a", "b", "c", "d"]):
            clock.now = now
            await log.create(head(task, created_at=now), [HELLO])
        for now, task in [(10, "b"), (20, "a")]:
            clock.now = now
            await log.write(task, [Started("ses_1")])
        clock.now = 30
        await log.write("c", [delta("text is no change of status")])
        assert await listed(log, TaskQuery(OWNER)) == ["a", "b", "d", "c"]


async def test_a_row_agrees_with_the_task(log: SqlTaskLog, clock: Clock) -> None:
    async def row() -> TaskRow:
        (found,) = (await log.list(TaskQuery(OWNER))).rows
        return found

    async with soon():
        made = head("t", "c-1", created_at=5, modes=("text/plain", "application/json"))
        await log.create(made, [HELLO])
        assert await row() == TaskRow(made, TaskState.SUBMITTED, 5)
        clock.now = 10
        await log.write("t", [Started("ses_1", "New session")])
        session = SessionRef("ses_1", "New session")
        assert await row() == TaskRow(made, TaskState.WORKING, 10, None, session)
        clock.now = 20
        await log.write("t", [InterruptOpened(ASK)])
        asking = await row()
        assert (asking.state, asking.status_at) == (TaskState.INPUT_REQUIRED, 20)
        assert "make clean" in (asking.message or "")
        clock.now = 30
        await log.write("t", [InterruptResolved(ASK, "once")])
        assert await row() == TaskRow(made, TaskState.WORKING, 30, None, session)
        clock.now = 40
        end = Ended(TaskState.FAILED, "It\0 broke.", session="ses_1", title="A better title")
        await log.write("t", [end])
        session = SessionRef("ses_1", "A better title")
        assert await row() == TaskRow(made, TaskState.FAILED, 40, "It broke.", session)
        assert (await log.get(OWNER, "t")).session == session


async def test_filters_narrow_the_list_and_its_total(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        for now, (task, context, end) in enumerate(
            [("a", "x", DONE), ("b", "y", DONE), ("c", "x", FAILED), ("d", "x", None)]
        ):
            clock.now = 100 + now
            await log.create(head(task, context, created_at=clock.now), [HELLO])
            if end is not None:
                await log.write(task, [end])
        assert await listed(log, TaskQuery(OWNER, "x")) == ["d", "c", "a"]
        assert await listed(log, TaskQuery(OWNER, "z")) == []
        assert await listed(log, TaskQuery(OWNER, state=TaskState.COMPLETED)) == ["b", "a"]
        assert await listed(log, TaskQuery(OWNER, "x", TaskState.COMPLETED)) == ["a"]
        assert await listed(log, TaskQuery(OWNER, since=102)) == ["d", "c"]
        assert await listed(log, TaskQuery(OWNER, "x", since=102)) == ["d", "c"]
        assert await listed(log, TaskQuery(OWNER, state=TaskState.CANCELED)) == []


async def test_a_list_shows_only_the_owners_tasks(log: SqlTaskLog) -> None:
    async with soon():
        for task, owner in [("a", OWNER), ("b", "bob"), ("c", OWNER)]:
            await log.create(head(task, owner=owner), [HELLO])
        assert await listed(log, TaskQuery(OWNER)) == ["c", "a"]
        assert await listed(log, TaskQuery("bob")) == ["b"]
        assert await listed(log, TaskQuery("carol")) == []
        assert await listed(log, TaskQuery(OWNER, "context")) == ["c", "a"]
        stolen = (await log.list(TaskQuery(OWNER, limit=1))).next
        page = await log.list(TaskQuery("bob", after=stolen))
        assert [row.head.owner for row in page.rows] == ["bob"]


@pytest.mark.parametrize("limit", [1, 3, 7, 40, 100])
async def test_pages_visit_every_task_once_also_when_many_changed_at_once(
    log: SqlTaskLog, clock: Clock, limit: int
) -> None:
    order = random.Random(limit)
    async with soon():
        names = [f"t-{n}" for n in range(40)]
        order.shuffle(names)
        for n, task in enumerate(names):
            clock.now = 1_000 + n // 15  # few moments, many tasks
            await log.create(head(task, created_at=clock.now), [HELLO])
        found = await pages(log, TaskQuery(OWNER, limit=limit))
        rows = [row for page in found for row in page]
        assert sorted(row.head.id for row in rows) == sorted(names)
        assert rows == sorted(rows, key=lambda row: (row.status_at, row.head.id), reverse=True)
        assert all(len(page) == limit for page in found[:-1])
        first = await log.list(TaskQuery(OWNER, limit=limit))
        assert first.total == 40
        if first.next is not None:
            second = await log.list(TaskQuery(OWNER, limit=limit, after=first.next))
            assert second.total == 40


async def test_a_task_that_changes_meanwhile_does_not_disturb_the_other_pages(
    log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        for n in range(10):
            await log.create(head(f"t-{n}"), [HELLO])
        first = await log.list(TaskQuery(OWNER, limit=5))
        clock.now += 1
        await log.write("t-0", [DONE])
        await log.create(head("new", created_at=clock.now), [HELLO])
        second = await log.list(TaskQuery(OWNER, limit=50, after=first.next))
        seen = [row.head.id for row in (*first.rows, *second.rows)]
        assert seen == [f"t-{n}" for n in range(9, 0, -1)]


async def test_the_total_follows_every_task_through_its_states(
    log: SqlTaskLog, clock: Clock
) -> None:
    async def total(state: TaskState | None = None, owner: str = OWNER) -> int:
        return (await log.list(TaskQuery(owner, state=state, limit=1))).total

    async with soon():
        for task in ("a", "b", "c"):
            await log.create(head(task), [HELLO])
        assert (await total(), await total(TaskState.SUBMITTED)) == (3, 3)
        await log.write("a", [Started("ses_1")])
        await log.write("b", [Started("ses_2"), DONE])
        assert await total() == 3
        states = (TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED, TaskState.FAILED)
        assert [await total(state) for state in states] == [1, 1, 1, 0]
        assert await total(owner="somebody else") == 0
        clock.now += 10_000_000
        await log.sweep(Retention(replay=1, tasks=1))
        assert [await total(state) for state in states] == [1, 1, 0, 0]
        assert await total() == 2


async def _ended(log: SqlTaskLog, name: str, text: str, at: int) -> None:
    await log.create(head(name, created_at=at), [HELLO])
    await log.write(name, [Started("ses_1"), delta(text), DONE])


async def test_whole_tasks_of_a_page_are_read_in_a_few_statements(
    log: SqlTaskLog, clock: Clock
) -> None:
    names = [f"t-{n:02}" for n in range(30)]
    async with soon():
        for n, name in enumerate(names):
            clock.now = 10 + n
            if n % 3:
                await _ended(log, name, f"text {n}", at=n)
            else:
                await log.create(head(name, created_at=n), [HELLO, delta(f"text {n}")])
        async with SqlTaskLog.open(log._database, clock=clock) as other:
            for reader in (log, other):
                with statements() as run:
                    found = await reader.listed(names, max_bytes=1 << 20)
                assert [task.head.id for task in found if task is not None] == names
                for n, task in enumerate(found):
                    assert task is not None
                    assert [block.text for block in task.visible_blocks()] == [f"text {n}"]
                    assert task.state is (await reader.get(OWNER, names[n])).state
                assert len(run) <= 4


async def test_a_task_that_was_deleted_meanwhile_is_left_out(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        for n, name in enumerate(("a", "b", "c")):
            await _ended(log, name, "text", at=n)
        await log._database.write(lambda db: db.execute(delete(tasks).where(tasks.c.id == "b")))
        found = await log.listed(["a", "b", "c"], max_bytes=1 << 20)
        assert [task and task.head.id for task in found] == ["a", None, "c"]
        assert await log.listed(["b"], max_bytes=1) == [None]


@pytest.mark.parametrize("column", [tasks.c.folded, entries.c.body])
async def test_a_task_that_cannot_be_read_is_left_out(
    log: SqlTaskLog, clock: Clock, column: Column[bytes]
) -> None:
    def damage(db: Connection) -> None:
        its = (tasks.c.id if column.table is tasks else entries.c.task_id) == "b"
        db.execute(update(column.table).where(its).values({column: b"["}))

    async with soon(), SqlTaskLog.open(log._database, clock=clock) as other:
        for n, name in enumerate(("a", "b", "c")):
            if column.table is tasks:
                await _ended(log, name, "text", at=n)
            else:
                await log.create(head(name, created_at=n), [HELLO])
        await log._database.write(damage)
        found = await other.listed(["a", "b", "c"], max_bytes=1 << 20)
        assert [task and task.head.id for task in found] == ["a", None, "c"]


async def test_tasks_are_read_until_they_are_too_large_but_always_one(
    log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        for n, name in enumerate(("a", "b", "c", "d")):
            await _ended(log, name, "x" * 10_000, at=n)
        for most, expected in ((1, ["a"]), (25_000, ["a", "b"]), (100_000, ["a", "b", "c", "d"])):
            found = await log.listed(["a", "b", "c", "d"], max_bytes=most)
            assert [task and task.head.id for task in found] == expected
        gone = await log.listed(["gone", "b", "c"], max_bytes=1)
        assert [task and task.head.id for task in gone] == [None, "b"]


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is said to the database meanwhile."""
    seen: list[str] = []

    def note(*said: Any) -> None:
        seen.append(said[2])

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)
