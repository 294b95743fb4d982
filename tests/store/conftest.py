"""The same tests on every kind of database."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.postgres import Postgres
from tests.store.support import Clock

DATABASES = ["file", "memory", "postgres"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the SQLite file of a test is; its folder exists."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "tasks.db"


@pytest.fixture
def file_url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.without_tasks()
    return file_url if request.param == "file" else "sqlite://"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with Database.open(url) as database:
        yield database


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def log(database: Database, clock: Clock) -> AsyncIterator[SqlTaskLog]:
    async with SqlTaskLog.open(database, clock=clock) as log:
        yield log


@pytest.fixture
def commits() -> Iterator[list[Connection]]:
    """Grows by one with every writing transaction that is committed."""
    seen: list[Connection] = []

    def note(connection: Connection) -> None:
        raw: Any = connection.connection.driver_connection
        if raw.in_transaction if isinstance(raw, sqlite3.Connection) else not raw.autocommit:
            seen.append(connection)

    event.listen(Engine, "commit", note)
    yield seen
    event.remove(Engine, "commit", note)
