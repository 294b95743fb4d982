"""Moving to another database: in passes, beside the service, and complete or not usable."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from opencode_a2a.store import backup
from opencode_a2a.store.check import check
from opencode_a2a.store.copies import restorable
from opencode_a2a.store.database import Database, shown
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.migrate import HEAD, MovedAway, UnfinishedMove, mark_moved
from opencode_a2a.store.moving import FinishedElsewhere, Move, NotEmpty, TargetInUse
from opencode_a2a.store.rows import InUse, digests, opened, snapshot
from tests.postgres import Postgres
from tests.store.earlier import forget_roots_in
from tests.store.filling import fill
from tests.store.support import DONE, HELLO, claimed_ids, head, soon, step


@pytest.fixture(params=["file", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.emptied()
    return f"sqlite:///{tmp_path / 'target.db'}"


class Interrupted(Exception):
    """The process ended here."""


def copy(move: Move) -> None:
    with opened(move.source_url) as source:
        move.copy(source)


def digests_of(url: str) -> dict[str, tuple[int, str]]:
    with opened(url) as engine, snapshot(engine) as db:
        return digests(db)


async def test_both_sides_are_equal_and_the_service_goes_on_there(
    file_url: str, target: str
) -> None:
    await asyncio.to_thread(fill, file_url)
    before = digests_of(file_url)
    move = Move(file_url, target, backup.quiet)
    copy(move)
    moved = move.finish()
    assert moved.tables == before == digests_of(file_url) == digests_of(target)
    with opened(target) as engine, snapshot(engine) as db:
        assert check(db).problems == []
    async with soon(), Database.open(target) as database, SqlTaskLog.open(database) as log:
        assert sorted(await claimed_ids(log)) == ["open-alice", "open-bob"]
        await log.create(head("new"), [HELLO, DONE])


async def test_a_service_works_meanwhile_and_what_it_changes_is_copied_again(
    file_url: str, target: str
) -> None:
    await asyncio.to_thread(fill, file_url)
    move = Move(file_url, target, backup.quiet)
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        await log.create(head("gone"), [HELLO, DONE])
        await asyncio.to_thread(copy, move)
        await log.write("t", [step(1), DONE])
        await log.create(head("later"), [HELLO])
        await database.write(lambda db: db.exec_driver_sql("DELETE FROM tasks WHERE id='gone'"))
        await database.write(
            lambda db: db.exec_driver_sql("DELETE FROM entries WHERE task_id='gone'")
        )
        with pytest.raises(InUse):
            await asyncio.to_thread(move.finish)
        with pytest.raises(UnfinishedMove, match="migrate"):
            async with Database.open(target):
                pytest.fail("a service starts on half a database")
    assert move.finish().tables == digests_of(file_url) == digests_of(target)


async def test_a_move_that_was_interrupted_goes_on_and_copies_nothing_twice(
    file_url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(fill, file_url)
    monkeypatch.setattr("opencode_a2a.store.moving.BATCH", 2)

    def interrupt(table: str, rows: int) -> None:
        if table == "entries" and rows >= 4:
            raise Interrupted

    first = Move(file_url, target, interrupt)
    with pytest.raises(Interrupted):
        copy(first)
    with pytest.raises(UnfinishedMove):
        async with Database.open(target):
            pytest.fail("a service starts on half a database")
    with opened(target) as engine, snapshot(engine) as db:
        there = sum(rows for rows, _ in digests(db).values())
    second = Move(file_url, target, backup.quiet)
    copy(second)
    total = sum(rows for rows, _ in second.finish().tables.values())
    assert 0 < there < total
    assert second.changes == total - there


def test_only_an_empty_database_is_filled_and_only_from_one_source(
    file_url: str, target: str, tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    fill(file_url)
    fill(other)
    copy(Move(file_url, target, backup.quiet))
    with pytest.raises(NotEmpty):
        copy(Move(other, target, backup.quiet))
    with pytest.raises(NotEmpty):
        copy(Move(file_url, other, backup.quiet))
    Move(file_url, target, backup.quiet).finish()
    with pytest.raises(MovedAway):
        copy(Move(file_url, target, backup.quiet))


async def test_a_database_that_a_service_works_on_is_not_filled(file_url: str, target: str) -> None:
    await asyncio.to_thread(fill, file_url)
    move = Move(file_url, target, backup.quiet)
    async with soon(), Database.open(target) as database:
        with pytest.raises(TargetInUse):
            await asyncio.to_thread(copy, move)
        assert await database.takes_writes()
    await asyncio.to_thread(copy, move)
    assert move.finish().tables == digests_of(target)


def test_an_earlier_schema_is_moved_and_then_migrated(
    file_url: str, path: Path, target: str
) -> None:
    fill(file_url)
    forget_roots_in(path)
    before = digests_of(file_url)
    move = Move(file_url, target, backup.quiet)
    copy(move)
    assert move.finish().tables == before == digests_of(file_url)
    with opened(target) as engine, snapshot(engine) as db:
        assert check(db).problems == []


async def test_no_service_starts_on_what_was_moved(
    file_url: str, path: Path, target: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(fill, file_url)
    move = Move(file_url, target, backup.quiet)
    copy(move)
    move.finish()
    with pytest.raises(MovedAway, match=str(tmp_path) if "sqlite" in target else "127.0.0.1"):
        async with Database.open(file_url):
            pytest.fail("two services would go on with the same tasks")
    with pytest.raises(MovedAway), opened(file_url) as engine:
        backup.save(engine, tmp_path / "never")
    assert restorable(path) is None  # an earlier release could not go on with it either
    with closing(sqlite3.connect(path)) as db:  # as the message says
        db.executescript(f"UPDATE alembic_version SET version_num = '{HEAD}'; DROP TABLE moved;")
    async with soon(), Database.open(file_url) as database:
        assert await database.takes_writes()


async def test_the_other_direction_works_as_well(postgres: Postgres, file_url: str) -> None:
    source = await asyncio.to_thread(postgres.emptied)
    await asyncio.to_thread(fill, source)
    move = Move(source, file_url, backup.quiet)
    copy(move)
    assert move.finish().tables == digests_of(source) == digests_of(file_url)
    with pytest.raises(MovedAway):
        async with Database.open(source):
            pytest.fail("two services would go on with the same tasks")


def test_a_move_that_was_killed_between_both_marks_is_finished_by_the_next(
    file_url: str, target: str
) -> None:
    fill(file_url)
    before = digests_of(file_url)
    move = Move(file_url, target, backup.quiet)
    copy(move)
    with opened(file_url) as engine, engine.execution_options(writes=True).begin() as db:
        mark_moved(db, shown(target), HEAD)
    again = Move(file_url, target, backup.quiet)
    copy(again)
    assert again.finish().tables == before == digests_of(target)


async def test_a_second_move_that_waits_does_not_change_what_the_first_has_finished(
    file_url: str, path: Path, target: str
) -> None:
    await asyncio.to_thread(fill, file_url)
    first, second = (Move(file_url, target, backup.quiet) for _ in range(2))
    service = sqlite3.connect(path, check_same_thread=False)
    service.execute("SELECT count(*) FROM tasks").fetchall()

    async def acknowledge() -> None:
        async with soon(), Database.open(target) as database, SqlTaskLog.open(database) as log:
            await log.create(head("acknowledged"), [HELLO, DONE])

    def finish_first() -> None:
        """While the second waits for the service to stop."""
        service.close()
        copy(first)
        first.finish()
        asyncio.run(acknowledge())

    def wait() -> None:
        with opened(file_url) as source:
            second.copy(source)
            second.finish_when_stopped(source, finish_first)

    with pytest.raises(FinishedElsewhere):
        await asyncio.to_thread(wait)
    async with soon(), Database.open(target) as database, SqlTaskLog.open(database) as log:
        assert (await log.get("alice", "acknowledged")).head.id == "acknowledged"


def test_a_move_waits_until_the_service_has_stopped(
    file_url: str, path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_a2a.store.moving.PAUSE_SECONDS", 0)
    fill(file_url)
    service = sqlite3.connect(path)

    def stop() -> None:
        service.execute("UPDATE sessions SET title = 'the last change'")
        service.commit()
        service.close()

    service.execute("SELECT count(*) FROM tasks").fetchall()
    move = Move(file_url, target, backup.quiet)
    with opened(file_url) as source:
        move.copy(source)
        moved = move.finish_when_stopped(source, stop)
    assert moved.tables == digests_of(file_url) == digests_of(target)
