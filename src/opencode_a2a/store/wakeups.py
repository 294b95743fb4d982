"""Tells the processes that share a PostgreSQL server that there is something new to read.

A transaction that others should know of sends a notification with its commit. Each process has one
connection that listens, to what all should know and to a channel of its own: PostgreSQL wakes every
process that listens to a channel, so what is said many times a second is said to those who have
asked for it (`following.py`). Notifications are hints: none is sent again, and those of the time
without a connection are lost. So everybody who waits for one also looks every second or so, and
after each connection everybody looks at once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from sqlalchemy import Connection, Engine

from .prepared import run

logger = structlog.get_logger()

CHANNEL = "opencode_a2a"  # of all processes
MAX_BYTES = 7_900  # of a notification; PostgreSQL takes 8000
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)  # between attempts to connect
LOOK = "look"  # instead of too many words: there may be anything new


def notify(db: Connection, words: Iterable[str], channel: str = CHANNEL) -> None:
    """Let who listens to a channel know these words when this transaction is committed."""
    payload = " ".join(words)
    if payload and db.dialect.name == "postgresql":
        said = payload if len(payload) <= MAX_BYTES else LOOK
        run(db, "SELECT pg_notify(%s, %s)", (channel, said))


def notify_each(db: Connection, words: Mapping[str, Iterable[str]]) -> None:
    """The same for several channels, each with its own words."""
    for channel, some in words.items():
        notify(db, some, channel)


class Wakeups:
    """Passes on what is notified. `on_words` gets the words, or none: then look everywhere."""

    def __init__(self, engine: Engine, options: Mapping[str, Any]) -> None:
        """`options`: for the connection, besides those in the URL."""
        self.channel = f"{CHANNEL}_{secrets.token_hex(8)}"  # of this process
        self.connected = False
        self._engine = engine
        self._options = options
        self._listeners: list[Callable[[list[str]], None]] = []

    def subscribe(self, on_words: Callable[[list[str]], None]) -> Callable[[], None]:
        """Call it with every notification, until the result is called."""
        self._listeners.append(on_words)
        return lambda: self._listeners.remove(on_words)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen while the block lasts, if the driver can do that."""
        if self._engine.dialect.driver != "psycopg":
            yield
            return
        listening = asyncio.create_task(self._listen_forever())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen_forever(self) -> None:
        from psycopg import AsyncConnection, Error  # an extra

        _, options = self._engine.dialect.create_connect_args(self._engine.url)
        options = {**self._options, **options, "autocommit": True}
        failures = 0
        while True:
            try:
                async with await AsyncConnection.connect(**options) as connection:
                    for channel in (CHANNEL, self.channel):
                        await connection.execute(f"LISTEN {channel}")
                    self.connected, failures = True, 0
                    self._tell([])
                    async for notified in connection.notifies():
                        self._tell([] if notified.payload == LOOK else notified.payload.split(" "))
            except (Error, OSError) as exc:  # the database itself reports what is wrong
                logger.debug("store.not_listening", error=type(exc).__name__)
            finally:
                self.connected = False
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    def _tell(self, words: list[str]) -> None:
        for listener in list(self._listeners):
            try:
                listener(words)
            except Exception:  # the others must hear of it all the same
                logger.exception("store.internal_error")
