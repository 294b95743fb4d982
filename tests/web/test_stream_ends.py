"""A stream that a client leaves at the first moment leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from opencode_a2a.inbound.dialect import V1
from opencode_a2a.inbound.events import Event
from opencode_a2a.inbound.framing import RestFraming
from opencode_a2a.inbound.sse import EventStream


class OneEvent:
    """Implements `inbound.events.Events`."""

    def __init__(self) -> None:
        self.closed = 0

    def take_first(self) -> Event | None:
        return 1, b"{}"

    async def read(self) -> Event | Iterator[Event] | None:
        return None

    def close(self) -> None:
        self.closed += 1


async def _silence() -> Any:
    await asyncio.Future()


@pytest.mark.parametrize("fails_at", ["http.response.start", "http.response.body"])
async def test_events_are_closed_although_the_client_left_before_the_first(fails_at: str) -> None:
    events = OneEvent()

    async def send(message: Any) -> None:
        if message["type"] == fails_at:
            raise OSError

    stopping = asyncio.get_running_loop().create_future()
    stream = EventStream(events, RestFraming(V1), stopping)
    with pytest.raises(OSError):
        await stream({}, _silence, send)
    assert events.closed == 1
