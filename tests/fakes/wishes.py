"""For tests in which nobody wishes for anything."""

from __future__ import annotations

import uuid

from opencode_a2a.domain.values import Caller, Selection, Wish


class NoWishes:
    """Implements `service.wishes.Granting`."""

    async def context(self, caller: Caller, named: str | None, wish: Wish) -> str:
        return named or str(uuid.uuid4())

    async def grant(self, caller: Caller, context_id: str, title: str, wish: Wish) -> Selection:
        assert wish == Wish()
        return Selection()

    async def next(self, caller: Caller, context_id: str, wish: Wish) -> Selection:
        return await self.grant(caller, context_id, "", wish)
