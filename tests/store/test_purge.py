"""Removing old tasks, and everything of a caller, beside a service that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, select, text

from opencode_a2a.domain.updates import Ended
from opencode_a2a.domain.values import TaskQuery, TaskState
from opencode_a2a.errors import TaskNotFound
from opencode_a2a.store import backup, tables
from opencode_a2a.store.check import check
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import Holder
from opencode_a2a.store.log import Retention, SqlTaskLog
from opencode_a2a.store.purge import Selection, earlier_copies, preview, purge
from opencode_a2a.store.rows import InUse, alone, beside_services, opened, shapes, snapshot
from opencode_a2a.store.stats import stats, total_size, vacuum
from tests.postgres import Postgres
from tests.store.filling import IDS, fill
from tests.store.support import DONE, HELLO, head, soon

FILLED = "INSERT INTO t VALUES (zeroblob(8000000))"
EMPTIED = "DROP TABLE t"
DECLARED = (
    *tables.DELETED_WITH_TASK,
    *tables.DELETED_WITH_OWNER,
    *tables.DISOWNED,
    *tables.ABOUT_NOBODY,
)


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.without_tasks()
    return file_url


def test_it_is_declared_for_every_table_what_becomes_of_a_callers_rows() -> None:
    every = set(tables.metadata.tables.values())
    assert every == set(DECLARED), "say in store/tables.py what `db purge` does with these"
    owned = {t for t in every if {"owner", "principal"} & set(t.c.keys())}
    assert owned == {*tables.DELETED_WITH_OWNER, *tables.DISOWNED}
    of_task = {t for t in every if "task_id" in t.c}
    assert of_task == set(tables.DELETED_WITH_TASK)


def remove(url: str, selection: Selection) -> list[str]:
    with opened(url) as engine:
        return purge(engine, selection, backup.quiet)


def everything(url: str) -> str:
    """All that is stored, as text."""
    with opened(url) as engine, snapshot(engine) as db:
        assert check(db).problems == []
        return "\n".join(
            str(tuple(row))
            for shape in shapes(db)
            for row in db.execute(text(f"SELECT * FROM {shape.name}"))
        )


def test_nothing_names_a_caller_who_was_removed_and_others_keep_all(url: str) -> None:
    fill(url)
    before = everything(url)
    assert remove(url, Selection(owner="alice")) == []
    after = everything(url)
    assert "alice" not in after
    of_bob = {line for line in before.splitlines() if "bob" in line}
    assert of_bob <= set(after.splitlines())


def test_the_sessions_of_a_removed_caller_belong_to_nobody_else(url: str) -> None:
    fill(url)
    for owner in ("alice", "bob"):  # both have a context of the same name
        remove(url, Selection(owner=owner))
    with opened(url) as engine, snapshot(engine) as db:
        left = db.execute(select(tables.sessions.c.owner, tables.sessions.c.title)).all()
        assert [tuple(row) for row in left] == [(tables.NOBODY, "")] * 2
        assert db.execute(select(tables.places.c.owner)).scalars().all() == [tables.NOBODY] * 2


def test_the_preview_says_what_is_removed(url: str) -> None:
    fill(url)
    with opened(url) as engine, snapshot(engine) as db:
        old = preview(db, Selection(before=now_ms() + 1))
        some = preview(db, Selection(before=now_ms() + 1, owner="bob"))
        none = preview(db, Selection(before=1))
        whole = preview(db, Selection(owner="bob"))
    ended = len(IDS)
    assert old == {"tasks": 2 * ended, "entries": 8 * ended, "keys": 2 * ended}
    assert some == {"tasks": ended, "entries": 4 * ended, "keys": ended}
    assert none == {}
    assert whole == {
        "tasks": ended + 1,
        "entries": 4 * ended + 4,
        "keys": ended,
        "interrupts": 2,
        **dict.fromkeys(("grants", "peer_conversations", "usage_days"), 1),
        **dict.fromkeys(("push_configs", "push_dead"), 1),
        **dict.fromkeys(("sessions", "contexts", "places", "worktrees"), 1),
    }


async def test_old_tasks_go_while_the_service_writes_and_it_does_not_care(url: str) -> None:
    async with running(url) as (database, log):
        for n in range(60):
            await log.create(head(f"old-{n}"), [HELLO, DONE])
        await log.create(head("open"), [HELLO])
        busy = asyncio.create_task(write_on(log))
        await asyncio.to_thread(remove, url, Selection(before=now_ms() + 60_000))
        busy.cancel()
        with pytest.raises(asyncio.CancelledError):  # and not an error of the store
            await busy
        with pytest.raises(TaskNotFound):
            await log.get("alice", "old-0")
        assert await log.follow("old-0", 0).read() == ()
        await log.write("open", [DONE])
        assert (await log.get("alice", "open")).state is TaskState.COMPLETED
        total = (await log.list(TaskQuery("alice"))).total
        assert total == await database.read(count)


async def test_the_open_tasks_of_a_removed_caller_are_stopped_first(url: str) -> None:
    async with running(url) as (_, log):
        await log.create(head("open"), [HELLO])
        removing = asyncio.create_task(asyncio.to_thread(remove, url, Selection(owner="alice")))
        while "open" not in await log.renew_leases():  # as the scheduler does
            assert not removing.done(), "a task at work was removed"
            await asyncio.sleep(0.01)
        await log.write("open", [Ended(TaskState.CANCELED, "stopped")])
        assert await removing == []
        assert (await log.list(TaskQuery("alice"))).total == 0


async def test_a_task_that_is_made_during_the_removal_is_stopped_first_as_well(url: str) -> None:
    async with running(url) as (_, log):
        await log.create(head("ended"), [HELLO, DONE])
        loop = asyncio.get_running_loop()

        def make_another(_: str, removed: int) -> None:
            """After the open tasks were looked for, and before the rest goes."""
            if removed == 1:
                made = log.create(head("late"), [HELLO])
                asyncio.run_coroutine_threadsafe(made, loop).result(60)

        def remove() -> list[str]:
            with opened(url) as engine:
                return purge(engine, Selection(owner="alice"), make_another)

        removing = asyncio.create_task(asyncio.to_thread(remove))
        while "late" not in await log.renew_leases():
            assert not removing.done(), "a task at work was removed"
            await asyncio.sleep(0.01)
        await log.write("late", [Ended(TaskState.CANCELED, "stopped")])
        assert await removing == []
        assert (await log.list(TaskQuery("alice"))).total == 0


def test_a_task_is_at_work_as_long_as_its_lease_says_though_no_process_is_seen(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_a2a.store.purge.STOP_SECONDS", 0)
    fill(url)
    held = {"holder": Holder.this_process().name, "held_until": now_ms() + 60_000}
    with opened(url) as engine:
        with engine.execution_options(writes=True).begin() as db:
            db.execute(tables.tasks.update().where(tables.tasks.c.id == "open-alice").values(held))
        assert purge(engine, Selection(owner="alice"), backup.quiet) == ["open-alice"]


def test_nothing_is_removed_while_a_command_has_the_database_for_itself(
    postgres: Postgres,
) -> None:
    url = postgres.without_tasks()
    with opened(url) as engine:
        with alone(url), pytest.raises(InUse), beside_services(engine):
            pytest.fail("a purge would run beside a restore")
        with beside_services(engine), pytest.raises(InUse), alone(url):
            pytest.fail("a restore would run beside a purge")


def test_the_copies_that_still_hold_the_data_are_named(url: str, tmp_path: Path) -> None:
    fill(url)
    with opened(url) as engine:
        backup.save(engine, tmp_path / "saved")
    kept = backup.restore(tmp_path / "saved", url, force=True).kept
    assert kept is not None
    with opened(url) as engine:
        (named,) = earlier_copies(engine)
        assert named.startswith(f"{kept} of 20")


def test_free_space_goes_back_and_stats_say_what_there_is(url: str) -> None:
    fill(url)
    with opened(url) as engine:
        with snapshot(engine) as db:
            found = stats(db, Retention(replay=0, tasks=1, keys=1))
        rows = {each.name: each.rows for each in found.tables}
        assert rows["tasks"] == sum(found.states.values()) == 14
        assert found.states == {"completed": 12, "input-required": 2}
        assert all(each.bytes for each in found.tables)
        due = {each.what: each.within_a_day for each in found.due}
        assert due == {
            "events of ended tasks": 12,
            "ended tasks": 12,
            "keys of repeated requests": 12,
        }
        purge(engine, Selection(owner="alice"), backup.quiet)
        assert vacuum(url, engine)


async def test_a_vacuum_beside_a_service_frees_what_it_can_and_pauses(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    async with running(file_url) as (database, log):
        await database.write(
            lambda db: [db.execute(text(each)) for each in ("CREATE TABLE t (b)", FILLED, EMPTIED)]
        )
        with opened(file_url) as engine:
            before = size_of(engine)
            monkeypatch.setattr("opencode_a2a.store.purge.time.sleep", pauses.append)
            assert not await asyncio.to_thread(vacuum, file_url, engine)
            monkeypatch.undo()
            assert size_of(engine) < before / 2
        assert len(pauses) > 1, "the service has no turn"
        await log.create(head("t"), [HELLO])


def size_of(engine: Engine) -> int:
    with snapshot(engine) as db:
        return total_size(db)


@asynccontextmanager
async def running(url: str) -> AsyncIterator[tuple[Database, SqlTaskLog]]:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        yield database, log


async def write_on(log: SqlTaskLog) -> None:
    for number in range(10_000):
        await log.create(head(f"new-{number}", created_at=now_ms() + 3_600_000), [HELLO])


def count(db: Connection) -> int:
    return int(db.execute(text("SELECT count(*) FROM tasks WHERE owner = 'alice'")).scalar_one())
