"""A database as the version before workspace roots left it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, create_engine

IS_OPEN = "state IN ('submitted', 'working', 'input-required')"


def forget_roots(db: Connection) -> None:
    """Take a database back to revision 0006, in which nothing has a root."""
    db.exec_driver_sql("DROP INDEX ix_tasks_state")
    db.exec_driver_sql("DROP INDEX ix_tasks_context")
    db.exec_driver_sql("CREATE INDEX ix_tasks_context ON tasks (owner, context_id, status_at, id)")
    db.exec_driver_sql("DROP TABLE commands")
    db.exec_driver_sql("DROP TABLE nodes")
    db.exec_driver_sql("DROP TABLE push_dead")
    db.exec_driver_sql("DROP TABLE push_configs")
    db.exec_driver_sql("DROP TABLE usage_days")
    db.exec_driver_sql("DROP TABLE usage_steps")
    db.exec_driver_sql("DROP TABLE peer_conversations")
    db.exec_driver_sql("DROP TABLE worktrees")
    db.exec_driver_sql("DROP INDEX ix_tasks_open")
    for table in ("tasks", "sessions"):
        db.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN opencode")
        db.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN root")
    db.exec_driver_sql(f"CREATE INDEX ix_tasks_open ON tasks (state) WHERE {IS_OPEN}")
    db.exec_driver_sql("UPDATE alembic_version SET version_num = '0006'")


def forget_roots_in(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as db:
        forget_roots(db)
    engine.dispose()
