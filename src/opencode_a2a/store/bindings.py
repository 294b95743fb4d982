"""Which OpenCode session serves which context, and whose session it is."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from ..domain.values import SessionRef
from .database import Database
from .log import now_ms
from .tables import contexts, sessions


class SqlBindings:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def session_of(self, owner: str, context_id: str) -> SessionRef | None:
        return await self._database.read(_session_of, owner, context_id)

    async def bind(self, owner: str, context_id: str, session: SessionRef) -> None:
        await self._database.write(_bind, owner, context_id, session, now_ms())

    async def unbind(self, owner: str, context_id: str, session_id: str) -> None:
        await self._database.write(_unbind, owner, context_id, session_id)


def _session_of(db: Connection, owner: str, context_id: str) -> SessionRef | None:
    row = db.execute(
        select(sessions.c.session_id, sessions.c.title, sessions.c.directory)
        .join(contexts, contexts.c.session_id == sessions.c.session_id)
        .where(contexts.c.owner == owner, contexts.c.context_id == context_id)
    ).first()
    return SessionRef(row.session_id, row.title, row.directory) if row else None


def _bind(db: Connection, owner: str, context_id: str, session: SessionRef, at: int) -> None:
    db.execute(
        insert(sessions),
        {
            "session_id": session.id,
            "owner": owner,
            "title": session.title,
            "directory": session.directory,
            "created_at": at,
        },
    )
    db.execute(
        insert(contexts),
        {"owner": owner, "context_id": context_id, "session_id": session.id, "created_at": at},
    )


def _unbind(db: Connection, owner: str, context_id: str, session_id: str) -> None:
    bound = (contexts.c.owner == owner, contexts.c.context_id == context_id)
    if db.execute(delete(contexts).where(*bound, contexts.c.session_id == session_id)).rowcount:
        db.execute(delete(sessions).where(sessions.c.session_id == session_id))
