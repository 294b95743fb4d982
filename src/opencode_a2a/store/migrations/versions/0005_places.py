"""Whose worktrees and workspaces are whose."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "places",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
