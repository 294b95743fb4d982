"""Bring a database to the schema of this program, or refuse to touch one that is newer.

A new SQLite file gets the tables of `tables.py`, which are exactly what the migrations make. To
load Alembic and run the migrations instead would add half to the CPU time of a first start (1.08 s
instead of 0.73 s to the Agent Card).
"""

from __future__ import annotations

from pathlib import Path

import structlog
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    func,
    inspect,
    select,
)

from .copies import MOVED, MOVING, copy_of, keep_copy
from .tables import metadata

logger = structlog.get_logger()

UPGRADE_LOCK = 0x6F633261  # an advisory lock: processes that start together take turns
HEAD = "0015"  # the newest revision in migrations/versions; a test keeps it true

# Alembic's own table, with the revision of the database.
_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


# In a database that was moved.
_moved = Table(
    "moved",
    MetaData(),
    Column("target", Text, nullable=False),
    Column("schema", String(32), nullable=False),
)


class SchemaTooNew(RuntimeError):
    """The database was written by a newer version of this program."""


class UnfinishedMove(SchemaTooNew):
    """`opencode-a2a migrate` has not yet copied everything into the database."""


class MovedAway(SchemaTooNew):
    """`opencode-a2a migrate` has moved everything to another database."""


class ForeignDatabase(RuntimeError):
    """Another program made tables in this database that have the names of ours."""


def is_current(connection: Connection) -> bool:
    """Whether the schema is current, as on most starts. Writes nothing."""
    return revision(connection) == HEAD


def touch(connection: Connection) -> None:
    """A write that changes nothing, to find out whether one is possible."""
    connection.execute(_version.update().values(version_num=_version.c.version_num))


def upgrade(connection: Connection, *, keeps_copy: bool = True) -> None:
    """Bring a database to the schema of this version, and keep a copy of a file before that."""
    if connection.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # it may take minutes
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
        migrate(connection, current, keeps_copy=keeps_copy)


def create_at(connection: Connection, wanted: str) -> None:
    """Make the tables as they were at a revision, where there are none."""
    if wanted == HEAD and connection.dialect.name == "sqlite":
        create(connection)
    else:
        migrate(connection, None, wanted)


def set_revision(connection: Connection, number: str) -> None:
    connection.execute(_version.update().values(version_num=number))


def lock_revision(connection: Connection) -> str | None:
    """The revision, which nobody can change until the end of a transaction that writes."""
    return connection.execute(select(_version.c.version_num).with_for_update()).scalar()


def mark_moved(connection: Connection, target: str, schema: str) -> None:
    """Keep every version of the service from a database that was moved."""
    _moved.create(connection)
    connection.execute(_moved.insert().values(target=target, schema=schema))
    set_revision(connection, MOVED)


def moved_to(connection: Connection) -> tuple[str, str]:
    """Where a database was moved to, and its schema before."""
    target, schema = connection.execute(select(_moved.c.target, _moved.c.schema)).one()
    return target, schema


def moved_away(connection: Connection) -> MovedAway:
    target, schema = moved_to(connection)
    return MovedAway(
        f"`opencode-a2a migrate` has moved everything in this database to {target}: set "
        "A2A_TASK_STORE_DATABASE_URL to that. To go back to what this one held when it was moved, "
        f"run in it: UPDATE alembic_version SET version_num = '{schema}'; DROP TABLE moved;"
    )


def create(connection: Connection) -> None:
    """The current schema, where there is none."""
    metadata.create_all(connection, checkfirst=False)
    _version.create(connection, checkfirst=True)
    connection.execute(_version.insert().values(version_num=HEAD))


def migrate(
    connection: Connection, current: str | None, wanted: str = HEAD, *, keeps_copy: bool = True
) -> None:
    """Run the migrations from an earlier schema, or from an empty database."""
    if current == MOVING:
        raise UnfinishedMove(
            "`opencode-a2a migrate` has not yet copied everything into the database that "
            "A2A_TASK_STORE_DATABASE_URL names. Run it again until it says that it is done."
        )
    if current == MOVED:
        raise moved_away(connection)
    from alembic import command  # rarely needed, and slow to load
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    file = _file_of(connection)
    if current is not None and current not in known:
        raise SchemaTooNew(
            f"The task store has schema {current}, which this version does not know. "
            "Run the version that wrote it, or name another A2A_TASK_STORE_DATABASE_URL."
            + (_copy_advice(file) if file is not None else "")
        )
    if keeps_copy and current is not None and file is not None:
        copy = keep_copy(file)
        logger.info("store.migrating", schema=current, to=HEAD, copy=str(copy))
    command.upgrade(config, wanted)


def _file_of(connection: Connection) -> Path | None:
    """None in memory, or on a server."""
    if connection.dialect.name != "sqlite":
        return None
    name = connection.exec_driver_sql("PRAGMA database_list").first()
    return Path(name[2]) if name is not None and name[2] else None


def _copy_advice(file: Path) -> str:
    copy = copy_of(file)
    return f" {copy} is how it was before the newer version changed it." if copy.exists() else ""


def revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(select(_version.c.version_num)).scalar()
