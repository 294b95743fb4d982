"""Which OpenCode session serves which context, and whose session it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.exc import IntegrityError

from ..domain.values import ModelRef, SessionRef
from ..errors import StoreUnavailable
from .database import Database
from .log import now_ms
from .prepared import Prepared
from .tables import contexts, home_models, sessions

AT_ONCE = 500  # names in one question; databases have a limit


class SqlBindings:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def session_of(self, owner: str, context_id: str) -> SessionRef | None:
        return await self._database.read(_session_of, owner, context_id)

    async def context_of(self, owner: str, session_id: str) -> str | None:
        return await self._database.read(_context_of, owner, session_id)

    async def bind(self, owner: str, context_id: str, session: SessionRef) -> None:
        await self._database.write(_bind, owner, context_id, session, now_ms())

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, str]:
        return await self._database.read(_owners, sessions)

    async def claim(self, owner: str, session: SessionRef) -> str:
        return await self._database.write(_claim, owner, session, now_ms())

    async def keep_model(self, session_id: str, model: ModelRef) -> None:
        await self._database.write(_keep_model, session_id, model)

    async def unbind(self, owner: str, context_id: str, session_id: str) -> None:
        await self._database.write(_unbind, owner, context_id, session_id)


def _session_of(db: Connection, owner: str, context_id: str) -> SessionRef | None:
    row = db.execute(
        select(
            sessions.c.session_id,
            sessions.c.title,
            sessions.c.directory,
            home_models.c.provider,
            home_models.c.model,
        )
        .join(contexts, contexts.c.session_id == sessions.c.session_id)
        .outerjoin(home_models, home_models.c.session_id == sessions.c.session_id)
        .where(contexts.c.owner == owner, contexts.c.context_id == context_id)
    ).first()
    if row is None:
        return None
    model = ModelRef(row.provider, row.model) if row.provider is not None else None
    return SessionRef(row.session_id, row.title, row.directory, model)


def _bind(db: Connection, owner: str, context_id: str, session: SessionRef, at: int) -> None:
    known = _owner(db, session.id)
    if known not in (None, owner) or _context_of(db, owner, session.id) is not None:
        raise StoreUnavailable(
            "The session was given another use at the same moment. Try again.", retry_after=1
        )
    if known is None:
        _NEW_SESSION.run(db, _row(owner, session, at))
    bound = {"owner": owner, "context_id": context_id, "session_id": session.id}
    _NEW_CONTEXT.run(db, {**bound, "created_at": at})


_NEW_SESSION = Prepared(insert(sessions), [column.name for column in sessions.c])
_NEW_CONTEXT = Prepared(insert(contexts), [column.name for column in contexts.c])
_CONTEXT = Prepared(
    select(contexts.c.context_id).where(
        contexts.c.owner == bindparam("owner"), contexts.c.session_id == bindparam("session")
    )
)


def _context_of(db: Connection, owner: str, session_id: str) -> str | None:
    return _CONTEXT.run(db, {"owner": owner, "session": session_id}).scalar()


def _keep_model(db: Connection, session_id: str, model: ModelRef) -> None:
    known = select(home_models.c.model).where(home_models.c.session_id == session_id)
    if db.execute(known).first() is None:
        row = {"session_id": session_id, "provider": model.provider, "model": model.model}
        db.execute(insert(home_models), row)


def _owners(db: Connection, ids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = sessions.c.session_id.in_(ids[start : start + AT_ONCE])
        rows = db.execute(select(sessions.c.session_id, sessions.c.owner).where(some))
        found |= {row.session_id: row.owner for row in rows}
    return found


_OWNER = Prepared(select(sessions.c.owner).where(sessions.c.session_id == bindparam("session")))


def _owner(db: Connection, session_id: str) -> str | None:
    return _OWNER.run(db, {"session": session_id}).scalar()


def _claim(db: Connection, owner: str, session: SessionRef, at: int) -> str:
    if (known := _owner(db, session.id)) is not None:
        return known
    try:
        with db.begin_nested():
            _NEW_SESSION.run(db, _row(owner, session, at))
    except IntegrityError:  # another process was faster
        return _owners(db, [session.id])[session.id]
    return owner


def _row(owner: str, session: SessionRef, at: int) -> dict[str, str | int]:
    return {
        "session_id": session.id,
        "owner": owner,
        "title": session.title,
        "directory": session.directory,
        "created_at": at,
    }


def _unbind(db: Connection, owner: str, context_id: str, session_id: str) -> None:
    bound = (contexts.c.owner == owner, contexts.c.context_id == context_id)
    if db.execute(delete(contexts).where(*bound, contexts.c.session_id == session_id)).rowcount:
        db.execute(delete(sessions).where(sessions.c.session_id == session_id))
