"""What an earlier version left in the one database that all workspace roots of a user shared.

On the first start of a root, what belongs to it moves from the shared file into its own. A move
has three steps, each a transaction: the rows are marked with the root, copied, and deleted. So
nothing is lost or taken twice wherever the process dies, or however many start at once: a row that
is marked is copied by a process of that root only, at its next start if need be.

A session belongs to the root that contains its directory. Its context belongs with it, and so do
the tasks of that context. What is left is for other roots, is used by a process of an earlier
version that still runs, or names no directory at all. Whose sessions those are is copied all the
same: OpenCode lists them here too, and a session without an owner is open to every caller. For
that reason a service whose rows cannot be moved must not start.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, select, update
from sqlalchemy.engine import make_url

from ..domain.values import Root
from ..errors import StoreUnavailable
from .database import BUSY_SECONDS, Database, connect
from .holder import Holder
from .log import now_ms
from .migrate import ForeignDatabase, SchemaTooNew
from .tables import IS_OPEN, contexts, metadata, sessions, tasks

logger = structlog.get_logger()

NOT_MOVED = """\
An earlier version kept tasks and sessions in {file}. They cannot be moved into the database of \
this workspace: {reason}. Make sure that no other program holds the file, that this user can write \
it and that the disk has room, then start again. Or move the file away: what it holds is not seen \
then."""
LEFT = """\
these tasks belong to other workspace roots (start the service there), are held by an earlier \
version that still runs (start again when it has ended), or name no directory (send them again)"""

# Which rows of each table move, in terms of the marked ones. The mark is no root: a service of this
# version may work on the same file, and its rows stay.
_SESSIONS = "SELECT session_id FROM {db}.sessions WHERE root = :mark"
_TASKS = "SELECT id FROM {db}.tasks WHERE root = :mark"
_CONTEXTS = (
    "SELECT 1 FROM {db}.contexts AS c JOIN {db}.sessions AS s ON s.session_id = c.session_id "
    "WHERE s.root = :mark AND c.owner = {db}.{table}.owner "
    "AND c.context_id = {db}.{table}.context_id"
)
_MOVED = {  # in the order of deletion: first what is found by other rows
    "entries": f"task_id IN ({_TASKS})",
    "keys": f"task_id IN ({_TASKS})",
    "interrupts": f"task_id IN ({_TASKS})",
    "grants": f"EXISTS ({_CONTEXTS})",
    "home_models": f"session_id IN ({_SESSIONS})",
    "contexts": f"session_id IN ({_SESSIONS})",
    "tasks": "root = :mark",
    "sessions": "root = :mark",
}
# Rows that stay, and are copied only so that this service knows their owners. A copied session
# gets a root that no service has, and its owner for good. An earlier version may still change these
# rows, so each start copies them again, and a row that moves replaces its copy. Nobody noted the
# root of a worktree, so all of those are copied.
_OTHERS = {
    "sessions": "root IS NULL",
    "contexts": "session_id IN (SELECT session_id FROM shared.sessions WHERE root IS NULL)",
    "places": "1",
}
_AS_OTHER = {"root": "directory || ' (left by an earlier version)'", "claimed_until": "NULL"}
_OUTDATED = (
    "DELETE FROM main.contexts"
    " WHERE session_id IN (SELECT session_id FROM main.sessions WHERE root <> :root)"
    " AND (owner, context_id) IN (SELECT owner, context_id FROM shared.contexts)",
    "DELETE FROM main.sessions WHERE root <> :root"
    " AND session_id IN (SELECT session_id FROM shared.sessions)",
)


class NotMoved(RuntimeError):
    """What an earlier version left cannot be moved, so this service must not start."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How much was taken, and how much is left."""

    tasks: int = 0
    contexts: int = 0
    open_left: int = 0  # unfinished tasks that stay in the shared file


async def take_over(shared_url: str, own_url: str, root: Root) -> Moved:
    """Move what belongs to a root out of the shared file; the root's own has its schema."""
    file = make_url(shared_url).database
    async with AsyncExitStack() as stack:
        try:
            shared = await stack.enter_async_context(Database.open(shared_url))
            if not await shared.read(_has_any):
                return Moved()
            await shared.write(_mark, root, now_ms())
            moved = await asyncio.to_thread(_copy, shared_url, own_url, root.path)
            # If this failed and the service started, what it does with a task by the next start
            # could be forgotten: the task would be copied again.
            await shared.write(_delete, root.path)
            found = Moved(*moved, open_left=await shared.read(_count_open))
        except (StoreUnavailable, SchemaTooNew, ForeignDatabase) as exc:
            raise NotMoved(NOT_MOVED.format(file=file, reason=_first_cause(exc))) from exc
    if found.tasks or found.contexts:
        taken = {"tasks": found.tasks, "contexts": found.contexts}
        logger.info("state.moved", root=root.path, **taken, came_from=file)
    if found.open_left:
        logger.info("state.left", unfinished=found.open_left, file=file, advice=LEFT)
    return found


