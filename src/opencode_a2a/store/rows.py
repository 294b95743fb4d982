"""The rows of a database, in an order and a form that SQLite and PostgreSQL have in common.

Backups, moves and digests are made of these. Columns are those that the database has, so an
earlier schema can be read as well.
"""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    String,
    collate,
    column,
    create_engine,
    event,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.pool import StaticPool
from sqlalchemy.types import TypeEngine

from .copies import KNOWN_REVISIONS, MOVED, MOVING
from .database import SERVICE_LOCK, is_in_memory, make_engine, sqlite_path
from .migrate import HEAD, ForeignDatabase, SchemaTooNew, moved_away, revision
from .tables import DERIVED, metadata

ROWS = 1_000  # that are fetched or written at once
LARGE_ROWS = 50  # the same, of tables with binary columns: a row may hold a whole result
GROUP_BYTES = 4 << 20  # that are written at once
Row = tuple[Any, ...]


class NoDatabase(Exception):
    """There is nothing to read."""


class InUse(Exception):
    """Another process has the database open."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: the columns of its primary key in order, then the others by name."""

    name: str
    columns: tuple[str, ...]
    keys: int  # so many columns are the key
    binary: tuple[int, ...]  # the positions of columns that hold bytes
    words: tuple[int, ...] = ()  # the positions of key columns that hold text

    def encode(self, row: Row) -> bytes:
        """A row as JSON. Bytes are nearly always JSON themselves, so they become text."""
        if self.binary:
            values = list(row)
            for position in self.binary:
                values[position] = _as_text(values[position])
            return orjson.dumps(values)
        return orjson.dumps(row)

    def decode(self, line: bytes) -> Row:
        values = orjson.loads(line)
        for position in self.binary:
            values[position] = _as_bytes(values[position])
        return tuple(values)

    def size(self, row: Row) -> int:
        """How many bytes there are in the columns that may hold many."""
        return sum(len(row[position] or b"") for position in self.binary)

    def statement(self, dialect: str) -> Any:
        order: list[ColumnElement[Any]] = []
        for position, name in enumerate(self.columns[: self.keys]):
            # The order of the bytes, whatever the locale of the server is.
            is_text = dialect == "postgresql" and position in self.words
            order.append(collate(column(name, String), "C") if is_text else column(name))
        return select(*map(column, self.columns)).select_from(table(self.name)).order_by(*order)

    def insertion(self) -> Any:
        return table(self.name, *map(column, self.columns)).insert()


