"""Opens a database for a command: beside a running service, or while no service uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from ..paths import make_private_directory
from ..store.database import SERVICE_LOCK, is_in_memory, make_engine, sqlite_path
from ..store.file_lock import lock_now
from ..store.schema import require_current


class NoDatabase(Exception):
    """There is nothing to read."""


class InUse(Exception):
    """A service, or another command, works on the database."""


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """A database that is there. Its transactions with the option `writes` lock first."""
    if is_in_memory(make_url(url)):
        raise NoDatabase("tasks are kept in memory only (A2A_TASK_STORE_BACKEND)")
    path = sqlite_path(make_url(url))
    if path is not None and not path.is_file():
        raise NoDatabase(f"{path}: there is no such file (A2A_TASK_STORE_DATABASE_URL)")
    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A database of this version as it is at one moment. A service can go on writing."""
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    with engine.connect() as db:
        db.begin()
        if db.dialect.name == "sqlite":
            db.exec_driver_sql("BEGIN")
        require_current(db)
        try:
            yield db
        finally:
            db.rollback()


@contextmanager
def exclusive_lock(url: str) -> Iterator[Engine]:
    """A database that no service uses; a file that is missing is made. `InUse`: one uses it."""
    path = sqlite_path(make_url(url))
    if path is not None:
        make_private_directory(path.parent)
    engine = make_engine(url)
    try:
        if path is None:
            with _advisory_lock(engine, "pg_try_advisory_lock"):
                yield engine
        else:
            with lock_now(path):
                yield engine
    except BlockingIOError as exc:
        raise InUse from exc
    finally:
        engine.dispose()


@contextmanager
def shared_lock(engine: Engine) -> Iterator[None]:
    """Write as a service does. `InUse`: another command has the database for itself."""
    if engine.dialect.name == "sqlite":  # locks for each transaction
        yield
        return
    with _advisory_lock(engine, "pg_try_advisory_lock_shared"):
        yield


@contextmanager
def _advisory_lock(engine: Engine, function: str) -> Iterator[None]:
    with engine.connect() as holder:
        if not holder.execute(text(f"SELECT {function}({SERVICE_LOCK})")).scalar_one():
            raise InUse
        holder.commit()  # the lock stays until the connection is closed
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # the connection may be broken
                holder.execute(text("SELECT pg_advisory_unlock_all()"))
            holder.invalidate()
