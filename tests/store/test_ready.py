"""`takes_writes` is right whatever is wrong with the store, and costs little."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.store import database as database_module
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.chaos.disk import SmallDisk
from tests.postgres import Postgres
from tests.store.support import DONE, HELLO, OWNER, head, soon


@pytest.fixture(autouse=True)
def curious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question makes a new probe."""
    monkeypatch.setattr(database_module, "PROBE_VALID_SECONDS", -1.0)
    monkeypatch.setattr(database_module, "PROBE_SECONDS", 30.0)


def move(source: Path, target: Path) -> None:
    source.replace(target)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


async def test_a_store_that_works_takes_writes(database: Database) -> None:
    async with soon():
        for _ in range(3):
            assert await database.takes_writes()


async def test_whoever_asks_often_causes_few_writes(
    file_url: str, commits: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PROBE_VALID_SECONDS", 60.0)
    async with soon(), Database.open(file_url) as database:
        before = len(commits)
        for _ in range(20):
            asked = await asyncio.gather(*(database.takes_writes() for _ in range(20)))
            assert all(asked)
        assert len(commits) - before == 1


async def test_whoever_asks_while_it_is_being_found_out_waits_for_it(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PROBE_VALID_SECONDS", 60.0)
    async with soon(), Database.open(file_url) as database:
        first = asyncio.create_task(database.takes_writes())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await database.takes_writes()
        assert await first


async def test_a_disk_that_cannot_be_asked_takes_no_writes(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> os.statvfs_result:
        raise OSError(5, "Input/output error")

    async with soon(), Database.open(file_url) as database:
        assert await database.takes_writes()
        monkeypatch.setattr(os, "statvfs", fail)
        assert not await database.takes_writes()


async def test_a_write_that_failed_is_known_at_once(path: Path, file_url: str) -> None:
    async with soon(), Database.open(file_url) as database:
        assert await database.takes_writes()
        move(path, path.with_name("away"))
        with pytest.raises(StoreUnavailable):
            await database.write(lambda db: None)
        assert not await database.takes_writes()
        move(path.with_name("away"), path)
        assert await database.takes_writes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not SmallDisk.possible():
        pytest.skip("a small disk cannot be mounted here")
    with SmallDisk.mounted(tmp_path / "disk") as disk:
        yield disk


async def test_a_full_disk(small_disk: SmallDisk) -> None:
    url = f"sqlite:///{small_disk.folder / 'tasks.db'}"
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        for n in range(20):  # so that there is something to overwrite
            await log.create(head(f"t-{n}"), [HELLO])
        assert await database.takes_writes()
        small_disk.fill()
        assert not await database.takes_writes()
        small_disk.free()
        assert await database.takes_writes()


async def test_a_file_that_another_program_has_locked(
    path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PROBE_SECONDS", 0.2)
    async with soon(), Database.open(file_url) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                assert not await database.takes_writes()
            another.execute("ROLLBACK")
        while not await database.takes_writes():
            pass


@pytest.mark.parametrize("way", ["deleted", "replaced"])
async def test_a_file_that_is_not_the_one_that_was_opened(
    path: Path, file_url: str, way: str
) -> None:
    async with (
        soon(),
        Database.open(file_url) as database,
        SqlTaskLog.open(database) as log,
    ):
        await log.create(head("t"), [HELLO])
        kept, other = path.with_name("kept.db"), path.with_name("other.db")
        os.link(path, kept)
        if way == "deleted":
            move(path, path.with_name("rubbish"))
        else:
            async with Database.open(f"sqlite:///{other}"):
                pass
            move(other, path)
        now = content(path)
        with capture_logs() as lines:
            assert not await database.takes_writes()
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                    await log.create(head("u"), [HELLO])
        (replaced,) = [line for line in lines if line["event"] == "store.file_replaced"]
        assert replaced["log_level"] == "error"
        assert replaced["path"] == str(path)
        assert "put the original file back" in replaced["advice"]
        assert "restart" in replaced["advice"]
        assert content(path) == now, "it is not ours to touch"
        move(kept, path)
        assert await database.takes_writes()
        assert (await log.get(OWNER, "t")).last_seq == 1
        await log.write("t", [DONE])


async def test_after_a_restart_the_file_that_is_there_is_used(path: Path, file_url: str) -> None:
    async with soon():
        async with Database.open(file_url) as database, SqlTaskLog.open(database) as log:
            await log.create(head("t"), [HELLO])
            shutil.copy(path, path.with_name("backup.db"))
            move(path, path.with_name("rubbish"))
            assert not await database.takes_writes()
        for left in path.parent.glob("tasks.db*"):
            left.unlink()
        move(path.with_name("backup.db"), path)
        async with Database.open(file_url) as database:
            assert await database.takes_writes()


async def test_a_database_that_may_only_be_read(path: Path, file_url: str) -> None:
    async with soon():
        async with Database.open(file_url):
            pass
        async with Database.open(f"sqlite:///file:{path}?mode=ro&uri=true") as database:
            assert not await database.takes_writes()


async def test_a_server_that_may_only_be_read(postgres: Postgres) -> None:
    url = postgres.emptied()
    async with soon(), Database.open(url) as database:
        assert await database.takes_writes()
        try:
            postgres.say("ALTER SYSTEM SET default_transaction_read_only = on")
            postgres.say("SELECT pg_reload_conf()")
            while await database.takes_writes():
                pass
            assert not await database.takes_writes()
        finally:
            postgres.say("ALTER SYSTEM RESET ALL")
            postgres.say("SELECT pg_reload_conf()")
        while not await database.takes_writes():
            pass


async def test_a_server_that_is_away(postgres: Postgres) -> None:
    url = postgres.emptied()
    async with soon(), Database.open(url) as database:
        assert await database.takes_writes()
        postgres.stop(signal.SIGQUIT)
        try:
            assert not await database.takes_writes()
        finally:
            postgres.start()
        assert await database.takes_writes()
