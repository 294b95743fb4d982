"""Backups: every row of a database as it was at one moment, in one compressed file.

The file is JSON lines behind gzip. The first line says what wrote it, and when. Then each table
has a line with its columns, a line for each row, and a line with the number of rows and their
SHA-256. The last line says that nothing is missing. It fits SQLite and PostgreSQL alike.
"""

from __future__ import annotations

import gzip
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson
from sqlalchemy import Connection, Engine, inspect, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from .. import __version__
from ..paths import make_private_directory
from .clock import now_ms
from .copies import KEPT_SCHEMA, KEPT_SUFFIX, KNOWN_REVISIONS, is_ours
from .database import make_engine, sqlite_path
from .examine import is_damage
from .migrate import ForeignDatabase, create_at, revision, upgrade
from .rows import (
    Digest,
    Row,
    Shape,
    alone,
    digests,
    has_rows,
    insert_rows,
    known_revision,
    read_rows,
    shapes,
    snapshot,
)
from .tables import IS_OPEN, metadata, push_configs, tasks

FORMAT = 1
MAGIC = "opencode_a2a_backup"
COMPRESSION = 4  # of 9: the database keeps what changes meanwhile, so it should not take long
CHUNK = 1 << 18
OUR_TABLES = {*metadata.tables, "alembic_version", "moving", "moved"}
DAMAGED = "{file}: {reason}. The file is damaged, or is not a backup of opencode-a2a."

Report = Callable[[str, int], None]  # the table at work, and how many rows of it are done


class NotABackup(Exception):
    """The file cannot be read as a backup."""


class HoldsData(Exception):
    """The database is not empty."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the first line of a backup says."""

    schema: str
    version: str
    made_at: int  # everything that was committed before then is in it
    engine: str
    roots: tuple[str, ...]  # the workspace roots that its tasks belong to

    @property
    def line(self) -> bytes:
        said = {"schema": self.schema, "version": self.version, "made_at": self.made_at}
        return orjson.dumps(
            {MAGIC: FORMAT, **said, "engine": self.engine, "roots": list(self.roots)}
        )


@dataclass(frozen=True, slots=True)
class Content:
    """A backup that was read to its end and found whole."""

    manifest: Manifest
    tables: dict[str, tuple[int, str]]  # rows and digest

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.tables.values())


def quiet(_: str, __: int) -> None:
    """Report nothing."""


# -- writing


def write_backup(engine: Engine, out: BinaryIO, report: Report = quiet) -> Content:
    """Write all rows as they are at one moment."""
    began = now_ms()
    with (
        snapshot(engine) as db,
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed,
    ):
        lines = _Lines(packed)
        manifest = Manifest(
            schema=known_revision(db),
            version=__version__,
            made_at=began,
            engine=db.dialect.name,
            roots=_roots(db),
        )
        lines.add(manifest.line)
        tables = {
            shape.name: _write_table(db, shape, lines=lines, report=report) for shape in shapes(db)
        }
        lines.add(orjson.dumps({"complete": True, "tables": len(tables)}))
        lines.flush()
    return Content(manifest, tables)


def _write_table(db: Connection, shape: Shape, lines: _Lines, report: Report) -> tuple[int, str]:
    head = {"table": shape.name, "columns": shape.columns, "keys": shape.keys}
    lines.add(orjson.dumps({**head, "binary": shape.binary}))
    digest = Digest()
    for row in read_rows(db, shape):
        line = shape.encode(row)
        digest.add(line)
        lines.add(line)
        if digest.rows % 5_000 == 0:
            report(shape.name, digest.rows)
    report(shape.name, digest.rows)
    rows, sha256 = digest.facts
    lines.add(orjson.dumps({"end": shape.name, "rows": rows, "sha256": sha256}))
    return rows, sha256


@dataclass(slots=True)
class _Lines:
    """Collects lines, because gzip takes long for each call."""

    out: gzip.GzipFile
    _waiting: bytearray = field(default_factory=bytearray)

    def add(self, line: bytes) -> None:
        self._waiting += line
        self._waiting += b"\n"
        if len(self._waiting) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        self.out.write(self._waiting)
        self._waiting.clear()


def _roots(db: Connection) -> tuple[str, ...]:
    if "root" not in {column["name"] for column in inspect(db).get_columns("tasks")}:
        return ()
    found = db.execute(select(tasks.c.root).distinct().where(tasks.c.root.is_not(None)))
    return tuple(sorted(found.scalars()))


