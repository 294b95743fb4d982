"""Indexes for lists of everybody's tasks: by state, and by a context whose owner is not named."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.drop_index("ix_tasks_context", "tasks")
    op.create_index("ix_tasks_context", "tasks", ["context_id", "owner", "status_at", "id"])
    op.create_index("ix_tasks_state", "tasks", ["state", "status_at", "id"])
