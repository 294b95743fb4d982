"""The one event stream of the process, shared by every turn.

OpenCode sends every event to every subscriber, so there is one connection for
all sessions; events are routed by session id, those of a sub-agent session to
the turn of its root. When the connection breaks or falls silent it is made
again, and every subscriber gets a `Gap`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import orjson
import structlog

from ..domain.events import AgentEvent, Gap, TextSnapshot, ToolSnapshot
from ..domain.release import Release
from ..errors import (
    UpstreamError,
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from ..observe import metrics
from .http import Http
from .identity import log_release
from .v1 import wire as wire1
from .v2 import wire as wire2

logger = structlog.get_logger()

SILENCE_SECONDS = 25.0  # seconds; OpenCode sends a heartbeat every ten or fifteen
PROBE_SECONDS, PROBE_TIMEOUT = 0.3, 5.0  # while OpenCode is away
LASTING_SECONDS = 2.0  # between two probes where somebody has to change something
FIRST_EVENT_SECONDS = 10.0  # until the stream of an OpenCode that answers begins
MIN_PAUSE_SECONDS = 0.2  # seconds between two attempts, however much OpenCode answers to others
BACKOFF = (0.1, 0.3, 1.0, 2.0)  # after streams that failed in a row although OpenCode answers
MAX_LINE = 256 << 20  # an event repeats whole attachments, but none is this large


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that goes on until the block is left."""
    working = asyncio.create_task(work)
    try:
        yield
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


class EventWire(Protocol):
    """How a generation of OpenCode tells what happens."""

    EVENT_ROUTE: tuple[str, ...]

    def payload(self, raw: Any, /) -> Mapping[str, Any]:
        """The event itself, which has a `type`."""
        ...

    def session_of(self, event: Mapping[str, Any], /) -> str | None:
        """The session it belongs to; None for one of the whole process."""
        ...

    def parent_of(self, event: Mapping[str, Any], /) -> str | None:
        """The parent of the session that an event says was created."""
        ...

    def number_of(self, event: Mapping[str, Any], /) -> int | None:
        """Its number in its session, where events are numbered without a hole."""
        ...

    def translate(
        self, event: Mapping[str, Any], calls: dict[str, TextSnapshot | ToolSnapshot], /
    ) -> Sequence[AgentEvent]:
        """What it means. `calls` has what was told of tool calls before, and is kept up to date."""
        ...


WIRES: Mapping[int, EventWire] = {1: wire1, 2: wire2}  # by generation


class Subscription:
    """The events of a session and its sub-agents since the last read, until it is left."""

    def __init__(self, session: str, routes: dict[str, Subscription]) -> None:
        self.session = session
        self.calls: dict[str, TextSnapshot | ToolSnapshot] = {}  # see `EventWire.translate`
        self._routes = routes
        self._sessions: dict[str, int | None] = {session: None}  # the number of the last event
        self._events: list[AgentEvent] = []
        self._gaps = 0
        self._arrived: asyncio.Future[None] | None = None  # while somebody waits
        routes[session] = self

    def include(self, session: str) -> None:
        """Get the events of a sub-agent too, unless another subscription does."""
        if session not in self._routes:
            self._routes[session] = self
            self._sessions[session] = None

    def put(self, events: Sequence[AgentEvent]) -> None:
        self._events.extend(events)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def misses_some(self, session: str, number: int) -> bool:
        """Whether events are missing before the one with this number.

        A single one may be: what a title or a summary has used has a number, and is not sent.
        """
        last = self._sessions.get(session)
        self._sessions[session] = number
        return last is not None and number > last + 2

    def know(self, events: Sequence[AgentEvent]) -> None:
        """Take up the calls that go on, as they are stored."""
        for event in events:
            if isinstance(event, ToolSnapshot) and not event.call.over:
                self.calls.setdefault(event.part_id, event)

    def add_gap(self) -> None:
        self._gaps += 1
        self.put([Gap(self.session)])

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            if self._routes.get(session) is self:  # it may have a subscription of its own by now
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
        # Events after a gap wait for the next read: the subscriber closes the gap first.
        end = len(self._events)
        if self._gaps:
            end = next(i for i, event in enumerate(self._events, 1) if isinstance(event, Gap))
            self._gaps -= 1
        arrived, self._events = self._events[:end], self._events[end:]
        return arrived


