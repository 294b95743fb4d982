"""Statements in the driver's own words, found once for each kind of database.

What is run for every delta and every task goes this way: SQLAlchemy takes several
times as long to pass on a statement as SQLite takes to run it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, Update
from sqlalchemy.exc import DBAPIError

Values = Mapping[str, Any]


def run(db: Connection, words: str, values: Any = (), *, many: bool = False) -> Any:
    """The driver's cursor after these words, with one set of values or many."""
    dialect, cursor = db.dialect, db.connection.cursor()
    try:
        (cursor.executemany if many else cursor.execute)(words, values)
    except dialect.loaded_dbapi.Error as exc:
        cursor.close()  # whoever keeps the exception would keep the file open
        # Said as SQLAlchemy says it, but without the values: they are somebody's text.
        base = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(words, None, exc, base, dialect=dialect) from exc
    return cursor


class Prepared:
    """A statement with a name for each value it needs; `columns` are those it writes."""

    def __init__(
        self, statement: Select[Any] | Insert | Update | Delete, columns: Sequence[str] = ()
    ) -> None:
        self._statement = statement
        self._columns = list(columns) or None
        self._words: dict[str, tuple[str, Callable[[Values], Any]]] = {}
        names = statement.selected_columns.keys() if isinstance(statement, Select) else ()
        self._row: Any = namedtuple("Row", names)  # type: ignore[misc]

    def rows(self, db: Connection, values: Values) -> list[Any]:
        """What is found, each with the names of its columns."""
        return [self._row._make(row) for row in self._run(db, [values]).fetchall()]

    def first(self, db: Connection, values: Values) -> Any:
        """The first that is found, or None."""
        return next(iter(self.rows(db, values)), None)

    def change(self, db: Connection, *each: Values) -> int:
        """Write; how many rows that changed."""
        changed: int = self._run(db, each).rowcount
        return changed

    def _run(self, db: Connection, each: Sequence[Values]) -> Any:
        words, form = self._words.get(db.dialect.name) or self._find(db)
        if len(each) == 1:
            return run(db, words, form(each[0]))
        return run(db, words, [form(values) for values in each], many=True)

    def _find(self, db: Connection) -> tuple[str, Callable[[Values], Any]]:
        compiled = self._statement.compile(dialect=db.dialect, column_keys=self._columns)
        order = compiled.positiontup
        form: Callable[[Values], Any] = dict
        if compiled.positional and order is not None:
            form = lambda values: [values[name] for name in order]  # noqa: E731
        return self._words.setdefault(db.dialect.name, (str(compiled), form))
