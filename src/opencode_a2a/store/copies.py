"""The copy of a SQLite file that is kept before a newer version changes its schema.

An older version refuses a newer schema, so without the copy there would be no way back. There is
one copy of a file, beside it. This module needs no packages: `deploy` runs it on its own.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..paths import make_private_file

COPY_SUFFIX = ".before-upgrade"
KEPT_SUFFIX = ".before-restore-"  # then the time of the restore that replaced it
KEPT_SCHEMA = "before_restore_"  # the same, on a server
ASIDE_SUFFIX = ".of-schema-"
COPY_DAYS = 30  # for which somebody may want to go back; then its data is not kept any longer
# In the place of a revision, so that no version starts on the database: in the target of a move
# until everything is copied, and then in its source.
MOVING, MOVED = "moving", "moved"
BUSY_SECONDS = 30.0  # what a statement waits for another process that holds the file
KNOWN_REVISIONS = frozenset(
    path.name[:4] for path in (Path(__file__).parent / "migrations" / "versions").glob("0*.py")
)


class CopyNotMade(RuntimeError):
    """No copy could be made, so the schema was not changed."""


@dataclass(frozen=True, slots=True)
class Restorable:
    """A database that this version cannot read, and what it would go back to."""

    file: str
    revision: str
    copy_revision: str | None = None  # None: there is no copy that this version can read
    copied_at: float = 0.0
    newer_tasks: int | None = None  # that the copy does not have; None: it cannot be told


def is_ours(revision: str) -> bool:
    """Whether this program wrote a revision; maybe a newer version of it."""
    return revision in (MOVING, MOVED) or re.fullmatch(r"\d{4}", revision) is not None


def copy_of(file: Path) -> Path:
    return file.with_name(file.name + COPY_SUFFIX)


def keep_copy(file: Path) -> Path:
    """Make the copy, or replace an older one. Who calls this keeps others from writing."""
    copy, part = copy_of(file), copy_of(file).with_suffix(".part")
    try:
        part.unlink(missing_ok=True)
        copy_database(file, part)
        part.replace(copy)
    except (OSError, sqlite3.Error) as exc:
        part.unlink(missing_ok=True)
        raise CopyNotMade(
            f"An earlier version wrote {file}. Before its schema is changed, a copy of it is kept "
            f"at {copy}, and that could not be written: {exc}. Make room for it "
            f"({file.stat().st_size // 1_000_000 + 1} MB) or mend the rights, then start again. "
            "Nothing was changed."
        ) from exc
    return copy


def copies_beside(file: Path) -> list[Path]:
    """All files that hold what a database held once."""
    starts = tuple(file.name + suffix for suffix in (COPY_SUFFIX, KEPT_SUFFIX, ASIDE_SUFFIX))
    return sorted(each for each in file.parent.iterdir() if each.name.startswith(starts))


def drop_old_copy(file: Path) -> None:
    copy = copy_of(file)
    try:
        if copy.stat().st_mtime < time.time() - COPY_DAYS * 86_400:
            copy.unlink()
    except OSError:
        return  # there is none


def copy_database(source: Path, target: Path) -> None:
    """Copy what is committed; a target that exists is replaced in one transaction."""
    make_private_file(str(target))
    with closing(_connect(source)) as old, closing(_connect(target)) as new:
        is_new = new.execute("PRAGMA page_count").fetchone() == (0,)
        old.backup(new)
        if is_new:  # one file, without others beside it
            new.execute("PRAGMA journal_mode=DELETE")


def revision_of(file: Path) -> str | None:
    with closing(_connect(file)) as db:
        return _revision(db)


def restorable(file: Path) -> Restorable | None:
    """None: this version can read the file as it is."""
    with closing(_connect(file)) as db:
        revision, copy = _revision(db), copy_of(file)
        if revision is None or revision in KNOWN_REVISIONS or revision in (MOVING, MOVED):
            return None  # or no version can: the data is, or goes, elsewhere
        before = revision_of(copy) if copy.exists() else None
        if before not in KNOWN_REVISIONS:
            return Restorable(str(file), revision)
        newer = _count_newer(db, copy)
        return Restorable(
            str(file),
            revision,
            copy_revision=before,
            copied_at=copy.stat().st_mtime,
            newer_tasks=newer,
        )


def restore(file: Path) -> Path:
    """Go back to the copy. What is there now is set aside; returns where."""
    aside = file.with_name(f"{file.name}{ASIDE_SUFFIX}{revision_of(file)}")
    copy_database(file, aside)
    copy_database(copy_of(file), file)
    return aside


def _connect(file: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(file))}?mode=rw"  # which makes no file that is not there
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _revision(db: sqlite3.Connection) -> str | None:
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if db.execute(tables).fetchone() is None:
        return None
    row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _count_newer(db: sqlite3.Connection, copy: Path) -> int | None:
    try:
        db.execute("ATTACH ? AS before", (str(copy),))
        counted = "SELECT count(*) FROM main.tasks WHERE id NOT IN (SELECT id FROM before.tasks)"
        return int(db.execute(counted).fetchone()[0])
    except sqlite3.Error:
        return None  # a later version may call them something else
