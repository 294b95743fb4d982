"""What the agent has asked for, found by its owner or its id.

The rows follow the log, in the transaction of the entries they belong to; here
they are read. A settled request is kept for a while, so that who comes too late
can be told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select, update

from ..domain.permissions import Grant
from ..domain.ports import Pending
from ..domain.requests import ENDED
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
)
from ..domain.values import ANY_ROOT, PermissionAsk, Root
from . import codec
from .database import Database
from .tables import grants, interrupts, tasks


class SqlAsked:
    """Implements `domain.ports.Asked`."""

    def __init__(self, database: Database, root: Root = ANY_ROOT) -> None:
        self._database = database
        self._root = root.path

    async def pending(self, owner: str) -> Sequence[Pending]:
        return await self._database.read(_pending, owner, self._root)

    async def find(self, owner: str, request_id: str) -> Pending | None:
        return await self._database.read(_find, owner, request_id)

    async def grants(self, owner: str, context_id: str) -> Sequence[Grant]:
        return await self._database.read(_grants, owner, context_id)


_ABOUT = (InterruptOpened, InterruptAnswered, InterruptResolved, Ended)


def follow(db: Connection, task: Task, entries: Sequence[LogEntry]) -> None:
    """Carry what these entries say into the rows; most say nothing, and cost nothing here."""
    about = [entry for entry in entries if isinstance(entry.update, _ABOUT)]
    if task.interrupts or any(not isinstance(entry.update, Ended) for entry in about):
        for entry in about:
            _follow(db, task.head, entry)


def _follow(db: Connection, head: TaskHead, entry: LogEntry) -> None:
    match entry.update:
        case InterruptOpened(interrupt=interrupt, expires_at=expires_at):
            # The agent may ask again for what we took for settled.
            db.execute(delete(interrupts).where(interrupts.c.request_id == interrupt.request_id))
            row = {
                "request_id": interrupt.request_id,
                "owner": head.owner,
                "task_id": head.id,
                "context_id": head.context_id,
                "asked_at": entry.at,
                "expires_at": expires_at,
                "asked": codec.encode(entry.update)[1],
            }
            db.execute(insert(interrupts), row)
        case InterruptAnswered(interrupt=interrupt, resolution=resolution):
            _close(db, entry.at, resolution, interrupts.c.request_id == interrupt.request_id)
            if isinstance(interrupt, PermissionAsk) and entry.update.grants:
                _grant(db, head, {Grant(interrupt.permission, p) for p in entry.update.grants})
        case InterruptResolved(interrupt=interrupt, resolution=resolution):
            _close(db, entry.at, resolution, interrupts.c.request_id == interrupt.request_id)
        case Ended():
            _close(db, entry.at, ENDED, interrupts.c.task_id == head.id)
        case _:
            pass


def forget(db: Connection, before: int) -> int:
    """Forget requests that were settled before then."""
    return db.execute(delete(interrupts).where(interrupts.c.closed_at < before)).rowcount


def _close(db: Connection, at: int, resolution: str, which: Any) -> None:
    still_open = interrupts.c.closed_at.is_(None)
    closed = update(interrupts).where(which, still_open)
    db.execute(closed.values(closed_at=at, resolution=resolution))


def _grant(db: Connection, head: TaskHead, granted: set[Grant]) -> None:
    new = granted - set(_grants(db, head.owner, head.context_id))
    where = {"owner": head.owner, "context_id": head.context_id}
    for grant in new:
        db.execute(
            insert(grants), {**where, "permission": grant.permission, "pattern": grant.pattern}
        )


def _grants(db: Connection, owner: str, context_id: str) -> list[Grant]:
    given = select(grants.c.permission, grants.c.pattern).where(
        grants.c.owner == owner, grants.c.context_id == context_id
    )
    return [Grant(row.permission, row.pattern) for row in db.execute(given)]


def _pending(db: Connection, owner: str, root: str) -> list[Pending]:
    wanted = (
        _rows(owner)
        .join(tasks, tasks.c.id == interrupts.c.task_id)
        .where(interrupts.c.closed_at.is_(None), tasks.c.root == root)
        .order_by(interrupts.c.asked_at, interrupts.c.request_id)
    )
    return [_read(row) for row in db.execute(wanted)]


def _find(db: Connection, owner: str, request_id: str) -> Pending | None:
    row = db.execute(_rows(owner).where(interrupts.c.request_id == request_id)).first()
    return _read(row) if row else None


def _rows(owner: str) -> Select[Any]:
    return select(interrupts).where(interrupts.c.owner == owner)


def _read(row: Any) -> Pending:
    opened = codec.decode(0, row.asked_at, InterruptOpened.__name__, row.asked).update
    assert isinstance(opened, InterruptOpened)
    return Pending(opened.interrupt, row.task_id, row.context_id, row.expires_at, row.resolution)
