"""How many may work at a time."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """First come, first served; but whoever comes back from a break goes on at once.

    Those who wait for a place wait the longer then: the limit holds again as soon as it can.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_full(self) -> bool:
        return self._free <= 0

    async def acquire(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release()  # it was given to somebody who had just left
            raise

    def take_back(self) -> None:
        self._free -= 1

    def release(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                self._free -= 1
                place.set_result(None)
