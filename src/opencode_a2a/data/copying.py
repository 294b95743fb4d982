"""Copies everything into another database, in one transaction, while no service uses either."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from sqlalchemy import Connection, String, Table, collate, select

from ..store.database import writing
from ..store.schema import prepare
from ..store.tables import DERIVED, metadata
from .opening import exclusive_lock, opened, snapshot

ROWS = 100  # that are read and written at once
Counted = tuple[int, str]  # how many rows a table has, and the SHA-256 of them

TABLES = [table for table in metadata.sorted_tables if table not in DERIVED]


class NotEmpty(Exception):
    """The target holds data."""


class NotEqual(Exception):
    """The two databases differ after copying; nothing was changed."""


def copy(source: str, target: str, report: Callable[[str, int], None]) -> dict[str, Counted]:
    """Copy all tables, read both sides, and compare them; returns what they hold."""
    with (
        opened(source),
        exclusive_lock(source) as old,
        exclusive_lock(target) as new,
        snapshot(old) as left,
        writing(new) as right,
    ):
        prepare(right)
        if any(right.execute(select(table).limit(1)).first() for table in TABLES):
            raise NotEmpty
        copied = {}
        for table in TABLES:
            copied[table.name] = _copy(left, right, table)
            report(table.name, copied[table.name][0])
        if different := [t.name for t in TABLES if count(right, t) != copied[t.name]]:
            raise NotEqual(", ".join(different))
    return copied


def count(db: Connection, table: Table) -> Counted:
    rows, digest = 0, hashlib.sha256()
    for some in _read(db, table):
        rows += len(some)
        _add(digest, some)
    return rows, digest.hexdigest()


def _copy(left: Connection, right: Connection, table: Table) -> Counted:
    rows, digest = 0, hashlib.sha256()
    for some in _read(left, table):
        right.execute(table.insert(), [row._asdict() for row in some])
        rows += len(some)
        _add(digest, some)
    return rows, digest.hexdigest()


def _read(db: Connection, table: Table) -> Iterator[Any]:
    """All rows in the order of the bytes of their keys, which is the same everywhere."""
    is_server = db.dialect.name == "postgresql"
    order = [
        collate(key, "C") if is_server and isinstance(key.type, String) else key
        for key in table.primary_key
    ]
    found = db.execute(select(table).order_by(*order), execution_options={"yield_per": ROWS})
    yield from found.partitions()


def _add(digest: Any, rows: Any) -> None:
    for row in rows:
        digest.update(orjson.dumps(tuple(row), default=bytes.hex))
