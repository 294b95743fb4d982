"""Several processes on one PostgreSQL: its clock, its notifications, and whose tasks are whose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from opencode_a2a.domain.ports import Cursor
from opencode_a2a.domain.values import SessionRef, TaskState
from opencode_a2a.errors import OtherOpenCode
from opencode_a2a.store import following
from opencode_a2a.store import log as log_module
from opencode_a2a.store import statements as sql
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.codec import Unreadable
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.postgres import Postgres, Wire
from tests.store.support import (
    DONE,
    HELLO,
    OWNER,
    Clock,
    claimed_ids,
    delta,
    head,
    numbers,
    rest,
    soon,
    step,
)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.without_tasks()


@asynccontextmanager
async def process(
    url: str, clock: Clock | None = None, opencode: str | None = None
) -> AsyncIterator[SqlTaskLog]:
    """A log with connections of its own, as another process would have it."""
    async with (
        Database.open(url) as database,
        SqlTaskLog.open(database, clock=clock, opencode=opencode) as log,
    ):
        yield log


async def next_of(cursor: Cursor) -> list[int]:
    return numbers(list(await cursor.read()))


async def listening(*logs: SqlTaskLog) -> None:
    for log in logs:
        while not log._database.wakeups.connected:  # noqa: ASYNC110 (tells nobody)
            await asyncio.sleep(0.01)


# -- whose clock


async def test_what_the_clocks_of_machines_say_does_not_matter(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    async with soon(), process(url) as log:
        await log.create(head("t"), [HELLO])
        monkeypatch.setattr(time, "time_ns", lambda: real() + 300 * 10**9)
        async with Database.open(url) as database, SqlTaskLog.open(database) as ahead:
            assert abs(database.clock() - real() // 10**6) < 60_000
            assert await claimed_ids(ahead) == []
            await database.read_clock()
            await ahead.create(head("mine"), [HELLO])
            assert await claimed_ids(log) == []


async def test_a_lease_also_runs_out_while_the_machine_of_its_holder_is_suspended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steady clock of most programs stands still meanwhile."""
    running = time.clock_gettime
    async with soon(), process(url) as log, process(url) as another:
        await log.create(head("t"), [HELLO])
        assert await log.confirm_lease("t")
        monkeypatch.setattr(time, "clock_gettime", lambda clock: running(clock) + 60)
        assert await claimed_ids(another) == ["t"]
        assert not await log.confirm_lease("t")


# -- notifications


async def test_readers_in_another_process_are_woken_and_share_what_is_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    reads = 0
    found = sql.next_entries

    def counted(db: Connection, after: Mapping[str, int]) -> dict[str, sql.Page]:
        nonlocal reads
        reads += 1
        return found(db, after)

    monkeypatch.setattr(sql, "next_entries", counted)
    async with soon(), process(url) as log, process(url) as another:
        await log.create(head("t"), [HELLO])
        await listening(log, another)
        cursors = [another.follow("t", 0) for _ in range(20)]
        assert [await next_of(cursor) for cursor in cursors] == [[1]] * 20
        waiting = [asyncio.create_task(next_of(cursor)) for cursor in cursors]
        for seq in range(2, 6):
            await log.write("t", [step(seq)])
            assert await asyncio.gather(*waiting) == [[seq]] * 20
            waiting = [asyncio.create_task(next_of(cursor)) for cursor in cursors]
        assert reads < 20, "each entry is read once for all of them"
        await log.write("t", [DONE])
        assert await asyncio.gather(*waiting) == [[6]] * 20
        assert [await next_of(cursor) for cursor in cursors] == [[]] * 20
        late = await rest(another.follow("t", 2))
        assert numbers(late) == [3, 4, 5, 6]


async def test_only_processes_that_follow_a_task_hear_of_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    async with soon(), process(url) as log, process(url) as reader, process(url) as idle:
        await listening(log, reader, idle)
        heard: list[str] = []
        unsubscribe = idle._database.wakeups.subscribe(heard.extend)
        for name in ("t", "u"):
            await log.create(head(name, context_id=name), [HELLO])
        cursor = reader.follow("t", 0)
        assert await next_of(cursor) == [1]
        for seq in range(2, 6):
            reading = asyncio.create_task(next_of(cursor))
            for name in ("t", "u"):
                await log.write(name, [step(seq)])
            assert await reading == [seq]
        await log.write("t", [DONE])
        assert await next_of(cursor) == [6]
        unsubscribe()
        assert not any(word.startswith("task:") for word in heard)
        assert f"follow:t:{reader._database.wakeups.channel}" in heard


