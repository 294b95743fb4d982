"""The agent's calls to other agents: whose task each belongs to.

A call arrives over MCP. OpenCode 2 tells with it which session calls, OpenCode 1.x does not. Before
that, OpenCode has asked for permission, and that request names the session. `PeerCalls` notes the
call, allows it, and takes the next request with this tool and these arguments for it. Of calls with
the same arguments it allows one at a time, and the next when the first has arrived, or when
OpenCode has said that it is over, and a while later. So no call is taken for one of another task.
What nobody has announced, such as a call from a terminal in the same directory, is refused.

One gap remains with OpenCode 1.x. A call that somebody allows in OpenCode's own interface, before
this service does, arrives unannounced: it is refused, unless a task waits for the very same call
just then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from ..domain.events import ToolCall
from ..domain.peer_calls import SERVER, Report, ToolResult, call_key
from ..domain.ports import PeerTools, ToolHost
from ..errors import ServiceError, UpstreamHttpError
from ..locks import KeyedLock

logger = structlog.get_logger()

LATE_SECONDS = 15.0  # in which a call can still arrive that nobody waits for any more
PROGRESS_SECONDS = 10.0  # between two signs of life: OpenCode gives up on a silent call
GOODBYE_SECONDS = 5.0  # for peers to be told, when the service stops
NOT_EXPECTED = ToolResult(
    "This call was not announced by a task of opencode-a2a. Try it once more; sub-agents and "
    "terminal sessions cannot use it.",
    failed=True,
)
STOPPED = ToolResult("The call was stopped.", failed=True)

Allow = Callable[[], Awaitable[bool]]
Start = Callable[[], asyncio.Task[ToolResult]]


def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a call, once: cancelled again, it would not tell its peer."""
    if not task.cancelling():
        task.cancel()


class OfferedTools(NamedTuple):
    host: ToolHost
    tools: PeerTools


@dataclass(eq=False, slots=True)
class AnnouncedCall:
    session: str
    start: Start
    given_up: bool = False  # nobody waits for it: if it arrives, it is not made
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)  # no other has to wait for it
    _allowed: asyncio.Future[bool] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def in_doubt(self) -> bool:
        """Whether OpenCode was told, and may not have heard it."""
        return self._allowed.done() and not self.over.is_set()

    async def allowed(self) -> bool:
        """Whether OpenCode still asked for it, once it was told; ServiceError if that failed."""
        return await asyncio.shield(self._allowed)

    async def allow(self, allow: Allow) -> bool:
        """Whether OpenCode may make the call now, as far as is known."""
        try:
            wanted = await allow()
        except ServiceError as exc:
            if not self._allowed.done():
                self._allowed.set_exception(exc)
            return not isinstance(exc, UpstreamHttpError)  # of a lost answer nothing is known
        if not self._allowed.done():
            self._allowed.set_result(wanted)
        return wanted

    def give_up(self) -> None:
        self.given_up = True
        self.over.set()
        if not self._allowed.done():
            self._allowed.set_result(False)


class PeerCalls:
    def __init__(self, *, max_depth: int) -> None:
        self.max_depth = max_depth
        # A moment after the start; None if there are no tools after all.
        self.tools: asyncio.Future[OfferedTools | None]
        self.tools = asyncio.get_running_loop().create_future()
        self._expected: dict[str, AnnouncedCall] = {}
        self._allowing: KeyedLock[str] = KeyedLock()
        self._expecting: set[asyncio.Task[None]] = set()
        self._work: set[asyncio.Task[ToolResult]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make the calls that come in; at the end, tell the peers that nobody waits any more."""
        try:
            yield
        finally:
            for expecting in self._expecting:
                expecting.cancel()
            for work in self._work:
                stop(work)
            if left := self._work | self._expecting:
                await asyncio.wait(left, timeout=GOODBYE_SECONDS)

    def announce(
        self, call: ToolCall, *, session: str, allow: Allow, start: Start
    ) -> AnnouncedCall:
        """Allow a call when no other like it is on its way; `start` it when it arrives.

        Whoever announces it gives it up when OpenCode does not wait for it any more.
        """
        announced = AnnouncedCall(session, start)
        key = call_key(call.tool, call.input or {})
        expecting = asyncio.create_task(self._expect(key, announced, allow))
        self._expecting.add(expecting)
        expecting.add_done_callback(self._expecting.discard)
        return announced

    async def _expect(self, key: str, call: AnnouncedCall, allow: Allow) -> None:
        async with self._allowing(key):
            if call.given_up:
                return  # nothing was allowed yet
            self._expected[key] = call
            try:
                if not await call.allow(allow):
                    return
                await call.over.wait()
                # It may be on its way all the same. Then it is nobody else's.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LATE_SECONDS):
                        await call.arrived.wait()
            finally:
                call.over.set()
                self._expected.pop(key, None)

    async def serve(
        self, tool: str, arguments: Mapping[str, Any], report: Report, session: str | None = None
    ) -> ToolResult:
        """Make a call for the task that it belongs to. `report` says that it still goes on."""
        key = call_key(f"{SERVER}_{tool}", arguments)
        expected = self._expected.get(key)
        if expected is None or session not in (None, expected.session):
            logger.warning("peer.call.refused", tool=tool, reason="no task has announced it")
            return NOT_EXPECTED
        del self._expected[key]
        expected.arrived.set()
        expected.over.set()
        if expected.given_up:
            return STOPPED
        work = expected.start()
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        try:
            while not (await asyncio.wait({work}, timeout=PROGRESS_SECONDS))[0]:
                await report(f"{SERVER}_{tool} goes on.")
        finally:
            stop(work)  # OpenCode does not wait for it any more
        return STOPPED if work.cancelled() else work.result()
