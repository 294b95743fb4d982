"""The version of a database, and the making of its tables.

An empty database gets the tables of this version. A database of another version is refused and
left as it is.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, func, inspect, select

from .tables import metadata

SCHEMA = 1  # the next number with each change of the tables, or of the kinds of entries
CREATION_LOCK = 0x6F633261  # an advisory lock: processes that start together take turns

_version = Table("schema_version", MetaData(), Column("version", BigInteger, nullable=False))


class SchemaError(RuntimeError):
    """This version cannot work with the database."""


class ForeignDatabase(SchemaError):
    """Another program made tables in this database that have the names of ours."""


def find_version(db: Connection) -> int | None:
    if not inspect(db).has_table(_version.name):
        return None
    return db.execute(select(_version.c.version)).scalar()


def is_current(db: Connection) -> bool:
    return find_version(db) == SCHEMA


def require_current(db: Connection) -> None:
    found = find_version(db)
    if found is None and inspect(db).has_table("tasks"):
        raise ForeignDatabase(
            "another program keeps its tasks in this database. Nothing was changed in it. Name "
            "another file or database with A2A_TASK_STORE_DATABASE_URL."
        )
    if found is None:
        raise SchemaError("the database is empty: no service has started on it yet.")
    if found != SCHEMA:
        age = "newer" if found > SCHEMA else "older"
        raise SchemaError(
            f"the database has schema {found}, and this version needs schema {SCHEMA}. Nothing was "
            f"changed in it. Run the {age} version that wrote it, or name another file or database "
            "with A2A_TASK_STORE_DATABASE_URL."
        )


def prepare(db: Connection) -> None:
    """Make the tables in an empty database. `SchemaError`: it is not empty, and not ours."""
    if db.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        db.execute(select(func.pg_advisory_xact_lock(CREATION_LOCK)))
    if find_version(db) is not None or inspect(db).has_table("tasks"):
        require_current(db)
        return
    metadata.create_all(db, checkfirst=False)
    _version.create(db)
    db.execute(_version.insert().values(version=SCHEMA))


def touch(db: Connection) -> None:
    """A write that changes nothing, to find out whether one is possible."""
    db.execute(_version.update().values(version=_version.c.version))