def _first_cause(exc: BaseException) -> str:
    """What the database or the system said, at the beginning of it all."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return str(exc).rstrip(".")


def _has_any(db: Connection) -> bool:
    return any(db.execute(select(table.c[0]).limit(1)).first() for table in (tasks, sessions))


def _count_open(db: Connection) -> int:
    return len(db.execute(select(tasks.c.id).where(IS_OPEN)).all())


def _mark_of(root: str) -> str:
    return f"moving to {root}"


def _mark(db: Connection, root: Root, now: int) -> None:
    """Mark what belongs to the root, but for what a process of an earlier version works on."""
    found = select(sessions.c.session_id, sessions.c.directory).where(sessions.c.root.is_(None))
    ours = [row.session_id for row in db.execute(found) if root.contains(row.directory)]
    in_use, mark = _sessions_in_use(db, now), _mark_of(root.path)
    for session_id in ours:
        if session_id not in in_use:
            this = sessions.c.session_id == session_id
            db.execute(update(sessions).where(this).values(root=mark))
    marked = select(sessions.c.session_id).where(sessions.c.root == mark)
    served = (
        select(contexts.c.session_id)
        .where(contexts.c.owner == tasks.c.owner, contexts.c.context_id == tasks.c.context_id)
        .where(contexts.c.session_id.in_(marked))
        .exists()
    )
    theirs = tasks.c.session_id.in_(marked) | served
    db.execute(update(tasks).where(tasks.c.root.is_(None), theirs).values(root=mark))


def _sessions_in_use(db: Connection, now: int) -> set[str]:
    """The sessions of open tasks that a living process holds."""
    served = (contexts.c.owner == tasks.c.owner) & (contexts.c.context_id == tasks.c.context_id)
    held = (
        select(tasks.c.session_id, contexts.c.session_id, tasks.c.holder, tasks.c.held_until)
        .outerjoin(contexts, served)
        .where(IS_OPEN, tasks.c.holder.is_not(None))
    )
    return {
        session_id
        for *used, holder, held_until in db.execute(held)
        if held_until >= now and not Holder.is_dead(holder)
        for session_id in used
        if session_id is not None
    }


def _copy(shared_url: str, own_url: str, root: str) -> tuple[int, int]:
    """Copy the marked rows, unless they are there already. How many tasks and contexts."""
    shared, own = (str(make_url(url).database) for url in (shared_url, own_url))
    options: dict[str, Any] = {"timeout": BUSY_SECONDS}
    try:
        with closing(connect(own, options)) as db:
            db.execute("ATTACH DATABASE ? AS shared", (shared,))
            db.execute("BEGIN IMMEDIATE")
            for statement in _OUTDATED:
                db.execute(statement, {"root": root})
            values = {"root": root, "mark": _mark_of(root)}
            moved = {
                name: db.execute(
                    _insert(name, _MOVED[name].format(db="shared", table=name), {"root": ":root"}),
                    values,
                ).rowcount
                for name in reversed(_MOVED)
            }
            for name, where in _OTHERS.items():
                db.execute(_insert(name, where, _AS_OTHER))
            db.execute("COMMIT")
    except sqlite3.Error as exc:
        raise StoreUnavailable("The tasks of an earlier version cannot be copied.") from exc
    return moved["tasks"], moved["contexts"]


def _insert(table: str, where: str, instead: Mapping[str, str]) -> str:
    """Copies rows that are not there yet, with other values in some columns."""
    columns = _columns(table)
    names = ", ".join(f'"{column}"' for column in columns)
    values = ", ".join(instead.get(column, f'"{column}"') for column in columns)
    return (
        f'INSERT OR IGNORE INTO main."{table}" ({names}) '
        f'SELECT {values} FROM shared."{table}" WHERE {where}'
    )


def _columns(table: str) -> Sequence[str]:
    return [column.name for column in metadata.tables[table].c]


def _delete(db: Connection, root: str) -> None:
    for table, where in _MOVED.items():
        condition = where.format(db="main", table=table)
        delete = f'DELETE FROM main."{table}" WHERE {condition}'
        db.exec_driver_sql(delete, {"mark": _mark_of(root)})
