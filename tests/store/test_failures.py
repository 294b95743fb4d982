"""A store that cannot be written or read: the errors, what is kept, and what happens later."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import Connection, Engine, event

from opencode_a2a.domain.updates import MessageAdded
from opencode_a2a.domain.values import Message, Role, SessionRef, TaskQuery, TaskState, Text
from opencode_a2a.errors import StoreUnavailable, TaskNotFound, UnsupportedOperation
from opencode_a2a.store import log as log_module
from opencode_a2a.store import statements
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import (
    DONE,
    HELLO,
    OWNER,
    Clock,
    claim_all,
    claimed_ids,
    delta,
    head,
    numbers,
    rest,
    settle,
    soon,
    step,
)

BIG = "x" * 400_000
LONG_MESSAGE = MessageAdded(Message("m-1", Role.USER, (Text(BIG),)), "msg_1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", (0.01,))


class Disk(Protocol):
    folder: Path

    def fill(self) -> None: ...

    def free(self) -> None: ...


class SmallDisk:
    """A file system of two megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as exc:
                assert exc.errno == errno.ENOSPC

    def free(self) -> None:
        self._ballast.unlink()


class PageLimit:
    """SQLite's own idea of a full disk, where nothing can be mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pages = 2**30

    def fill(self) -> None:
        self._pages = 1  # SQLite takes that as: no more than there are

    def free(self) -> None:
        self._pages = 2**30

    def limit(self, connection: Connection) -> None:
        connection.connection.cursor().execute(f"PRAGMA max_page_count={self._pages}")


def _mount(folder: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def _may_mount() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder))
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", folder], check=True)
    return True


@pytest.fixture(params=["page limit", *(["small disk"] if _may_mount() else [])])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "small disk":
        _mount(tmp_path)
        yield SmallDisk(tmp_path)
        subprocess.run(["umount", tmp_path], check=True)
    else:
        limited = PageLimit(tmp_path)
        event.listen(Engine, "begin", limited.limit)
        yield limited
        event.remove(Engine, "begin", limited.limit)


@asynccontextmanager
async def opened(url: str, clock: Clock | None = None) -> AsyncIterator[SqlTaskLog]:
    async with (
        Database.open(url) as database,
        SqlTaskLog.open(database, clock=clock or Clock()) as log,
    ):
        yield log


# -- a full disk


async def test_on_a_full_disk_nothing_is_begun_and_everything_can_be_read(disk: Disk) -> None:
    async with soon(), opened(f"sqlite:///{disk.folder / 'tasks.db'}") as log:
        await log.create(head("before"), [HELLO])
        disk.fill()
        for attempt in range(3):
            with pytest.raises(StoreUnavailable) as refusal:
                await log.create(head(f"during-{attempt}"), [LONG_MESSAGE])
            assert "sqlite" not in refusal.value.message.lower()
            assert "full" not in refusal.value.message.lower()
            with pytest.raises(TaskNotFound):
                await log.get(OWNER, f"during-{attempt}")
        with pytest.raises(StoreUnavailable):
            await log.write("before", [delta(BIG)])
        assert numbers(await rest(log.follow("during-1", 0))) == []
        assert (await log.get(OWNER, "before")).last_seq == 1
        disk.free()
        await log.create(head("after"), [LONG_MESSAGE])
        await log.write("before", [DONE])
        page = await log.list(TaskQuery(OWNER))
        assert {row.head.id for row in page.rows} == {"before", "after"}
        assert numbers(await rest(log.follow("before", 0))) == [1, 2]
        assert await rest(log.follow("during-0", 0)) == []


async def test_updates_appended_on_a_full_disk_are_written_once_there_is_room(
    disk: Disk,
) -> None:
    url = f"sqlite:///{disk.folder / 'tasks.db'}"
    async with soon():
        async with opened(url) as log:
            task = await log.create(head("t"), [HELLO])
            cursor = log.follow("t", 1)
            reading = asyncio.create_task(rest(cursor))
            disk.fill()
            log.append("t", [delta(BIG)])
            with pytest.raises(StoreUnavailable):
                await log.write("t", [step(99)])
            for n in range(5):
                log.append("t", [step(n)])
                await settle()
            log.append("t", [DONE])
            with pytest.raises(StoreUnavailable):
                await log.create(head("another"), [LONG_MESSAGE])
            assert task.last_seq == 1
            assert not reading.done()
            disk.free()
            await log.flushed("t")
            expected = [delta(BIG), *(step(n) for n in range(5)), DONE]
            received = await reading
            assert [entry.update for entry in received] == expected
            assert numbers(received) == list(range(2, 9))
        async with opened(url) as again:
            assert await rest(again.follow("t", 1)) == received


@pytest.mark.parametrize("way", ["stopped", "killed"])
async def test_a_full_disk_can_be_opened_and_read(disk: Disk, way: str) -> None:
    url = f"sqlite:///{disk.folder / 'tasks.db'}"
    async with soon():
        async with opened(url) as log:
            await log.create(head("t"), [HELLO])
            if way == "killed":  # its files stay as they are in the middle of a write
                for file in disk.folder.glob("tasks.db*"):
                    shutil.copy(file, disk.folder / file.name.replace("tasks", "killed"))
        if way == "killed":
            url = url.replace("tasks", "killed")
        disk.fill()
        clock = Clock()
        async with opened(url, clock) as log:
            for _ in range(2):
                assert (await log.get(OWNER, "t")).messages == [HELLO.message]
                with pytest.raises(StoreUnavailable):
                    await log.create(head("during"), [LONG_MESSAGE])
            disk.free()
            clock.outlast_leases()
            (claimed_task,) = await claim_all(log)
            assert claimed_task.head.id == "t"
            await log.write("t", [DONE])
            assert (await log.list(TaskQuery(OWNER, state=TaskState.COMPLETED))).total == 1


# -- a folder that is away


async def test_a_folder_that_is_taken_away_is_noticed_and_waited_for(
    path: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TAIL_ENTRIES", 2)
    monkeypatch.setattr(statements, "PAGE_ENTRIES", 4)
    away = path.parent.with_name("away")
    async with soon(), opened(file_url) as log:
        await log.create(head("t"), [HELLO, *(step(n) for n in range(10))])
        cursor = log.follow("t", 0)
        before = list(await cursor.read())
        path.parent.rename(away)
        with pytest.raises(StoreUnavailable):
            await log.create(head("u"), [HELLO])
        with pytest.raises(StoreUnavailable):
            await log.write("t", [step(10)])
        with pytest.raises(StoreUnavailable):
            await log.list(TaskQuery(OWNER))
        with pytest.raises(StoreUnavailable):
            await claim_all(log)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await cursor.read()
        log.append("t", [step(11), DONE])
        away.rename(path.parent)
        received = [*before, *await rest(cursor)]
        assert numbers(received) == list(range(1, 14))
        assert [entry.update for entry in received[-2:]] == [step(11), DONE]
        with pytest.raises(TaskNotFound):
            await log.get(OWNER, "u")


async def test_a_database_that_was_deleted_takes_nothing_more(path: Path, file_url: str) -> None:
    async with soon(), opened(file_url) as log:
        await log.create(head("t"), [HELLO])
        shutil.rmtree(path.parent)
        with pytest.raises(StoreUnavailable):
            await log.create(head("u"), [HELLO])
        path.parent.mkdir()  # an empty one is no replacement
        with pytest.raises(StoreUnavailable):
            await log.create(head("u"), [HELLO])


@pytest.mark.parametrize("place", ["missing/tasks.db", "a file/tasks.db", "a folder"])
async def test_a_place_that_cannot_hold_a_database_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a folder").mkdir()
    async with soon():
        with pytest.raises(StoreUnavailable):
            async with Database.open(f"sqlite:///{tmp_path / place}"):
                pass


async def test_a_file_that_is_no_database_is_refused_and_kept(path: Path, file_url: str) -> None:
    await asyncio.to_thread(path.write_bytes, b"dear diary, " * 1_000)
    async with soon():
        with pytest.raises(StoreUnavailable):
            async with Database.open(file_url):
                pass
    assert await asyncio.to_thread(path.read_bytes) == b"dear diary, " * 1_000


async def test_a_database_that_may_only_be_read_can_be_read(path: Path, file_url: str) -> None:
    async with soon():
        async with opened(file_url) as log:
            await log.create(head("t"), [HELLO])
        url = f"sqlite:///file:{path}?mode=ro&uri=true"
        async with Database.open(url) as database, SqlTaskLog.open(database) as log:
            assert (await log.get(OWNER, "t")).last_seq == 1
            with pytest.raises(StoreUnavailable):
                await log.create(head("u"), [HELLO])
            with pytest.raises(StoreUnavailable):
                await claim_all(log)
            assert not log.is_mine("t")
            with pytest.raises(UnsupportedOperation):
                await log.write("t", [DONE])
            with pytest.raises(StoreUnavailable):
                await SqlBindings(database).bind(OWNER, "c", SessionRef("s"))
            assert (await log.get(OWNER, "t")).state is TaskState.SUBMITTED


# -- words that get lost, and words that do not


async def test_an_end_that_was_refused_can_be_written_again(path: Path, file_url: str) -> None:
    away = path.parent.with_name("away")
    async with soon(), opened(file_url) as log:
        await log.create(head("t"), [HELLO])
        path.parent.rename(away)
        with pytest.raises(StoreUnavailable):
            await log.write("t", [DONE])
        away.rename(path.parent)
        await log.write("t", [step(1)])
        log.append("t", [DONE])
        assert [e.update for e in await rest(log.follow("t", 1))] == [step(1), DONE]


async def test_a_task_whose_caller_leaves_while_the_disk_refuses_never_was(
    path: Path, file_url: str
) -> None:
    away = path.parent.with_name("away")
    async with soon(), opened(file_url) as log:
        path.parent.rename(away)
        creating = asyncio.create_task(log.create(head("t"), [HELLO]))
        await settle()
        creating.cancel()
        with suppress(asyncio.CancelledError, StoreUnavailable):
            await creating
        with pytest.raises(StoreUnavailable):
            await log.create(head("u"), [HELLO])
        away.rename(path.parent)
        await log.create(head("v"), [HELLO])
        page = await log.list(TaskQuery(OWNER))
        assert [row.head.id for row in page.rows] == ["v"]


async def test_stopping_while_the_disk_refuses_takes_a_bounded_time(
    path: Path, file_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "STOP_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(log_module, "RETRY_SECONDS", (0.01, 60.0))
    away = path.parent.with_name("away")
    async with soon():
        async with opened(file_url) as log:
            await log.create(head("t"), [HELLO])
            path.parent.rename(away)
            log.append("t", [step(1)])
            for _ in range(2):  # from now on it is a minute to the next attempt
                with pytest.raises(StoreUnavailable):
                    await log.write("t", [step(2)])
            log.append("t", [DONE])
            waiting = asyncio.create_task(log.create(head("u"), [HELLO]))
            await settle()
            begun = time.monotonic()
        assert time.monotonic() - begun < 5
        with pytest.raises(StoreUnavailable):
            await waiting
        away.rename(path.parent)
        async with opened(file_url) as again:
            assert await claimed_ids(again) == []  # not released: its lease has to run out
            assert numbers(list(await again.follow("t", 0).read())) == [1]
        clock.outlast_leases()
        async with opened(file_url, clock) as again:
            assert await claimed_ids(again) == ["t"]
            assert (await again.get(OWNER, "t")).last_seq == 1


async def test_being_cancelled_while_stopping_leaves_no_task_running(
    path: Path, file_url: str
) -> None:
    away = path.parent.with_name("away")

    async def run(started: asyncio.Event) -> None:
        async with opened(file_url) as log:
            await log.create(head("t"), [HELLO])
            path.parent.rename(away)
            log.append("t", [step(1)])
            started.set()

    async with soon():
        started = asyncio.Event()
        before = asyncio.all_tasks()
        running = asyncio.create_task(run(started))
        await started.wait()
        await settle()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == before
