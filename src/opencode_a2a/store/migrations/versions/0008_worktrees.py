"""The worktrees of isolated contexts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "worktrees",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("context_id", sa.String(255), primary_key=True),
        sa.Column("root", sa.String(600), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("branch", sa.String(255), nullable=False),
        sa.Column("base", sa.String(64), nullable=False),
        sa.Column("base_branch", sa.Text),
        sa.Column("checkout", sa.Text, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("made_at", sa.BigInteger),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("removed", sa.BigInteger),
    )
