"""Looks at a database and leaves it as it is: what the service would find if it started.

Opening a database for work makes the file, its tables and its rights. Nothing here does: a write is
tried in a transaction that is rolled back, a directory with a file that never gets a name.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from .database import CHECK_BYTES, is_in_memory, sqlite_path
from .schema import find_version, touch

WAIT_SECONDS = 3  # for a database that another process holds, or a server that does not answer


@dataclass(slots=True)
class StoreFacts:
    """What there is to know about a database without changing it."""

    file: Path | None = None  # none in memory, or on a server
    exists: bool = True
    problem: str | None = None  # why it cannot be read, or not be written
    damage: str | None = None
    schema: int | None = None
    has_tasks: bool = False  # a table of that name, whosever it is
    size: int = 0
    free: int | None = None  # bytes on its disk that this user may still write
    modes: dict[Path, int] = field(default_factory=dict)  # of its files, and of their directory


def examine(url: str, *, makes_folder: bool, opens: bool = True) -> StoreFacts:
    """What is at this URL. `makes_folder`: the service would make the directory of the file.

    Without `opens` only the files are looked at, and nothing is asked of a server.
    """
    parsed = make_url(url)
    if is_in_memory(parsed):
        return StoreFacts(exists=False)
    path = sqlite_path(parsed)
    if path is None:
        return _examine_server(url) if opens else StoreFacts()
    facts = StoreFacts(path, exists=path.exists())
    folder = _existing(path.parent) if makes_folder else path.parent
    _look_at_folder(facts, folder)
    if facts.exists:
        _look_at_files(facts, path)
        if opens:
            _open(facts, path)
    return facts


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _look_at_folder(facts: StoreFacts, folder: Path) -> None:
    try:
        disk = os.statvfs(folder)
        facts.free = disk.f_bavail * disk.f_frsize
        # Also where the file is there already: SQLite makes others beside it.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        facts.problem = f"{folder}: {exc.strerror}"


def _look_at_files(facts: StoreFacts, path: Path) -> None:
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(OSError):
            found = part.stat()
            facts.modes[part] = stat.S_IMODE(found.st_mode)
            facts.size += found.st_size if not part.name.endswith("-shm") else 0


def _open(facts: StoreFacts, path: Path) -> None:
    try:
        where = f"file:{quote(str(path))}?mode=rw"
        with closing(sqlite3.connect(where, uri=True, timeout=WAIT_SECONDS)) as db:
            _look_inside(facts, db)
    except sqlite3.DatabaseError as exc:
        if is_damage(exc):
            facts.damage = str(exc)
        else:
            facts.problem = facts.problem or f"{path}: {exc}"


def _look_inside(facts: StoreFacts, db: sqlite3.Connection) -> None:
    db.isolation_level = None
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    facts.has_tasks = "tasks" in tables
    if "schema_version" in tables:
        row = db.execute("SELECT version FROM schema_version").fetchone()
        facts.schema = row[0] if row else None
    if facts.size <= CHECK_BYTES:
        (result,) = db.execute("PRAGMA quick_check(1)").fetchone()
        facts.damage = None if result == "ok" else str(result)
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE doctor_tries_to_write (id)")
    finally:
        db.execute("ROLLBACK")


def is_damage(exc: sqlite3.DatabaseError) -> bool:
    name = getattr(exc, "sqlite_errorname", "")
    return name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT"))


def _examine_server(url: str) -> StoreFacts:
    facts = StoreFacts()
    engine = create_engine(url, connect_args={"connect_timeout": WAIT_SECONDS})
    try:
        with engine.connect() as db:
            facts.schema = find_version(db)
            facts.has_tasks = inspect(db).has_table("tasks")
            facts.size = db.execute(
                text("SELECT pg_database_size(current_database())")
            ).scalar_one()
            _try_to_write(facts, db)
            db.rollback()
    except SQLAlchemyError as exc:
        reason = str(getattr(exc, "orig", exc)).strip().splitlines()
        facts.problem = reason[0] if reason else type(exc).__name__
    finally:
        engine.dispose()
    return facts


def _try_to_write(facts: StoreFacts, db: Connection) -> None:
    if facts.schema is not None:
        touch(db)
    elif not db.execute(text("SELECT has_schema_privilege(current_schema(), 'CREATE')")).scalar():
        facts.problem = "this user may not make tables there"
