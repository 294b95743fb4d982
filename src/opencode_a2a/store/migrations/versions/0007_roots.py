"""The workspace root that a task and a session belong to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_is_open = sa.text("state IN ('submitted', 'working', 'input-required')")


def upgrade() -> None:
    for table in ("tasks", "sessions"):
        op.add_column(table, sa.Column("root", sa.String(600)))
    op.drop_index("ix_tasks_open", "tasks")
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["root", "state"],
        sqlite_where=_is_open,
        postgresql_where=_is_open,
    )
