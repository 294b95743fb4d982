"""A database as the version before workspace roots left it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

IS_OPEN = "state IN ('submitted', 'working', 'input-required')"


def forget_roots(path: Path) -> None:
    """Take a file back to revision 0006, in which nothing has a root."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP INDEX ix_tasks_open")
        for table in ("tasks", "sessions"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN root")
        db.execute(f"CREATE INDEX ix_tasks_open ON tasks (state) WHERE {IS_OPEN}")
        db.execute("UPDATE alembic_version SET version_num = '0006'")
