"""The database: how it is opened, who may use it when, and what its failures are called.

SQLite has one writer thread and readers apart; PostgreSQL runs the same
statements. `sqlite://` is a database in memory, reached by one thread only.
Nothing outside this package sees a library's exception.

A failure before COMMIT means that nothing was changed, and so does a COMMIT that the database
refused (`StoreUnavailable`). A COMMIT that was not answered may have been done (`OutcomeUnknown`).
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import structlog
from sqlalchemy import Connection, Engine, RootTransaction, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from ..errors import OutcomeUnknown, StoreUnavailable
from ..paths import make_private_file, tighten
from .migrate import is_current, touch, upgrade
from .prepared import run
from .threads import Threads

T = TypeVar("T")
logger = structlog.get_logger()


CHECK_BYTES = 256 << 20
BUSY_SECONDS = 5.0  # what a statement waits for another process that holds the file
FRESH_SECONDS = 1.0  # for which the outcome of a write tells whether another would succeed
PROBE_SECONDS = 2.0  # that may be spent on finding out
ROOM_BYTES = 1 << 20  # that must be free on the disk: what one request may take

IDLE_MILLISECONDS = 60_000  # between two statements of a transaction on a server
# A connection to a server that is gone without a word is given up, in seconds (`tcp_user_timeout`:
# milliseconds). What the URL says counts more.
LIBPQ = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class Conflict(Exception):
    """The database refused a row: nothing was written."""


class Database:
    def __init__(self, url: str) -> None:
        self._file = _File()
        self._engine = engine = _engine(url, self._file)
        self._writer = Threads(1, "store-writer")
        alone = _in_memory(engine.url)
        self._readers = self._writer if alone else Threads(4, "store-reader")
        writing = engine.execution_options(writes=True)
        self._writing = _Connections(writing, self._file, writes=True)
        self._reading = _Connections(engine, self._file)
        self._last_succeeded, self._last_at = False, -math.inf  # what we know of writes
        self._probing: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Database]:
        self = cls(url)
        if (path := _sqlite_path(make_url(url))) is not None:
            for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
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
            if self._probing is not None:
                await asyncio.gather(self._probing, return_exceptions=True)

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(connection, *args)` as one transaction, after every write before it."""
        try:
            return await self._writer.run(_work, self._writing, work, args)
        except StoreUnavailable:
            self._last_succeeded, self._last_at = False, time.monotonic()
            raise

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        return await self._readers.run(_work, self._reading, work, args)

    async def takes_writes(self) -> bool:
        """Whether a write succeeds: as the last one did a moment ago, or as one does now."""
        if time.monotonic() - self._last_at > FRESH_SECONDS:
            if self._probing is None:
                self._probing = asyncio.create_task(self._probe())
            await asyncio.wait({self._probing}, timeout=PROBE_SECONDS)
            if self._probing is not None:
                return False  # it takes too long, and so would everything else
        return self._last_succeeded

    async def _probe(self) -> None:
        try:
            await self.write(self._try_to_write)
            self._last_succeeded, self._last_at = True, time.monotonic()
        except StoreUnavailable:
            pass  # logged and noted where it happened
        except Exception:
            logger.exception("store.probe_broken")
            self._last_succeeded, self._last_at = False, time.monotonic()
        finally:
            self._probing = None

    def _try_to_write(self, db: Connection) -> None:
        # What is on a full disk already can be overwritten, so that a small write succeeds there.
        self._file.check_room()
        touch(db)


