"""The files of a database can be read and written by their user only, wherever they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import HELLO, head, soon


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


ALL = dict.fromkeys(("tasks.db", "tasks.db-wal", "tasks.db-shm"), 0o600)


@pytest.mark.parametrize(
    "form", ["sqlite:///{}", "sqlite+pysqlite:///{}", "sqlite:///file:{}?uri=true"]
)
async def test_a_new_database_and_the_files_beside_it_are_private(path: Path, form: str) -> None:
    async with soon(), Database.open(form.format(path)) as database:
        async with SqlTaskLog.open(database) as log:
            await log.create(head("t"), [HELLO])
        assert modes(path.parent) == ALL
    assert modes(path.parent)["tasks.db"] == 0o600


@pytest.fixture
def target(path: Path) -> Path:
    """The folder that the file of the database is a link into."""
    folder = path.parent / "target"
    folder.mkdir()
    path.symlink_to(folder / "tasks.db")
    return folder


async def test_a_new_database_behind_a_link_is_private(target: Path, file_url: str) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        assert modes(target) == ALL


async def test_a_database_that_others_could_read_is_made_private_and_the_log_says_so(
    path: Path, file_url: str
) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])
        for file in path.parent.iterdir():
            file.chmod(0o644)
        with structlog.testing.capture_logs() as lines:
            async with Database.open(file_url) as again:
                assert modes(path.parent) == ALL
                await again.read(lambda _: None)
    tightened = {entry["file"] for entry in lines if entry["event"] == "store.tightened"}
    assert tightened == {str(path), f"{path}-wal", f"{path}-shm"}
