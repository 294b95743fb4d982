"""Removes ended tasks, or everything of a caller, a little at a time beside a running service.

The service keeps nothing of an ended task in memory, so it needs no notice: a task that is gone is
not found from then on. Of a caller's sessions and worktrees the rows stay without an owner,
because what they stand for is still there in OpenCode and git.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    delete,
    func,
    select,
    text,
    update,
)

from ..store.clock import now_ms
from ..store.database import writing
from ..store.statements import SWEEP_ROWS, shrink
from ..store.tables import (
    DELETED_WITH_OWNER,
    DELETED_WITH_TASK,
    DISOWNED,
    IS_OPEN,
    NOBODY,
    OPEN_STATES,
    tasks,
)

T = TypeVar("T")

STOP_SECONDS = 60.0  # for a service to stop the tasks of a caller


@dataclass(frozen=True, slots=True)
class Selection:
    """What to remove: tasks that ended before then, or all of an owner, or both at once."""

    before: int | None = None
    owner: str | None = None

    @property
    def whole_owner(self) -> bool:
        return self.before is None

    @property
    def ended(self) -> ColumnElement[bool]:
        wanted: list[ColumnElement[bool]] = [tasks.c.state.not_in(OPEN_STATES)]
        if self.before is not None:
            wanted.append(tasks.c.status_at < self.before)
        if self.owner is not None:
            wanted.append(tasks.c.owner == self.owner)
        return and_(*wanted)

    @property
    def still_open(self) -> ColumnElement[bool]:
        return and_(tasks.c.owner == self.owner, IS_OPEN)


def preview(db: Connection, selection: Selection) -> dict[str, int]:
    """How many rows of each table would be removed, or lose their owner."""
    which = selection.ended
    if selection.whole_owner:
        which = tasks.c.owner == selection.owner
    found = {"tasks": _count(db, tasks, which)}
    of_task = select(tasks.c.id).where(which)
    for table in DELETED_WITH_TASK:
        found[table.name] = _count(db, table, table.c.task_id.in_(of_task))
    if selection.whole_owner:
        for table in (*DELETED_WITH_OWNER, *DISOWNED):
            found[table.name] = max(
                found.get(table.name, 0), _count(db, table, owner_of(table) == selection.owner)
            )
        del found["totals"]
    return {name: count for name, count in found.items() if count}


def owner_of(table: Table) -> ColumnElement[str]:
    """The column that says whose a row is."""
    return table.c.owner if "owner" in table.c else table.c.principal


def _count(db: Connection, table: Table, where: ColumnElement[bool]) -> int:
    return db.execute(select(func.count()).select_from(table).where(where)).scalar_one()


def purge(engine: Engine, selection: Selection, report: Callable[[str, int], None]) -> list[str]:
    """Remove it; returns open tasks that could not be stopped, and stay with all of the owner's."""
    until = time.monotonic() + STOP_SECONDS
    left: list[str] = []
    removed = 0
    while True:
        if selection.whole_owner:
            left = _stop(engine, selection, until)
        while some := write_in_turn(engine, _remove_tasks, selection.ended):
            removed += some
            report("tasks", removed)
        if not selection.whole_owner or left:
            break
        if write_in_turn(engine, _remove_owner, selection):
            break
    while write_in_turn(engine, shrink):
        pass
    return left


def write_in_turn(engine: Engine, work: Callable[..., T], *args: object) -> T:
    """One short transaction, and as long a pause: the service has its turn."""
    began = time.monotonic()
    with writing(engine) as db:
        result = work(db, *args)
    time.sleep(min(time.monotonic() - began, 0.5))
    return result


def _remove_tasks(db: Connection, which: ColumnElement[bool]) -> int:
    found = select(tasks.c.id).where(which).limit(SWEEP_ROWS).with_for_update()
    done = list(db.execute(found).scalars())
    if done:
        _delete_tasks(db, tasks.c.id.in_(done))
    return len(done)


def _delete_tasks(db: Connection, which: ColumnElement[bool]) -> None:
    """Who calls this has locked them."""
    for table in DELETED_WITH_TASK:
        db.execute(delete(table).where(table.c.task_id.in_(select(tasks.c.id).where(which))))
    db.execute(delete(tasks).where(which))


def _stop(engine: Engine, selection: Selection, until: float) -> list[str]:
    """Have open tasks stopped by their service, and remove those that nobody works on."""
    while left := write_in_turn(engine, _remove_unheld, selection.still_open):
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    return left


def _remove_unheld(db: Connection, which: ColumnElement[bool]) -> list[str]:
    """Remove open tasks that nobody holds; ask for the end of others, which are returned.

    The lease alone says who holds a task: of a process of another user nothing may be visible.
    """
    found = select(tasks.c.id, tasks.c.holder, tasks.c.held_until).where(which).with_for_update()
    now = now_ms()
    held: list[str] = []
    unheld: list[str] = []
    for row in db.execute(found):
        free = row.holder is None or row.held_until < now
        (unheld if free else held).append(row.id)
    _delete_tasks(db, tasks.c.id.in_(unheld))
    db.execute(update(tasks).where(tasks.c.id.in_(held)).values(stop_asked=1))
    return held


def _remove_owner(db: Connection, selection: Selection) -> bool:
    """Remove the rest. False: a service works on a task that was made meanwhile."""
    owner = selection.owner
    if db.dialect.name == "postgresql":  # SQLite lets one writer in at a time anyway
        db.execute(text("LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE"))
    if _remove_unheld(db, selection.still_open):
        return False
    _delete_tasks(db, tasks.c.owner == owner)
    for table in DELETED_WITH_OWNER:
        db.execute(delete(table).where(owner_of(table) == owner))
    for table in DISOWNED:
        mine = table.c.owner == owner
        if "context_id" in table.c:  # two callers may have had a context of the same name
            nobodys = select(table.c.context_id).where(table.c.owner == NOBODY)
            db.execute(delete(table).where(mine, table.c.context_id.in_(nobodys)))
        forgotten = {"owner": NOBODY} | ({"title": ""} if "title" in table.c else {})
        db.execute(update(table).where(mine).values(forgotten))
    return True
