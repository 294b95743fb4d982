"""The schema: created in an empty database, equal to `tables.py`, and not touched if newer."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

from opencode_a2a.domain.values import TaskQuery
from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.store import migrate
from opencode_a2a.store.database import Database, check
from opencode_a2a.store.holder import Holder
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.tables import metadata
from tests.store.support import HELLO, OWNER, claim_all, head, soon


async def test_an_empty_database_gets_the_schema_that_the_tables_describe(
    database: Database,
) -> None:
    def revision(db: Connection) -> str:
        return str(db.execute(text("SELECT version_num FROM alembic_version")).scalar_one())

    async with soon():
        assert await database.write(differences) == []
        assert await database.read(revision) == migrate.HEAD


def differences(db: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(db), metadata))


def test_the_migrations_make_the_schema_that_the_tables_describe(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate.migrate(connection, None)
        assert differences(connection) == []
    engine.dispose()


async def test_a_new_file_has_what_the_migrations_would_make_to_the_letter(
    path: Path, file_url: str
) -> None:
    async with soon(), Database.open(file_url):
        pass
    migrated = path.with_name("migrated.db")
    engine = create_engine(f"sqlite:///{migrated}")
    with engine.begin() as connection:
        migrate.migrate(connection, None)
    engine.dispose()
    assert schema(path) == schema(migrated)


def schema(path: Path) -> set[str]:
    """Tables, indexes and triggers, and the revision."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return {" ".join(sql.split()) for (sql,) in rows} | {str(revision)}


def test_the_head_is_the_newest_script_of_one_unbroken_line() -> None:
    config = Config()
    folder = Path(migrate.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [migrate.HEAD]
    assert len(scripts.get_bases()) == 1


async def test_a_newer_database_is_refused_and_left_as_it_is(path: Path, file_url: str) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = fingerprint(path)
    for _ in range(2):
        async with soon():
            with pytest.raises(migrate.SchemaTooNew, match="9999"):
                async with Database.open(file_url):
                    pass
    assert fingerprint(path) == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_opening_again_changes_nothing(path: Path, file_url: str) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
    before = fingerprint(path)
    async with soon(), Database.open(file_url), Database.open(file_url) as database:
        assert (await SqlTaskLog(database, Holder("h")).get(OWNER, "t")).messages == [HELLO.message]
    assert fingerprint(path) == before


async def test_several_processes_may_open_an_empty_database_at_once(file_url: str) -> None:
    async def open_it() -> None:
        async with Database.open(file_url) as database, SqlTaskLog.open(database) as log:
            await claim_all(log)

    async with soon():
        await asyncio.gather(*(open_it() for _ in range(4)))


async def test_a_new_file_that_another_process_holds_is_waited_for(
    path: Path, file_url: str
) -> None:
    async def open_it() -> None:
        async with Database.open(file_url):
            pass

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("BEGIN IMMEDIATE")  # for the change of mode SQLite does not wait for this
        async with soon():
            opening = asyncio.create_task(open_it())
            done, _ = await asyncio.wait([opening], timeout=0.3)
            assert not done
            other.execute("ROLLBACK")
            await opening


async def test_an_upgrade_that_fails_leaves_nothing_behind(path: Path, file_url: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sessions (mine)")  # makes the last migration fail
    async with soon():
        with pytest.raises(StoreUnavailable):
            async with Database.open(file_url):
                pass
    engine = create_engine(file_url)
    assert inspect(engine).get_table_names() == ["sessions"]
    engine.dispose()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
async def test_every_way_to_say_in_memory_is_one_database(url: str) -> None:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        assert (await log.list(TaskQuery(OWNER))).total == 1
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        assert (await log.list(TaskQuery(OWNER))).total == 0


async def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"

    async def sound() -> bool:
        try:
            async with Database.open(f"sqlite:///{file}") as database:
                return await database.read(check)
        except StoreUnavailable:
            return False

    assert await sound()
    with file.open("r+b") as raw:  # the pages behind the schema
        raw.seek(4096)
        raw.write(b"\x55" * (file.stat().st_size - 4096))
    assert not await sound()
