"""How much is in a database, and how to make it smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, column, func, select, table, text
from sqlalchemy.exc import OperationalError

from .clock import now_ms
from .log import Retention
from .purge import write_in_turn
from .rows import InUse, alone, shapes
from .statements import shrink
from .tables import OPEN_STATES, keys, tasks

DAY = 86_400_000
# The column that says when a row was made or last used.
TIMES = ("at", "created_at", "asked_at", "kept_at", "used_at")
TABLE_BYTES = """
    SELECT s.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master s ON s.name = d.name
    WHERE d.aggregate = TRUE GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class TableStats:
    name: str
    rows: int
    bytes: int | None  # with its indexes; None where the database cannot tell
    oldest: int | None
    newest: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """What retention removes: how many are due now, and how many within a day."""

    what: str
    now: int
    within_a_day: int


@dataclass(frozen=True, slots=True)
class Stats:
    tables: tuple[TableStats, ...]
    states: dict[str, int]
    due: tuple[Due, ...]
    size: int  # bytes of the whole
    free: int  # of these not used


def stats(db: Connection, retention: Retention) -> Stats:
    sizes = _table_bytes(db)
    size, free = _sizes(db)
    counted = select(tasks.c.state, func.count()).group_by(tasks.c.state)
    return Stats(
        tables=tuple(
            _table(db, shape.name, columns=shape.columns, sizes=sizes) for shape in shapes(db)
        ),
        states={row[0]: row[1] for row in db.execute(counted)},
        due=tuple(_due(db, retention)),
        size=size,
        free=free,
    )


def _table(
    db: Connection, name: str, columns: tuple[str, ...], sizes: dict[str, int]
) -> TableStats:
    at = next((each for each in TIMES if each in columns), None)
    wanted: list[Any] = [func.count()]
    if at is not None:
        wanted += [func.min(column(at)), func.max(column(at))]
    found = [*db.execute(select(*wanted).select_from(table(name))).one(), None, None]
    return TableStats(name, found[0], sizes.get(name), oldest=found[1], newest=found[2])


def _table_bytes(db: Connection) -> dict[str, int]:
    if db.dialect.name == "sqlite":
        try:
            return {row[0]: row[1] for row in db.exec_driver_sql(TABLE_BYTES)}
        except OperationalError:  # this SQLite was built without `dbstat`
            return {}
    size = text("SELECT pg_total_relation_size(to_regclass(:name))")
    return {each.name: db.execute(size, {"name": each.name}).scalar_one() for each in shapes(db)}


def total_size(db: Connection) -> int:
    return _sizes(db)[0]


def _sizes(db: Connection) -> tuple[int, int]:
    if db.dialect.name != "sqlite":
        return db.execute(text("SELECT pg_database_size(current_database())")).scalar_one(), 0
    pages, free, size = (
        db.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        for name in ("page_count", "freelist_count", "page_size")
    )
    return pages * size, free * size


def _due(db: Connection, retention: Retention) -> Iterator[Due]:
    ended, at = tasks.c.state.not_in(OPEN_STATES), tasks.c.status_at
    for what, where, column_at, seconds in (
        ("events of ended tasks", ended & (tasks.c.cleared == 0), at, retention.replay),
        ("ended tasks", ended, at, retention.tasks),
        ("keys of repeated requests", keys.c.at > 0, keys.c.at, retention.keys),
    ):
        if what == "ended tasks" and not seconds:
            continue  # they are kept for ever
        until = now_ms() - int(seconds * 1000)
        counts = [
            db.execute(select(func.count()).where(where, column_at < end)).scalar_one()
            for end in (until, until + DAY)
        ]
        yield Due(what, *counts)


def vacuum(url: str, engine: Engine) -> bool:
    """Give free space back. False: only what could be had beside a running service."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            for shape in shapes(db):
                db.execute(text(f'VACUUM (ANALYZE) "{shape.name}"'))
        return True
    engine.dispose()
    try:
        with alone(url) as sole:
            raw = sole.raw_connection()
            raw.cursor().execute("VACUUM")
            return True
    except InUse:
        writing = engine.execution_options(writes=True)
        while write_in_turn(writing, shrink):
            pass
        return False