async def test_who_follows_a_task_hears_of_it_from_whoever_takes_it_up(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 600.0)
    async with (
        soon(),
        process(url, clock) as first,
        process(url, clock) as second,
        process(url) as reader,
    ):
        await listening(first, second, reader)
        await first.create(head("t"), [HELLO])
        cursor = reader.follow("t", 0)
        assert await next_of(cursor) == [1]
        reading = asyncio.create_task(next_of(cursor))
        clock.outlast_leases()
        assert await claimed_ids(second) == ["t"]
        await second.write("t", [step(2)])
        assert await reading == [2]
        reading = asyncio.create_task(next_of(cursor))
        await second.write("t", [DONE])
        assert await reading == [3]


async def test_new_tasks_to_announce_do_not_put_off_the_old_ones(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 0.05)
    announced: list[list[str]] = []
    again = asyncio.Event()

    async def announce(_: Database, task_ids: list[str]) -> None:
        announced.append(task_ids)
        if len(announced) > 1 and ("t" in task_ids or len(announced) > 10_000):
            again.set()
        elif not again.is_set():
            followers._announce([f"new-{len(announced)}"])
        await asyncio.sleep(0)

    monkeypatch.setattr(following, "announce", announce)
    async with soon(), process(url) as log, process(url) as another:
        await log.create(head("t"), [HELLO])
        followers = another._followers
        cursor = another.follow("t", 0)
        assert await next_of(cursor) == [1]
        await again.wait()
        assert announced[0] == ["t"]
        assert "t" in announced[-1]


async def test_who_follows_a_task_that_ends_meanwhile_hears_of_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 600.0)
    async with soon(), process(url) as log, process(url) as reader:
        await listening(log, reader)
        for number in range(20):
            task_id = f"t{number}"
            await log.create(head(task_id, context_id=task_id), [HELLO])
            reading = asyncio.create_task(rest(reader.follow(task_id, 0)))
            await log.write(task_id, [DONE])
            assert numbers(await reading) == [1, 2]


def test_interest_is_forgotten_in_time() -> None:
    now = 100.0
    interest = following.Interest(lambda: now)
    assert interest.note("t", "one")
    assert not interest.note("t", "one")
    assert interest.note("t", "two")
    assert interest.channels("t") == {"one", "two"}
    assert not interest.channels("u")
    now += following.INTEREST_SECONDS - 1
    assert not interest.note("t", "one")
    now += 2
    assert interest.channels("t") == {"one"}
    assert interest.note("t", "two")
    interest.keep(["u"])
    assert not interest.channels("t")


async def test_a_reader_that_comes_late_reads_all_of_it(url: str) -> None:
    async with soon(), process(url) as log, process(url) as another:
        await log.create(head("t"), [HELLO])
        await log.write("t", [step(n) for n in range(600)])
        first = another.follow("t", 590)
        assert await next_of(first) == list(range(591, 602))
        second = asyncio.create_task(rest(another.follow("t", 0)))
        await log.write("t", [DONE])
        assert numbers(await second) == list(range(1, 603))
        assert numbers(await rest(first)) == [602]


async def test_readers_wait_while_the_server_is_away(postgres: Postgres, url: str) -> None:
    with Wire.laid(postgres.port) as wire:
        async with soon(), process(url) as log, process(postgres.url(wire)) as another:
            await log.create(head("t"), [HELLO, delta("one ")])
            cursor = another.follow("t", 0)
            assert await next_of(cursor) == [1, 2]
            reading = asyncio.create_task(next_of(cursor))
            wire.away = True
            wire.drop_all()
            await log.write("t", [delta("two ")])
            await asyncio.sleep(0.5)
            assert not reading.done()
            wire.away = False
            assert await reading == [3]
            await log.write("t", [DONE])
            assert await next_of(cursor) == [4]


