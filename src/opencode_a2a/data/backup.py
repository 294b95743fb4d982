"""Backups, made and restored with the tools of the database.

Of SQLite a backup is a database file, made by `VACUUM INTO`; of PostgreSQL it is an archive of
`pg_dump`. Both can be made while services write.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, func, inspect, select
from sqlalchemy.engine import make_url

from ..paths import make_private_file
from ..store.clock import now_ms
from ..store.database import BUSY_SECONDS, shown, sqlite_path
from ..store.schema import SCHEMA, ForeignDatabase, find_version
from ..store.tables import commands, metadata, nodes, tasks
from .opening import exclusive_lock, opened

SQLITE_MAGIC, POSTGRES_MAGIC = b"SQLite format 3\0", b"PGDMP"
VERSION_TABLE = "schema_version"
PROCESSES = (nodes, commands)  # rows about running processes mean nothing later


class BackupError(Exception):
    """A backup cannot be made or restored; the database is as it was."""


class HoldsData(BackupError):
    """The database to restore into is not empty."""


def backup(url: str, file: Path) -> int:
    """Write everything that is committed into a file; returns the number of its tasks."""
    path = sqlite_path(make_url(url))
    if path is not None and file.exists() and path.exists() and file.samefile(path):
        raise BackupError(f"{file} is the database itself: name another file")
    if file.with_name(f"{file.name}-wal").exists():
        raise BackupError(f"{file} is a database in use, so it is not replaced")
    if file.exists() and file.stat().st_size and not _is_backup(file):
        raise BackupError(f"{file} is there and is no backup, so it is not replaced")
    with opened(url) as engine:
        count = _count_tasks(engine)
        if count is None:
            raise BackupError(f"{shown(url)}: there is nothing to back up yet")
        _write(engine, file)
    return count


def _write(engine: Engine, file: Path) -> None:
    """The file is complete and on the disk when it gets its name."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    make_private_file(str(fresh))
    try:
        path = sqlite_path(engine.url)
        if path is not None:
            with closing(_connect(path, "rw")) as db:
                db.execute("VACUUM INTO ?", (str(fresh),))
        else:
            tables = [*metadata.tables, VERSION_TABLE]
            options = [f"--table={name}" for name in tables]
            options += [f"--exclude-table-data={table.name}" for table in PROCESSES]
            _run(engine, "pg_dump", "--format=custom", *options, f"--file={fresh}")
        with fresh.open("rb+") as written:
            os.fsync(written.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def restore(file: Path, url: str, *, force: bool = False) -> tuple[int, Path | None]:
    """Replace what is in a database, all at once; returns the number of tasks.

    `HoldsData`: there is something in it. With `force` a backup of that is made first, and
    returned. `InUse`: a service uses it.
    """
    path = sqlite_path(make_url(url))
    if not _is_backup(file):
        raise BackupError(f"{file} is no backup of opencode-a2a, or is damaged")
    if _starts_with(file, SQLITE_MAGIC) is not (path is not None):
        raise BackupError(
            f"{file} is a backup of {'PostgreSQL' if path is not None else 'SQLite'}. Restore it "
            "into such a database, then copy that with `opencode-a2a migrate`."
        )
    with exclusive_lock(url) as engine:
        kept = None
        if _count_tasks(engine) is not None:
            if not force:
                raise HoldsData(shown(url))
            kept = (path or file).with_name(f"{(path or file).name}.before-restore-{now_ms()}")
            _write(engine, kept)
        engine.dispose()
        if path is not None:
            _restore_file(file, path)
        else:
            _restore_archive(file, engine)
        count = _count_tasks(engine)
    return count or 0, kept


def _restore_file(file: Path, path: Path) -> None:
    with closing(_connect(file, "ro")) as source:
        try:
            (sound,) = source.execute("PRAGMA integrity_check(1)").fetchone()
            (version,) = source.execute(f"SELECT version FROM {VERSION_TABLE}").fetchone()
        except (sqlite3.DatabaseError, TypeError) as exc:
            raise BackupError(f"{file} is no backup of opencode-a2a, or is damaged: {exc}") from exc
        if sound != "ok":
            raise BackupError(f"{file} is damaged: {sound}")
        _require_version(file, version)
        with closing(_connect(path, "rw")) as target:
            source.backup(target)  # one transaction of the target


def _restore_archive(file: Path, engine: Engine) -> None:
    listing = ("--data-only", f"--table={VERSION_TABLE}", "--file=-")
    text = _run(engine, "pg_restore", *listing, file, connects=False)
    version = re.search(r"^COPY .*\n(\d+)$", text, re.MULTILINE)
    _require_version(file, int(version[1]) if version else None)
    options = ("--clean", "--if-exists", "--no-owner", "--no-privileges", "--single-transaction")
    _run(engine, "pg_restore", *options, file)


def _require_version(file: Path, version: int | None) -> None:
    if version != SCHEMA:
        raise BackupError(
            f"{file} has schema {version}, and this version needs schema {SCHEMA}. Restore it with "
            "the version that made it."
        )


def _count_tasks(engine: Engine) -> int | None:
    """None: the database is empty. `ForeignDatabase`: another program uses it."""
    with engine.connect() as db:
        if find_version(db) is not None:
            return db.execute(select(func.count()).select_from(tasks)).scalar_one()
        if set(inspect(db).get_table_names()) & metadata.tables.keys():
            raise ForeignDatabase("another program keeps its data in this database")
    return None


def _is_backup(file: Path) -> bool:
    return _starts_with(file, SQLITE_MAGIC) or _starts_with(file, POSTGRES_MAGIC)


def _starts_with(file: Path, magic: bytes) -> bool:
    with file.open("rb") as content:
        return content.read(len(magic)) == magic


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    where = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _run(engine: Engine, program: str, *arguments: str | Path, connects: bool = True) -> str:
    """Run a program of PostgreSQL. What it connects with is in a file: arguments are public."""
    _, options = engine.dialect.create_connect_args(engine.url)
    lines = [f"{name}={value}" for name, value in options.items() if name != "context"]
    with tempfile.NamedTemporaryFile("w", prefix="opencode-a2a-") as service:
        service.write("\n".join(["[store]", *lines, ""]))
        service.flush()
        where = ["--dbname=service=store"] if connects else []
        environment = {**os.environ, "PGSERVICEFILE": service.name}
        try:
            done = subprocess.run(
                [program, *where, *arguments], env=environment, capture_output=True, text=True
            )
        except FileNotFoundError:
            raise BackupError(
                f"{program} is not installed: install the client programs of PostgreSQL, of the "
                "version of the server or newer"
            ) from None
    if done.returncode:
        raise BackupError(f"{program}: {done.stderr.strip()}")
    return done.stdout
