"""What time it is for everybody who shares a database.

A file is used on one machine, so the machine's clock will do. Processes that share a server may
run on machines whose clocks differ by minutes: leases would run out early or late, and the tasks of
a context would change their order. They all use the server's clock. Each reads it now and then, and
adds the time that has passed since, also while the machine was suspended.
"""

from __future__ import annotations

import time
from typing import Any

SERVER_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_seconds() -> float:
    """By a clock that nobody sets, and that runs on while the machine is suspended."""
    return time.clock_gettime(_STEADY)


# Linux has a clock that runs on while the machine is suspended. Elsewhere, it may stand still then.
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ServerClock:
    """Milliseconds since 1970 by the clock of a database server."""

    def __init__(self) -> None:
        self._offset: float | None = None  # what to add to `steady_seconds`

    def __call__(self) -> int:
        if self._offset is None:
            return now_ms()
        return int(steady_seconds() * 1000 + self._offset)

    def read(self, cursor: Any) -> None:
        """Ask the server, with a cursor of its driver. The answer is as old as half the way."""
        asked = steady_seconds()
        cursor.execute(SERVER_TIME)
        (server,) = cursor.fetchone()
        answered = steady_seconds()
        self._offset = server - (asked + answered) * 500
