"""The schema: created in an empty database, equal to `tables.py`, and not touched if newer."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect

from opencode_a2a.domain.values import TaskQuery
from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.store import schema
from opencode_a2a.store.database import Database, check
from opencode_a2a.store.holder import Holder
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.tables import metadata
from tests.store.support import HELLO, OWNER, claim_all, head, soon


async def test_an_empty_database_gets_the_tables_and_the_version(database: Database) -> None:
    async with soon():
        assert await database.read(schema.find_version) == schema.SCHEMA
        names = await database.read(lambda db: inspect(db).get_table_names())
    assert set(names) == {*metadata.tables, "schema_version"}


async def test_open_tasks_are_found_in_a_partial_index(database: Database) -> None:
    def conditions(db: Connection) -> dict[str, str]:
        indexes = inspect(db).get_indexes("tasks")
        where = f"{db.dialect.name}_where"
        found = {each["name"]: each.get("dialect_options", {}).get(where) for each in indexes}
        return {str(name): str(where) for name, where in found.items() if where is not None}

    async with soon():
        assert list(await database.read(conditions)) == ["ix_tasks_open"]


@pytest.mark.parametrize(("version", "age"), [(9999, "newer"), (0, "older")])
async def test_a_database_of_another_version_is_refused_and_left_as_it_is(
    path: Path, file_url: str, version: int, age: str
) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE schema_version SET version = {version}")
    before = fingerprint(path)
    for _ in range(2):
        async with soon():
            with pytest.raises(schema.SchemaError, match=f"Run the {age} version"):
                async with Database.open(file_url):
                    pass
    assert fingerprint(path) == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


async def test_a_database_of_another_program_is_refused(path: Path, file_url: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE tasks (mine)")
    async with soon():
        with pytest.raises(schema.ForeignDatabase, match="another program"):
            async with Database.open(file_url):
                pass


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


async def test_tables_that_cannot_be_made_leave_nothing_behind(path: Path, file_url: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE sessions (mine)")  # it has the name of ours
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
