"""Moves rows out of the database that all workspace roots of a user shared in earlier versions.

On the first start of a root, its rows move from the shared file into the root's own. A move has
three steps, each a transaction: the rows are marked with the root, copied, and deleted. Only a
process of that root copies a marked row, at its next start if need be. So no row is lost or moved
twice, wherever a process dies and however many start at once.

A session belongs to the root that contains its directory, together with its context and the tasks
of that context. Other rows stay: they belong to other roots, a process of an earlier version uses
them, or they name no directory. The owners of sessions that stay are copied too: OpenCode lists
those sessions here as well, and a session without an owner is open to every caller. For that
reason a service whose rows cannot be moved must not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    Table,
    create_engine,
    delete,
    insert,
    literal,
    null,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from ..domain.values import Root
from ..errors import (
    StoreError,
    StoreUnavailable,
)
from .clock import now_ms
from .copies import CopyNotMade
from .database import BUSY_SECONDS, Database, connect
from .migrate import ForeignDatabase, SchemaTooNew
from .tables import IS_OPEN, contexts, metadata, sessions, tasks

logger = structlog.get_logger()

MOVE_FAILED_TEXT = """\
An earlier version kept tasks and sessions in {file}. They cannot be moved into the database of \
this workspace: {reason}. Make sure that no other program holds the file, that this user can write \
it and that the disk has room, then start again. Or move the file away: what it holds is not seen \
then."""
TASKS_LEFT_TEXT = """\
these tasks belong to other workspace roots (start the service there), are held by an earlier \
version that still runs (start again when it has ended), or name no directory (send them again)"""


class NotMoved(RuntimeError):
    """What an earlier version left cannot be moved, so this service must not start."""


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """How many rows were moved, and how many unfinished tasks stay."""

    tasks: int = 0
    contexts: int = 0
    open_left: int = 0


async def take_over(shared_url: str, own_url: str, root: Root) -> MoveCounts:
    """Move the rows of a root out of the shared file. Its own file has its tables already."""
    file = make_url(shared_url).database
    async with AsyncExitStack() as stack:
        try:
            shared = await stack.enter_async_context(Database.open(shared_url))
            if not await shared.read(_has_any):
                return MoveCounts()
            await shared.write(_mark, root, now_ms())
            moved = await asyncio.to_thread(
                _copy, shared_url=shared_url, own_url=own_url, root=root.path
            )
            # If this fails, the service must not start: the next start would copy the same tasks
            # again, over what the service did with them meanwhile.
            await shared.write(_delete, root.path)
            found = MoveCounts(*moved, open_left=await shared.read(_count_open))
        except (StoreError, CopyNotMade, SchemaTooNew, ForeignDatabase) as exc:
            raise NotMoved(MOVE_FAILED_TEXT.format(file=file, reason=_first_cause(exc))) from exc
    if found.tasks or found.contexts:
        counts = {"tasks": found.tasks, "contexts": found.contexts}
        logger.info("state.moved", root=root.path, **counts, came_from=file)
    if found.open_left:
        logger.info("state.left", unfinished=found.open_left, file=file, advice=TASKS_LEFT_TEXT)
    return found


def _first_cause(exc: BaseException) -> str:
    """The message of the first error in the chain, from the database or the system."""
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
    """Mark the rows of the root, except those that a process of an earlier version uses."""
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
    """The sessions of open tasks that a process holds."""
    served = (contexts.c.owner == tasks.c.owner) & (contexts.c.context_id == tasks.c.context_id)
    held = (
        select(tasks.c.session_id, contexts.c.session_id, tasks.c.held_until)
        .outerjoin(contexts, served)
        .where(IS_OPEN, tasks.c.holder.is_not(None))
    )
    return {
        session_id
        for *used, held_until in db.execute(held)
        if held_until >= now
        for session_id in used
        if session_id is not None
    }


def _moving_rows(tables: Mapping[str, Table], mark: str) -> dict[str, ColumnElement[bool]]:
    """Which rows of each table move, in the order of deletion: first those found by other rows.

    They belong to the marked sessions and tasks. The mark is no root: a service of this version may
    work on the same file, and its rows stay.
    """
    tasks, sessions, contexts = tables["tasks"], tables["sessions"], tables["contexts"]
    grants, home_models = tables["grants"], tables["home_models"]
    marked_tasks = select(tasks.c.id).where(tasks.c.root == mark)
    marked_sessions = select(sessions.c.session_id).where(sessions.c.root == mark)
    of_context = (contexts.c.owner == grants.c.owner, contexts.c.context_id == grants.c.context_id)
    in_marked_session = contexts.c.session_id.in_(marked_sessions)
    of_task = ("entries", "keys", "interrupts")
    return {
        **{name: tables[name].c.task_id.in_(marked_tasks) for name in of_task},
        "grants": select(contexts).where(*of_context, in_marked_session).exists(),
        "home_models": home_models.c.session_id.in_(marked_sessions),
        "contexts": in_marked_session,
        "tasks": tasks.c.root == mark,
        "sessions": sessions.c.root == mark,
    }


def _delete(db: Connection, root: str) -> None:
    for name, where in _moving_rows(metadata.tables, _mark_of(root)).items():
        db.execute(delete(metadata.tables[name]).where(where))


def _copy(shared_url: str, own_url: str, root: str) -> tuple[int, int]:
    """Copy the marked rows, unless they are there already. How many tasks and contexts."""
    file, own = (str(make_url(url).database) for url in (shared_url, own_url))
    copies = MetaData()
    shared = {
        table.name: table.to_metadata(copies, schema="shared") for table in metadata.sorted_tables
    }
    moving = _moving_rows(shared, _mark_of(root))
    engine = create_engine("sqlite://", creator=partial(connect, own, {"timeout": BUSY_SECONDS}))
    try:
        with engine.connect() as db:
            db.exec_driver_sql("ATTACH DATABASE ? AS shared", (file,))
            db.exec_driver_sql("BEGIN IMMEDIATE")
            _delete_outdated(db, shared, root)
            moved = {
                name: _insert(db, shared[name], moving[name], root=literal(root))
                for name in reversed(moving)
            }
            _copy_others(db, shared)
            db.commit()
    except SQLAlchemyError as exc:
        raise StoreUnavailable("The tasks of an earlier version cannot be copied.") from exc
    finally:
        engine.dispose()
    return moved["tasks"], moved["contexts"]


def _delete_outdated(db: Connection, shared: Mapping[str, Table], root: str) -> None:
    """Delete earlier copies of rows that are still in the shared file: they are copied again."""
    copied = sessions.c.root != root
    there = select(shared["contexts"].c.owner, shared["contexts"].c.context_id)
    outdated = (
        contexts.c.session_id.in_(select(sessions.c.session_id).where(copied)),
        tuple_(contexts.c.owner, contexts.c.context_id).in_(there),
    )
    db.execute(delete(contexts).where(*outdated))
    there = select(shared["sessions"].c.session_id)
    db.execute(delete(sessions).where(copied, sessions.c.session_id.in_(there)))


def _copy_others(db: Connection, shared: Mapping[str, Table]) -> None:
    """Copy rows that stay, so that this service knows their owners.

    A copied session gets a root that no service has, and its owner for good. An earlier version
    may still change these rows, so each start copies them again, and a row that moves replaces its
    copy. Earlier versions did not note the root of a worktree, so all worktrees are copied.
    """
    sessions, contexts = shared["sessions"], shared["contexts"]
    rootless = sessions.c.root.is_(None)
    other_root = sessions.c.directory + " (left by an earlier version)"
    _insert(db, sessions, rootless, root=other_root, claimed_until=null())
    staying = select(sessions.c.session_id).where(rootless)
    _insert(db, contexts, contexts.c.session_id.in_(staying))
    _insert(db, shared["places"], true())


def _insert(
    db: Connection, source: Table, where: ColumnElement[bool], **values: ColumnElement[Any]
) -> int:
    """Copy rows that are not there yet, with other values in some columns. How many."""
    rows = select(*(values.get(column.name, column) for column in source.c)).where(where)
    copy = insert(metadata.tables[source.name]).prefix_with("OR IGNORE")
    return db.execute(copy.from_select(source.c.keys(), rows)).rowcount
