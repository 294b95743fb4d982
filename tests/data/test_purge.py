"""Removing old tasks, and everything of a caller, beside a service that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, select, text

from opencode_a2a.data.check import check
from opencode_a2a.data.opening import InUse, exclusive_lock, opened, shared_lock, snapshot
from opencode_a2a.data.purge import Selection, preview, purge
from opencode_a2a.domain.updates import Ended
from opencode_a2a.domain.values import TaskQuery, TaskState
from opencode_a2a.errors import TaskNotFound
from opencode_a2a.store import tables
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database, writing
from opencode_a2a.store.holder import Holder
from opencode_a2a.store.log import SqlTaskLog
from tests.postgres import Postgres
from tests.store.filling import IDS, fill
from tests.store.support import DONE, HELLO, head, soon

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


def quiet(_: str, __: int) -> None:
    """Report nothing."""


def remove(url: str, selection: Selection) -> list[str]:
    with opened(url) as engine:
        return purge(engine, selection, quiet)


def everything(url: str) -> str:
    """All that is stored, as text."""
    with opened(url) as engine, snapshot(engine) as db:
        assert check(db).problems == []
        return "\n".join(
            str(tuple(row))
            for table in tables.metadata.sorted_tables
            if table not in tables.DERIVED
            for row in db.execute(select(table))
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
        assert db.execute(select(tables.locations.c.owner)).scalars().all() == [tables.NOBODY] * 2


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
        **dict.fromkeys(("allow_rules", "peer_conversations", "usage_days"), 1),
        **dict.fromkeys(("push_configs", "push_dead"), 1),
        **dict.fromkeys(("sessions", "contexts", "locations", "worktrees"), 1),
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
    monkeypatch.setattr("opencode_a2a.data.purge.STOP_SECONDS", 0)
    fill(url)
    held = {"holder": Holder.this_process().name, "held_until": now_ms() + 60_000}
    with opened(url) as engine:
        with writing(engine) as db:
            db.execute(tables.tasks.update().where(tables.tasks.c.id == "open-alice").values(held))
        assert purge(engine, Selection(owner="alice"), quiet) == ["open-alice"]


def test_nothing_is_removed_while_a_command_has_the_database_for_itself(
    postgres: Postgres,
) -> None:
    url = postgres.without_tasks()
    with opened(url) as engine:
        with exclusive_lock(url), pytest.raises(InUse), shared_lock(engine):
            pytest.fail("a purge would run beside a restore")
        with shared_lock(engine), pytest.raises(InUse), exclusive_lock(url):
            pytest.fail("a restore would run beside a purge")


@asynccontextmanager
async def running(url: str) -> AsyncIterator[tuple[Database, SqlTaskLog]]:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        yield database, log


async def write_on(log: SqlTaskLog) -> None:
    for number in range(10_000):
        await log.create(head(f"new-{number}", created_at=now_ms() + 3_600_000), [HELLO])


def count(db: Connection) -> int:
    return int(db.execute(text("SELECT count(*) FROM tasks WHERE owner = 'alice'")).scalar_one())
