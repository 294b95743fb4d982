"""The copy that is kept before a schema is changed, and the way back to it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from opencode_a2a.store import copies, migrate
from opencode_a2a.store.copies import CopyNotMade, copy_of, restorable, restore, revision_of
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.earlier import forget_roots_in
from tests.store.support import HELLO, head, soon


@pytest.fixture
async def earlier(path: Path, file_url: str) -> Path:
    """A database of an earlier version, with a task."""
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
    forget_roots_in(path)
    return path


def tasks(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as db:
        return [row[0] for row in db.execute("SELECT id FROM tasks ORDER BY id")]


async def test_the_database_from_before_a_change_of_its_schema_is_kept(
    earlier: Path, file_url: str
) -> None:
    async with soon(), Database.open(file_url):
        pass
    copy = copy_of(earlier)
    assert (revision_of(earlier), revision_of(copy)) == (migrate.HEAD, "0006")
    assert tasks(copy) == ["t"]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in earlier.parent.iterdir()) == [earlier.name, copy.name]


async def test_nothing_is_changed_where_no_copy_can_be_kept(earlier: Path, file_url: str) -> None:
    (copy_of(earlier) / "in the way").mkdir(parents=True)
    async with soon():
        with pytest.raises(CopyNotMade, match=r"could not be written.*Nothing was changed"):
            async with Database.open(file_url):
                pass
    assert revision_of(earlier) == "0006"
    assert not earlier.with_name("tasks.db.part").exists()


async def test_a_copy_is_not_kept_for_ever(earlier: Path, file_url: str) -> None:
    async with soon(), Database.open(file_url):
        pass
    copy = copy_of(earlier)
    for age, is_kept in ((copies.COPY_DAYS - 1, True), (copies.COPY_DAYS + 1, False)):
        os.utime(copy, (time.time() - age * 86_400,) * 2)
        async with soon(), Database.open(file_url):
            assert copy.exists() is is_kept


async def newer(path: Path, file_url: str) -> None:
    """What a newer version makes of the database: another schema, and a task."""
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("later"), [HELLO])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")


async def test_who_goes_back_finds_the_database_as_it_was_and_what_came_later_aside(
    earlier: Path, file_url: str
) -> None:
    assert restorable(earlier) is None
    await newer(earlier, file_url)
    async with soon():
        with pytest.raises(migrate.SchemaTooNew, match="before-upgrade is how it was"):
            async with Database.open(file_url):
                pass
    found = restorable(earlier)
    assert found is not None
    assert (found.revision, found.copy_revision, found.newer_tasks) == ("9999", "0006", 1)
    aside = restore(earlier)
    assert aside.name == "tasks.db.of-schema-9999"
    assert (tasks(earlier), tasks(aside)) == (["t"], ["later", "t"])
    assert (revision_of(earlier), revision_of(aside)) == ("0006", "9999")
    async with soon(), Database.open(file_url):
        pass  # as after every upgrade


async def test_without_a_copy_that_this_version_knows_there_is_no_way_back(
    path: Path, file_url: str
) -> None:
    await newer(path, file_url)
    found = restorable(path)
    assert found is not None
    assert found.copy_revision is None
