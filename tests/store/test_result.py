"""What is stored of a task that has ended: its folded result, with and without its deltas."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from opencode_a2a.domain.events import BlockKind, ToolCall
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import (
    BlockText,
    BlockTool,
    ChangesMade,
    Ended,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
    MessageAdded,
    Progress,
    Started,
    Update,
)
from opencode_a2a.domain.values import (
    Failure,
    FileChange,
    Message,
    PermissionAsk,
    Problem,
    Role,
    TaskQuery,
    TaskState,
    Text,
    Usage,
)
from opencode_a2a.store import log as log_module
from opencode_a2a.store import statements
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from tests.store.support import (
    DONE,
    HELLO,
    OWNER,
    Clock,
    delta,
    head,
    numbers,
    rest,
    soon,
    step,
    visible_state,
)

TASKS = ["old", "running", "recent"]
NO_REPLAY = Retention(replay=0)
ASK = PermissionAsk("per_1", "ses_1", "bash", ("rm *",), command="rm -rf build")
STORY: list[Update] = [
    Started("ses_1", "New session"),
    Progress("step-start", "started", part_id="prt_0"),
    BlockText("r", "msg_2", "prt_1", BlockKind.REASONING, "", append=False),
    BlockText("v", "msg_2", "prt_9", BlockKind.TEXT, "never mind", append=False),
    BlockTool("c", "msg_2", ToolCall("call_1", "bash", "running", input={"command": "rm"})),
    InterruptOpened(ASK, expires_at=5_000),
    InterruptResolved(ASK, "once"),
    BlockText("v", "msg_2", "prt_9", BlockKind.TEXT, "", append=False),
    BlockText("r", "msg_2", "prt_1", BlockKind.REASONING, "Hmm… ", append=True),
    BlockText("r", "msg_2", "prt_1", BlockKind.REASONING, "yes. ", append=True, last=True),
    BlockTool("c", "msg_2", ToolCall("call_1", "bash", "completed", "rm", output="ok")),
    Progress("step-finish", "completed", usage=Usage(10, 5, cost=0.5)),
    MessageAdded(Message("m-2", Role.USER, (Text("And more"),), {"n": 1}), "msg_3"),
    BlockText("a", "msg_4", "prt_3", BlockKind.TEXT, "Answer 🦄 ", append=False),
    BlockText("a", "msg_4", "prt_3", BlockKind.TEXT, "in parts", append=True),
    ChangesMade((FileChange("a.py", 1, 2, "modified", "@@"),)),
    Progress("step-finish", "completed", usage=Usage(1, 2, 3, 4, 5, 0.25)),
]
ENDS = {
    "with its own usage": Ended(
        TaskState.COMPLETED, "Done.", None, Usage(99), "ses_1", "Remove the build"
    ),
    "with the usage of its steps": DONE,
    "failing": Ended(
        TaskState.FAILED, "No.", Problem(Failure.PROVIDER_QUOTA, "No.", 429), session="ses_1"
    ),
}


@pytest.mark.parametrize("together", [1, 4, len(STORY) + 1])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_the_result_equals_the_task_that_was_followed_before_and_after_sweeping(
    database: Database, log: SqlTaskLog, clock: Clock, end: Ended, together: int
) -> None:
    story = [*STORY, end]
    async with soon():
        created = await log.create(head("t", modes=("text/plain",)), [HELLO])
        cursor = log.follow("t", 0)
        for n in range(0, len(story), together):
            clock.now += 10
            log.append("t", story[n : n + together])
            await log.flushed("t")
        received = await rest(cursor)
        task = Task.of(created.head, received)
        assert task.ended == end
        assert visible_state(await log.get(OWNER, "t")) == visible_state(task)

        clock.now += 10
        async with SqlTaskLog.open(database, clock=clock) as fresh:
            assert visible_state(await fresh.get(OWNER, "t")) == visible_state(task)
            assert await rest(fresh.follow("t", 0)) == received
            await fresh.sweep(NO_REPLAY)
            assert await fresh.as_of("t", 1) is None
            swept = await fresh.get(OWNER, "t")
            assert visible_state(swept) == visible_state(task)
            (row,) = (await fresh.list(TaskQuery(OWNER))).rows
        assert (row.head, row.state, row.status_at) == (task.head, task.state, task.status_at)
        assert (row.session, row.message) == (task.session, end.message)


async def test_sweeping_takes_only_the_deltas_of_tasks_that_ended_long_ago(
    log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        for task, now in zip(TASKS, [1_000, 1_000, 2_000], strict=True):
            clock.now = now
            await log.create(head(task), [HELLO, Started("ses_1"), delta("x"), delta("y", "c")])
            if task != "running":
                await log.write(task, [DONE])
        clock.now = 2_000
        await log.sweep(Retention(replay=1.0))
        assert await log.as_of("old", 1) is not None
        clock.now = 2_001
        await log.sweep(Retention(replay=1.0))
        assert [task for task in TASKS if await log.as_of(task, 1) is None] == ["old"]
        assert numbers(await rest(log.follow("recent", 0))) == [1, 2, 3, 4, 5]
        assert (await log.get(OWNER, "running")).state is TaskState.WORKING
        assert (await log.get(OWNER, "old")).blocks["b"].text == "x"
        page = await log.list(TaskQuery(OWNER))
        assert {row.head.id for row in page.rows} == {"old", "running", "recent"}
        await log.write("running", [DONE])
        assert numbers(await rest(log.follow("running", 0))) == [1, 2, 3, 4, 5]


async def test_sweeping_a_crowd_goes_on_in_small_steps(
    database: Database, log: SqlTaskLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "SWEEP_ROWS", 4)
    async with soon():
        for n in range(10):
            await log.create(head(f"t-{n}"), [HELLO, DONE])
        clock.now += 1
        for step in (statements.sweep, statements.forget):
            swept = [await database.write(step, clock.now) for _ in range(4)]
            assert swept == [4, 4, 2, 0]


async def test_the_log_sweeps_by_itself(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SWEEP_SECONDS", 0.001)
    monkeypatch.setattr(statements, "SWEEP_ROWS", 2)
    async with soon(), SqlTaskLog.open(database, Retention(replay=10), clock=clock) as log:
        for n in range(5):
            await log.create(head(f"t-{n}"), [HELLO, delta("x"), delta("y", "c"), delta("z"), DONE])

        async def entries() -> list[int]:
            return [len(await rest(log.follow(f"t-{n}", 0))) for n in range(5)]

        assert await entries() == [5] * 5
        clock.now += 10_001
        while await entries() != [4] * 5:
            pass
        assert [await log.as_of(f"t-{n}", 1) for n in range(5)] == [None] * 5


async def test_the_log_sweeps_soon_after_its_start_also_if_it_never_runs_for_long(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FIRST_SWEEP_SECONDS", 0.001)
    async with soon(), SqlTaskLog.open(database, clock=clock) as log:
        await log.create(head("t"), [HELLO, DONE])
    clock.now += 10_001
    async with soon(), SqlTaskLog.open(database, Retention(replay=10), clock=clock) as log:
        while await log.as_of("t", 1) is not None:
            pass


async def test_a_cursor_that_is_overtaken_by_the_sweep_ends_with_the_same_text(
    log: SqlTaskLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", 2)
    monkeypatch.setattr(statements, "PAGE_ENTRIES", 4)
    async with soon():
        await log.create(head("t"), [HELLO])
        slow, gone = log.follow("t", 0), log.follow("t", 0)
        for n in range(20):
            await log.write("t", [delta(f"{n} ", "even" if n % 2 == 0 else "odd"), step(n)])
        written = await log.get(OWNER, "t")
        seen: list[LogEntry] = list(await slow.read())
        assert len(seen) == 4
        await log.write("t", [DONE])
        task = await log.get(OWNER, "t")
        clock.now += 1
        await log.sweep(NO_REPLAY)
        assert await log.as_of("t", 1) is None
        for cursor, before in [(slow, seen), (gone, []), (log.follow("t", 0), [])]:
            received = [*before, *await rest(cursor)]
            assert numbers(received) == sorted(numbers(received))
            client = Task.of(task.head, received)
            assert {id: block.text for id, block in client.blocks.items()} == {
                id: block.text for id, block in written.blocks.items()
            }
            assert (client.ended, client.last_seq) == (task.ended, task.last_seq)
        assert await rest(log.follow("t", task.last_seq)) == []


async def test_sweeping_a_long_task_goes_on_in_small_steps(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "SWEEP_ENTRIES", 3)
    async with soon(), SqlTaskLog.open(database, clock=clock) as log:
        await log.create(head("t"), [HELLO, *(step(n) for n in range(8))])
        await log.write("t", [DONE])
        told = await log.get(OWNER, "t")
        clock.now += 10_000
        left = []
        while await database.write(statements.sweep, clock.now):
            page = (await database.read(statements.next_entries, {"t": 0}))["t"]
            assert await log.get(OWNER, "t") == told
            assert page.entries[-1].update == DONE
            left.append(await database.read(_count_entries))
        assert left == [7, 4, 1, 0]
        assert await database.write(statements.forget, clock.now) == 1


def _count_entries(db: Connection) -> int:
    found: int = db.exec_driver_sql("SELECT count(*) FROM entries").scalar_one()
    return found
