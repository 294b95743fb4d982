"""Which OpenCode has what, the nodes that share the database, and what they ask each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("opencode", sa.String(255)))
    op.add_column("sessions", sa.Column("opencode", sa.String(255)))
    op.create_table(
        "nodes",
        sa.Column("holder", sa.String(80), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("opencode", sa.String(255), nullable=False),
        sa.Column("root", sa.String(600), nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("opencode_version", sa.String(64), nullable=False),
        sa.Column("capacity", sa.BigInteger, nullable=False),
        sa.Column("load", sa.BigInteger, nullable=False),
        sa.Column("draining", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "commands",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("holder", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("taken_at", sa.BigInteger),
        sa.Column("done_at", sa.BigInteger),
        sa.Column("result", sa.LargeBinary),
    )
    op.create_index("ix_commands_holder", "commands", ["holder", "taken_at"])
