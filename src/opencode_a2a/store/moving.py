"""Copies all rows of a database into another, in passes, until both are equal.

A pass reads both sides in the order of their keys and writes the differences. So it makes no
difference what was copied before: a pass that was interrupted is simply done again, and a later
pass copies only what has changed. The last pass has the source for itself. Until it is done, the
target has `moving` in the place of its schema revision, and no version of the service starts on it.
Then the source has `moved` there: a service that is started again by its manager must not go on
with the old data beside the one on the new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    and_,
    bindparam,
    column,
    delete,
    insert,
    inspect,
    select,
    table,
)

from .clock import now_ms
from .copies import MOVED, MOVING
from .database import shown
from .migrate import (
    ForeignDatabase,
    create_at,
    lock_revision,
    mark_moved,
    moved_away,
    moved_to,
    revision,
    set_revision,
    upgrade,
)
from .rows import (
    GROUP_BYTES,
    InUse,
    Row,
    Shape,
    alone,
    digests,
    has_rows,
    known_revision,
    opened,
    read_rows,
    shapes,
    snapshot,
)

BATCH = 500  # changes of one transaction
FEW = 1_000  # changes after which another pass would not be shorter
PASSES = 4
PAUSE_SECONDS = 2.0  # between passes while the service still works

Report = Callable[[str, int], None]

# In the target, while it is filled.
_moving = Table(
    "moving",
    MetaData(),
    Column("source", Text, nullable=False),
    Column("schema", String(32), nullable=False),
    Column("began_at", BigInteger, nullable=False),
)


class NotEmpty(Exception):
    """The target holds data that did not come from this move."""


class TargetInUse(Exception):
    """A service works on the target already."""


class FinishedElsewhere(Exception):
    """Another process has finished the move, and the target may be in use."""


class NotEqual(Exception):
    """After the last pass the two sides differ."""


@dataclass(frozen=True, slots=True)
class Moved:
    tables: dict[str, tuple[int, str]]  # rows and digest, the same on both sides
    passes: int
    changes: int  # rows that were written or deleted in the target
    last_seconds: float  # for which the service had to be stopped


@dataclass(slots=True)
class Move:
    source_url: str
    target_url: str
    report: Report
    passes: int = 0
    changes: int = 0

    def copy(self, source: Engine) -> None:
        """Copy what there is while the service goes on."""
        with self._target() as target:
            self._prepare(source, target)
            for _ in range(PASSES):
                if self._pass(source, target) <= FEW:
                    return

    def finish(self) -> Moved:
        """Copy the rest and compare. `InUse`: a service still works on the source."""
        began = time.monotonic()
        with alone(self.source_url) as source, self._target() as target:
            self._prepare(source, target)
            self._pass(source, target)
            with target.execution_options(writes=True).begin() as right:
                _check_moving(right)  # from here on no other move writes
                with source.begin() as left:
                    tables = self._close(left, right)
                # A kill here leaves two databases on which no service starts, and the next move
                # goes on here. The other way round, services could start on both.
                schema = right.execute(select(_moving.c.schema)).scalar_one()
                _moving.drop(right)
                set_revision(right, schema)
                upgrade(right, keeps_copy=False)  # the source is one
        return Moved(
            tables, self.passes, changes=self.changes, last_seconds=time.monotonic() - began
        )

    def _close(self, left: Connection, right: Connection) -> dict[str, tuple[int, str]]:
        """See that both sides are equal, and let no service start on the source any more."""
        ours, theirs = digests(left), digests(right)
        if ours != theirs:
            raise NotEqual(", ".join(sorted(n for n in ours if ours[n] != theirs.get(n))))
        if (schema := self._schema(left)) == revision(left):
            mark_moved(left, shown(self.target_url), schema)
        return ours

    def _schema(self, source: Connection) -> str:
        """The schema of the source; also if this move was killed when it was nearly done."""
        if revision(source) == MOVED and moved_to(source)[0] == shown(self.target_url):
            return moved_to(source)[1]
        return known_revision(source)

    def finish_when_stopped(self, source: Engine, waiting: Callable[[], None]) -> Moved:
        """The same, and until the service stops, copy what it changes."""
        while True:
            source.dispose()  # its own connections would be in the way
            try:
                return self.finish()
            except InUse:
                waiting()
            with self._target() as target:
                self._pass(source, target)
            time.sleep(PAUSE_SECONDS)

    def _target(self) -> AbstractContextManager[Engine]:
        return opened(self.target_url, make=True)

    def _prepare(self, source: Engine, target: Engine) -> None:
        """Make the tables of the target, or see that it was begun for the same source."""
        with snapshot(source) as db:
            schema, left = self._schema(db), revision(db)
            away = moved_away(db) if left == MOVED else None
        name = shown(self.source_url)
        self._check_unused(target)
        with target.execution_options(writes=True).begin() as db:
            found = revision(db)
            if away is not None and found != MOVING:
                raise away
            if found is None and inspect(db).has_table("tasks"):
                raise ForeignDatabase("another program keeps its tasks in this database")
            if found is None:
                create_at(db, schema)
            elif found not in (MOVING, schema) or (found == schema and has_rows(db)):
                raise NotEmpty
            if found != MOVING:
                _moving.create(db)
                row = {"source": name, "schema": schema, "began_at": now_ms()}
                db.execute(insert(_moving), row)
                set_revision(db, MOVING)
                return
            begun = db.execute(select(_moving.c.source, _moving.c.schema)).one()
            if tuple(begun) != (name, schema):
                raise NotEmpty

    def _check_unused(self, target: Engine) -> None:
        """A service that works on the target would go on, though none can start there any more."""
        with snapshot(target) as db:
            found = revision(db)
        target.dispose()  # its own connections would be in the way
        if found not in (None, MOVING):
            try:
                with alone(self.target_url):
                    pass
            except InUse as exc:
                raise TargetInUse from exc

    def _pass(self, source: Engine, target: Engine) -> int:
        """Make the target what the source is now. How many rows had to change."""
        self.passes += 1
        changed = 0
        with snapshot(source) as left, snapshot(target) as right:
            for shape in shapes(left):
                changed += self._level(left, right, target=target, shape=shape)
        self.changes += changed
        return changed

    def _level(self, left: Connection, right: Connection, target: Engine, shape: Shape) -> int:
        writer = _Writer(target.execution_options(writes=True), shape)
        for number, (old, new) in enumerate(differences(left, right, shape), 1):
            writer.change(old, new)
            if writer.waiting >= BATCH or writer.size >= GROUP_BYTES:
                writer.flush()
                self.report(shape.name, number)
        writer.flush()
        return writer.changed


def _check_moving(target: Connection) -> None:
    """See that the target is still being filled, and let nobody change that meanwhile."""
    if lock_revision(target) != MOVING:
        raise FinishedElsewhere


def differences(
    left: Connection, right: Connection, shape: Shape
) -> Iterator[tuple[Row | None, Row | None]]:
    """Rows of the right side that must go, and rows of the left that must come."""
    ours, theirs = read_rows(left, shape), read_rows(right, shape)
    new, old = next(ours, None), next(theirs, None)
    while new is not None or old is not None:
        if old is None or (new is not None and new[: shape.keys] < old[: shape.keys]):
            yield None, new
            new = next(ours, None)
        elif new is None or old[: shape.keys] < new[: shape.keys]:
            yield old, None
            old = next(theirs, None)
        else:
            if old != new:
                yield old, new
            new, old = next(ours, None), next(theirs, None)


class _Writer:
    """Collects changes of one table and writes them in short transactions."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        self._engine, self._shape = engine, shape
        self._keys = shape.columns[: shape.keys]
        where = and_(*(column(name) == bindparam(f"old_{name}") for name in self._keys))
        self._delete = delete(table(shape.name)).where(where)
        self._old: list[dict[str, object]] = []
        self._new: list[dict[str, object]] = []
        self.changed = self.waiting = self.size = 0

    def change(self, old: Row | None, new: Row | None) -> None:
        self.changed += 1
        self.waiting += 1
        if old is not None:
            self._old.append(
                {f"old_{name}": value for name, value in zip(self._keys, old, strict=False)}
            )
        if new is not None:
            self._new.append(dict(zip(self._shape.columns, new, strict=True)))
            self.size += self._shape.size(new)

    def flush(self) -> None:
        if self._old or self._new:
            with self._engine.begin() as db:
                _check_moving(db)
                if self._old:
                    db.execute(self._delete, self._old)
                if self._new:
                    db.execute(self._shape.insertion(), self._new)
        self._old, self._new, self.waiting, self.size = [], [], 0, 0
