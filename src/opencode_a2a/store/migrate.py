"""Bring a database to the schema of this program, or refuse to touch one that is newer."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

HEAD = "0006"  # the newest revision in migrations/versions; a test keeps it true


class SchemaTooNew(RuntimeError):
    """The database was written by a newer version of this program."""


def is_current(connection: Connection) -> bool:
    """Whether there is nothing to do: the usual start, for which nothing is written."""
    return _revision(connection) == HEAD


def upgrade(connection: Connection) -> None:
    current = _revision(connection)
    if current == HEAD:
        return  # another process was faster
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise SchemaTooNew(
            f"The task store has schema {current}, which this version does not know. "
            "Run the version that wrote it, or name another A2A_TASK_STORE_DATABASE_URL."
        )
    command.upgrade(config, HEAD)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
