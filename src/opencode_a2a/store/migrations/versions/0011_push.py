"""Push configs with their cursors into the log, and what receivers have not taken."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "push_configs",
        sa.Column("task_id", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("target", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("status_at", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("next_at", sa.BigInteger, nullable=False),
        sa.Column("is_over", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(80)),
        sa.Column("held_until", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_push_configs_open", "push_configs", ["is_over", "holder"])
    op.create_table(
        "push_dead",
        sa.Column("task_id", sa.String(64), primary_key=True),
        sa.Column("config_id", sa.String(255), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("ix_push_dead_owner", "push_dead", ["owner", "at"])