def save(engine: Engine, file: Path, report: Report = quiet) -> Content:
    """Write a backup that is complete, readable and on the disk, or none at all."""
    if file.exists():
        try:
            read_manifest(file)
        except NotABackup:
            raise NotABackup(f"{file} is there and is no backup, so it is not replaced") from None
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
            written = write_backup(engine, out, report)
            out.flush()
            os.fsync(out.fileno())
        if check(fresh).tables != written.tables:
            raise NotABackup(f"{file}: what was read back differs from what was written")
        fresh.replace(file)
        sync_folder(file.parent)
    finally:
        fresh.unlink(missing_ok=True)
    return written


def sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- reading


def read_manifest(file: Path) -> Manifest:
    with _reading(file) as lines:
        return _manifest(next(lines, b""))


def check(file: Path) -> Content:
    """Read a backup to its end. `NotABackup`: something is missing or was changed."""
    with _reading(file) as lines:
        manifest = _manifest(next(lines, b""))
        tables = {}
        for shape, rows in _tables(lines):
            for _ in rows:
                pass
            tables[shape.name] = rows.facts
        return Content(manifest, tables)


@contextmanager
def _reading(file: Path) -> Iterator[Iterator[bytes]]:
    try:
        with gzip.open(file, "rb") as packed:
            yield (line.rstrip(b"\n") for line in packed)
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise NotABackup(DAMAGED.format(file=file, reason=exc)) from exc
    except (ValueError, LookupError, TypeError) as exc:
        raise NotABackup(DAMAGED.format(file=file, reason=exc)) from exc


def _manifest(line: bytes) -> Manifest:
    said = orjson.loads(line)
    if not isinstance(said, dict) or MAGIC not in said:
        raise ValueError("its first line names no backup")
    if said[MAGIC] != FORMAT:
        raise NotABackup(
            f"the backup has format {said[MAGIC]}, and this version reads format {FORMAT} only: "
            f"use version {said.get('version')} or newer"
        )
    return Manifest(
        schema=said["schema"],
        version=said["version"],
        made_at=said["made_at"],
        engine=said["engine"],
        roots=tuple(said["roots"]),
    )


class _Rows:
    """The rows of one table, checked against their digest when all are read."""

    def __init__(self, shape: Shape, lines: Iterator[bytes]) -> None:
        self._shape, self._lines, self._digest = shape, lines, Digest()

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines:
            if line.startswith(b"["):
                self._digest.add(line)
                yield self._shape.decode(line)
                continue
            end = orjson.loads(line)
            if (end["end"], end["rows"], end["sha256"]) != (self._shape.name, *self.facts):
                raise ValueError(f"the rows of {self._shape.name} are not those that were written")
            return
        raise ValueError("its end is missing")

    @property
    def facts(self) -> tuple[int, str]:
        return self._digest.facts


def _tables(lines: Iterator[bytes]) -> Iterator[tuple[Shape, _Rows]]:
    for count, line in enumerate(lines):  # `_Rows` reads those between
        said = orjson.loads(line)
        if "complete" in said:
            if said["tables"] != count:
                raise ValueError("tables are missing")
            if next(lines, None) is not None:  # at the end of the file gzip compares its checksum
                raise ValueError("something follows its end")
            return
        shape = Shape(
            said["table"], tuple(said["columns"]), keys=said["keys"], binary=tuple(said["binary"])
        )
        yield shape, _Rows(shape, lines)
    raise ValueError("its end is missing")


# -- restoring


@dataclass(frozen=True, slots=True)
class Restored:
    content: Content
    kept: str | None  # where that is which was there before


def restore(file: Path, url: str, *, force: bool = False, report: Report = quiet) -> Restored:
    """Put the content of a backup into a database, which nobody may use meanwhile.

    `HoldsData`: there is something in it; with `force` that is kept beside it. `InUse`: a service
    works on it. Until everything is there, and was read back, the database stays as it was.
    """
    content = check(file)
    if content.manifest.schema not in KNOWN_REVISIONS:
        raise NotABackup(
            f"{file} has schema {content.manifest.schema} of version {content.manifest.version}, "
            f"and this is version {__version__}, which does not know it. Restore it with version "
            f"{content.manifest.version} or newer."
        )
    path = sqlite_path(make_url(url))
    if path is None:
        kept = _restore_to_server(file, url, content, force=force, report=report)
    else:
        kept = _restore_to_file(file, path, content, force=force, report=report)
    return Restored(content, kept)


def _fill(db: Connection, file: Path, content: Content, report: Report) -> None:
    """Make the tables as they were, fill them, and bring them to the schema of this version."""
    create_at(db, content.manifest.schema)
    made = {shape.name for shape in shapes(db)}
    with _reading(file) as lines:
        next(lines)
        for shape, rows in _tables(lines):
            if shape.name not in made:
                raise NotABackup(f"{file}: schema {content.manifest.schema} has no {shape.name}")
            insert_rows(db, shape, _counted(rows, shape.name, report))
    if digests(db) != content.tables:
        raise NotABackup(f"{file}: the database holds something else than the backup")
    upgrade(db, keeps_copy=False)  # the backup is one
    # Whoever held them does not hold these rows.
    db.execute(update(tasks).where(IS_OPEN).values(holder=None, held_until=0))
    db.execute(update(push_configs).values(holder=None, held_until=0))


