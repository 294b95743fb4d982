"""Which worktree belongs to which context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..domain.isolation import ContextWorktree
from ..domain.values import WorktreeRef
from ..errors import StoreUnavailable
from .database import Conflict, Database
from .tables import worktrees


class SqlWorktrees:
    """Implements `domain.isolation.WorktreeStore`."""

    def __init__(self, database: Database, root: str = "") -> None:
        self._database = database
        self._root = root

    async def find(self, owner: str, context_id: str) -> ContextWorktree | None:
        found = await self._select(_is(owner, context_id))
        return found[0] if found else None

    async def of_owner(self, owner: str) -> Sequence[ContextWorktree]:
        return await self._select(worktrees.c.owner == owner)

    async def unused_since(self, at: int) -> Sequence[ContextWorktree]:
        is_there = worktrees.c.made_at.is_not(None) & worktrees.c.removed.is_(None)
        return await self._select((worktrees.c.used_at < at) & is_there)

    async def _select(self, where: ColumnElement[bool]) -> list[ContextWorktree]:
        return await self._database.read(_select, where & (worktrees.c.root == self._root))

    async def add(self, worktree: ContextWorktree, at: int) -> ContextWorktree:
        with suppress(Conflict):
            await self._database.write(_add, worktree, root=self._root, at=at)
            return worktree
        stored = await self.find(worktree.owner, worktree.context_id)
        if stored is None:
            raise StoreUnavailable(
                "The context got a worktree in another workspace root at the same moment. "
                "Try again.",
                retry_after=1,
            )
        return stored

    async def used(self, worktree: ContextWorktree, at: int) -> None:
        made_at = func.coalesce(worktrees.c.made_at, at)
        values = {"used_at": at, "made_at": made_at, "removed": None, "base": worktree.ref.base}
        await self._change(worktree, values)

    async def removed(self, worktree: ContextWorktree) -> None:
        await self._change(worktree, {"removed": 1})

    async def _change(self, worktree: ContextWorktree, values: Mapping[str, Any]) -> None:
        where = _is(worktree.owner, worktree.context_id)
        await self._database.write(_change, where, values)


def _is(owner: str, context_id: str) -> ColumnElement[bool]:
    return (worktrees.c.owner == owner) & (worktrees.c.context_id == context_id)


def _select(db: Connection, where: ColumnElement[bool]) -> list[ContextWorktree]:
    return [_worktree(row) for row in db.execute(select(worktrees).where(where))]


def _worktree(row: Any) -> ContextWorktree:
    return ContextWorktree(
        owner=row.owner,
        context_id=row.context_id,
        title=row.title,
        ref=WorktreeRef(
            branch=row.branch,
            directory=row.directory,
            base=row.base,
            base_branch=row.base_branch,
        ),
        checkout=row.checkout,
        folder=row.folder,
        made=row.made_at is not None,
    )


def _add(db: Connection, worktree: ContextWorktree, *, root: str, at: int) -> None:
    ref = worktree.ref
    row = {
        "owner": worktree.owner,
        "context_id": worktree.context_id,
        "root": root,
        "title": worktree.title.replace("\0", ""),  # PostgreSQL cannot store it
        "directory": ref.directory,
        "branch": ref.branch,
        "base": ref.base,
        "base_branch": ref.base_branch,
        "checkout": worktree.checkout,
        "folder": worktree.folder,
        "made_at": None,
        "used_at": at,
    }
    try:
        db.execute(insert(worktrees), row)
    except IntegrityError as exc:
        raise Conflict from exc


def _change(db: Connection, where: ColumnElement[bool], values: Mapping[str, Any]) -> None:
    db.execute(update(worktrees).where(where).values(**values))
