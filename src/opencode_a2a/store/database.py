"""The database: how it is opened, who may use it when, and what its failures are called.

SQLite has one writer thread and readers apart; PostgreSQL runs the same
statements. `sqlite://` is a database in memory, reached by one thread only.
Nothing outside this package sees a library's exception.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from ..errors import StoreUnavailable
from ..paths import make_private_file, tighten
from .migrate import is_current, upgrade
from .prepared import run
from .threads import Threads

T = TypeVar("T")
logger = structlog.get_logger()


CHECK_BYTES = 256 << 20
BUSY_SECONDS = 5.0  # what a statement waits for another process that holds the file


class Conflict(Exception):
    """The database refused a row: nothing was written."""


class Database:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = Threads(1, "store-writer")
        alone = _in_memory(engine.url)
        self._readers = self._writer if alone else Threads(4, "store-reader")
        self._writing = _Connections(engine.execution_options(writes=True))
        self._reading = _Connections(engine)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Database]:
        self = cls(_engine(url))
        if (file := _file(make_url(url))) is not None:
            for part in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
                if tighten(part):
                    logger.warning("store.tightened", file=str(part), mode="0600")
        try:
            if not await self.read(is_current):
                await self.write(upgrade)
            checking = asyncio.create_task(self.read(check))  # nobody needs to wait for it
            try:
                yield self
            finally:
                await asyncio.gather(checking, return_exceptions=True)
        finally:
            self._readers.close()
            self._writer.close()
            self._reading.close()
            self._writing.close()
            self._engine.dispose()

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(connection, *args)` as one transaction, after every write before it."""
        return await self._writer.run(_work, self._writing, work, args)

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        return await self._readers.run(_work, self._reading, work, args)


class _Connections:
    """A connection for each thread, kept from one transaction to the next where that is safe.

    To take one out of the pool and to put it back is more work than most transactions are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keeps = engine.dialect.name == "sqlite"  # others may break, and the pool asks them
        self._mine = threading.local()
        self._kept: set[Connection] = set()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction."""
        connection = self._take()
        try:
            with connection.begin():
                yield connection
        except SQLAlchemyError:
            self._drop(connection)
            raise
        finally:
            if not self._keeps:
                connection.close()

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _take(self) -> Connection:
        kept: Connection | None = getattr(self._mine, "connection", None)
        if kept is not None:
            if _still_there(kept.info, kept.connection.driver_connection):
                return kept
            self._drop(kept)
        connection = self._engine.connect()
        if self._keeps:
            self._mine.connection = connection
            self._kept.add(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        """Back to the pool, which looks whether it is still of use."""
        self._mine.connection = None
        self._kept.discard(connection)
        connection.close()


def _work(connections: _Connections, work: Callable[..., T], args: Any) -> T:
    try:
        with connections.begin() as connection:
            return work(connection, *args)
    except SQLAlchemyError as exc:
        logger.error("store.failed", error=type(exc).__name__, reason=str(exc.__cause__))
        raise StoreUnavailable(
            "The task store cannot be used right now. Nothing was changed; try again later.",
            retry_after=5,
        ) from exc


def check(db: Connection) -> bool:
    """Whether the file is sound, said in the log. A very large one would take too long."""
    if db.dialect.name != "sqlite":
        return True
    pages, size = (
        db.exec_driver_sql(f"PRAGMA {n}").scalar_one() for n in ("page_count", "page_size")
    )
    if pages * size > CHECK_BYTES:
        return True
    found = db.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        logger.error("store.damaged", found=found, advice="restore a backup of the database file")
    return bool(found == "ok")


def ping(db: Connection) -> None:
    db.execute(text("SELECT 1 FROM tasks LIMIT 1"))


def _file(url: URL) -> Path | None:
    """The file of a SQLite database."""
    if url.get_backend_name() != "sqlite" or _in_memory(url):
        return None
    name = str(url.database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    options: dict[str, Any] = {
        "connect_args": {"check_same_thread": False, "timeout": BUSY_SECONDS}
    }
    if _in_memory(make_url(url)):
        options["poolclass"] = StaticPool  # every connection must be the same one
    engine = create_engine(url, **options)

    @event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, args: list[str], more: dict[str, Any]) -> object:
        return connect(args[0], more)

    @event.listens_for(engine, "connect")
    def _note(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        entry.info["file"] = (path, _identity(path)) if path else None
        entry.info["unused"] = True

    @event.listens_for(engine, "checkout")
    def _look(connection: object, entry: ConnectionPoolEntry, _: object) -> None:
        if not _still_there(entry.info, connection):
            raise DisconnectionError

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes the lock first: one that has read before it writes cannot wait for it.
        writes = connection.get_execution_options().get("writes", False)
        run(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _still_there(info: dict[str, Any], connection: object) -> bool:
    """Whether a connection is as good as a new one."""
    # SQLite would go on writing to a file that has been deleted, and tell nobody.
    if (file := info["file"]) and _identity(file[0]) != file[1]:
        return False
    # Used, this one would see nothing of what happens from now on.
    return bool(info.pop("unused", False)) or not isinstance(connection, _AsItIs)


class _AsItIs(sqlite3.Connection):
    """A connection that can read, and needs no room on the disk for it."""


def connect(path: str, options: dict[str, Any]) -> sqlite3.Connection:
    if path != ":memory:" and not options.get("uri"):
        make_private_file(path)  # SQLite gives the files beside it the same rights
    connection: sqlite3.Connection = sqlite3.connect(path, **options)
    try:
        _prepare(connection)
    except sqlite3.DatabaseError as exc:
        # On a full disk there may be no room for the index that readers and writers share. What
        # is all in one file can be read without it, and nobody can write meanwhile.
        connection.close()
        unmerged = Path(f"{path}-wal")
        if not exc.sqlite_errorname.startswith(("SQLITE_IOERR", "SQLITE_FULL")) or (
            unmerged.exists() and unmerged.stat().st_size
        ):
            raise
        logger.warning("store.read_only", reason=str(exc))
        options = options | {"uri": True, "factory": _AsItIs}
        connection = sqlite3.connect(f"file:{quote(path)}?immutable=1", **options)
        connection.isolation_level = None
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    # Ours to begin: the driver would otherwise open transactions at moments of its choosing.
    connection.isolation_level = None
    # A killed process loses nothing with NORMAL; only a power cut can take the last moments.
    for pragma in ("journal_size_limit=16777216", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        # Of use in a new file only; elsewhere it would be written again at each connection.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _write_ahead(connection)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """The mode a new file is put into once, by whichever process comes first."""
    # The one statement for which SQLite may say at once that somebody else is there.
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as exc:
            if not exc.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (looked at for every transaction)
    except OSError:
        return None
    return found.st_dev, found.st_ino
