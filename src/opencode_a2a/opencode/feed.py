"""The one event stream of the process, shared by every turn.

OpenCode sends every event to every subscriber, so there is one connection for
all sessions; events are routed by session id, those of a sub-agent session to
the turn of its root. When the connection breaks or falls silent it is made
again, and every subscriber is told of the gap.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import structlog

from ..domain.events import AgentEvent, Gap, ToolSnapshot
from ..errors import (
    UpstreamError,
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from .http import Http
from .wire import parent_of, session_of, translate

logger = structlog.get_logger()

SILENCE = 25.0  # seconds; OpenCode sends a heartbeat every ten
PROBE_EVERY, PROBE_PATIENCE = 0.3, 5.0  # while OpenCode is away
FIRST_EVENT = 10.0  # until the stream of an OpenCode that answers begins
SHORTEST_PAUSE = 0.2  # seconds between two attempts, however much OpenCode answers to others
BACKOFF = (0.1, 0.3, 1.0, 2.0)  # after streams that failed in a row although OpenCode answers
TALLY_SECONDS = 5.0  # between two lines of the log about how many events came
MAX_LINE = 256 << 20  # an event echoes whole attachments, but nobody sends this


class Subscription:
    """What has happened in a session and its sub-agents since the last look, until it is left."""

    def __init__(self, session: str, routes: dict[str, Subscription]) -> None:
        self.session = session
        self._routes = routes
        self._sessions = [session]
        self._events: list[AgentEvent] = []
        self._gaps = 0
        self._arrived: asyncio.Future[None] | None = None  # while somebody waits
        routes[session] = self

    def include(self, session: str) -> None:
        """Get the events of a sub-agent too, unless somebody else does."""
        if session not in self._routes:
            self._routes[session] = self
            self._sessions.append(session)

    def put(self, events: Sequence[AgentEvent]) -> None:
        self._events.extend(events)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def lost(self) -> None:
        self._gaps += 1
        self.put([Gap(self.session)])

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            if self._routes.get(session) is self:  # it may have become a conversation of its own
                del self._routes[session]

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Sequence[AgentEvent]:
        if not self._events:
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        # What follows a gap is looked at after the gap was closed, so that nothing overtakes.
        end = len(self._events)
        if self._gaps:
            end = next(i for i, event in enumerate(self._events, 1) if isinstance(event, Gap))
            self._gaps -= 1
        arrived, self._events = self._events[:end], self._events[end:]
        return arrived


class Feed:
    def __init__(self, http: Http, silence: float = SILENCE) -> None:
        self._http = http
        self._silence = silence
        self._routes: dict[str, Subscription] = {}
        debug = structlog.is_configured() and logger.is_enabled_for(logging.DEBUG)
        self._tally = _Tally() if debug else None
        self._connected = False
        self._trouble: UpstreamError | None = None
        self._news = asyncio.Event()  # set, and replaced, when one of these two has changed

    @classmethod
    @asynccontextmanager
    async def open(cls, http: Http, silence: float = SILENCE) -> AsyncIterator[Feed]:
        self = cls(http, silence)
        reading = asyncio.create_task(self._read_forever())
        try:
            yield self
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    @property
    def connected(self) -> bool:
        return self._connected

    async def ready(self, within: float = 5.0) -> None:
        """Return once events arrive; raise what keeps them from arriving."""
        if self._connected:
            return  # nothing to wait for, and no timer needed
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self.connected and not _is_lasting(self._trouble):
                    await self._news.wait()
        if not self.connected:
            trouble = self._trouble or UpstreamUnreachable(
                "OpenCode does not send events.", retry_after=5
            )
            raise trouble.with_traceback(None)  # raised often, and must not remember by whom

    async def subscribe(self, session: str) -> Subscription:
        """Events of a session and of those it starts; live from now on, until it is left."""
        await self.ready()
        return Subscription(session, self._routes)

    async def _read_forever(self) -> None:
        failed = 0
        while True:
            await self._until_it_answers()
            try:
                async with (
                    asyncio.timeout(FIRST_EVENT) as patience,
                    self._http.stream("global", "event", silence=self._silence) as chunks,
                ):
                    lines = _Lines()
                    async for chunk in chunks:
                        for line in lines.feed(chunk):
                            if not self._connected:
                                failed = 0
                                patience.reschedule(None)
                                self._up()
                            self._route(line)
                raise UpstreamUnreachable("OpenCode closed the event stream.", retry_after=5)
            except TimeoutError:
                self._down(UpstreamTimeout("OpenCode does not send events.", retry_after=5))
            except UpstreamError as exc:
                self._down(exc)
            except Exception:  # without events nobody would ever see an end
                self._broken()
            wait = BACKOFF[min(failed, len(BACKOFF) - 1)]
            failed += 1
            await self._pause(_about(wait))

    async def _pause(self, seconds: float) -> None:
        """Wait; what OpenCode answers to others meanwhile shortens it."""
        await asyncio.sleep(min(seconds, SHORTEST_PAUSE))
        self._http.answered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - SHORTEST_PAUSE):
                await self._http.answered.wait()

    async def _until_it_answers(self) -> None:
        """Return as soon as OpenCode answers anything, whoever asked.

        A request that arrives while OpenCode starts is never answered, and a busy OpenCode answers
        late. So it is asked again and again, and each request keeps its time.
        """
        self._http.answered.clear()
        probes: set[asyncio.Task[None]] = set()
        try:
            while True:
                probe = asyncio.create_task(self._probe())
                probes.add(probe)
                probe.add_done_callback(probes.discard)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_about(PROBE_EVERY)):
                        await self._http.answered.wait()
                        return
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    async def _probe(self) -> None:
        try:
            await self._http.probe(PROBE_PATIENCE)
        except UpstreamError as exc:
            self._down(exc)
        except Exception:
            self._broken()

    def _broken(self) -> None:
        """A fault of ours, while it is handled."""
        logger.exception("opencode.feed.broken")
        self._down(UpstreamUnreachable("OpenCode's events cannot be read.", retry_after=5))

    def _up(self) -> None:
        """The first event is sent only after the subscription is active."""
        if self._trouble is not None:
            logger.info("opencode.feed.connected")
        self._trouble, self._connected = None, True
        self._http.ask_again()
        self._wake()
        self._tell_all()

    def _down(self, exc: UpstreamError) -> None:
        was_connected = self._connected
        if was_connected or self._trouble is None:
            logger.warning("opencode.feed.lost", type=exc.type, reason=exc.message)
        self._trouble, self._connected = exc, False
        self._wake()
        if was_connected:
            self._tell_all()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _tell_all(self) -> None:
        for subscription in set(self._routes.values()):
            subscription.lost()

    def _route(self, line: bytes) -> None:
        try:
            raw: Mapping[str, Any] = orjson.loads(line)["payload"]
            if self._tally is not None:
                self._tally.count(raw["type"])
            if raw["type"] == "sync":
                return
            session = session_of(raw)
            if session is None:
                return
            subscription = self._routes.get(session)
            if subscription is None:
                if raw["type"] != "session.created":
                    return
                parent = parent_of(raw)
                subscription = self._routes.get(parent) if parent else None
                if subscription is None:
                    return
                subscription.include(session)
            events = translate(raw)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            # A broken event is a change of contract: seen in the log, survived by the turns.
            logger.error("opencode.feed.unreadable", error=type(exc).__name__)
            return
        for event in events:
            if isinstance(event, ToolSnapshot) and event.child is not None:
                subscription.include(event.child.session)
        if events:
            subscription.put(events)


def _is_lasting(trouble: UpstreamError | None) -> bool:
    """Whether somebody has to do something; to wait does not help."""
    if isinstance(trouble, UpstreamHttpError):
        return bool(trouble.facts["upstream_status"] < 500)
    return isinstance(trouble, UpstreamPayloadError)


def _about(seconds: float) -> float:
    """So that many services do not come back at the same moment."""
    return seconds * random.uniform(0.7, 1.3)


class _Tally:
    """How many events of each type came, told from time to time."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._counts: Counter[str] = Counter()
        self._due = self._clock() + TALLY_SECONDS

    def count(self, kind: str) -> None:
        self._counts[kind] += 1
        if self._clock() >= self._due:
            told = " ".join(f"{kind}={number}" for kind, number in self._counts.most_common())
            logger.debug("opencode.feed.events", total=self._counts.total(), types=told)
            self._counts.clear()
            self._due = self._clock() + TALLY_SECONDS


class _Lines:
    """Cuts an event stream into its `data:` lines; a line may span any number of chunks."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        head, newline, rest = chunk.partition(b"\n")
        self._pieces.append(head)
        self._size += len(head)
        if not newline:
            if self._size > MAX_LINE:
                raise UpstreamPayloadError("OpenCode sent an event that is far too large.")
            return []
        *whole, last = rest.split(b"\n")
        lines = [b"".join(self._pieces), *whole]
        self._pieces, self._size = [last], len(last)
        return [line[6:] for line in lines if line.startswith(b"data: ")]
