"""Statements that are compiled once and passed straight to the driver.

SQLAlchemy takes longer to pass on a statement than SQLite takes to run it. This saves 1.0 ms of the
7 to 10 ms of CPU time that a send takes, and 0.06 ms of the 1.0 ms that a get takes.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, Table, Update, insert
from sqlalchemy.exc import DBAPIError

Values = Mapping[str, Any]


def run(db: Connection, sql: str, values: Any = (), *, many: bool = False) -> Any:
    """Run SQL text with one set of values or many; returns the driver's cursor."""
    dialect, cursor = db.dialect, db.connection.cursor()
    try:
        (cursor.executemany if many else cursor.execute)(sql, values)
    except dialect.loaded_dbapi.Error as exc:
        cursor.close()  # the traceback of the exception keeps the cursor, which keeps the file open
        raise _failure(db, sql, exc) from exc
    return cursor


def _failure(db: Connection, sql: str, exc: Exception) -> Exception:
    """SQLAlchemy's own error, without the values: they are the text of users."""
    return DBAPIError.instance(
        statement=sql,
        params=None,
        orig=exc,
        dbapi_base_err=db.dialect.loaded_dbapi.Error,
        dialect=db.dialect,
    )


class Prepared:
    """A statement with a name for each value it needs; `columns` are those it writes.

    `suffix` is SQL that all databases read alike, and SQLAlchemy has for each of them apart.
    """

    def __init__(
        self,
        statement: Select[Any] | Insert | Update | Delete,
        columns: Sequence[str] = (),
        suffix: str = "",
    ) -> None:
        self._statement = statement
        self._suffix = suffix
        self._columns = list(columns) or None
        self._compiled: dict[str, tuple[str, Callable[[Values], Any]]] = {}
        names = statement.selected_columns.keys() if isinstance(statement, Select) else ()
        self._row: Any = namedtuple("Row", names)  # type: ignore[misc]

    def rows(self, db: Connection, values: Values) -> list[Any]:
        """All rows that are found."""
        return [self._row._make(row) for row in self._run(db, [values]).fetchall()]

    def first(self, db: Connection, values: Values) -> Any:
        """The first row that is found, or None."""
        return next(iter(self.rows(db, values)), None)

    def change(self, db: Connection, *each: Values) -> int:
        """Write; returns how many rows changed."""
        changed: int = self._run(db, each).rowcount
        return changed

    def _run(self, db: Connection, each: Sequence[Values]) -> Any:
        sql, parameters = self._compiled.get(db.dialect.name) or self._compile(db)
        if len(each) == 1:
            return run(db, sql, parameters(each[0]))
        return run(db, sql, [parameters(values) for values in each], many=True)

    def _compile(self, db: Connection) -> tuple[str, Callable[[Values], Any]]:
        compiled = self._statement.compile(dialect=db.dialect, column_keys=self._columns)
        order = compiled.positiontup
        parameters: Callable[[Values], Any] = dict
        if compiled.positional and order is not None:
            parameters = lambda values: [values[name] for name in order]  # noqa: E731
        sql = f"{compiled}{self._suffix}"
        return self._compiled.setdefault(db.dialect.name, (sql, parameters))


class RowsInsert:
    """Inserts rows of all of these columns.

    PostgreSQL gets several rows by COPY: with a hundred of them that takes a quarter of the CPU
    time, in the server and here, that as many INSERTs in one pipeline take.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._one = Prepared(insert(table), columns)
        self._columns = columns
        self._copy = f"COPY {table.name} ({', '.join(columns)}) FROM STDIN"

    def add(self, db: Connection, rows: Sequence[Values]) -> None:
        if len(rows) == 1 or db.dialect.driver != "psycopg":
            self._one.change(db, *rows)
            return
        try:
            cursor: Any = db.connection.cursor()
            with cursor.copy(self._copy) as copy:
                for row in rows:
                    copy.write_row([row[name] for name in self._columns])
        except db.dialect.loaded_dbapi.Error as exc:
            raise _failure(db, self._copy, exc) from exc
