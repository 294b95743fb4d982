"""A session's context, and the claims that have run out, found without reading all there are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_runs_out = sa.text("claimed_until IS NOT NULL")


def upgrade() -> None:
    op.create_index("ix_contexts_session", "contexts", ["session_id"])
    op.create_index(
        "ix_sessions_claimed",
        "sessions",
        ["claimed_until"],
        sqlite_where=_runs_out,
        postgresql_where=_runs_out,
    )
