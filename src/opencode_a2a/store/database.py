"""Opens the database, runs transactions in threads, and translates the errors of its libraries.

One thread writes and four read; a database in memory (`sqlite://`) has one thread for both.
SQLite and PostgreSQL run the same statements.

If a transaction fails before COMMIT, or the database refuses the COMMIT, nothing was changed
(`StoreUnavailable`). A COMMIT that was not answered may have been done (`OutcomeUnknown`).
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import structlog
from sqlalchemy import Connection, Engine, RootTransaction, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from ..errors import (
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from ..observe.metrics import STORE_ERRORS
from ..paths import make_private_file, tighten
from .clock import ServerClock, now_ms
from .prepared import run
from .schema import is_current, prepare, touch
from .wakeups import Wakeups

T = TypeVar("T")
logger = structlog.get_logger()


CHECK_BYTES = 256 << 20
BUSY_SECONDS = 5.0  # what a statement waits for another process that holds the file
PROBE_VALID_SECONDS = 1.0  # for which the outcome of a write tells whether another would succeed
PROBE_SECONDS = 2.0  # for a write that finds out
MIN_FREE_BYTES = 1 << 20  # on the disk: what one request may take

SERVICE_LOCK = 0x6F633262  # an advisory lock that services share, and `restore` has for itself
IN_USE = "a command such as `opencode-a2a restore` has the database for itself"
IDLE_MILLISECONDS = 60_000  # between two statements of a transaction on a server
STATEMENT_MILLISECONDS = 30_000  # for one statement on a server, locks included
READER_THREADS = 4
# When to give up a connection to a server that no longer answers, in seconds (`tcp_user_timeout`:
# milliseconds). Options in the URL override these.
POSTGRES_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


class Conflict(Exception):
    """The database refused a row: nothing was written."""


class Database:
    """A database that is open, and the threads that use it."""

    def __init__(self, url: str) -> None:
        self._file = _File()
        self._engine = engine = make_engine(url, self._file)
        self.is_server = engine.dialect.name == "postgresql"
        self.clock: Callable[[], int] = now_ms
        if self.is_server:
            self.clock = server_clock = ServerClock()
            event.listen(engine, "connect", partial(_announce_service, server_clock))
        self.wakeups = Wakeups(engine, _server_options(engine.url))
        reading_options = {"isolation_level": "AUTOCOMMIT"} if self.is_server else {}
        self._reading_engine = engine.execution_options(**reading_options)
        self._writer = ThreadPoolExecutor(1, "store-writer")
        one_thread = is_in_memory(engine.url)
        self._readers = (
            self._writer if one_thread else ThreadPoolExecutor(READER_THREADS, "store-reader")
        )
        self._last_succeeded, self._last_at = False, -math.inf  # the last write or probe
        self._probing: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Database]:
        self = cls(url)
        if (path := sqlite_path(make_url(url))) is not None:
            for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                if tighten(part):
                    logger.warning("store.tightened", file=str(part), mode="0600")
        try:
            # Start the thread: an executor would keep a job for which it could not start one.
            await asyncio.get_running_loop().run_in_executor(self._writer, int)
            if not await self.read(is_current):
                await self.write(prepare)
            checking = asyncio.create_task(self.read(check))  # the service starts meanwhile
            try:
                async with self.wakeups.listening():
                    yield self
            finally:
                await asyncio.gather(checking, return_exceptions=True)
        finally:
            self._readers.shutdown()
            self._writer.shutdown()
            self._engine.dispose()
            if self._probing is not None:
                await asyncio.gather(self._probing, return_exceptions=True)

    async def write(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run `work(connection, *args, **named)` as one transaction, after all earlier writes."""
        try:
            return await self._run(self._writer, _with_arguments(work, *args, **named), writes=True)
        except StoreError as exc:
            _count(exc)
            self._last_succeeded, self._last_at = False, time.monotonic()
            raise

    async def read(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run `work(connection, *args, **named)`, which only reads, and locks nothing.

        Not as one transaction: each statement sees what is committed by then.
        """
        try:
            return await self._run(
                self._readers, _with_arguments(work, *args, **named), writes=False
            )
        except StoreUnavailable as exc:
            _count(exc)
            raise

    async def _run(self, threads: Executor, work: Callable[[Connection], T], *, writes: bool) -> T:
        engine = self._engine if writes else self._reading_engine
        job = partial(_transact, engine, self._file, work, writes=writes)
        return await asyncio.get_running_loop().run_in_executor(threads, job)

    async def read_clock(self) -> None:
        """Ask the server what time it is; a file has no clock of its own."""
        if isinstance(self.clock, ServerClock):
            await self.read(_read_clock, self.clock)

    async def takes_writes(self) -> bool:
        """Whether a write succeeds: as the last one did a moment ago, or as one does now."""
        if time.monotonic() - self._last_at > PROBE_VALID_SECONDS:
            if self._probing is None:
                self._probing = asyncio.create_task(self._probe())
            await asyncio.wait({self._probing}, timeout=PROBE_SECONDS)
            if self._probing is not None:
                return False  # the probe takes too long, and so would every other write
        return self._last_succeeded

    async def _probe(self) -> None:
        try:
            await self.write(self._try_to_write)
            self._last_succeeded, self._last_at = True, time.monotonic()
        except StoreError:
            pass  # `write` has noted it, and `_transact` has logged it
        except Exception:
            logger.exception("store.probe_internal_error")
            self._last_succeeded, self._last_at = False, time.monotonic()
        finally:
            self._probing = None

    def _try_to_write(self, db: Connection) -> None:
        # On a full disk a small write still succeeds: it overwrites what is there already.
        self._file.check_free_space()
        touch(db)


def _with_arguments(work: Callable[..., T], *args: Any, **named: Any) -> Callable[[Connection], T]:
    return lambda connection: work(connection, *args, **named)


def _read_clock(db: Connection, clock: ServerClock) -> None:
    clock.read(db.connection.cursor())


def _count(refusal: StoreError) -> None:
    STORE_ERRORS.labels("unknown" if isinstance(refusal, OutcomeUnknown) else "unavailable").inc()


class _CommitLost(SQLAlchemyError):
    """The database did not answer a COMMIT, so the outcome is unknown."""


def _may_be_committed(failed: DBAPIError) -> bool:
    """Whether a COMMIT that failed may have been done all the same."""
    if isinstance(failed.orig, sqlite3.Error):
        # A failed write or lock means that nothing is committed. After any other I/O error (of a
        # sync, for instance) the transaction may be in the file.
        name = failed.orig.sqlite_errorname
        return name.startswith("SQLITE_IOERR") and name != "SQLITE_IOERR_WRITE"
    return failed.connection_invalidated  # otherwise the server has answered that it did not commit


def _transact(engine: Engine, file: _File, work: Callable[[Connection], T], *, writes: bool) -> T:
    """Run `work` as one transaction, in a thread of the database."""
    file.check()
    try:
        try:
            return _try_once(engine, file, work, writes=writes)
        except DBAPIError as exc:
            # The server has closed the connection since it was used last. The pool makes another.
            if isinstance(exc.orig, sqlite3.Error) or not exc.connection_invalidated:
                raise
            return _try_once(engine, file, work, writes=writes)
    except _CommitLost as exc:
        logger.error("store.commit_lost", reason=str(exc.__cause__ or "the file is not there"))
        raise OutcomeUnknown from exc
    except SQLAlchemyError as exc:
        logger.error("store.failed", error=type(exc).__name__, reason=str(exc.__cause__))
        raise StoreUnavailable.nothing_changed() from exc


def _try_once(engine: Engine, file: _File, work: Callable[[Connection], T], *, writes: bool) -> T:
    with engine.connect() as connection, connection.begin() as transaction:
        if writes:
            lock(connection)
        result = work(connection)
        if writes:
            _commit(connection, transaction, file)
        return result


def lock(connection: Connection) -> None:
    """Begin to write: SQLite cannot wait for its lock after a read."""
    if connection.dialect.name == "sqlite":
        run(connection, "BEGIN IMMEDIATE")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that locks first."""
    with engine.begin() as connection:
        lock(connection)
        yield connection


def _commit(connection: Connection, transaction: RootTransaction, file: _File) -> None:
    try:
        transaction.commit()
    except DBAPIError as exc:
        if not connection.invalidated:  # SQLite keeps it open if it could not get its lock
            with suppress(connection.dialect.loaded_dbapi.Error):
                connection.connection.rollback()
        if _may_be_committed(exc):
            raise _CommitLost from exc.orig
        raise
    if not file.is_there():
        raise _CommitLost  # the commit is in a file that the next process will not find


@dataclass(slots=True)
class _File:
    """The file of an SQLite database, as it was when it was opened first.

    SQLite goes on writing to a file that was deleted or replaced, without an error. What it writes
    there is lost when the process ends, and the file at the path is another database.
    """

    path: str | None = None  # none in memory, or on a server
    identity: tuple[int, int] | None = None
    missed: bool = False

    def opened(self, path: str) -> None:
        if self.path is None and path:
            self.path, self.identity = path, _identity(path)
            # SQLite may just have created them, through a link or a `file:` URL.
            for part in ("", "-wal", "-shm"):
                tighten(Path(f"{path}{part}"))

    def is_there(self) -> bool:
        return self.path is None or _identity(self.path) == self.identity

    def check_free_space(self) -> None:
        """Raise if the disk is nearly full."""
        if self.path is not None:
            try:
                folder = os.statvfs(Path(self.path).parent)
            except OSError as exc:
                logger.error("store.folder_unreadable", path=self.path, reason=exc.strerror)
                raise StoreUnavailable("The folder of the task store cannot be read.") from exc
            if (free := folder.f_bavail * folder.f_frsize) < MIN_FREE_BYTES:
                logger.error("store.full", path=self.path, free_bytes=free, advice="make room")
                raise StoreUnavailable("The task store has no room left.")

    def check(self) -> None:
        """Raise if the file at the path is no longer the one that was opened."""
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
    """Whether the file is undamaged; logs an error if not. Skips files that take too long."""
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


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite database."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    name = str(url.database)
    return Path(unquote(urlsplit(name).path) if name.startswith("file:") else name)


def shown(url: str) -> str:
    """A URL without its passwords."""
    return str(make_url(url).difference_update_query(["password", "sslpassword"]))


def is_in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _server_options(url: URL) -> dict[str, Any]:
    if not url.get_driver_name().startswith("psycopg"):
        return {}
    return {name: value for name, value in POSTGRES_OPTIONS.items() if name not in url.query}


def make_engine(url: str, file: _File | None = None) -> Engine:
    """An engine for SQLite or PostgreSQL."""
    parsed, file = make_url(url), file or _File()
    if parsed.get_backend_name() != "sqlite":
        options = _server_options(parsed)
        # One for each thread. Whoever wants another would wait for a thread anyway.
        pool = {"pool_size": READER_THREADS + 1, "max_overflow": 0, "pool_use_lifo": True}
        return create_engine(url, connect_args=options, **pool)
    more: dict[str, Any] = {
        "connect_args": {"check_same_thread": False, "timeout": BUSY_SECONDS},
        "pool_reset_on_return": None,
    }
    if is_in_memory(parsed):
        more["poolclass"] = StaticPool  # every connection must be the same one
    else:
        more["pool_use_lifo"] = True  # what was used last has its pages and statements at hand
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

    return engine


def _announce_service(clock: ServerClock, connection: Any, _: object) -> None:
    """Prepare a connection of a service to a server, and read the server's clock.

    It shares a lock for as long as it is open, so that a command which needs the database for
    itself finds out that a service works on it. A transaction whose client is cut off would keep
    its rows locked for hours, so its idle time is limited. So is the time of a statement, unless
    the URL or the role says otherwise.
    """
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MILLISECONDS}")
        cursor.execute("SHOW statement_timeout")
        if cursor.fetchone() == ("0",):
            cursor.execute(f"SET statement_timeout = {STATEMENT_MILLISECONDS}")
        clock.read(cursor)
        cursor.execute(f"SELECT pg_try_advisory_lock_shared({SERVICE_LOCK})")
        (shared,) = cursor.fetchone()
    connection.autocommit = False
    if not shared:
        connection.close()
        raise SQLAlchemyError from RuntimeError(IN_USE)


