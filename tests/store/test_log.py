"""The log as its writers and readers see it while a task runs."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import weakref
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection

from opencode_a2a.domain.updates import BlockText, Ended, LogEntry, MessageAdded, Started, Update
from opencode_a2a.domain.values import Message, Role, TaskQuery, TaskState
from opencode_a2a.errors import Internal, ServiceError, TaskNotFound, UnsupportedOperation
from opencode_a2a.store import codec, statements
from opencode_a2a.store import log as log_module
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
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


async def test_a_created_task_is_returned_as_it_was_committed(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        task = await log.create(head("t", modes=("text/plain",)), [HELLO])
        assert (task.state, task.last_seq, task.messages) == (
            TaskState.SUBMITTED,
            1,
            [HELLO.message],
        )
        async with SqlTaskLog.open(database) as another:
            assert visible_state(await another.get(OWNER, "t")) == visible_state(task)


async def test_a_task_exists_only_for_its_owner(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        for owner, task_id in [("bob", "t"), (OWNER, "unknown")]:
            with pytest.raises(TaskNotFound):
                await log.get(owner, task_id)
        log.append("t", [DONE])
        await log.flushed("t")
        with pytest.raises(TaskNotFound):
            await log.get("bob", "t")


async def test_a_task_that_was_read_stays_as_it_was(log: SqlTaskLog) -> None:
    async with soon():
        created = await log.create(head("t"), [HELLO])
        await log.write("t", [delta("Hello")])
        read = await log.get(OWNER, "t")
        await log.write("t", [delta(" world"), DONE])
    (block,) = read.visible_blocks()
    assert (read.state, block.text, created.visible_blocks()) == (TaskState.SUBMITTED, "Hello", [])


async def test_a_task_being_created_cannot_be_seen(file_url: str) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        async with writer_busy(database):
            creating = asyncio.create_task(log.create(head("t"), [HELLO]))
            await settle()
            with pytest.raises(TaskNotFound):
                await log.get(OWNER, "t")
            assert (await log.list(TaskQuery(OWNER))).total == 0
        await creating
        assert (await log.get(OWNER, "t")).state is TaskState.SUBMITTED


async def test_entries_are_numbered_from_one_in_the_order_they_were_written(
    log: SqlTaskLog,
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        steps = [step(n) for n in range(50)]
        for n, update in enumerate(steps):
            if n % 7 == 0:
                await log.write("t", [update])
            else:
                log.append("t", [update])
            if n % 5 == 0:
                await log.flushed("t")
        log.append("t", [DONE])
        found = await rest(cursor)
    assert [entry.update for entry in found] == [HELLO, *steps, DONE]
    assert numbers(found) == list(range(1, len(found) + 1))


async def test_an_update_is_encoded_once(log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Update] = []
    encode = codec.encode

    def counting(update: Update) -> codec.Encoded:
        encoded.append(update)
        return encode(update)

    monkeypatch.setattr(codec, "encode", counting)
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.write("t", [step(1)])
        log.append("t", [step(2), delta("text")])
        await log.flushed("t")
    assert encoded == [HELLO, step(1), step(2), delta("text")]


async def test_a_cursor_starts_after_the_number_it_is_given(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO, *(step(n) for n in range(5))])
        running = log.follow("t", 4)
        log.append("t", [DONE])
        assert numbers(await rest(running)) == [5, 6, 7]
        assert numbers(await rest(log.follow("t", 4))) == [5, 6, 7]
        assert await rest(log.follow("t", 7)) == []
        assert await rest(log.follow("t", 99)) == []
        assert await rest(log.follow("unknown", 0)) == []


async def test_what_a_cursor_returns_can_be_read_by_another_connection(
    path: Path, file_url: str
) -> None:
    async def append_all(log: SqlTaskLog) -> None:
        for n in range(300):
            log.append("t", [step(n)])
            await asyncio.sleep(0)
        log.append("t", [DONE])

    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        appending = asyncio.create_task(append_all(log))
        with closing(sqlite3.connect(path)) as outsider:
            last = 0
            while entries := await cursor.read():
                last = entries[-1].seq
                visible = max(last, (await log.get(OWNER, "t")).last_seq)
                statement = "SELECT max(seq) FROM entries WHERE task_id = 't'"
                assert visible <= outsider.execute(statement).fetchone()[0]
        await appending
    assert last == 302


async def test_nothing_is_visible_before_it_is_committed(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 1)
        async with writer_busy(database):
            log.append("t", [Started("ses_1", "Title"), delta("early")])
            reading = asyncio.create_task(cursor.read())
            await settle()
            assert not reading.done()
            task = await log.get(OWNER, "t")
            assert (task.state, task.blocks) == (TaskState.SUBMITTED, {})
        assert numbers(list(await reading)) == [2, 3]
        assert (await log.get(OWNER, "t")).state is TaskState.WORKING


async def test_many_tasks_share_few_transactions(
    log: SqlTaskLog, commits: list[Connection]
) -> None:
    tasks = [f"t-{n}" for n in range(300)]
    async with soon():
        await asyncio.gather(*(log.create(head(task), [HELLO]) for task in tasks))
        assert len(commits) == 1
        for task in tasks:
            log.append(task, [step(1)])
        await asyncio.gather(*(log.flushed(task) for task in tasks))
        assert len(commits) == 2
        for task in tasks:
            assert (await log.get(OWNER, task)).last_seq == 2


async def test_updates_during_a_commit_go_into_the_next(
    database: Database, log: SqlTaskLog, commits: list[Connection]
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        del commits[:]
        async with writer_busy(database):
            for n in range(100):
                log.append("t", [step(n)])
                await asyncio.sleep(0)
        await log.flushed("t")
        assert len(commits) == 3  # the one of `writer_busy`, the first delta, and all the others


async def test_deltas_of_a_block_that_wait_together_become_one_entry(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 1)
        async with writer_busy(database):
            log.append("t", [delta("first ")])
            await settle()
            for n in range(100):
                log.append("t", [delta(f"{n} ")])
                await settle()
            log.append("t", [delta("other", "c"), delta("last")])
        log.append("t", [DONE])
        found = await rest(cursor)
    texts = [entry.update.text for entry in found if isinstance(entry.update, BlockText)]
    assert texts == ["first ", "".join(f"{n} " for n in range(100)), "other", "last"]
    assert numbers(found) == [2, 3, 4, 5, 6]


async def test_the_first_end_wins(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        log.append("t", [DONE])
        log.append("t", [FAILED])
        log.append("t", [delta("too late")])
        await log.flushed("t")
        log.append("t", [FAILED])
        await log.flushed("t")
        assert [entry.update for entry in await rest(cursor)] == [HELLO, DONE]
        assert (await log.get(OWNER, "t")).ended == DONE


async def test_nothing_follows_the_end_even_in_the_same_append(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        log.append("t", [DONE, delta("too late"), FAILED])
        assert [entry.update for entry in await rest(cursor)] == [HELLO, DONE]
        assert visible_state(await log.get(OWNER, "t")).ended == DONE


async def test_a_task_can_end_where_it_begins(log: SqlTaskLog) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, DONE])
        assert task.ended == DONE
        assert (await log.get(OWNER, "t")).ended == DONE
        assert numbers(await rest(log.follow("t", 0))) == [1, 2]


@pytest.mark.parametrize("later", [[FAILED], [Started("ses_2")], [delta("more")]])
async def test_an_end_written_by_another_process_is_the_end_here_too(
    database: Database, log: SqlTaskLog, clock: Clock, later: list[Ended | Started | BlockText]
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        assert numbers(list(await cursor.read())) == [1]
        clock.outlast_leases()
        await log.create(head("bystander"), [HELLO])
        assert await claimed_ids(another) == ["t"]
        another.append("t", [step(1), DONE])
        await another.flushed("t")

        log.append("t", later)
        log.append("bystander", [step(1)])
        await asyncio.gather(log.flushed("t"), log.flushed("bystander"))
        log.append("t", [FAILED])
        assert [entry.update for entry in await rest(cursor)] == [step(1), DONE]
        assert (await log.get(OWNER, "t")).ended == DONE
        assert numbers(await rest(log.follow("t", 0))) == [1, 2, 3]
        assert (await log.get(OWNER, "bystander")).last_seq == 2


async def test_two_processes_on_one_file_agree_on_the_end(file_url: str, clock: Clock) -> None:
    async with (
        soon(),
        Database.open(file_url) as here,
        Database.open(file_url) as there,
        SqlTaskLog.open(here, clock=clock) as log,
        SqlTaskLog.open(there, clock=clock) as another,
    ):
        tasks = [f"t-{n:02}" for n in range(40)]
        for task in tasks:
            await log.create(head(task), [HELLO])
        clock.outlast_leases()
        taking = asyncio.create_task(claimed_ids(another))  # while the former holder still writes
        cursors = [(log.follow(task, 0), another.follow(task, 0)) for task in tasks]
        for n, task in enumerate(tasks):
            log.append(task, [DONE])
            if n % 10 == 0:
                await log.flushed(task)
        for task in await taking:
            another.append(task, [FAILED])
        for task, (ours, theirs) in zip(tasks, cursors, strict=True):
            received = await rest(ours)
            assert received == await rest(theirs)
            assert numbers(received) == [1, 2]
            assert (await log.get(OWNER, task)).ended == received[-1].update


async def test_an_id_that_is_taken_is_refused_and_leaves_the_first_task_alone(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon(), SqlTaskLog.open(database) as another:
        await log.create(head("t"), [HELLO, step(1)])
        refused, free = await asyncio.gather(
            another.create(head("t", owner="mallory"), [HELLO, step(2)]),
            another.create(head("u"), [HELLO]),
            return_exceptions=True,
        )
        assert isinstance(refused, ServiceError)
        assert not isinstance(free, BaseException)
        received = list(await another.follow("t", 0).read())
        assert [entry.update for entry in received] == [HELLO, step(1)]
        with pytest.raises(TaskNotFound):
            await another.get("mallory", "t")


@pytest.mark.parametrize("committed", [False, True])
async def test_writing_to_a_task_that_has_ended_is_refused(
    log: SqlTaskLog, committed: bool
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        log.append("t", [DONE])
        if committed:
            await log.flushed("t")
        with pytest.raises(UnsupportedOperation):
            await log.write("t", [step(1)])
        await log.flushed("t")
        assert numbers(await rest(log.follow("t", 0))) == [1, 2]


async def test_writing_to_a_task_that_another_process_has_ended_is_refused(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]
        await another.write("t", [DONE])
        writes = [log.write("t", [step(n)]) for n in range(2)]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(answer) for answer in answers] == [UnsupportedOperation] * 2
        with pytest.raises(UnsupportedOperation):
            await log.write("unknown", [step(1)])


async def test_what_is_unknown_is_flushed_and_takes_no_words(log: SqlTaskLog) -> None:
    async with soon():
        await log.flushed("unknown")
        log.append("unknown", [step(1)])
        await log.flushed("unknown")


async def test_flushed_returns_when_all_earlier_updates_are_committed(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        async with writer_busy(database):
            log.append("t", [step(1)])
            await settle()
            log.append("t", [step(2)])
            flushing = asyncio.create_task(log.flushed("t"))
            await settle()
            assert not flushing.done()
        await flushing
        assert (await log.get(OWNER, "t")).last_seq == 3


async def test_saying_nothing_is_fine(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [])
        await log.write("t", [])
        log.append("t", [])
        await log.flushed("t")
        assert (await log.get(OWNER, "t")).last_seq == 0
        await log.write("t", [DONE])
        assert numbers(await rest(log.follow("t", 0))) == [1]


async def test_what_cannot_be_stored_is_refused_to_its_author_only(log: SqlTaskLog) -> None:
    deep: list[object] = []
    for _ in range(400):
        deep = [deep]
    bad = MessageAdded(Message("m", Role.USER, (), {"deep": deep}), "msg_1")
    async with soon():
        with pytest.raises(Internal):
            await log.create(head("t"), [bad])
        with pytest.raises(TaskNotFound):
            await log.get(OWNER, "t")
        await log.create(head("u"), [HELLO])
        with pytest.raises(Internal):
            await log.write("u", [bad])
        with pytest.raises(Internal):
            log.append("u", [delta("\ud83d")])
        await log.write("u", [DONE])
        assert numbers(await rest(log.follow("u", 0))) == [1, 2]


async def test_a_text_that_the_database_refuses_stops_no_other_task(log: SqlTaskLog) -> None:
    async with soon():
        odd, plain = await asyncio.gather(
            log.create(head("odd", context_id="nul \0"), [HELLO]),  # PostgreSQL refuses it
            log.create(head("plain"), [HELLO]),
            return_exceptions=True,
        )
        assert not isinstance(plain, BaseException)
        page = await log.list(TaskQuery(OWNER))
        assert {row.head.id for row in page.rows} == (
            {"plain"} if isinstance(odd, ServiceError) else {"odd", "plain"}
        )
        await log.write("plain", [DONE])


# -- cursors


async def test_a_slow_cursor_gets_every_entry_once(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", 8)
    monkeypatch.setattr(statements, "PAGE_ENTRIES", 3)
    async with soon():
        await log.create(head("t"), [HELLO])
        slow = [log.follow("t", 0)]
        found: list[list[LogEntry]] = [[]]
        for n in range(100):
            log.append("t", [step(n)])
            await log.flushed("t")
            if n % 10 == 0:  # some start later, and all of them fall behind
                slow.append(log.follow("t", 0))
                found.append([])
                for cursor, entries in zip(slow, found, strict=True):
                    entries.extend(await cursor.read())
        log.append("t", [DONE])
        for cursor, entries in zip(slow, found, strict=True):
            entries.extend(await rest(cursor))
    assert [numbers(entries) for entries in found] == [list(range(1, 103))] * len(found)
    assert all(entries == found[0] for entries in found)


@pytest.mark.parametrize("tail", [1, 100], ids=["from the table", "from memory"])
async def test_a_cursor_has_caught_up_with_the_last_entry_however_full_its_page(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", tail)
    monkeypatch.setattr(statements, "PAGE_ENTRIES", 3)
    async with soon():
        await log.create(head("t"), [HELLO])
        for n in range(5):
            log.append("t", [step(n)])
            await log.flushed("t")
        cursor = log.follow("t", 0)
        pages = [(numbers([*await cursor.read()]), cursor.caught_up) for _ in range(2)]
    assert pages == [([1, 2, 3], False), ([4, 5, 6], True)]


async def test_hundreds_of_cursors_see_the_same(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", 16)
    async with soon():
        await log.create(head("t"), [HELLO])
        readers = [asyncio.create_task(rest(log.follow("t", 0))) for _ in range(200)]
        for n in range(100):
            log.append("t", [step(n)])
            if n % 3 == 0:
                await asyncio.sleep(0)
        log.append("t", [DONE])
        received = await asyncio.gather(*readers)
    assert numbers(received[0]) == list(range(1, 103))
    assert all(entries == received[0] for entries in received)


async def test_a_reader_interrupted_anywhere_loses_nothing(
    log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", 4)
    monkeypatch.setattr(statements, "PAGE_ENTRIES", 2)
    found: list[LogEntry] = []
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 0)
        for n in range(60):
            log.append("t", [step(n)])
            if n % 4 == 0:
                await log.flushed("t")
            reading = asyncio.create_task(cursor.read())
            for _ in range(n % 5):
                await asyncio.sleep(0)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                found.extend(await reading)
        log.append("t", [DONE])
        found.extend(await rest(cursor))
    assert numbers(found) == list(range(1, 63))


async def test_a_waiting_reader_gets_the_end(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        cursor = log.follow("t", 1)
        reading = asyncio.create_task(rest(cursor))
        await settle()
        log.append("t", [DONE])
        assert numbers(await reading) == [2]


async def test_a_change_is_waited_for_only_where_nothing_can_be_read(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        assert log.follow("t", 0).change() is None
        assert log.follow("unknown", 0).change() is None
        cursor = log.follow("t", 1)
        change = cursor.change()
        assert change is not None
        log.append("t", [step(1)])
        await change
        assert cursor.change() is None
        assert numbers(list(await cursor.read())) == [2]
        last = cursor.change()
        assert last is not None
        log.append("t", [DONE])
        await last
        assert cursor.change() is None
        assert numbers(await rest(cursor)) == [3]
        assert cursor.change() is None


async def test_readers_that_come_and_go_leave_nothing_behind(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        stays = [log.follow("t", 1).change() for _ in range(10)]
        gone = []
        for _ in range(5_000):
            change = log.follow("t", 1).change()
            assert change is not None
            change.cancel()
            gone.append(weakref.ref(change))
            del change
        assert sum(ref() is not None for ref in gone) < 500
        log.append("t", [DONE])
        for waits in stays:
            assert waits is not None
            await waits
        assert [ref for ref in gone if ref() is not None] == []


# -- leaving in the middle


@pytest.mark.parametrize("steps", [1, 3, 30])
async def test_a_task_whose_caller_leaves_while_it_is_created_is_canceled(
    database: Database, log: SqlTaskLog, steps: int
) -> None:
    async with soon():
        async with writer_busy(database):
            creating = asyncio.create_task(log.create(head("t"), [HELLO]))
            for _ in range(steps):
                await asyncio.sleep(0)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        await log.flushed("t")
        task = await log.get(OWNER, "t")
        assert (task.state, task.messages) == (TaskState.CANCELED, [HELLO.message])
        assert not log.is_mine("t")
        assert numbers(await rest(log.follow("t", 0))) == [1, 2]


async def test_the_updates_of_a_writer_stay_when_it_is_cancelled(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        async with writer_busy(database):
            writing = asyncio.create_task(log.write("t", [step(1)]))
            await settle()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        log.append("t", [step(2)])
        await log.flushed("t")
        assert (await log.get(OWNER, "t")).last_seq == 3


async def test_closing_the_log_commits_pending_writes(database: Database) -> None:
    async with soon():
        async with SqlTaskLog.open(database) as log:
            await log.create(head("t"), [HELLO])
            log.append("t", [step(1), DONE])
        async with SqlTaskLog.open(database) as again:
            assert numbers(await rest(again.follow("t", 0))) == [1, 2, 3]


# -- taking over


async def test_unfinished_tasks_are_found_and_carried_on(database: Database) -> None:
    async with soon():
        async with SqlTaskLog.open(database) as first:
            for n, name in enumerate(["b", "a", "c", "done"]):
                await first.create(head(name, created_at=n), [HELLO])
            await first.write("a", [Started("ses_1", "Title"), delta("one ")])
            await first.write("done", [DONE])
        async with SqlTaskLog.open(database) as second:
            found = await claim_all(second)
            assert [task.head.id for task in found] == ["a", "b", "c"]  # started tasks come first
            task = found[0]
            assert (task.state, task.last_seq) == (TaskState.WORKING, 3)
            cursor = second.follow("a", 0)
            second.append("a", [delta("two"), DONE])
            assert numbers(await rest(cursor)) == [1, 2, 3, 4, 5]
            assert (await second.get(OWNER, "a")).blocks["b"].text == "one two"
            assert [second.is_mine(task) for task in "abc"] == [False, True, True]
            assert await claimed_ids(second) == []
        async with SqlTaskLog.open(database) as third:
            assert await claimed_ids(third) == ["b", "c"]


async def test_a_log_does_not_claim_its_own_tasks(log: SqlTaskLog, clock: Clock) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        log.append("t", [step(1)])
        assert await claimed_ids(log) == []
        clock.outlast_leases()  # late, but no other process has claimed it
        assert await claimed_ids(log) == []
        log.append("t", [DONE])
        assert numbers(await rest(log.follow("t", 0))) == [1, 2, 3]
        assert (await log.get(OWNER, "t")).ended == DONE


async def test_what_has_ended_is_not_taken(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        assert await claimed_ids(another) == []
        await log.create(head("t"), [HELLO, DONE])
        clock.outlast_leases()
        assert await claimed_ids(another) == []
        another.append("t", [FAILED])
        await another.flushed("t")
        log.append("t", [FAILED])
        await log.flushed("t")
        assert (await log.get(OWNER, "t")).ended == DONE


TALKER = """
import asyncio, sys
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import HELLO, head, step

