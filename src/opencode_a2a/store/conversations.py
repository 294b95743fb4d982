"""Which conversation with a peer goes on, by context."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import ColumnElement, Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from ..domain.ports import PeerConversation
from .database import Conflict, Database
from .tables import peer_conversations as rows

MAX_ID = 1_024  # characters; a peer chooses its ids itself, and its name may be a URL


class SqlPeerConversations:
    """Implements `domain.ports.PeerConversations`."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock

    async def last(self, owner: str, context_id: str, peer: str) -> PeerConversation | None:
        return await self._database.read(_last, _is(owner, context_id, peer))

    async def keep(
        self, owner: str, context_id: str, peer: str, conversation: PeerConversation
    ) -> None:
        row = {
            "owner": owner,
            "context_id": context_id,
            "peer": peer,
            "peer_context_id": conversation.context_id,
            "peer_task_id": conversation.task_id,
            "kept_at": self._clock(),
        }
        for _ in range(2):  # the second attempt replaces the row of a process that was faster
            with suppress(Conflict):
                await self._database.write(_keep, _is(owner, context_id, peer), row)
                return


def _is(owner: str, context_id: str, peer: str) -> ColumnElement[bool]:
    return (rows.c.owner == owner) & (rows.c.context_id == context_id) & (rows.c.peer == peer)


def _last(db: Connection, this: ColumnElement[bool]) -> PeerConversation | None:
    row = db.execute(select(rows).where(this)).first()
    return PeerConversation(row.peer_context_id, row.peer_task_id) if row is not None else None


def _keep(db: Connection, this: ColumnElement[bool], row: dict[str, str | int | None]) -> None:
    db.execute(delete(rows).where(this))
    if all(_is_storable(row[name]) for name in ("peer", "peer_context_id", "peer_task_id")):
        try:
            db.execute(insert(rows), row)
        except IntegrityError as exc:
            raise Conflict from exc


def _is_storable(value: object) -> bool:
    text = str(value)
    return len(text) <= MAX_ID and "\0" not in text  # PostgreSQL cannot store it


def forget(db: Connection, before: int) -> int:
    """Delete conversations that were last kept before then."""
    return db.execute(delete(rows).where(rows.c.kept_at < before)).rowcount