class Feed:
    def __init__(self, http: Http, silence: float = SILENCE_SECONDS) -> None:
        self._http = http
        self._silence = silence
        self._routes: dict[str, Subscription] = {}
        self.release: Release | None = None  # that is connected, or was last
        self._connected = False
        self._connections = 0  # made so far
        self._disposals: Counter[str] = Counter()  # by directory
        self._problem: UpstreamError | None = None
        self._changed = asyncio.Event()  # set, and replaced, when one of these two has changed

    @classmethod
    @asynccontextmanager
    async def open(cls, http: Http, silence: float = SILENCE_SECONDS) -> AsyncIterator[Feed]:
        self = cls(http, silence)
        async with beside(self._read_forever()):
            yield self

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def subscribed(self) -> int:
        """The number of sessions whose events somebody gets."""
        return len(self._routes)

    async def ready(self, within: float = 5.0) -> None:
        """Return once events arrive; raise the reason if they do not."""
        if self._connected:
            return  # nothing to wait for, and no timer needed
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self.connected and not _is_lasting(self._problem):
                    await self._changed.wait()
        if not self.connected:
            problem = self._problem or UpstreamUnreachable(
                "OpenCode does not send events.", retry_after=5
            )
            # It is raised often, and its traceback would grow each time.
            raise problem.with_traceback(None)

    async def first_answer(self, within: float) -> None:
        """Return once it is known which OpenCode answers, or why none does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.release is None and self._problem is None:
                    await self._changed.wait()

    @property
    def problem(self) -> UpstreamError | None:
        """Why events do not arrive, if they do not."""
        return self._problem

    async def connections(self) -> AsyncIterator[None]:
        """Each time that OpenCode was connected."""
        seen = 0
        while True:
            while self._connections <= seen:
                await self._changed.wait()
            seen = self._connections
            yield

    def instance(self, directory: str) -> tuple[int, int]:
        """Changes when OpenCode may have forgotten what it was told for a directory."""
        return self._connections, self._disposals[directory]

    async def subscribe(self, session: str) -> Subscription:
        """Events of a session and of those it starts; live from now on, until it is left."""
        await self.ready()
        return Subscription(session, self._routes)

    async def _read_forever(self) -> None:
        failed, clock = 0, asyncio.get_running_loop().time
        while True:
            wire = WIRES[(await self._find()).generation]
            try:
                async with (
                    asyncio.timeout(FIRST_EVENT_SECONDS) as patience,
                    self._http.stream(*wire.EVENT_ROUTE) as chunks,
                ):
                    lines, renew_at = _LineReader(), 0.0
                    async for chunk in chunks:
                        for line in lines.feed(chunk):
                            if not self._connected:
                                failed = 0
                                self._mark_connected()
                            self._route(line, wire)
                        if self._connected and (now := clock()) >= renew_at:
                            # Not for each event: a timer costs more than a look at the clock.
                            patience.reschedule(now + self._silence)
                            renew_at = now + self._silence / 8
                raise UpstreamUnreachable("OpenCode closed the event stream.", retry_after=5)
            except TimeoutError:
                self._mark_lost(UpstreamTimeout("OpenCode does not send events.", retry_after=5))
            except UpstreamError as exc:
                self._mark_lost(exc)
            except Exception:  # the loop must go on: without events no task would end
                self._mark_broken()
            wait = BACKOFF[min(failed, len(BACKOFF) - 1)]
            failed += 1
            await self._pause(_jittered(wait))

    async def _pause(self, seconds: float) -> None:
        """Wait; any answer of OpenCode's meanwhile ends the wait."""
        await asyncio.sleep(min(seconds, MIN_PAUSE_SECONDS))
        self._http.answered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - MIN_PAUSE_SECONDS):
                await self._http.answered.wait()

    async def _find(self) -> Release:
        """Return as soon as OpenCode answers: one that was away may be another version now.

        OpenCode 1.x never answers a request that arrives while it starts, and each is late to
        answer when it is busy. So a new probe is sent again and again, and keeps its full timeout.
        """
        found: asyncio.Future[Release] = asyncio.get_running_loop().create_future()
        probes: set[asyncio.Task[None]] = set()
        try:
            while True:
                probe = asyncio.create_task(self._probe(found))
                probes.add(probe)
                probe.add_done_callback(probes.discard)
                pause = LASTING_SECONDS if _is_lasting(self._problem) else PROBE_SECONDS
                await asyncio.wait([found], timeout=_jittered(pause))
                if found.done():
                    break
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)
        release = found.result()
        if release != self.release:
            self.release = release
            log_release(release)
            self._notify()
        return release

    async def _probe(self, found: asyncio.Future[Release]) -> None:
        try:
            release = await self._http.probe(PROBE_TIMEOUT)
            if not found.done():
                found.set_result(release)
        except UpstreamError as exc:
            self._mark_lost(exc)
        except Exception:
            self._mark_broken()

    def _mark_broken(self) -> None:
        """An unexpected error of ours, called while it is handled."""
        logger.exception("opencode.feed.internal_error")
        self._mark_lost(UpstreamUnreachable("OpenCode's events cannot be read.", retry_after=5))

    def _mark_connected(self) -> None:
        """OpenCode sends the first event once the subscription is active."""
        if self._problem is not None:
            logger.info("opencode.feed.connected")
        self._problem, self._connected = None, True
        if self._connections:
            metrics.FEED_RECONNECTS.inc()
        self._connections += 1
        self._http.retry_pending()
        self._notify()
        self._report_gap()

    def _mark_lost(self, exc: UpstreamError) -> None:
        was_connected = self._connected
        if was_connected or self._problem is None:
            logger.warning("opencode.feed.lost", type=exc.type, reason=exc.message)
        self._problem, self._connected = exc, False
        self._notify()
        if was_connected:
            self._report_gap()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _report_gap(self) -> None:
        for subscription in set(self._routes.values()):
            metrics.FEED_GAPS.inc()
            subscription.add_gap()

    def _route(self, line: bytes, wire: EventWire) -> None:
        try:
            event = wire.payload(orjson.loads(line))
            session = wire.session_of(event)
            if session is None:
                if event["type"] == "server.instance.disposed":
                    self._disposals[event["properties"]["directory"]] += 1
                return
            subscription = self._routes.get(session)
            if subscription is None:
                if event["type"] != "session.created":
                    return
                parent = wire.parent_of(event)
                subscription = self._routes.get(parent) if parent else None
                if subscription is None:
                    return
                subscription.include(session)
            number = wire.number_of(event)
            if number is not None and subscription.misses_some(session, number):
                metrics.FEED_GAPS.inc()
                subscription.add_gap()
            events = wire.translate(event, subscription.calls)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            # OpenCode has changed its format: the log shows it, and the tasks go on.
            logger.error("opencode.feed.unreadable", error=type(exc).__name__)
            return
        for told in events:
            if isinstance(told, ToolSnapshot) and told.child is not None:
                subscription.include(told.child.session)
        if events and isinstance(events[0], Gap):
            subscription.add_gap()
        elif events:
            subscription.put(events)


def _is_lasting(problem: UpstreamError | None) -> bool:
    """Whether waiting does not help: somebody has to change something."""
    if isinstance(problem, UpstreamHttpError):
        return bool(problem.facts["upstream_status"] < 500)
    return isinstance(problem, UpstreamPayloadError)


def _jittered(seconds: float) -> float:
    """Varied at random, so that many services do not reconnect at the same moment."""
    return seconds * random.uniform(0.7, 1.3)


class _LineReader:
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