class _Connections:
    """A connection for each thread, kept from one transaction to the next where that is safe.

    To take one out of the pool and to put it back is more work than most transactions are.
    """

    def __init__(self, engine: Engine, file: _File, *, writes: bool = False) -> None:
        self._engine = engine
        self._file = file
        self._writes = writes
        self._keeps = engine.dialect.name == "sqlite"  # others may break, and the pool asks them
        self._mine = threading.local()
        self._kept: set[Connection] = set()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction."""
        self._file.check()
        connection = self._take()
        try:
            with connection.begin() as transaction:
                yield connection
                if self._writes:
                    self._commit(connection, transaction)
        except SQLAlchemyError:
            self._drop(connection)
            raise
        finally:
            if not self._keeps:
                connection.close()

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _commit(self, connection: Connection, transaction: RootTransaction) -> None:
        try:
            transaction.commit()
        except DBAPIError as exc:
            if not connection.invalidated:  # SQLite keeps it open if it could not get its lock
                with suppress(connection.dialect.loaded_dbapi.Error):
                    connection.connection.rollback()
            if _may_be_committed(exc):
                raise _CommitLost from exc.orig
            raise
        if not self._file.is_there():
            raise _CommitLost  # it is in a file that the next process will not find

    def _take(self) -> Connection:
        kept: Connection | None = getattr(self._mine, "connection", None)
        if kept is not None:
            if _sees_changes(kept.info, kept.connection.driver_connection):
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


class _CommitLost(SQLAlchemyError):
    """A transaction was to be committed, and nobody knows whether it was."""


def _may_be_committed(failed: DBAPIError) -> bool:
    """Whether a COMMIT that failed may have been done all the same."""
    if isinstance(failed.orig, sqlite3.Error):
        # What could not be written is not committed, nor what waited for a lock in vain. But it may
        # be written although the system says that something else went wrong.
        name = failed.orig.sqlite_errorname
        return name.startswith("SQLITE_IOERR") and name != "SQLITE_IOERR_WRITE"
    return failed.connection_invalidated  # else the server has answered: it did not


def _work(connections: _Connections, work: Callable[..., T], args: Any) -> T:
    try:
        with connections.begin() as connection:
            return work(connection, *args)
    except _CommitLost as exc:
        logger.error("store.commit_lost", reason=str(exc.__cause__ or "the file is not there"))
        raise OutcomeUnknown from exc
    except SQLAlchemyError as exc:
        logger.error("store.failed", error=type(exc).__name__, reason=str(exc.__cause__))
        raise StoreUnavailable(
            "The task store cannot be used right now. Nothing was changed; try again later.",
            retry_after=5,
        ) from exc


@dataclass(slots=True)
class _File:
    """The file of an SQLite database, as it was when it was opened first.

    SQLite would go on writing to a file that was deleted or replaced, and tell nobody; what it
    writes is lost when the process ends. And a file that takes its place is another database.
    """

    path: str | None = None  # none in memory, or on a server
    identity: tuple[int, int] | None = None
    missed: bool = False

    def opened(self, path: str) -> None:
        if self.path is None and path:
            self.path, self.identity = path, _identity(path)
            # They may have been made just now, through a link or an URL of SQLite's own.
            for part in ("", "-wal", "-shm"):
                tighten(Path(f"{path}{part}"))

    def is_there(self) -> bool:
        return self.path is None or _identity(self.path) == self.identity

    def check_room(self) -> None:
        """Refuse to write where hardly anything can be added."""
        if self.path is not None:
            try:
                folder = os.statvfs(Path(self.path).parent)
            except OSError as exc:
                logger.error("store.folder_unreadable", path=self.path, reason=exc.strerror)
                raise StoreUnavailable("The folder of the task store cannot be read.") from exc
            if (free := folder.f_bavail * folder.f_frsize) < ROOM_BYTES:
                logger.error("store.full", path=self.path, free_bytes=free, advice="make room")
                raise StoreUnavailable("The task store has no room left.")

    def check(self) -> None:
        """Refuse to use anything but this file."""
        if self.is_there():
            if self.missed:
                self.missed = False
                logger.info("store.file_back", path=self.path)
            return
        if not self.missed:
            self.missed = True
            advice = (
                "put the original file back (as long as this process runs, its content is under "
                f"/proc/{os.getpid()}/fd), or restart the service to go on with what is there now"
            )
            logger.error("store.file_replaced", path=self.path, advice=advice)
        raise StoreUnavailable(
            "The database file of this service was deleted or replaced while it was in use. "
            "Nothing was changed; the operator finds in the log what to do.",
            retry_after=30,
        )


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


def _sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite database."""
    if url.get_backend_name() != "sqlite" or _in_memory(url):
        return None
    name = str(url.database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _engine(url: str, file: _File) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        options: dict[str, Any] = {}
        if parsed.get_driver_name().startswith("psycopg"):
            options = {name: value for name, value in LIBPQ.items() if name not in parsed.query}
        server = create_engine(url, pool_pre_ping=True, connect_args=options)
        event.listen(server, "connect", _end_what_is_left_open)
        return server
    more: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": BUSY_SECONDS}}
    if _in_memory(parsed):
        more["poolclass"] = StaticPool  # every connection must be the same one
    engine = create_engine(url, **more)

    @event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, args: list[str], more: dict[str, Any]) -> object:
        return connect(args[0], more)

    @event.listens_for(engine, "connect")
    def _note(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        file.opened(connection.execute("PRAGMA database_list").fetchone()[2])
        entry.info["unused"] = True

    @event.listens_for(engine, "checkout")
    def _look(connection: object, entry: ConnectionPoolEntry, _: object) -> None:
        if not _sees_changes(entry.info, connection):
            raise DisconnectionError

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes the lock first: one that has read before it writes cannot wait for it.
        writes = connection.get_execution_options().get("writes", False)
        run(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _end_what_is_left_open(connection: Any, _: object) -> None:
    """A transaction whose client is cut off would keep its rows locked for hours."""
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MILLISECONDS}")
    connection.autocommit = False


def _sees_changes(info: dict[str, Any], connection: object) -> bool:
    """Whether a connection is as good as a new one."""
    # Used, a read-only one would see nothing of what happens from now on.
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
