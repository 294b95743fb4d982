"""Bring a database to the schema of this program, or refuse to touch one that is newer.

A new SQLite file gets the tables of `tables.py`, which are exactly what the migrations make. To
load Alembic and run the migrations instead would add half to the CPU time of a first start (1.08 s
instead of 0.73 s to the Agent Card).
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    func,
    inspect,
    select,
)

from .tables import metadata

UPGRADE_LOCK = 0x6F633261  # an advisory lock: processes that start together take turns
HEAD = "0009"  # the newest revision in migrations/versions; a test keeps it true

# Alembic's own table, with the revision of the database.
_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class SchemaTooNew(RuntimeError):
    """The database was written by a newer version of this program."""


class ForeignDatabase(RuntimeError):
    """Another program made tables in this database that have the names of ours."""


def is_current(connection: Connection) -> bool:
    """Whether the schema is current, as on most starts. Writes nothing."""
    return revision(connection) == HEAD


def touch(connection: Connection) -> None:
    """A write that changes nothing, to find out whether one is possible."""
    connection.execute(_version.update().values(version_num=_version.c.version_num))


def upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        connection.execute(select(func.pg_advisory_xact_lock(UPGRADE_LOCK)))
    current = revision(connection)
    if current == HEAD:
        return  # another process was faster
    if current is None and inspect(connection).has_table("tasks"):
        raise ForeignDatabase(
            "A2A_TASK_STORE_DATABASE_URL names a database that another program keeps its tasks in. "
            "Nothing was changed in it. Name another file or database."
        )
    if current is None and connection.dialect.name == "sqlite":
        create(connection)
    else:
        migrate(connection, current)


def create(connection: Connection) -> None:
    """The current schema, where there is none."""
    metadata.create_all(connection, checkfirst=False)
    _version.create(connection, checkfirst=True)
    connection.execute(_version.insert().values(version_num=HEAD))


def migrate(connection: Connection, current: str | None) -> None:
    """Run the migrations from an earlier schema, or from an empty database."""
    from alembic import command  # rarely needed, and slow to load
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


def revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(select(_version.c.version_num)).scalar()
