"""Push configs and their cursors: who sends, from where, and how long things are kept."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any, get_args

import pytest
from sqlalchemy import Connection, Engine, event, func, select, update

from opencode_a2a.domain.push import (
    Claimed,
    DeadLetter,
    PushConfig,
    PushCursor,
    PushTarget,
    StoredConfig,
    TaskGone,
    TooManyConfigs,
)
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.updates import Ended, Started, Update, state_after
from opencode_a2a.domain.values import TaskState
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.push import (
    ADOPT_AFTER,
    CLAIM_ROWS,
    LEASE,
    RENEW_AFTER,
    STATE_KINDS,
    SqlPush,
)
from opencode_a2a.store.tables import push_configs, push_dead
from tests.postgres import Postgres
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
    return replace(PushCursor.at_start(config(task, name)), seq=seq)


async def put(
    push: SqlPush, task: Task, name: str = "c", target: PushTarget = TARGET
) -> PushCursor:
    wanted = config(task, name, target)
    found = (await push.put(wanted, PushCursor.at_start(wanted), most=10)).cursor
    assert found is not None
    return found


def outlast_leases(clock: Clock) -> None:
    clock.now += LEASE + 1


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
        same = StoredConfig(told, replaced=False)
        assert await push.put(config(task), again, most=1) == same
        other = SqlPush(database, clock)
        assert await other.put(config(task), again, most=1) == StoredConfig(None, replaced=False)
        told.seq, told.over = 3, True
        await push.save([told], [])
        assert await push.put(config(task), cursor(task), most=1) == same, "it was told the end"


async def test_a_receiver_that_replaces_another_has_not_failed_yet(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        await push.save([replace(told, seq=2, attempts=7, next_at=9_999_999)], [])
        other = replace(TARGET, url="https://example.org/", every_event=True)
        stored = await push.put(config(task, target=other), cursor(task), most=1)
        assert stored.replaced
        assert stored.cursor is not None
        assert (stored.cursor.seq, stored.cursor.attempts, stored.cursor.next_at) == (2, 0, 0)
        assert stored.cursor.receiver == (OWNER, "https://example.org")
        assert stored.cursor.every_event


async def test_a_config_of_a_task_that_was_deleted_meanwhile_is_not_stored(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, DONE])
        clock.now += DAYS
        await log.sweep(SHORT)
        await log.sweep(SHORT)
        with pytest.raises(TaskGone):
            await push.put(config(task), cursor(task), most=1)
        assert await push.claim([]) == Claimed(taken=[], changed=[], lost=set())


async def test_what_a_dead_process_was_sending_is_claimed_where_it_stopped(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        told = await put(push, task)
        told.seq, told.attempts, told.next_at = 2, 3, 5_000
        await push.save([told], [])
        other = SqlPush(database, clock)
        assert (await other.claim([])).taken == [], "its lease holds"
        outlast_leases(clock)
        assert (await other.claim([])).taken == [told]
        assert (await push.claim([])).taken == []
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
        outlast_leases(clock)
        other = SqlPush(database, clock)
        await other.claim([])
        assert await push.save([replace(told, seq=2)], [letter(task)]) == {told.key}
        assert await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9) == []
        assert (await push.claim([told.key])).lost == {told.key}
        await other.release()
        assert (await push.claim([])).taken == [told]


@pytest.mark.parametrize("later", [1, 0, -5_000], ids=["later", "at once", "by a late clock"])
async def test_a_process_notices_what_another_has_written_about_a_task(
    log: SqlTaskLog, push: SqlPush, clock: Clock, later: int
) -> None:
    async with soon():
        clock.now = 100_000
        task = await log.create(head("t", created_at=clock.now), [HELLO])
        told = await put(push, task)
        assert (await push.claim([told.key])).changed == []
        clock.now += later
        await log.write("t", [STARTED])
        assert (await push.claim([told.key])).changed == [told]


def test_the_kinds_of_entries_that_are_told_are_those_with_a_state() -> None:
    def state_of(kind: Any) -> TaskState | None:
        made = kind.__new__(kind)
        if kind is Ended:
            object.__setattr__(made, "state", TaskState.COMPLETED)
        if hasattr(kind, "still_open"):
            object.__setattr__(made, "still_open", True)
        return state_after(made)

    assert {kind.__name__ for kind in get_args(Update) if state_of(kind)} == set(STATE_KINDS)


async def test_a_change_that_was_missed_is_found_when_leases_are_renewed(
    log: SqlTaskLog, push: SqlPush, clock: Clock
) -> None:
    async with soon():
        told = await put(push, await log.create(head("t"), [HELLO, STARTED]))
        assert (await push.claim([told.key])).changed == [told]
        clock.now += RENEW_AFTER - 1
        assert (await push.claim([told.key])).changed == [told], "it is recent"
        clock.now += DAYS
        assert (await push.claim([told.key])).changed == [told]
        clock.now += RENEW_AFTER - 1
        assert (await push.claim([told.key])).changed == [], "not in every look"


async def test_what_a_request_has_stored_and_not_handed_over_is_found(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        told = await put(push, await log.create(head("t"), [HELLO]))
        assert (await push.claim([])).taken == [told]


async def test_many_configs_are_claimed_in_several_transactions(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO])
        for number in range(CLAIM_ROWS + 1):
            wanted = config(task, str(number))
            await push.put(wanted, PushCursor.at_start(wanted), most=CLAIM_ROWS + 1)
        await push.release()
        other = SqlPush(database, clock)
        first = await other.claim([])
        assert (len(first.taken), first.more) == (CLAIM_ROWS, True)
        second = await other.claim([each.key for each in first.taken])
        assert (len(second.taken), second.more) == (1, False)


async def test_a_cursor_never_goes_back(log: SqlTaskLog, push: SqlPush) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        told = await put(push, task)
        await push.save([replace(told, seq=3, over=True)], [])
        await push.save([replace(told, seq=2)], [])
        await push.release()
        assert (await push.claim([])).taken == [], "it was told the end"


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
        assert (await push.claim([])).taken == []


async def test_a_letter_that_was_written_late_goes_with_its_task(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        await put(push, task)
        clock.now += 15 * DAYS
        await push.save([], [letter(task)])
        await log.sweep(replace(SHORT, tasks=16 * 86_400))  # the entries
        await push.save([], [letter(task)])
        clock.now += 15 * DAYS
        await log.sweep(SHORT)
        assert await database.read(_letters) == 0


def _letters(db: Connection) -> int:
    return db.execute(select(func.count()).select_from(push_dead)).scalar_one()


async def test_a_letter_of_a_deleted_config_is_not_written_again(
    log: SqlTaskLog, push: SqlPush, database: Database
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        await put(push, task)
        await push.save([], [letter(task)])
        await push.not_redelivered(letter(task), "HTTP 503")
        (dead,) = await push.dead_letters(OWNER, task_id=None, config_id=None, limit=9)
        assert (dead.attempts, dead.error) == (4, "HTTP 503")
        await push.delete(OWNER, "t", "c")
        await push.not_redelivered(letter(task), "HTTP 503")
        assert await database.read(_letters) == 0


async def test_a_letter_whose_event_is_gone_is_no_other_event(
    log: SqlTaskLog, push: SqlPush
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED, DONE])
        await put(push, task)
        assert await push.dead_entry(replace(letter(task), seq=0)) is None


def elsewhere(database: Database, clock: Clock) -> SqlPush:
    return SqlPush(database, clock, "/elsewhere")


async def test_letters_of_another_workspace_root_are_shown_by_nodes_only(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        task = await log.create(head("t"), [HELLO, STARTED])
        await put(push, task)
        await push.save([], [letter(task)])
        other = elsewhere(database, clock)
        found = await other.dead_letters(OWNER, task_id=None, config_id=None, limit=9)
        assert len(found) == database.is_server


async def test_a_node_tells_what_became_of_tasks_whose_nodes_are_away(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        told = await put(push, await log.create(head("t"), [HELLO]))
        other = elsewhere(database, clock)
        other._holder = "another"
        outlast_leases(clock)
        assert (await other.claim([])).taken == [], "a node of that workspace may be back soon"
        clock.now += ADOPT_AFTER
        assert (await other.claim([])).taken == ([told] if database.is_server else [])


async def test_what_a_process_releases_is_for_the_next_one_of_its_root(
    log: SqlTaskLog, push: SqlPush, database: Database, clock: Clock
) -> None:
    async with soon():
        clock.now += 10 * ADOPT_AFTER  # as in real life
        told = await put(push, await log.create(head("t"), [HELLO]))
        await push.release()
        assert (await elsewhere(database, clock).claim([])).taken == []
        await database.write(lambda db: db.execute(update(push_configs).values(held_until=0)))
        assert (await elsewhere(database, clock).claim([])).taken == [], "it was restored"
        assert (await SqlPush(database, clock).claim([])).taken == [told]


async def test_a_process_hears_at_once_what_another_has_written(
    postgres: Postgres, clock: Clock
) -> None:
    url = postgres.without_tasks()
    async with soon(), Database.open(url) as here, Database.open(url) as there:
        news = asyncio.Queue[tuple[str | None, int, bool]]()

        def tell(task_id: str | None, seq: int, *, has_state: bool) -> None:
            news.put_nowait((task_id, seq, has_state))

        push = SqlPush(here, clock)
        listen_no_more = push.on_news(tell)
        for database in (here, there):
            while not database.wakeups.connected:  # noqa: ASYNC110 (tells nobody)
                await asyncio.sleep(0.01)
        seen = list[tuple[str | None, int, bool]]()
        async with SqlTaskLog.open(there, clock=clock) as log:
            await log.create(head("t"), [HELLO])
            await log.write("t", [STARTED])
            await push.follow(["t"])
            while ("t", 0, False) not in seen:  # from now on it hears of everything
                seen.append(await news.get())
            await log.write("t", [delta("a")])
            while ("t", 3, False) not in seen:
                seen.append(await news.get())
        assert ("t", 2, True) in seen, "its state has changed"
        assert ("t", 3, True) not in seen, "it has said more"
        listen_no_more()


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


async def test_a_config_that_is_deleted_while_it_is_set_again_is_no_failure_of_the_store(
    postgres: Postgres, clock: Clock
) -> None:
    """The deletion waits, and comes after it."""
    deleting: list[threading.Thread] = []

    def delete_meanwhile(*said: Any) -> None:
        if not deleting and said[2].startswith("SELECT push_configs."):
            sql = "DELETE FROM push_configs"
            deleting.append(threading.Thread(target=postgres.say, args=(sql,)))
            deleting[0].start()
            deleting[0].join(1)  # where nothing keeps it from being done

    async with (
        soon(),
        Database.open(postgres.without_tasks()) as database,
        SqlTaskLog.open(database, clock=clock) as log,
    ):
        push = SqlPush(database, clock)
        task = await log.create(head("t"), [HELLO, STARTED])
        await put(push, task)
        event.listen(Engine, "after_cursor_execute", delete_meanwhile)
        try:
            other = replace(TARGET, url="https://example.org/")
            stored = await push.put(config(task, target=other), cursor(task), most=1)
        finally:
            event.remove(Engine, "after_cursor_execute", delete_meanwhile)
        assert stored.replaced
        await asyncio.to_thread(deleting[0].join)
        assert await push.of_task(OWNER, "t") == []
