"""One service at a time on an SQLite file. What two real ones do: tests/faults/test_takeover.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opencode_a2a.store.file_lock import FileInUse, sole_service

NOBODY = 65_534


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Root can open every file, so be somebody else meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def used_by_another() -> Iterator[Path]:
    """A database file that another user's service has locked."""
    with tempfile.TemporaryDirectory() as folder:  # that of a test is closed to others
        Path(folder).chmod(0o777)
        lock = Path(folder) / "tasks.db.lock"
        lock.touch()
        lock.chmod(0)
        yield Path(folder) / "tasks.db"


async def test_a_lock_of_another_user_is_respected(used_by_another: Path) -> None:
    with _as_nobody(), pytest.raises(FileInUse, match=r"Run this one as the user \w+, or name"):
        async with sole_service(f"sqlite:///{used_by_another}", root=used_by_another.parent):
            pass


async def test_a_folder_that_is_not_there_is_left_to_whoever_opens_the_database(
    tmp_path: Path,
) -> None:
    async with sole_service(f"sqlite:///{tmp_path}/nowhere/tasks.db", root=tmp_path):
        pass


async def test_a_database_in_memory_needs_no_lock(tmp_path: Path) -> None:
    async with (
        sole_service("sqlite://", root=tmp_path),
        sole_service("sqlite://", root=tmp_path),
    ):
        pass
