"""The right to send a request to a receiver: a few for each of them, and a fair share of all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..domain.push import SendingShares

SLOTS = 256  # of all receivers


class SendingSlots:
    """Slots for all owners. Who waits longest goes first, among the requests of one owner."""

    def __init__(self, count: int = SLOTS) -> None:
        self._shares = SendingShares(count)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it while the block lasts."""
        await self._take(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    async def _take(self, owner: str) -> None:
        if owner not in self._waiting and self._shares.may_begin(owner):
            self._shares.begin(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(owner, turn)
            else:  # it was given in the same moment
                self._give_back(owner)
            raise

    def _leave(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner, deque())
        if turn in queue:  # otherwise it was passed over
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]

    def _give_back(self, owner: str) -> None:
        self._shares.end(owner)
        while (following := self._shares.next_of(self._waiting)) is not None:
            queue = self._waiting[following]
            turn = queue.popleft()
            if not queue:
                del self._waiting[following]
            if not turn.cancelled():
                self._shares.begin(following)
                turn.set_result(None)
