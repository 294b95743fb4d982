"""The largest step of each caller, day and model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    for name in ("largest_step_tokens", "largest_step_cost"):
        op.add_column(
            "usage_days", sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        )