async def test_tasks_that_are_committed_together_are_read_together(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    together: list[int] = []
    found = sql.next_entries

    def counted(db: Connection, after: Mapping[str, int]) -> dict[str, sql.Page]:
        together.append(len(after))
        return found(db, after)

    async with soon(), process(url) as log, process(url) as another:
        await listening(log, another)
        names = [f"t{n}" for n in range(5)]
        for name in names:
            await log.create(head(name, context_id=name), [HELLO])
        cursors = [another.follow(name, 0) for name in names]
        assert [await next_of(cursor) for cursor in cursors] == [[1]] * 5
        while not all(map(log._interest.channels, names)):  # noqa: ASYNC110 (tells nobody)
            await asyncio.sleep(0.01)
        monkeypatch.setattr(sql, "next_entries", counted)
        reading = [asyncio.create_task(next_of(cursor)) for cursor in cursors]
        await asyncio.gather(*(log.write(name, [step(2)]) for name in names))
        assert await asyncio.gather(*reading) == [[2]] * 5
        assert max(together) == 5


async def test_a_task_that_cannot_be_read_does_not_keep_others_from_being_read(url: str) -> None:
    def damage(db: Connection) -> None:
        db.execute(text("UPDATE entries SET kind = 'Nothing' WHERE task_id = 'bad' AND seq = 2"))

    async with soon(), process(url) as log, process(url) as another:
        await listening(log, another)
        for name in ("bad", "good"):
            await log.create(head(name, context_id=name), [HELLO, step(2)])
        await log._database.write(damage)
        bad, good = (another.follow(name, 0) for name in ("bad", "good"))
        reading = asyncio.create_task(rest(bad))
        assert await next_of(good) == [1, 2]
        with pytest.raises(Unreadable):
            await reading
        await log.write("good", [DONE])
        assert await next_of(good) == [3]


async def test_a_task_that_the_database_cannot_read_does_not_stop_the_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sql.next_entries

    def failing(db: Connection, after: Mapping[str, int]) -> dict[str, sql.Page]:
        if "bad" in after:
            raise SQLAlchemyError("a page of the table is damaged")
        return found(db, after)

    async with soon(), process(url) as log, process(url) as another:
        await listening(log, another)
        for name in ("bad", "good", "better"):
            await log.create(head(name, context_id=name), [HELLO])
        monkeypatch.setattr(sql, "next_entries", failing)
        bad = asyncio.create_task(next_of(another.follow("bad", 0)))
        good = [another.follow(name, 0) for name in ("good", "better")]
        assert [await next_of(cursor) for cursor in good] == [[1], [1]]
        for name, cursor in zip(("good", "better"), good, strict=True):
            await log.write(name, [DONE])
            assert await next_of(cursor) == [2]
        assert not bad.done()
        monkeypatch.setattr(sql, "next_entries", found)
        assert await bad == [1]


async def test_who_has_followed_a_task_that_is_claimed_here_hears_of_it_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 600.0)
    async with soon(), process(url, clock) as first, process(url, clock) as second:
        await listening(first, second)
        await first.create(head("t"), [HELLO])
        cursor = second.follow("t", 0)
        assert await next_of(cursor) == [1]
        clock.outlast_leases()
        assert await claimed_ids(second) == ["t"]
        for seq in range(2, 5):
            await second.write("t", [step(seq)])
            assert await next_of(cursor) == [seq]
        await second.write("t", [DONE])
        assert numbers(await rest(cursor)) == [5]


