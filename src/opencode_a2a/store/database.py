"""The database: how it is opened, who may use it when, and what its failures are called.

SQLite has one writer thread and readers apart; PostgreSQL runs the same
statements. `sqlite://` is a database in memory, reached by one thread only.
Nothing outside this package sees a library's exception.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ..errors import StoreUnavailable
from .migrate import upgrade

P = ParamSpec("P")
T = TypeVar("T")
logger = structlog.get_logger()

MEMORY = "sqlite://"


class Database:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = ThreadPoolExecutor(1, "store-writer")
        in_memory = str(engine.url) == MEMORY
        self._readers = self._writer if in_memory else ThreadPoolExecutor(4, "store-reader")

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Database]:
        self = cls(_engine(url))
        try:
            await self.write(upgrade)
            yield self
        finally:
            self._readers.shutdown()
            self._writer.shutdown()
            self._engine.dispose()

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(connection, *args)` as one transaction, after every write before it."""
        return await self._run(self._writer, work, args)

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        return await self._run(self._readers, work, args)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[..., T], args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, self._work, work, args)

    def _work(self, work: Callable[..., T], args: Any) -> T:
        try:
            with self._engine.begin() as connection:
                return work(connection, *args)
        except SQLAlchemyError as exc:
            logger.error("store.failed", error=type(exc).__name__, reason=str(exc.__cause__))
            raise StoreUnavailable(
                "The task store cannot be used right now. Nothing was changed; try again later.",
                retry_after=5,
            ) from exc


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": 5.0}}
    if url == MEMORY:
        options["poolclass"] = StaticPool  # every connection must be the same one
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        # Ours to begin: the driver would otherwise open transactions at moments of its choosing.
        connection.isolation_level = None
        # A killed process loses nothing with NORMAL; only a power cut can take the last moments.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine
