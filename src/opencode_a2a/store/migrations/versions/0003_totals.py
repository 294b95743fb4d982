"""How many tasks an owner has in each state, so that a list need not count them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TRIGGERS = (
    """
    CREATE TRIGGER tasks_made AFTER INSERT ON tasks BEGIN
        INSERT INTO totals (owner, state, tasks) VALUES (NEW.owner, NEW.state, 1)
            ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + 1;
    END
    """,
    """
    CREATE TRIGGER tasks_moved AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
        UPDATE totals SET tasks = tasks - 1 WHERE owner = OLD.owner AND state = OLD.state;
        INSERT INTO totals (owner, state, tasks) VALUES (NEW.owner, NEW.state, 1)
            ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + 1;
    END
    """,
    """
    CREATE TRIGGER tasks_forgotten AFTER DELETE ON tasks BEGIN
        UPDATE totals SET tasks = tasks - 1 WHERE owner = OLD.owner AND state = OLD.state;
    END
    """,
)


def upgrade() -> None:
    op.create_table(
        "totals",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("state", sa.String(32), primary_key=True),
        sa.Column("tasks", sa.BigInteger, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("INSERT INTO totals SELECT owner, state, count(*) FROM tasks GROUP BY 1, 2")
        for trigger in TRIGGERS:
            op.execute(trigger)
