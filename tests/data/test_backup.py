"""Backups: everything at one moment, in a file that is whole or refused."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from opencode_a2a.data.backup import BackupError, HoldsData, backup, restore
from opencode_a2a.data.check import check
from opencode_a2a.data.copying import TABLES, Counted, count
from opencode_a2a.data.opening import InUse, NoDatabase, opened, snapshot
from opencode_a2a.domain.values import TaskState
from opencode_a2a.store.database import Database
from opencode_a2a.store.file_lock import sole_service
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.schema import ForeignDatabase
from tests.postgres import Postgres
from tests.store.filling import fill
from tests.store.support import HELLO, claimed_ids, head, soon


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.emptied()
    return file_url


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved.backup"


def content(url: str) -> dict[str, Counted]:
    with opened(url) as engine, snapshot(engine) as db:
        assert check(db).problems == []
        return {table.name: count(db, table) for table in TABLES}


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as db:
        for statement in statements:
            db.execute(text(statement))
    engine.dispose()


def test_what_is_restored_is_what_was_saved(url: str, saved: Path) -> None:
    filled = fill(url)
    before = content(url)
    assert all(rows for rows, _ in before.values()), before
    assert backup(url, saved) == filled.tasks
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    execute(url, "DELETE FROM tasks", "DELETE FROM entries")
    with pytest.raises(HoldsData):
        restore(saved, url)
    count_restored, kept = restore(saved, url, force=True)
    assert (count_restored, content(url)) == (filled.tasks, before)
    assert kept is not None
    assert kept.exists()


async def test_a_service_goes_on_with_a_restored_database(url: str, saved: Path) -> None:
    await asyncio.to_thread(fill, url)
    backup(url, saved)
    restore(saved, url, force=True)
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        assert sorted(await claimed_ids(log)) == ["open-alice", "open-bob"]
        task = await log.get("alice", "語言-alice")
        assert (task.state, task.blocks["b"].text) == (TaskState.COMPLETED, "Grüße\0 語言 🙂")


def test_a_backup_is_restored_where_there_was_no_database(saved: Path, tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path}/{name}/tasks.db" for name in ("source", "target"))
    (tmp_path / "source").mkdir()
    fill(source)
    backup(source, saved)
    assert restore(saved, target)[1] is None
    assert content(target) == content(source)


async def test_a_backup_is_taken_while_a_service_writes(url: str, saved: Path) -> None:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        for name in range(20):
            await log.create(head(f"before-{name}"), [HELLO])
        taking = asyncio.create_task(asyncio.to_thread(backup, url, saved))
        meanwhile = 0
        while not taking.done():
            await log.create(head(f"meanwhile-{meanwhile}"), [HELLO])
            meanwhile += 1
        assert await taking >= 20
    restore(saved, url, force=True)
    assert content(url)["tasks"][0] >= 20


async def test_nothing_is_restored_while_a_service_works_on_the_database(
    url: str, saved: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(fill, url)
    backup(url, saved)
    async with soon(), sole_service(url, root=tmp_path), Database.open(url):
        with pytest.raises(InUse):
            await asyncio.to_thread(restore, saved, url, force=True)


def test_a_file_that_is_no_backup_is_neither_restored_nor_replaced(url: str, saved: Path) -> None:
    fill(url)
    saved.write_text("a letter to a friend")
    for refused in (lambda: backup(url, saved), lambda: restore(saved, url, force=True)):
        with pytest.raises(BackupError, match="no backup"):
            refused()
    assert saved.read_text() == "a letter to a friend"


def test_a_database_is_not_replaced_by_its_own_backup(file_url: str, tmp_path: Path) -> None:
    fill(file_url)
    before = content(file_url)
    link = tmp_path / "link"
    link.symlink_to(str(make_url(file_url).database))
    for name in (link, link.resolve()):
        with pytest.raises(BackupError, match="is the database itself"):
            backup(file_url, name)
    assert content(file_url) == before


def test_a_database_in_use_is_not_replaced_by_the_backup_of_another(
    file_url: str, tmp_path: Path
) -> None:
    fill(file_url)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE kept (id INTEGER)")
        with pytest.raises(BackupError, match="is a database in use"):
            backup(file_url, other)
        assert db.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_damaged_backup_is_refused_and_changes_nothing(url: str, saved: Path) -> None:
    fill(url)
    before = content(url)
    backup(url, saved)
    raw = saved.read_bytes()
    for damaged in (raw[: len(raw) // 2], raw[:8192] + bytes(4096) + raw[12288:]):
        saved.write_bytes(damaged)
        with pytest.raises(BackupError):
            restore(saved, url, force=True)
        assert content(url) == before


def test_a_backup_of_another_schema_is_refused(url: str, saved: Path) -> None:
    fill(url)
    execute(url, "UPDATE schema_version SET version = 7")
    backup(url, saved)
    with pytest.raises(BackupError, match="has schema 7, and this version needs schema 1"):
        restore(saved, url, force=True)


def test_a_backup_belongs_to_its_kind_of_database(
    postgres: Postgres, file_url: str, saved: Path
) -> None:
    fill(file_url)
    backup(file_url, saved)
    with pytest.raises(BackupError, match="is a backup of SQLite"):
        restore(saved, postgres.emptied())


def test_a_database_of_another_program_is_never_replaced(url: str, saved: Path) -> None:
    fill(url)
    backup(url, saved)
    execute(url, "DROP TABLE schema_version")
    with pytest.raises(ForeignDatabase):
        restore(saved, url, force=True)


def test_tables_of_another_program_on_a_server_are_left_alone(
    postgres: Postgres, saved: Path
) -> None:
    url = postgres.emptied()
    fill(url)
    execute(url, "CREATE TABLE theirs (x int)", "INSERT INTO theirs VALUES (1)")
    backup(url, saved)
    execute(url, "UPDATE theirs SET x = 2")
    restore(saved, url, force=True)
    assert postgres.say("SELECT x FROM theirs") == [(2,)]


def test_there_is_nothing_to_save_where_there_is_no_database(file_url: str, saved: Path) -> None:
    for url in (file_url, "sqlite://"):
        with pytest.raises(NoDatabase):
            backup(url, saved)
    assert not saved.exists()


def test_a_password_is_not_among_the_arguments_of_a_program(
    postgres: Postgres, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.emptied().replace("a2a@", "a2a:hush@")
    fill(url)
    says = f'cat $PGSERVICEFILE >{tmp_path}/connects; echo "$@" >{tmp_path}/given; exit 1'
    script = f"#!/bin/sh\n{says}\n"
    (tmp_path / "pg_dump").write_text(script)
    (tmp_path / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BackupError, match="pg_dump"):
        backup(url, saved)
    assert "password=hush" in (tmp_path / "connects").read_text()
    assert "hush" not in (tmp_path / "given").read_text()


def test_a_backup_of_sqlite_is_a_database_file(file_url: str, saved: Path) -> None:
    filled = fill(file_url)
    backup(file_url, saved)
    with closing(sqlite3.connect(saved)) as db:
        assert db.execute("SELECT count(*) FROM tasks").fetchone() == (filled.tasks,)
