"""Statements in the driver's own words, found once for each kind of database.

What is run for every delta and every task goes this way: SQLAlchemy takes several
times as long to pass on a statement of its own as SQLite takes to run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Delete, Insert, Select, Update


class Prepared:
    """A statement with a name for each value it needs; `columns` are those it writes."""

    def __init__(
        self, statement: Select[Any] | Insert | Update | Delete, columns: Sequence[str] = ()
    ) -> None:
        self._statement = statement
        self._columns = list(columns) or None
        self._words: dict[str, tuple[str, Sequence[str] | None]] = {}

    def run(self, db: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        words, order = self._words.get(db.dialect.name) or self._find(db)
        if order is None:
            return db.exec_driver_sql(words, dict(values))
        return db.exec_driver_sql(words, tuple([values[name] for name in order]))

    def run_each(self, db: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        words, order = self._words.get(db.dialect.name) or self._find(db)
        if order is None:
            db.exec_driver_sql(words, [dict(row) for row in rows])
        else:
            db.exec_driver_sql(words, [tuple([row[name] for name in order]) for row in rows])

    def _find(self, db: Connection) -> tuple[str, Sequence[str] | None]:
        compiled = self._statement.compile(dialect=db.dialect, column_keys=self._columns)
        order = compiled.positiontup if compiled.positional else None
        return self._words.setdefault(db.dialect.name, (str(compiled), order))
