"""The contexts of a session, found without reading all of a caller's."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index("ix_contexts_session", "contexts", ["session_id"])
