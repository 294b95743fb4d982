"""What time it is for everybody who shares a database.

A file is used on one machine, so the machine's clock will do. Processes that share a server may
run on machines whose clocks differ by minutes: leases would run out early or late, and the tasks of
a context would change their order. They all use the server's clock. Each reads it now and then, and
adds the time that has passed since by its own monotonic clock.
"""

from __future__ import annotations

import time
from typing import Any

SERVER_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ServerClock:
    """Milliseconds since 1970 by the clock of a database server."""

    def __init__(self) -> None:
        self._offset: float | None = None  # what to add to the monotonic clock

    def __call__(self) -> int:
        if self._offset is None:
            return now_ms()
        return int(time.monotonic() * 1000 + self._offset)

    def read(self, cursor: Any) -> None:
        """Ask the server, with a cursor of its driver. The answer is as old as half the way."""
        asked = time.monotonic()
        cursor.execute(SERVER_TIME)
        (server,) = cursor.fetchone()
        answered = time.monotonic()
        self._offset = server - (asked + answered) * 500