async def test_a_lost_notification_costs_time_and_nothing_else(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while other tasks are notified of all the time."""
    async with soon(), process(url) as log, process(url) as another:
        await listening(log, another)
        for name in ("quiet", "loud"):
            await log.create(head(name, context_id=name), [HELLO])
        quiet, loud = (another.follow(name, 0) for name in ("quiet", "loud"))
        assert [await next_of(quiet), await next_of(loud)] == [[1], [1]]
        heard = another._followers._on_words

        def forgetful(words: list[str]) -> None:
            heard([word for word in words if "quiet" not in word] or ["nothing:new:0"])

        with monkeypatch.context() as patch:
            patch.setattr(another._database.wakeups, "_listeners", [forgetful])
            reading = asyncio.create_task(next_of(quiet))
            await log.write("quiet", [step(2)])
            number = 1
            while not reading.done():
                number += 1
                await log.write("loud", [step(number)])
                assert await next_of(loud) == [number]
            assert await reading == [2]


async def test_of_each_task_a_part_is_read_at_once(
    database: Database, log: SqlTaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "PAGE_ENTRIES", 2)
    async with soon():
        for name in ("a", "b", "c"):
            await log.create(head(name, context_id=name), [HELLO, step(2), step(3)])
        await log.write("a", [DONE])
        after = {"a": 0, "b": 1, "c": 0, "none": 0}
        seen: dict[str, list[list[int]]] = {name: [] for name in after}
        while after:
            for name, page in (await database.read(sql.next_entries, after)).items():
                seen[name].append(numbers([*page.entries]))
                if page.caught_up:
                    assert page.more is (name in ("b", "c")), "it has not ended"
                    del after[name]
                else:
                    after[name] = page.entries[-1].seq
        assert seen == {
            "a": [[1, 2], [3, 4]],
            "b": [[2, 3]],
            "c": [[1, 2], [3]],
            "none": [[]],
        }


# -- whose tasks


async def test_a_process_takes_up_only_tasks_of_its_own_opencode(url: str, clock: Clock) -> None:
    async with soon(), process(url, clock, "two") as foreign:
        async with process(url, clock, "one") as log:
            await log.create(head("held"), [HELLO])
            clock.outlast_leases()
            assert await claimed_ids(foreign) == []
            async with process(url, clock, "one") as peer:
                assert await claimed_ids(peer) == ["held"]
        assert await claimed_ids(foreign) == [], "released, but not for everybody"
        async with process(url, clock, "one") as peer:
            assert await claimed_ids(peer) == ["held"]


async def test_a_context_stays_with_the_opencode_that_has_its_session(url: str) -> None:
    async with soon(), Database.open(url) as database:
        root = "/r"
        one, two = (SqlBindings(database, root, name) for name in ("one", "two"))
        await one.bind(OWNER, "context", SessionRef("ses_1", "title", "/r"))
        assert await one.session_of(OWNER, "context") is not None
        with pytest.raises(OtherOpenCode):
            await two.session_of(OWNER, "context")
        async with SqlTaskLog.open(database, root=root, opencode="two") as log:
            with pytest.raises(OtherOpenCode):
                await log.check_context(OWNER, "context")


async def test_a_process_that_slept_looks_whether_a_task_is_still_its_own(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with soon(), process(url, clock) as log, process(url, clock) as another:
        await log.create(head("lost"), [HELLO])
        assert await log.confirm_lease("lost")
        clock.outlast_leases()
        assert await claimed_ids(another) == ["lost"]
        assert await log.confirm_lease("lost"), "it was renewed a moment ago"
        monkeypatch.setattr(log_module, "CONFIRM_SECONDS", 0.0)
        assert not await log.confirm_lease("lost")
        assert not log.is_mine("lost")
        assert await another.confirm_lease("lost")


async def test_a_process_that_slept_does_not_show_what_a_task_was(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with soon(), process(url, clock) as log, process(url, clock) as another:
        await log.create(head("t"), [HELLO])
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]
        await another.write("t", [DONE])
        monkeypatch.setattr(log_module, "CONFIRM_SECONDS", 0.0)
        assert log.is_mine("t"), "as far as it knows"
        assert (await log.get(OWNER, "t")).state is TaskState.COMPLETED


async def test_a_state_is_not_shown_while_others_may_have_seen_the_next(
    postgres: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SETTLE_SECONDS", 600.0)
    with Wire.laid(postgres.port) as wire:
        async with soon(), process(postgres.url(wire)) as log, process(url) as another:
            await log.create(head("t"), [HELLO])
            wire.cut, wire.only = "silence", b"Done."
            writing = asyncio.create_task(log.write("t", [DONE]))
            while (await another.get(OWNER, "t")).ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            reading = asyncio.create_task(log.get(OWNER, "t"))
            await asyncio.sleep(0)
            wire.let_go.set()
            assert (await reading).state is TaskState.COMPLETED
            await asyncio.gather(writing, return_exceptions=True)


async def test_claiming_waits_for_nobody(url: str, clock: Clock) -> None:
    engine = create_engine(url)
    async with soon(), process(url, clock) as log, process(url, clock) as another:
        for name in ("busy", "free"):
            await log.create(head(name), [HELLO])
        clock.outlast_leases()
        with engine.begin() as db:
            db.execute(text("SELECT 1 FROM tasks WHERE id = 'busy' FOR UPDATE"))
            assert await claimed_ids(another) == ["free"]
        assert await claimed_ids(another) == ["busy"]
    engine.dispose()


async def test_first_starts_at_once_do_not_collide(postgres: Postgres) -> None:
    for _ in range(3):
        url = postgres.emptied()
        opened = 0

        async def start(url: str = url) -> None:
            nonlocal opened
            async with Database.open(url):
                opened += 1

        async with soon():
            await asyncio.gather(*(start() for _ in range(4)))
        assert opened == 4
