"""The requests of the agent (interrupts), found by owner or id.

`follow` writes their rows in the transaction of the log entries they belong to. A settled
request is kept for a while, so that a late answer gets the reason for its refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, insert, select, update

from ..domain.permissions import AllowRule
from ..domain.ports import Pending
from ..domain.task import ENDED, Task, TaskHead
from ..domain.updates import (
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
)
from ..domain.values import PermissionAsk
from . import codec
from .database import Database
from .tables import allow_rules, interrupts, tasks


class SqlInterrupts:
    """Implements `domain.ports.InterruptStore`."""

    def __init__(self, database: Database, root: str = "") -> None:
        self._database = database
        self._root = root

    async def pending(self, owner: str) -> Sequence[Pending]:
        return await self._database.read(_pending, owner, self._root)

    async def find(self, owner: str, request_id: str) -> Pending | None:
        return await self._database.read(_find, owner, request_id)

    async def waiting_tasks(self, owner: str, context_id: str) -> Sequence[str]:
        return await self._database.read(_waiting_tasks, owner, context_id, root=self._root)

    async def allow_rules(self, owner: str, context_id: str) -> Sequence[AllowRule]:
        return await self._database.read(_allow_rules, owner, context_id)


_INTERRUPT_UPDATES = (InterruptOpened, InterruptAnswered, InterruptResolved, Ended)


def follow(db: Connection, task: Task, entries: Sequence[LogEntry]) -> None:
    """Update the rows of interrupts for these entries. Most entries are not about any."""
    about = [entry for entry in entries if isinstance(entry.update, _INTERRUPT_UPDATES)]
    if task.interrupts or any(not isinstance(entry.update, Ended) for entry in about):
        for entry in about:
            _follow(db, task.head, entry)


def _follow(db: Connection, head: TaskHead, entry: LogEntry) -> None:
    match entry.update:
        case InterruptOpened(interrupt=interrupt, expires_at=expires_at):
            # The agent may open a request again that was settled here.
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
            this = interrupts.c.request_id == interrupt.request_id
            _close(db, this, at=entry.at, resolution=resolution)
            if isinstance(interrupt, PermissionAsk) and entry.update.grants:
                rules = {AllowRule(interrupt.permission, p) for p in entry.update.grants}
                _add_rules(db, head, rules)
        case InterruptResolved(interrupt=interrupt, resolution=resolution):
            this = interrupts.c.request_id == interrupt.request_id
            _close(db, this, at=entry.at, resolution=resolution)
        case Ended():
            _close(db, interrupts.c.task_id == head.id, at=entry.at, resolution=ENDED)
        case _:
            pass


def forget(db: Connection, before: int) -> int:
    """Delete requests that were settled before then."""
    return db.execute(delete(interrupts).where(interrupts.c.closed_at < before)).rowcount


def _close(db: Connection, which: ColumnElement[bool], *, at: int, resolution: str) -> None:
    closed = update(interrupts).where(which, interrupts.c.closed_at.is_(None))
    db.execute(closed.values(closed_at=at, resolution=resolution))


def _add_rules(db: Connection, head: TaskHead, rules: set[AllowRule]) -> None:
    context = {"owner": head.owner, "context_id": head.context_id}
    for rule in rules - set(_allow_rules(db, head.owner, head.context_id)):
        row = {**context, "permission": rule.permission, "pattern": rule.pattern}
        db.execute(insert(allow_rules), row)


def _allow_rules(db: Connection, owner: str, context_id: str) -> list[AllowRule]:
    given = select(allow_rules.c.permission, allow_rules.c.pattern).where(
        allow_rules.c.owner == owner, allow_rules.c.context_id == context_id
    )
    return [AllowRule(row.permission, row.pattern) for row in db.execute(given)]


def _open_rows(owner: str, root: str) -> Select[Any]:
    joined = _rows(owner).join(tasks, tasks.c.id == interrupts.c.task_id)
    return joined.where(interrupts.c.closed_at.is_(None), tasks.c.root == root)


def _waiting_tasks(db: Connection, owner: str, context_id: str, *, root: str) -> list[str]:
    open_rows = _open_rows(owner, root).where(interrupts.c.context_id == context_id)
    found = open_rows.with_only_columns(interrupts.c.task_id).distinct()
    return list(db.execute(found).scalars())


def _pending(db: Connection, owner: str, root: str) -> list[Pending]:
    wanted = _open_rows(owner, root).order_by(interrupts.c.asked_at, interrupts.c.request_id)
    return [_read(row) for row in db.execute(wanted)]


def _find(db: Connection, owner: str, request_id: str) -> Pending | None:
    row = db.execute(_rows(owner).where(interrupts.c.request_id == request_id)).first()
    return _read(row) if row else None


def _rows(owner: str) -> Select[Any]:
    return select(interrupts).where(interrupts.c.owner == owner)


def _read(row: Any) -> Pending:
    kind = InterruptOpened.__name__
    opened = codec.decode(seq=0, at=row.asked_at, kind=kind, body=row.asked).update
    assert isinstance(opened, InterruptOpened)
    return Pending(
        opened.interrupt,
        task_id=row.task_id,
        context_id=row.context_id,
        expires_at=row.expires_at,
        resolution=row.resolution,
    )
