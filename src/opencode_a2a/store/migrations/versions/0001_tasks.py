"""Tasks, their log entries, and which session serves which context."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_is_open = sa.text("state IN ('submitted', 'working', 'input-required')")


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("context_id", sa.String(255), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("status_at", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("modes", sa.Text, nullable=False),
        sa.Column("message", sa.Text),
        sa.Column("session_id", sa.String(64)),
        sa.Column("title", sa.Text),
        sa.Column("holder", sa.String(80)),
        sa.Column("held_until", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("stop_asked", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("cleared", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("folded", sa.LargeBinary),
    )
    op.create_index("ix_tasks_owner", "tasks", ["owner", "status_at", "id"])
    op.create_index("ix_tasks_context", "tasks", ["owner", "context_id", "status_at", "id"])
    op.create_index(
        "ix_tasks_open", "tasks", ["state"], sqlite_where=_is_open, postgresql_where=_is_open
    )
    op.create_index("ix_tasks_cleared", "tasks", ["cleared", "status_at"])
    op.create_table(
        "entries",
        sa.Column("task_id", sa.String(64), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "contexts",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("context_id", sa.String(255), primary_key=True),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(600), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("task_id", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_keys_at", "keys", ["at"])
