"""Tasks without their output, and the boards that watchers read them from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, select

from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import Ended, InterruptOpened, Progress, SessionTitled, Started
from opencode_a2a.domain.values import (
    AnsweredBy,
    ModelRef,
    PermissionAsk,
    SessionRef,
    TaskState,
    Usage,
)
from opencode_a2a.domain.watching import WatchCursor
from opencode_a2a.service import watching
from opencode_a2a.service.watching import OVERLAP_MS, Summary, TaskWatches, Watch
from opencode_a2a.store import statements, summaries
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.tables import tasks
from tests.store.support import HELLO, OWNER, Clock, delta, head, settle, soon

STARTED = Started("ses_1", "A title")
STEP = Progress("step-finish", "completed", part_id="prt_1", usage=Usage(3, 4))
MODEL = AnsweredBy(ModelRef("demo", "demo"), agent="build")
ASKED = InterruptOpened(PermissionAsk("per_1", "ses_1", "bash", ("ls",)))
DONE = Ended(
    TaskState.COMPLETED, usage=Usage(3, 4), session="ses_1", title="A title", answered_by=MODEL
)


async def next_of(watch: Watch) -> list[Summary]:
    async with soon():
        return list((await watch.next()).summaries)


async def ready(watch: Watch) -> list[str]:
    """The ids of all that is told until the watch is live."""
    told: list[str] = []
    async with soon():
        while not (batch := await watch.next()).is_ready:
            told += [summary.task.head.id for summary in batch.summaries]
    return told


@asynccontextmanager
async def another_process(database: Database, clock: Clock) -> AsyncIterator[SqlTaskLog]:
    async with SqlTaskLog.open(database, clock=clock) as log:
        yield log


def watches_of(log: SqlTaskLog, clock: Clock) -> TaskWatches:
    found = TaskWatches(log=log, summaries=log, clock=clock)
    log.on_change = found.on_change
    return found


async def test_an_open_task_is_the_same_whoever_writes_it(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    await log.create(head("t"), [HELLO])
    await log.create(head("not-hers", owner="bob"), [HELLO])
    for update in (STARTED, delta("Hello"), STEP, delta(" world"), ASKED):
        await log.write("t", [update])
    (own,) = await log.open_tasks(OWNER)
    async with another_process(database, clock) as other:
        (seen,) = await other.open_tasks(OWNER)
        assert {task.head.id for task in await other.open_tasks(None)} == {"t", "not-hers"}
    assert seen == own
    assert not seen.blocks
    assert not seen.history
    assert (seen.state, seen.usage) == (TaskState.INPUT_REQUIRED, Usage(3, 4))
    assert list(seen.interrupts) == ["per_1"]


@pytest.mark.parametrize("cleared", [False, True])
async def test_an_ended_task_is_read_from_its_end(
    log: SqlTaskLog, clock: Clock, cleared: bool
) -> None:
    without_usage = Ended(TaskState.FAILED, "It broke.")
    for task_id, end in (("a", DONE), ("b", without_usage)):
        clock.now += 10
        await log.create(head(task_id), [HELLO])
        for update in (STARTED, delta("Hello"), STEP, end):
            await log.write(task_id, [update])
    if cleared:
        clock.now += 1_000
        await log.sweep(Retention(replay=0.0))
    a, b = await log.ended_tasks(OWNER, after=(0, ""), limit=10)
    assert (a.head.id, a.state, a.usage, a.answered_by) == ("a", DONE.state, DONE.usage, MODEL)
    assert a.session is not None
    assert (a.session.id, a.session.title) == ("ses_1", "A title")
    assert (b.head.id, b.state, b.usage) == ("b", TaskState.FAILED, Usage(3, 4))
    assert b.ended is not None
    assert b.ended.message == "It broke."
    assert [t.head.id for t in await log.ended_tasks(None, after=(0, ""), limit=1)] == ["a"]
    later = await log.ended_tasks(OWNER, after=(a.status_at, "a"), limit=10)
    assert [task.head.id for task in later] == ["b"]
    assert not await log.ended_tasks("bob", after=(0, ""), limit=10)


async def test_a_watcher_gets_the_latest_of_each_task(log: SqlTaskLog, clock: Clock) -> None:
    watch = await watches_of(log, clock).open(OWNER)
    assert await ready(watch) == []
    for task_id in ("a", "b"):
        await log.create(head(task_id), [HELLO])
    await log.create(head("not-hers", owner="bob"), [HELLO])
    await log.write("a", [STARTED])
    await log.write("a", [delta("Hello")])
    first = await next_of(watch)
    assert [(each.task.head.id, each.task.state) for each in first] == [
        ("b", TaskState.SUBMITTED),
        ("a", TaskState.WORKING),
    ]
    await log.write("a", [SessionTitled("ses_1", "Another")])
    (renamed,) = await next_of(watch)
    assert renamed.task.session is not None
    assert renamed.task.session.title == "Another"
    watch.end()
    await log.write("a", [DONE])


async def test_a_watcher_that_is_too_far_behind_starts_over_and_misses_nothing(
    log: SqlTaskLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BOARD_TASKS", 3)
    clock.now = 10 * OVERLAP_MS
    watch = await watches_of(log, clock).open(OWNER)
    await ready(watch)
    for number in range(8):
        clock.now += 1
        await log.create(head(f"t{number}"), [HELLO])
        if number % 2:
            await log.write(f"t{number}", [DONE])
    told = await ready(watch)
    assert sorted(set(told)) == [f"t{number}" for number in range(8)]
    watch.end()


async def test_what_others_do_comes_with_the_next_look_and_only_once(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    clock.now = 10 * OVERLAP_MS
    async with another_process(database, clock) as other:
        await other.create(head("old"), [HELLO])
        watches = watches_of(log, clock)
        watch = await watches.open(OWNER)
        assert await ready(watch) == ["old"]
        await other.create(head("new"), [HELLO])
        for update in (STARTED, delta("Hello"), STEP):
            await other.write("old", [update])
        await watches.look()
        changed = {each.task.head.id: each.task for each in await next_of(watch)}
        assert changed["new"].state is TaskState.SUBMITTED
        assert (changed["old"].state, changed["old"].usage) == (TaskState.WORKING, Usage(3, 4))
        await other.write("old", [delta(" world")])
        await watches.look()  # more text is no news
        await other.write("new", [DONE])
        await other.create(head("short"), [HELLO])
        await other.write("short", [DONE])
        await watches.look()
        ended = await next_of(watch)
        assert {each.task.head.id for each in ended} == {"new", "short"}
        assert {each.task.state for each in ended} == {TaskState.COMPLETED}
        await watches.look()
        waiting = asyncio.create_task(watch.next())
        await settle()
        assert not waiting.done(), "nothing has changed"
        waiting.cancel()
        watch.end()


async def test_a_cursor_brings_what_ended_since_and_what_is_open(
    log: SqlTaskLog, clock: Clock
) -> None:
    clock.now = 10 * OVERLAP_MS
    cursor = WatchCursor(13 * OVERLAP_MS)  # between the second and the third
    for task_id in ("long-ago", "before", "after"):
        await log.create(head(task_id, created_at=clock.now), [HELLO])
        await log.write(task_id, [DONE])
        clock.now += 2 * OVERLAP_MS
    await log.create(head("open"), [HELLO])
    watches = watches_of(log, clock)
    told = await ready(resumed := await watches.open(OWNER, cursor=cursor))
    assert told == ["open", "before", "after"]
    plain = await watches.open(OWNER)
    assert await ready(plain) == ["open"]
    for watch in (resumed, plain):
        watch.end()


@pytest.mark.parametrize(
    "cursor", [WatchCursor(0), WatchCursor(1763419080000, {"a-b": 1, "c": 2**40})]
)
def test_a_cursor_is_read_as_it_was_written(cursor: WatchCursor) -> None:
    assert WatchCursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "x", "1;", "1;a", "1;a=", "1;=1", "1;a=1;", "-1", "1 ", "١"])
def test_what_is_no_cursor_is_none(text: str) -> None:
    assert WatchCursor.parse(text) is None


async def test_a_task_that_is_swept_while_it_is_read_is_read_from_its_result(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    """Where each statement of a reader sees what is committed by then."""
    await log.create(head("t"), [HELLO, STARTED, DONE])

    def read_and_sweep(db: Connection) -> Task:
        row = db.execute(select(*summaries._ROW).where(tasks.c.id == "t")).one()
        assert statements.sweep(db, clock.now + 1) == 1
        return summaries._ended(db, row)

    found = await database.write(read_and_sweep)
    assert (found.state, found.session) == (TaskState.COMPLETED, SessionRef("ses_1", "A title"))
