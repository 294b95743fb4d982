"""What callers have used, by day and model, and which steps are counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "usage_steps",
        sa.Column("part_id", sa.String(255), primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_usage_steps_at", "usage_steps", ["at"])
    op.create_table(
        "usage_days",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("model", sa.String(255), primary_key=True),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
    )