def _counted(rows: _Rows, name: str, report: Report) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if number % 5_000 == 0:
            report(name, number)
        yield row


def _restore_to_file(
    file: Path, path: Path, content: Content, *, force: bool, report: Report
) -> str | None:
    make_private_directory(path.parent)
    with _aside(path, force=force):
        pass  # before the long part
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        engine = make_engine(f"sqlite:///{fresh}")
        try:
            with engine.execution_options(writes=True).begin() as db:
                _fill(db, file, content=content, report=report)
        finally:
            engine.dispose()  # the last connection merges the write-ahead log into the file
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        with _aside(path, force=force) as keeps:
            kept = _keep(path, keeps_file=keeps)
            fresh.replace(path)
            sync_folder(path.parent)
        return kept
    finally:
        for part in ("", "-wal", "-shm"):
            Path(f"{fresh}{part}").unlink(missing_ok=True)


@contextmanager
def _aside(path: Path, *, force: bool) -> Iterator[bool]:
    """Keep others from the file at a path, which may be replaced. Whether it must be kept."""
    with ExitStack() as stack:
        try:
            keeps = path.exists() and not _may_go(
                stack.enter_context(alone(f"sqlite:///{path}")), str(path), force=force
            )
        except (DatabaseError, sqlite3.DatabaseError) as exc:
            cause = exc.orig if isinstance(exc, DatabaseError) else exc
            if not isinstance(cause, sqlite3.DatabaseError) or not is_damage(cause):
                raise
            if not force:
                raise HoldsData(f"{path}, which is damaged ({cause})") from exc
            keeps = True
        yield keeps


def _may_go(engine: Engine, name: str, *, force: bool) -> bool:
    """Whether a file is worth nothing. `HoldsData`: it is worth something, without `force`."""
    with engine.connect() as db:
        if not (empty := _is_empty(db)) and not force:
            raise HoldsData(name)
        db.rollback()
        # Merges the write-ahead log, which would otherwise stay beside another database.
        db.connection.cursor().execute("PRAGMA journal_mode=DELETE")
        return empty


def _keep(path: Path, *, keeps_file: bool) -> str | None:
    """Give what is at a path another name, and let the file stay there until it is replaced.

    A log beside it belongs to a damaged file, or to one that is gone. SQLite would write it into
    the new file, so it must be away before that has its name.
    """
    kept = path.with_name(f"{path.name}{KEPT_SUFFIX}{now_ms()}")
    names = []
    if keeps_file:
        names.append(str(kept))
        try:
            os.link(path, kept)  # a copy would open the file, and closing it lets go of its lock
        except OSError:  # not every file system has links
            path.rename(kept)
    Path(f"{path}-shm").unlink(missing_ok=True)  # SQLite makes it from the log
    for part in ("-wal", "-journal"):
        with suppress(FileNotFoundError):
            Path(f"{path}{part}").rename(f"{kept}{part}")
            names.append(f"{kept}{part}")
    return names[0] if names else None


def _is_empty(db: Connection) -> bool:
    """Whether nothing would be missed. `ForeignDatabase`: another program made it."""
    there, found = set(inspect(db).get_table_names()), revision(db)
    # On a server, tables of other programs may be beside ours. A file is replaced as a whole.
    affected = there if db.dialect.name == "sqlite" else there & OUR_TABLES
    if not is_ours(found) if found is not None else affected:
        raise ForeignDatabase("the database belongs to another program; nothing was changed in it")
    return not has_rows(db) and affected <= OUR_TABLES


def _restore_to_server(
    file: Path, url: str, content: Content, *, force: bool, report: Report
) -> str | None:
    kept: str | None = None
    with alone(url) as engine, engine.begin() as db:
        empty = _is_empty(db)
        there = sorted(OUR_TABLES & set(inspect(db).get_table_names()))
        if not empty:
            if not force:
                raise HoldsData(str(make_url(url)))  # without the password
            kept = f"{KEPT_SCHEMA}{now_ms()}"
            db.execute(text(f"CREATE SCHEMA {kept}"))
            for name in there:
                db.execute(text(f'ALTER TABLE "{name}" SET SCHEMA {kept}'))
        else:
            for name in there:
                db.execute(text(f'DROP TABLE "{name}"'))
        _fill(db, file, content=content, report=report)
    return f"schema {kept}" if kept else None
