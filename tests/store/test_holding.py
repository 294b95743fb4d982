"""Leases: one process at a time writes a task, and another claims it if that one dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, update

from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import LogEntry, Started
from opencode_a2a.domain.values import Failure, TaskQuery, TaskState
from opencode_a2a.errors import UnsupportedOperation
from opencode_a2a.service.recovery import CLAIM_TASKS, Recovery
from opencode_a2a.store import log as log_module
from opencode_a2a.store import statements
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import LEASE, Holder
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.tables import entries
from tests.postgres import Postgres
from tests.store.support import (
    DONE,
    FAILED,
    HELLO,
    OWNER,
    Clock,
    claim_all,
    claimed_ids,
    delta,
    head,
    numbers,
    rest,
    settle,
    soon,
    step,
    visible_state,
    writer_busy,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "POLL_SECONDS", 0.01)


@asynccontextmanager
async def process(url: str, clock: Clock) -> AsyncIterator[SqlTaskLog]:
    """A log with a database connection of its own, as another process would have it."""
    async with Database.open(url) as database, SqlTaskLog.open(database, clock=clock) as log:
        yield log


@pytest.fixture(params=["file", "postgres"])
def database_of_processes(request: pytest.FixtureRequest, file_url: str) -> str:
    """A database that several processes can use."""
    if request.param == "file":
        return file_url
    server: Postgres = request.getfixturevalue("postgres")
    return server.without_tasks()


# -- when a task becomes free


async def test_a_task_is_left_to_its_holder_until_the_lease_has_run_out(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        for passed in (0, LEASE - 1, 1):
            clock.now += passed
            assert await claimed_ids(another) == []
            assert not another.is_mine("t")
        clock.now += 1
        (task,) = await claim_all(another)
        assert visible_state(task) == visible_state(await log.get(OWNER, "t"))
        assert another.is_mine("t")
        assert await claimed_ids(another) == []


async def test_renew_leases_extends_the_lease(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        assert await log.renew_leases() == ()
        await log.create(head("t"), [HELLO])
        for _ in range(5):
            clock.now += LEASE
            assert list(await log.renew_leases()) == []
            assert await claimed_ids(another) == []
        assert log.is_mine("t")
        clock.outlast_leases()
        assert list(await log.renew_leases()) == []  # late, but no other process has claimed it
        assert await claimed_ids(another) == []
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]


async def test_a_lease_that_has_run_out_is_taken_by_one_of_those_who_try(
    file_url: str, clock: Clock
) -> None:
    async with (
        soon(),
        process(file_url, clock) as first,
        process(file_url, clock) as second,
        process(file_url, clock) as third,
    ):
        for n in range(30):
            await first.create(head(f"t-{n:02}", created_at=n), [HELLO])
            await first.write(f"t-{n:02}", [step(1)])
            if n % 3 == 0:
                clock.outlast_leases()
                for log in (second, third):
                    await log.renew_leases()
                races = [claimed_ids(log) for log in (second, third) for _ in range(2)]
                won = await asyncio.gather(*races)
                names = [name for names in won for name in names]
                assert sorted(names) == [f"t-{m:02}" for m in range(max(0, n - 2), n + 1)]
        for n in range(28):
            assert [log.is_mine(f"t-{n:02}") for log in (second, third)].count(True) == 1


@pytest.mark.parametrize("body", [b'{"text": ', b"{}"])
async def test_an_expired_task_that_cannot_be_read_fails_and_stops_no_other(
    database: Database, clock: Clock, body: bytes
) -> None:
    def damage(db: Connection) -> None:
        db.execute(update(entries).where(entries.c.seq == 2).values(body=body))

    async with soon():
        async with SqlTaskLog.open(database, clock=clock) as log:
            await log.create(head("damaged", created_at=1), [HELLO])
            await log.write("damaged", [delta("lost")])
            await log.write("damaged", [delta("kept")])
            await database.write(damage)
            await log.create(head("sound", created_at=2), [HELLO])
        async with SqlTaskLog.open(database, clock=clock) as log:
            assert await claimed_ids(log) == ["sound"]
            assert await claimed_ids(log) == []
            task = await log.get(OWNER, "damaged")
            assert task.state is TaskState.FAILED
            assert task.ended is not None
            assert task.ended.problem is not None
            assert task.ended.problem.type is Failure.INTERNAL
            assert task.messages == [HELLO.message]
            assert [block.text for block in task.visible_blocks()] == ["kept"]
            assert [entry.update for entry in await rest(log.follow("damaged", 3))] == [task.ended]
            assert (await log.list(TaskQuery(OWNER, state=TaskState.FAILED))).total == 1


async def test_what_is_released_is_taken_at_once(database: Database, clock: Clock) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        async with SqlTaskLog.open(database, clock=clock) as log:
            for n, name in enumerate(["b", "c", "a"]):
                await log.create(head(name, created_at=n), [HELLO])
            log.append("c", [step(1)])
            assert await claimed_ids(another) == []
        assert await claimed_ids(another) == ["b", "c", "a"]
        assert (await another.get(OWNER, "c")).last_seq == 2


CREATOR = """
import asyncio, sys
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import HELLO, head, step