async def main():
    async with Database.open(sys.argv[1]) as database, SqlTaskLog.open(database) as log:
        for n in range(10_000):
            await log.create(head(f"t-{n}"), [HELLO])
            await log.write(f"t-{n}", [step(1)])
            print(n, flush=True)

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_a_killed_process(file_url: str) -> None:
    def talk_until_killed() -> int:
        command = [sys.executable, "-c", TALKER, file_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as talker:
            assert talker.stdout is not None
            acknowledged = [int(talker.stdout.readline()) for _ in range(40)]
            talker.kill()
            acknowledged += [int(line) for line in talker.stdout if line.endswith("\n")]
        return acknowledged[-1]

    last = await asyncio.to_thread(talk_until_killed)
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        for n in range(last + 1):
            assert (await log.get(OWNER, f"t-{n}")).last_seq == 2


async def test_a_reader_of_the_table_is_never_ahead_of_what_the_task_shows(
    database: Database, clock: Clock
) -> None:
    """Its answer may come before the writer's, though the commit is in it."""
    async with soon():
        async with SqlTaskLog.open(database, clock=clock) as log:
            await log.create(head("t"), [HELLO, step(1)])
        async with SqlTaskLog.open(database, clock=clock) as log:
            (task,) = await claim_all(log)
            entry = LogEntry(3, clock.now, step(2))
            encoded = [codec.encode(entry.update)]
            batch = statements.Batch(task, is_new=False, entries=[entry], encoded=encoded)
            assert await database.write(statements.commit, [batch], log._lease()) == {}
            assert numbers(list(await log.follow("t", 0).read())) == [1, 2]
            assert (await log.get(OWNER, "t")).last_seq == 2
