"""Which OpenCode session serves which context, and whose session it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from ..domain.catalog import SessionOwner
from ..domain.values import ModelRef, SessionRef, WorktreeRef
from ..errors import OtherOpenCode, OtherWorkspace, SessionForbidden, StoreUnavailable
from .database import Conflict, Database
from .prepared import Prepared
from .tables import contexts, locations, session_models, sessions, tasks, worktrees

T = TypeVar("T")

IDS_PER_QUERY = 500  # databases limit the number of parameters


class SqlBindings:
    def __init__(self, database: Database, root: str = "", opencode: str | None = None) -> None:
        self._database = database
        self._root = root
        self._opencode = opencode  # None where there is only one

    async def session_of(self, owner: str, context_id: str) -> SessionRef | None:
        found = await self._database.read(_session_of, owner, context_id)
        if found is None:
            return None
        session, root, opencode = found
        if root != self._root:
            raise OtherWorkspace.of_context(context_id, root)
        if self._opencode is not None and opencode not in (None, self._opencode):
            raise OtherOpenCode.of_context(context_id, opencode)
        return session

    async def former_directory(self, owner: str, context_id: str) -> str | None:
        return await self._database.read(_former_directory, owner, context_id, self._root)

    async def context_of(self, owner: str, session_id: str) -> str | None:
        return await self._database.read(_context_of, owner, session_id)

    async def bind(self, owner: str, context_id: str, session: SessionRef) -> None:
        await self._claiming(
            _bind,
            owner,
            session,
            context_id=context_id,
            at=self._database.clock(),
            root=self._root,
            opencode=self._opencode,
        )

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, SessionOwner]:
        rows = await self._database.read(_owners, sessions, self._database.clock())
        return {row.session_id: SessionOwner(row.owner, row.root) for row in rows}

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        return await self._claiming(
            _claim,
            owner,
            session,
            at=self._database.clock(),
            until=until,
            root=self._root,
            opencode=self._opencode,
        )

    async def _claiming(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        for _ in range(2):  # the second attempt sees the claim of a process that was faster
            with suppress(Conflict):
                return await self._database.write(work, *args, **named)
        raise _session_taken()

    async def contexts(self, ids: Sequence[str]) -> Mapping[str, frozenset[str]]:
        return await self._database.read(_contexts, ids)

    async def contexts_of(self, owner: str, sessions: Sequence[str]) -> Mapping[str, str]:
        return await self._database.read(_contexts_of, owner, sessions)

    async def location_owners(self, names: Sequence[str]) -> Mapping[str, str]:
        return await self._database.read(_location_owners, names) if names else {}

    async def own_locations(self, owner: str, names: Sequence[str]) -> None:
        await self._database.write(_own_locations, owner, names, at=self._database.clock())

    async def forget_locations(self, names: Sequence[str]) -> None:
        await self._database.write(_forget_locations, names)

    async def forget_model(self, session_id: str) -> None:
        await self._database.write(_forget_model, session_id)

    async def keep_model(self, session_id: str, model: ModelRef) -> None:
        await self._database.write(_keep_model, session_id, model)

    async def unbind(self, owner: str, context_id: str, session_id: str) -> None:
        await self._database.write(_unbind, owner, context_id, session_id=session_id)


def _former_directory(db: Connection, owner: str, context_id: str, root: str) -> str | None:
    """The directory of the session in which its newest task has begun, if it is this root's.

    A context with a worktree of its own works there.
    """
    its = (tasks.c.owner == owner, tasks.c.context_id == context_id, sessions.c.root == root)
    isolated = (worktrees.c.owner == owner, worktrees.c.context_id == context_id)
    is_isolated = select(worktrees.c.owner).where(*isolated).exists()
    worked_in = select(sessions.c.directory).join(
        tasks, (tasks.c.session_id == sessions.c.session_id) & (tasks.c.owner == sessions.c.owner)
    )
    newest = worked_in.where(*its, ~is_isolated).order_by(tasks.c.created_at.desc()).limit(1)
    return db.execute(newest).scalar()


def _session_of(
    db: Connection, owner: str, context_id: str
) -> tuple[SessionRef, str, str | None] | None:
    row = db.execute(
        select(
            sessions.c.session_id,
            sessions.c.title,
            sessions.c.directory,
            sessions.c.root,
            sessions.c.opencode,
            session_models.c.provider,
            session_models.c.model,
            worktrees.c.branch,
            worktrees.c.directory.label("worktree"),
            worktrees.c.base,
            worktrees.c.base_branch,
        )
        .join(contexts, contexts.c.session_id == sessions.c.session_id)
        .outerjoin(
            worktrees,
            (worktrees.c.owner == contexts.c.owner)
            & (worktrees.c.context_id == contexts.c.context_id),
        )
        .outerjoin(session_models, session_models.c.session_id == sessions.c.session_id)
        .where(contexts.c.owner == owner, contexts.c.context_id == context_id)
    ).first()
    if row is None:
        return None
    worktree = None
    if row.branch is not None:
        worktree = WorktreeRef(
            branch=row.branch,
            directory=row.worktree,
            base=row.base,
            base_branch=row.base_branch,
        )
    session = SessionRef(
        row.session_id,
        title=row.title,
        directory=row.directory,
        model=ModelRef(row.provider, row.model) if row.provider is not None else None,
        worktree=worktree,
    )
    return session, row.root, row.opencode


def _bind(
    db: Connection,
    owner: str,
    session: SessionRef,
    *,
    context_id: str,
    at: int,
    root: str,
    opencode: str | None,
) -> None:
    row = _session_row(owner, session, at=at, until=None, root=root, opencode=opencode)
    if not _INSERT_NEW_SESSION.change(db, row):  # nearly every session is new
        owned_by = _claim(db, owner, session, at=at, until=None, root=root, opencode=opencode)
        if owned_by != owner or _context_of(db, owner, session.id) is not None:
            raise _session_taken()
    bound = {"owner": owner, "context_id": context_id, "session_id": session.id}
    _INSERT_CONTEXT.change(db, {**bound, "created_at": at})


def _session_taken() -> StoreUnavailable:
    return StoreUnavailable(
        "The session was given another use at the same moment. Try again.", retry_after=1
    )


_SESSION = [column.name for column in sessions.c]
_INSERT_SESSION = Prepared(insert(sessions), _SESSION)
_INSERT_NEW_SESSION = Prepared(insert(sessions), _SESSION, suffix=" ON CONFLICT DO NOTHING")
_INSERT_CONTEXT = Prepared(insert(contexts), [column.name for column in contexts.c])
_FIND_CONTEXT = Prepared(
    select(contexts.c.context_id).where(
        contexts.c.owner == bindparam("owner"), contexts.c.session_id == bindparam("session")
    )
)
_FIND_CLAIM = Prepared(
    select(sessions.c.owner, sessions.c.claimed_until, sessions.c.root).where(
        sessions.c.session_id == bindparam("session")
    )
)


def _context_of(db: Connection, owner: str, session_id: str) -> str | None:
    row = _FIND_CONTEXT.first(db, {"owner": owner, "session": session_id})
    return row.context_id if row is not None else None


def _keep_model(db: Connection, session_id: str, model: ModelRef) -> None:
    known = select(session_models.c.model).where(session_models.c.session_id == session_id)
    if db.execute(known).first() is None:
        row = {"session_id": session_id, "provider": model.provider, "model": model.model}
        db.execute(insert(session_models), row)


def _forget_model(db: Connection, session_id: str) -> None:
    db.execute(delete(session_models).where(session_models.c.session_id == session_id))


def _contexts(db: Connection, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = contexts.c.context_id.in_(ids[start : start + IDS_PER_QUERY])
        for row in db.execute(select(contexts.c.context_id, contexts.c.owner).where(some)):
            found[row.context_id] = found.get(row.context_id, frozenset()) | {row.owner}
    return found


def _contexts_of(db: Connection, owner: str, ids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = contexts.c.session_id.in_(ids[start : start + IDS_PER_QUERY])
        own = select(contexts.c.session_id, contexts.c.context_id).where(
            contexts.c.owner == owner, some
        )
        found |= {row.session_id: row.context_id for row in db.execute(own)}
    return found


def _key(name: str) -> str:
    """A key of at most 64 characters, because a directory may be too long for an index."""
    return name if len(name) < 64 else hashlib.sha256(name.encode()).hexdigest()


def _location_owners(db: Connection, names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(names), IDS_PER_QUERY):
        keys = {_key(name): name for name in names[start : start + IDS_PER_QUERY]}
        rows = db.execute(
            select(locations.c.key, locations.c.owner).where(locations.c.key.in_(keys))
        )
        found |= {keys[row.key]: row.owner for row in rows}
    return found


def _own_locations(db: Connection, owner: str, names: Sequence[str], at: int) -> None:
    _forget_locations(db, names)
    for name in names:
        db.execute(insert(locations), {"key": _key(name), "owner": owner, "created_at": at})


def _forget_locations(db: Connection, names: Sequence[str]) -> None:
    db.execute(delete(locations).where(locations.c.key.in_([_key(name) for name in names])))


def _owners(db: Connection, ids: Sequence[str], at: int) -> list[Any]:
    """The rows of the sessions that have an owner."""
    holds = or_(sessions.c.claimed_until.is_(None), sessions.c.claimed_until > at)
    columns = (sessions.c.session_id, sessions.c.owner, sessions.c.root)
    found: list[Any] = []
    for start in range(0, len(ids), IDS_PER_QUERY):
        some = sessions.c.session_id.in_(ids[start : start + IDS_PER_QUERY])
        found += db.execute(select(*columns).where(some, holds))
    return found


def _claim(
    db: Connection,
    owner: str,
    session: SessionRef,
    *,
    at: int,
    until: int | None,
    root: str,
    opencode: str | None,
) -> str:
    known = _FIND_CLAIM.first(db, {"session": session.id})
    if known is not None:
        this = sessions.c.session_id == session.id
        if known.claimed_until is None or known.claimed_until > at:
            if known.owner == owner and known.root != root:
                raise SessionForbidden.of_root(session.id, known.root)
            if known.owner == owner and known.claimed_until is not None:
                db.execute(update(sessions).where(this).values(claimed_until=until))
            return str(known.owner)
        db.execute(delete(sessions).where(this, sessions.c.claimed_until <= at))
    row = _session_row(owner, session, at=at, until=until, root=root, opencode=opencode)
    try:
        _INSERT_SESSION.change(db, row)
    except IntegrityError as exc:
        raise Conflict from exc
    return owner


def _session_row(
    owner: str,
    session: SessionRef,
    *,
    at: int,
    until: int | None,
    root: str,
    opencode: str | None,
) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "owner": owner,
        "title": session.title,
        "directory": session.directory,
        "created_at": at,
        "claimed_until": until,
        "root": root,
        "opencode": opencode,
    }


def _unbind(db: Connection, owner: str, context_id: str, session_id: str) -> None:
    bound = (contexts.c.owner == owner, contexts.c.context_id == context_id)
    if db.execute(delete(contexts).where(*bound, contexts.c.session_id == session_id)).rowcount:
        db.execute(delete(sessions).where(sessions.c.session_id == session_id))
        _forget_model(db, session_id)
