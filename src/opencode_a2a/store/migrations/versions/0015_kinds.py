"""Entries say that a node was lost or has returned, and that a new session was told what was said.

The tables stay as they are. The number alone keeps a version that cannot read such entries away.
"""

from __future__ import annotations

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    pass
