"""Copying everything into another database: complete and equal, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Integer, LargeBinary, String

from opencode_a2a.data import copying
from opencode_a2a.data.check import check
from opencode_a2a.data.copying import NotEmpty, NotEqual, copy
from opencode_a2a.data.opening import InUse, NoDatabase, opened, snapshot
from opencode_a2a.domain.values import TaskState
from opencode_a2a.store.database import Database
from opencode_a2a.store.file_lock import sole_service
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.tables import metadata
from tests.postgres import Postgres
from tests.store.filling import fill
from tests.store.support import claimed_ids, soon


def quiet(_: str, __: int) -> None:
    """Report nothing."""


def test_every_column_has_a_type_that_sqlite_and_postgresql_give_back_alike() -> None:
    alike = (String, BigInteger, Integer, LargeBinary)
    odd = [str(c) for t in metadata.tables.values() for c in t.c if not isinstance(c.type, alike)]
    assert not odd


async def test_everything_goes_to_postgresql_and_back(
    postgres: Postgres, file_url: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(fill, file_url)
    server, back = postgres.emptied(), f"sqlite:///{tmp_path / 'back.db'}"
    copied = copy(file_url, server, quiet)
    assert all(rows for rows, _ in copied.values()), copied
    assert copy(server, back, quiet) == copied
    for url in (server, back):
        with opened(url) as engine, snapshot(engine) as db:
            assert check(db).problems == []
        async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
            assert sorted(await claimed_ids(log)) == ["open-alice", "open-bob"]
            task = await log.get("alice", "語言-alice")
            assert (task.state, task.blocks["b"].text) == (TaskState.COMPLETED, "Grüße\0 語言 🙂")


async def test_no_service_may_use_either_side(
    postgres: Postgres, file_url: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(fill, file_url)
    server = postgres.without_tasks()
    for used in (file_url, server):
        async with soon(), sole_service(used, root=tmp_path), Database.open(used):
            with pytest.raises(InUse):
                await asyncio.to_thread(copy, file_url, server, quiet)


def test_only_an_empty_database_is_filled(postgres: Postgres, file_url: str) -> None:
    server = postgres.emptied()
    with pytest.raises(NoDatabase):
        copy(file_url, server, quiet)
    fill(file_url)
    copy(file_url, server, quiet)
    with pytest.raises(NotEmpty):
        copy(file_url, server, quiet)


def test_a_copy_that_is_not_equal_leaves_the_target_empty(
    postgres: Postgres, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(file_url)
    server = postgres.emptied()
    monkeypatch.setattr(copying, "count", lambda *_: (0, ""))
    with pytest.raises(NotEqual, match="tasks"):
        copy(file_url, server, quiet)
    monkeypatch.undo()
    copy(file_url, server, quiet)
