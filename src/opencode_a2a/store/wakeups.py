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
from contextlib import asynccontextmanager, suppress
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
        self._engine = engine
        self._options = options
        self._connection: Any = None
        self._socket = -1
        self._lost = asyncio.Event()
        self._listeners: list[Callable[[list[str]], None]] = []

    @property
    def connected(self) -> bool:
        return self._connection is not None

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
        keeping = asyncio.create_task(self._keep_connected())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            self._disconnect()

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
            try:
                self._connection = await asyncio.shield(connecting)
            except asyncio.CancelledError:
                with suppress(Exception):
                    (await connecting).close()  # the thread goes on, and nobody else closes it
                raise
            except Exception as exc:  # of the driver; the database itself reports what is wrong
                logger.debug("store.not_listening", error=type(exc).__name__)
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1
                continue
            failures = 0
            self._lost.clear()
            self._socket = self._connection.fileno()
            asyncio.get_running_loop().add_reader(self._socket, self._receive)
            self._tell([])
            await self._lost.wait()
            self._disconnect()

    def _connect(self) -> Any:
        dialect = self._engine.dialect
        args, options = dialect.create_connect_args(self._engine.url)
        connection = dialect.connect(*args, **{**self._options, **options})
        connection.autocommit = True
        for channel in (CHANNEL, self.channel):
            connection.execute(f"LISTEN {channel}")
        return connection

    def _receive(self) -> None:
        """The connection has something to read."""
        words: list[str] = []
        looks = False
        try:
            self._connection.pgconn.consume_input()
            while (notified := self._connection.pgconn.notifies()) is not None:
                said = notified.extra.decode()
                looks = looks or said == LOOK
                words += said.split(" ")
        except Exception as exc:
            logger.debug("store.not_listening", error=type(exc).__name__)
            asyncio.get_running_loop().remove_reader(self._socket)
            self._lost.set()
            return
        if words:
            self._tell([] if looks else words)

    def _tell(self, words: list[str]) -> None:
        for listener in list(self._listeners):
            try:
                listener(words)
            except Exception:  # the others must hear of it all the same
                logger.exception("store.internal_error")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            with suppress(Exception):
                connection.close()
