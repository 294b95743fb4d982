"""Finds what was said in a context whose session is gone with its node."""

from __future__ import annotations

from ..domain.ports import Bindings, TaskLog
from ..domain.retelling import retell
from ..domain.values import TaskQuery

MAX_TASKS = 50  # the newest ones


class Retelling:
    def __init__(self, log: TaskLog, bindings: Bindings) -> None:
        self._log = log
        self._bindings = bindings

    async def of_context(self, owner: str, context_id: str) -> str | None:
        """What a new session must be told; None where the context has one, or has said nothing."""
        if await self._bindings.session_of(owner, context_id) is not None:
            return None
        query = TaskQuery(owner, context_id=context_id, limit=MAX_TASKS)
        rows = (await self._log.list(query)).rows
        if any(not row.state.terminal for row in rows):
            return None  # the first of them will begin the session
        heads = sorted((row.head for row in rows), key=lambda head: (head.created_at, head.id))
        return retell([await self._log.get(owner, head.id) for head in heads])