def _sees_changes(info: dict[str, Any], connection: object) -> bool:
    """Whether a connection sees what others commit. A read-only one sees the file as it was."""
    return bool(info.pop("unused", False)) or not isinstance(connection, _ReadOnlyConnection)


class _ReadOnlyConnection(sqlite3.Connection):
    """A connection that can read, and needs no room on the disk for it."""


def connect(path: str, options: dict[str, Any]) -> sqlite3.Connection:
    if path != ":memory:" and not options.get("uri"):
        make_private_file(path)  # SQLite gives the files beside it the same rights
    connection: sqlite3.Connection = sqlite3.connect(path, **options)
    try:
        _prepare(connection)
    except sqlite3.DatabaseError as exc:
        # A full disk may have no room for the `-shm` file that readers and writers share. If the
        # `-wal` file is empty, the database can be read without it, and nobody can write meanwhile.
        connection.close()
        unmerged = Path(f"{path}-wal")
        if not exc.sqlite_errorname.startswith(("SQLITE_IOERR", "SQLITE_FULL")) or (
            unmerged.exists() and unmerged.stat().st_size
        ):
            raise
        logger.warning("store.read_only", reason=str(exc))
        options = options | {"uri": True, "factory": _ReadOnlyConnection}
        connection = sqlite3.connect(f"file:{quote(path)}?immutable=1", **options)
        connection.isolation_level = None
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    # The `begin` listener starts transactions; the driver must not start any by itself.
    connection.isolation_level = None
    # With NORMAL a killed process loses nothing; a power cut can lose the last commits.
    for pragma in ("journal_size_limit=16777216", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        # It has an effect in a new file only, and would be written again by each connection.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _write_ahead(connection)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Put a new file into write-ahead mode; only the first process has anything to do."""
    # For this statement SQLite may report BUSY at once, without waiting for `timeout`.
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