def _as_text(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _as_bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if value is not None else None


@dataclass(slots=True)
class Digest:
    """How many rows a table has, and the SHA-256 of their JSON, one row in a line."""

    rows: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def add(self, line: bytes) -> None:
        self.rows += 1
        self._hash.update(line)
        self._hash.update(b"\n")

    @property
    def sha256(self) -> str:
        return str(self._hash.hexdigest())

    @property
    def facts(self) -> tuple[int, str]:
        return self.rows, self.sha256


def shapes(db: Connection) -> list[Shape]:
    """The tables that hold data, by name. Tables of other programs are not looked at."""
    inspector = inspect(db)
    there = set(inspector.get_table_names())
    derived = {table.name for table in DERIVED}
    return [_shape(inspector, name) for name in sorted(metadata.tables) if name in there - derived]


def _shape(inspector: Any, name: str) -> Shape:
    types = {column["name"]: column["type"] for column in inspector.get_columns(name)}
    keys = tuple(inspector.get_pk_constraint(name)["constrained_columns"])
    columns = (*keys, *sorted(types.keys() - set(keys)))

    def of_type(kind: type[TypeEngine[Any]]) -> tuple[int, ...]:
        return tuple(i for i, each in enumerate(columns) if isinstance(types[each], kind))

    return Shape(name, columns, keys=len(keys), binary=of_type(LargeBinary), words=of_type(String))


def read_rows(db: Connection, shape: Shape) -> Iterator[Row]:
    """All rows of a table in the order of their keys, a few at a time."""
    in_parts = {"yield_per": LARGE_ROWS if shape.binary else ROWS}
    found = db.execute(shape.statement(db.dialect.name), execution_options=in_parts)
    for some in found.partitions():
        yield from map(tuple, some)


def digests(db: Connection) -> dict[str, tuple[int, str]]:
    """Of each table: how many rows, and their digest."""
    found = {}
    for shape in shapes(db):
        digest = Digest()
        for row in read_rows(db, shape):
            digest.add(shape.encode(row))
        found[shape.name] = digest.facts
    return found


def insert_rows(db: Connection, shape: Shape, rows: Iterable[Row]) -> None:
    statement = shape.insertion()
    for some in in_groups(shape, rows):
        db.execute(statement, [dict(zip(shape.columns, row, strict=True)) for row in some])


def in_groups(shape: Shape, rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += shape.size(row)
        if len(some) >= ROWS or size >= GROUP_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def has_rows(db: Connection) -> bool:
    return any(
        db.execute(select(text("1")).select_from(table(shape.name)).limit(1)).first()
        for shape in shapes(db)
    )


def known_revision(db: Connection) -> str:
    """The schema of a database that this version can read."""
    found = revision(db)
    if found is None and inspect(db).has_table("tasks"):
        raise ForeignDatabase("the database belongs to another program")
    if found is None:
        raise NoDatabase("the database has no tables yet: the service has never started on it")
    if found == MOVING:
        raise SchemaTooNew("`opencode-a2a migrate` has not yet copied everything into the database")
    if found == MOVED:
        raise moved_away(db)
    if found not in KNOWN_REVISIONS:
        raise SchemaTooNew(
            f"the database has schema {found}, which this version does not know: use the version "
            "that wrote it"
        )
    return found


class SchemaTooOld(Exception):
    """An earlier version wrote the database."""


def require_current(db: Connection) -> None:
    """See that a database has the tables of this version."""
    if (found := known_revision(db)) != HEAD:
        raise SchemaTooOld(
            f"the database has schema {found}, and this version has {HEAD}. Start the service "
            "once: it migrates the database."
        )


# -- opening


@contextmanager
def opened(url: str, *, make: bool = False) -> Iterator[Engine]:
    """A database, for as long as a command needs it. Without `make` it must be there."""
    path = sqlite_path(make_url(url))
    if is_in_memory(make_url(url)):
        raise NoDatabase("tasks are kept in memory only (A2A_TASK_STORE_BACKEND)")
    if path is not None and not make and not path.is_file():
        raise NoDatabase(f"{path}: there is no such file (A2A_TASK_STORE_DATABASE_URL)")
    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees everything as it was at one moment. The service goes on meanwhile."""
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    with engine.connect() as db:
        db.begin()
        try:
            yield db
        finally:
            db.rollback()  # nothing was written, and a damaged file cannot commit


@contextmanager
def alone(url: str) -> Iterator[Engine]:
    """A database that no other process uses until this is left. `InUse`: one uses it now.

    An SQLite connection in exclusive mode excludes all others, also those of earlier versions. On
    a server, services share a lock.
    """
    path = sqlite_path(make_url(url))
    with _alone_with_file(str(path)) if path is not None else _alone_on_server(url) as engine:
        yield engine


@contextmanager
def beside_services(engine: Engine) -> Iterator[None]:
    """Write as a service does. `InUse`: a command such as `restore` has the database for itself."""
    if engine.dialect.name == "sqlite":
        yield  # the connections themselves are seen
        return
    with _locked(engine, "pg_try_advisory_lock_shared"):
        yield


@contextmanager
def _alone_on_server(url: str) -> Iterator[Engine]:
    engine = make_engine(url)
    try:
        with _locked(engine, "pg_try_advisory_lock"):
            yield engine
    finally:
        engine.dispose()


@contextmanager
def _locked(engine: Engine, function: str) -> Iterator[None]:
    with engine.connect() as keeper:
        if not keeper.execute(text(f"SELECT {function}({SERVICE_LOCK})")).scalar_one():
            raise InUse
        keeper.commit()  # the lock stays until the connection is closed
        try:
            yield
        finally:
            keeper.invalidate()


@contextmanager
def _alone_with_file(path: str) -> Iterator[Engine]:
    connection = _sole_connection(path)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def _begin(db: Connection) -> None:
        db.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        yield engine
    finally:
        engine.dispose()
        connection.close()  # the engine has it only once it was used


def _sole_connection(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=1.0, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("SELECT count(*) FROM sqlite_master")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except sqlite3.Error as exc:
        connection.close()
        if exc.sqlite_errorname.startswith("SQLITE_BUSY"):
            raise InUse from exc
        raise
    return connection


def first_line(exc: Exception) -> str:
    """What a database says about an error, without the statement."""
    return str(getattr(exc, "orig", exc)).strip().partition("\n")[0]
