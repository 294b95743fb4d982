"""A driver of SQLite that says that commits failed, whether they did or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from opencode_a2a.store import database


@dataclass
class Driver:
    """What becomes of the next commit that changes something."""

    says: str | None = None  # an error of SQLite's
    commits: bool = True  # … although it was done, or not
    after: Callable[[], object] | None = None  # what happens right after it
    stuck: bool = False  # and every commit after that one fails
    failing: bool = False

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Driver:
        driver, connect = cls(), database.connect

        class Connection(sqlite3.Connection):
            seen = 0

            def commit(self) -> None:
                writes, self.seen = self.total_changes != self.seen, self.total_changes
                if not writes:
                    super().commit()
                elif driver.failing:
                    self.rollback()
                    raise _failure("SQLITE_IOERR_WRITE")
                else:
                    driver._next(super().commit, self.rollback)

        def connected(path: str, options: dict[str, Any]) -> sqlite3.Connection:
            return connect(path, options | {"factory": Connection})

        monkeypatch.setattr(database, "connect", connected)
        return driver

    def lose(self, *, commits: bool = True, stuck: bool = False) -> None:
        """The next commit is not answered."""
        self.says, self.commits, self.stuck = "SQLITE_IOERR_FSYNC", commits, stuck

    def mend(self) -> None:
        self.failing = False

    def _next(self, commit: Callable[[], None], roll_back: Callable[[], None]) -> None:
        says, after = self.says, self.after
        self.says = self.after = None
        if says is None or self.commits:
            commit()
        elif says != "SQLITE_BUSY":  # SQLite would wait for the next attempt
            roll_back()
        if after is not None:
            after()
        if says is not None:
            self.failing = self.stuck
            raise _failure(says)


def _failure(name: str) -> sqlite3.OperationalError:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorname, failure.sqlite_errorcode = name, 10
    return failure
