"""The agent's calls to other agents: whose task each belongs to.

A call arrives over MCP, which does not tell the session. Before that, OpenCode has asked for
permission, and that request names the session. `PeerCalls` notes the call, allows it, and takes the
next request with this tool and these arguments for it. Of calls that cannot be told apart it allows
one at a time, and the next when the first has arrived. So no call is taken for one of another task.
What nobody has announced, such as a call from a terminal in the same directory, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from ..domain.events import ToolCall
from ..domain.peer_calls import SERVER, ToolResult, call_key
from ..domain.ports import PeerTools, ToolHost
from ..locks import KeyedLock

logger = structlog.get_logger()

ARRIVAL_SECONDS = 300.0  # in which OpenCode makes a call that was allowed, or gives up
PROGRESS_SECONDS = 10.0  # between two signs of life: OpenCode gives up on a silent call
GOODBYE_SECONDS = 5.0  # for peers to be told, when the service stops
NOT_EXPECTED = ToolResult(
    "This tool works only in tasks that opencode-a2a has started, and not in their sub-agents.",
    failed=True,
)
STOPPED = ToolResult("The call was stopped.", failed=True)

Report = Callable[[str], Awaitable[None]]
Start = Callable[[], asyncio.Task[ToolResult]]


class OfferedTools(NamedTuple):
    host: ToolHost
    tools: PeerTools


@dataclass(frozen=True, slots=True)
class _Expected:
    start: Start
    arrived: asyncio.Future[None]


class PeerCalls:
    def __init__(self, *, max_depth: int) -> None:
        self.max_depth = max_depth
        # A moment after the start; None if there are no tools after all.
        self.tools: asyncio.Future[OfferedTools | None]
        self.tools = asyncio.get_running_loop().create_future()
        self._expected: dict[str, _Expected] = {}
        self._allowing: KeyedLock[str] = KeyedLock()
        self._work: set[asyncio.Task[ToolResult]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make the calls that come in; at the end, tell the peers that nobody waits any more."""
        try:
            yield
        finally:
            for work in self._work:
                work.cancel()
            if self._work:
                await asyncio.wait(self._work, timeout=GOODBYE_SECONDS)

    async def expect(
        self, call: ToolCall, *, allow: Callable[[], Awaitable[bool]], start: Start
    ) -> None:
        """Allow a call when no other like it is on its way; `start` it when it arrives.

        Canceled when OpenCode has given up on the call.
        """
        key = call_key(call.tool, call.input or {})
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with self._allowing(key):
            self._expected[key] = _Expected(start, arrived)
            try:
                if await allow():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ARRIVAL_SECONDS):
                            await arrived
            finally:
                self._expected.pop(key, None)

    async def serve(self, tool: str, arguments: Mapping[str, Any], report: Report) -> ToolResult:
        """Make a call for the task that it belongs to. `report` says that it still goes on."""
        expected = self._expected.pop(call_key(f"{SERVER}_{tool}", arguments), None)
        if expected is None:
            logger.warning("peer.call.refused", tool=tool, reason="no task has announced it")
            return NOT_EXPECTED
        expected.arrived.set_result(None)
        work = expected.start()
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        try:
            while not (await asyncio.wait({work}, timeout=PROGRESS_SECONDS))[0]:
                await report(f"{SERVER}_{tool} goes on.")
        finally:
            work.cancel()  # OpenCode does not wait for it any more
        return STOPPED if work.cancelled() else work.result()
