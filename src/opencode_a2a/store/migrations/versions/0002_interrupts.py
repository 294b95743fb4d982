"""What the agent asks of people, what they have allowed for good, and models to go back to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "interrupts",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("task_id", sa.String(64), nullable=False),
        sa.Column("context_id", sa.String(255), nullable=False),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("closed_at", sa.BigInteger),
        sa.Column("resolution", sa.String(32)),
        sa.Column("asked", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_interrupts_owner", "interrupts", ["owner", "closed_at"])
    op.create_index("ix_interrupts_task", "interrupts", ["task_id"])
    op.create_index("ix_interrupts_closed", "interrupts", ["closed_at"])
    op.create_table(
        "grants",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("context_id", sa.String(255), primary_key=True),
        sa.Column("permission", sa.String(255), primary_key=True),
        sa.Column("pattern", sa.Text, primary_key=True),
    )
    op.create_table(
        "home_models",
        sa.Column("session_id", sa.String(64), primary_key=True),
        sa.Column("provider", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
    )