async def main():
    async with Database.open(sys.argv[1]) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO, step(1)])
        print("created", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_what_a_killed_process_held_is_its_own_until_its_lease_has_run_out(
    database_of_processes: str,
) -> None:
    """Nobody looks at processes: one of another user, or in another container, cannot be seen."""
    creator = await asyncio.to_thread(
        lambda: subprocess.Popen(
            [sys.executable, "-c", CREATOR, database_of_processes],
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    try:
        assert creator.stdout is not None
        assert await asyncio.to_thread(creator.stdout.readline) == "created\n"
        async with soon(), Database.open(database_of_processes) as database:
            clock = Clock(database.clock())
            async with SqlTaskLog.open(database, clock=clock) as log:
                assert await claimed_ids(log) == []
                creator.kill()
                await asyncio.to_thread(creator.wait)
                assert await claimed_ids(log) == []
                clock.outlast_leases()
                clock.outlast_leases()  # the other process had a clock of its own
                assert await claimed_ids(log) == ["t"]
                cursor = log.follow("t", 0)
                await log.write("t", [DONE])
                assert numbers(await rest(cursor)) == [1, 2, 3]
    finally:
        creator.kill()
        await asyncio.to_thread(creator.communicate)


def test_two_holders_never_have_the_same_name() -> None:
    ours = Holder.this_process().name
    assert len(ours) <= 80
    assert ours != Holder.this_process().name


class Reading:
    """Stops the next reader of a task, once it has read, until it may go on."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._load = statements.load
        self._met, self._go_on = threading.Event(), threading.Event()

    def load(self, db: Connection, task_id: str) -> Task | None:
        task = self._load(db, task_id)
        if task_id == self._task_id and not self._met.is_set():
            self._met.set()
            assert self._go_on.wait(60)
        return task

    async def stopped(self) -> None:
        assert await asyncio.to_thread(self._met.wait, 60)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("lost", [False, True], ids=["renewed in time", "too late"])
@pytest.mark.parametrize("slow", ["t", "u"])
async def test_what_was_claimed_is_held_while_it_is_read_or_not_opened_at_all(
    database_of_processes: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
    slow: str,
) -> None:
    """Otherwise two processes work on it."""
    url, reading = database_of_processes, Reading(slow)
    async with soon(), process(url, clock) as former:
        for name in ("t", "u"):
            await former.create(head(name), [HELLO])
    async with soon(), process(url, clock) as log, process(url, clock) as another:
        monkeypatch.setattr(statements, "load", reading.load)
        claiming = asyncio.create_task(claimed_ids(log))
        await reading.stopped()
        clock.now += LEASE
        if not lost:
            await log.renew_leases()
        clock.now += LEASE
        theirs = await claimed_ids(another)
        await log.renew_leases()
        reading.go_on()
        ours = await claiming
        assert (ours, theirs) == (([], ["t", "u"]) if lost else (["t", "u"], []))
        for name in ("t", "u"):
            assert [log.is_mine(name), another.is_mine(name)] == [not lost, lost]


async def test_a_process_that_cannot_read_what_it_has_claimed_leaves_it_for_later(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed may be the process, such as for lack of memory, and the rows sound."""
    async with soon():
        async with SqlTaskLog.open(log._database, clock=log._clock) as former:
            for name in ("t", "u"):
                await former.create(head(name), [HELLO])
        load, failures = statements.load, iter([MemoryError()])

        def fail_once(db: Connection, task_id: str) -> Task | None:
            for failure in failures:
                raise failure
            return load(db, task_id)

        monkeypatch.setattr(statements, "load", fail_once)
        assert await claimed_ids(log) == ["u"]
        assert await claimed_ids(log) == ["t"]
        task = await log.get(OWNER, "t")
        assert (task.state, task.last_seq) == (TaskState.SUBMITTED, 1)


async def test_what_is_stored_and_makes_no_task_fails(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with soon():
        async with SqlTaskLog.open(log._database, clock=log._clock) as former:
            await former.create(head("t"), [HELLO, step(1)])
            await former.create(head("u"), [HELLO])
        apply = Task.apply

        def no_step(task: Task, entry: LogEntry) -> None:
            if entry.update == step(1):
                raise KeyError(entry.seq)
            apply(task, entry)

        monkeypatch.setattr(Task, "apply", no_step)
        assert await claimed_ids(log) == ["u"]
        assert (await log.get(OWNER, "t")).state is TaskState.FAILED


# -- the former holder


@pytest.mark.parametrize("noticed", ["by a write", "by a renewal"])
async def test_the_former_holder_is_refused_and_its_readers_go_on(
    database: Database, log: SqlTaskLog, clock: Clock, noticed: str
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        log.append("t", [delta("one ")])
        await log.flushed("t")
        early, late = log.follow("t", 0), log.follow("t", 2)
        before = list(await early.read())
        waiting = asyncio.create_task(rest(late))
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]
        await another.write("t", [delta("two ")])

        if noticed == "by a renewal":
            assert list(await log.renew_leases()) == []
        else:
            log.append("t", [delta("lost")])
            with pytest.raises(UnsupportedOperation):
                await log.write("t", [FAILED])
        assert not log.is_mine("t")
        with pytest.raises(UnsupportedOperation):
            await log.write("t", [step(1)])
        log.append("t", [FAILED])
        await log.flushed("t")
        assert (await log.get(OWNER, "t")).blocks["b"].text == "one two "

        await another.write("t", [delta("three")])
        another.append("t", [DONE])
        received = [*before, *await rest(early)]
        assert numbers(received) == [1, 2, 3, 4, 5]
        assert await waiting == received[2:]
        assert await rest(another.follow("t", 0)) == received
        assert (await log.get(OWNER, "t")).blocks["b"].text == "one two three"


async def test_what_was_lost_is_not_taken_back_before_that_is_known(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        clock.outlast_leases()
        async with SqlTaskLog.open(database, clock=clock) as another:
            assert await claimed_ids(another) == ["t"]
            await another.write("t", [step(1)])
        assert await claimed_ids(log) == []  # the log has not noticed that it lost the task
        assert list(await log.renew_leases()) == []
        assert not log.is_mine("t")
        assert await claimed_ids(log) == ["t"]
        cursor = log.follow("t", 0)
        await log.write("t", [step(2), DONE])
        assert numbers(await rest(cursor)) == [1, 2, 3, 4]


async def test_renewing_leases_during_writes_loses_nothing(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("old"), [HELLO])
        async with writer_busy(database):
            creating = asyncio.create_task(log.create(head("new"), [HELLO]))
            log.append("old", [DONE])
            await settle()
            beating = asyncio.create_task(log.renew_leases())
            await settle()
        assert list(await beating) == []
        await creating
        assert log.is_mine("new")
        assert (await log.get(OWNER, "old")).ended == DONE
        await log.write("new", [DONE])


# -- asking


async def test_the_holder_learns_at_its_next_renewal_that_it_should_stop(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        for task in ("t", "u", "done"):
            await log.create(head(task), [HELLO])
        await log.write("done", [DONE])
        await another.create(head("theirs"), [HELLO])
        for task in ("t", "done", "unknown"):
            await another.ask_to_stop(task)
        assert list(await another.renew_leases()) == []
        assert list(await log.renew_leases()) == ["t"]
        assert log.is_mine("t")
        await log.write("t", [FAILED])
        assert list(await log.renew_leases()) == []


async def test_a_new_holder_learns_that_the_former_one_was_asked_to_stop(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        await another.ask_to_stop("t")
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]
        assert list(await another.renew_leases()) == ["t"]


async def test_elsewhere_means_an_older_task_of_the_context_in_another_process(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        mine = head("m", created_at=500)
        await log.create(mine, [HELLO])
        await log.create(head("my older one", created_at=1), [HELLO])
        await another.create(head("younger", created_at=501), [HELLO])
        await another.create(head("other context", "c", created_at=1), [HELLO])
        await another.create(head("other owner", owner="bob", created_at=1), [HELLO])
        assert not await log.older_held_by_other(mine)
        await another.create(head("older", created_at=499), [HELLO])
        assert await log.older_held_by_other(mine)
        await another.write("older", [Started("ses_1")])
        assert await log.older_held_by_other(mine)
        await another.write("older", [DONE])
        assert not await log.older_held_by_other(mine)


async def test_an_older_task_is_waited_for_until_it_is_ours_too(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    mine = head("m", created_at=500)
    async with soon():
        async with SqlTaskLog.open(database, clock=clock) as another:
            await another.create(head("older", created_at=499), [HELLO])
            await log.create(mine, [HELLO])
            assert await log.older_held_by_other(mine)
            clock.outlast_leases()
            assert await log.older_held_by_other(mine)  # its run may still be going on
        assert await log.older_held_by_other(mine)
        assert await claimed_ids(log) == ["older"]
        assert not await log.older_held_by_other(mine)


async def test_of_two_tasks_of_one_moment_one_goes_first(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("b"), [HELLO])
        await another.create(head("a"), [HELLO])
        assert await log.older_held_by_other(head("b"))
        assert not await another.older_held_by_other(head("a"))


# -- reading what another process writes


async def test_a_reader_in_another_process_gets_everything_to_the_end(
    file_url: str, clock: Clock
) -> None:
    async with soon(), process(file_url, clock) as log, process(file_url, clock) as another:
        await log.create(head("t"), [HELLO])
        readers = [asyncio.create_task(rest(another.follow("t", n % 2))) for n in range(6)]
        for n in range(200):
            log.append("t", [step(n)])
            if n % 20 == 0:
                await log.flushed("t")
                readers.append(asyncio.create_task(rest(another.follow("t", 0))))
                await asyncio.sleep(0.01)
        log.append("t", [step(999), DONE])  # the last update and the end in one commit
        received = await asyncio.gather(*readers)
        whole = await rest(log.follow("t", 0))
        assert (await log.get(OWNER, "t")).state is TaskState.COMPLETED
        assert numbers(whole) == list(range(1, 204))
        for entries in received:
            assert entries in (whole, whole[1:])


async def test_the_end_in_the_middle_of_a_page_is_not_lost(
    file_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_a2a.store.statements.PAGE_ENTRIES", 3)
    async with soon(), process(file_url, clock) as log, process(file_url, clock) as another:
        for size in range(1, 12):
            name = f"t-{size}"
            await log.create(head(name), [HELLO])
            cursor = another.follow(name, 0)
            found: list[LogEntry] = list(await cursor.read())
            log.append(name, [step(n) for n in range(size)])
            log.append(name, [DONE])
            found += await rest(cursor)
            assert numbers(found) == list(range(1, size + 3))


async def test_a_reader_follows_a_task_from_process_to_process(file_url: str, clock: Clock) -> None:
    async with soon(), process(file_url, clock) as reading:
        async with process(file_url, clock) as log:
            await log.create(head("t"), [HELLO])
            received = asyncio.create_task(rest(reading.follow("t", 0)))
        for n in range(3):
            async with process(file_url, clock) as log:
                assert await claimed_ids(log) == ["t"]
                await log.write("t", [step(n)])
        assert await claimed_ids(reading) == ["t"]
        await reading.write("t", [step(3), DONE])
        assert numbers(await received) == [1, 2, 3, 4, 5, 6]


FAILOVER_TASKS = 2_000


async def test_commits_and_renewals_go_on_while_thousands_of_tasks_are_claimed(
    database: Database, log: SqlTaskLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = 0

    def count(*args: Any, **named: Any) -> Any:
        nonlocal claims
        claims += 1
        ours = claim(*args, **named)
        assert len(ours) <= CLAIM_TASKS
        return ours

    claim = statements.claim
    monkeypatch.setattr(statements, "claim", count)  # it runs as it is
    names = [f"t-{n:04}" for n in range(FAILOVER_TASKS)]
    async with asyncio.timeout(200), SqlTaskLog.open(database, clock=clock) as survivor:
        for start in range(0, FAILOVER_TASKS, 100):
            some = names[start : start + 100]
            creating = [log.create(head(name, created_at=start), [HELLO, step(1)]) for name in some]
            await asyncio.gather(*creating)
        await survivor.create(head("mine"), [HELLO])
        clock.now += LEASE // 2
        await survivor.renew_leases()
        clock.now += LEASE // 2 + 1
        recovery = Recovery(survivor, never := NeverRuns(), inputs=None)  # type: ignore[arg-type]
        claiming = asyncio.create_task(recovery.resume_expired())
        let_in = 0
        while not claiming.done():
            await survivor.write("mine", [step(let_in)])
            assert await survivor.renew_leases() == []
            let_in += 1
        await claiming
        assert sorted(never.resumed) == names
        assert claims == FAILOVER_TASKS // CLAIM_TASKS
        # Each waits for one step at most, and then for the next one.
        assert let_in > claims // 4
        assert survivor.is_mine("mine")
        assert await log.renew_leases() == []
        assert not log.is_mine(names[0])


class NeverRuns:
    """Takes the place of a scheduler whose tasks wait for their turn."""

    def __init__(self) -> None:
        self.resumed: list[str] = []

    def resume(self, task: Task, **_: object) -> None:
        self.resumed.append(task.head.id)
