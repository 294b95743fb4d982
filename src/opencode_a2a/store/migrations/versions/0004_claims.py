"""Until when a session is its caller's, where what it was claimed for has not succeeded yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("claimed_until", sa.BigInteger))
