"""The conversations with peers, by context."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "peer_conversations",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("context_id", sa.String(255), primary_key=True),
        sa.Column("peer", sa.Text, primary_key=True),
        sa.Column("peer_context_id", sa.Text, nullable=False),
        sa.Column("peer_task_id", sa.Text),
        sa.Column("kept_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_peer_conversations_kept", "peer_conversations", ["kept_at"])
