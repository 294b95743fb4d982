"""Several OpenCodes behind one service, as one agent.

One OpenCode is one process, so it uses little more than one core however many prompts it gets. The
OpenCodes of a fleet share the folder in which OpenCode keeps sessions: each of them can read and
continue every session. A prompt that runs, its events and its open requests are in the memory of
one process. So a session stays with one OpenCode for as long as this service runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Unpack

from ..domain.catalog import Catalog, Location
from ..domain.ports import AgentSession, ToolHost
from ..domain.release import Release
from ..domain.values import PermissionRule, SessionRef
from .agent import OpenCode
from .driver import Defaults
from .http import Endpoint, Options, Requests

STATUSES = (("session", "status"), ("api", "session", "active"))  # of all sessions at work
REMEMBERED = 100_000  # sessions whose OpenCode is known; one that was forgotten gets the idlest


class Fleet:
    """Implements `domain.ports.Agent`; at least one OpenCode."""

    def __init__(self, members: Sequence[OpenCode]) -> None:
        self._members = members
        self._given = dict.fromkeys(members, 0)  # how many sessions each has got
        self._member_of: dict[str, OpenCode] = {}  # by session, the longest unused first
        self.http = FleetHttp(self)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoints: Sequence[Endpoint],
        defaults: Defaults,
        *,
        timeout: float,
    ) -> AsyncIterator[Fleet]:
        """`timeout` bounds each request."""
        async with AsyncExitStack() as stack:
            yield cls(
                [
                    await stack.enter_async_context(
                        OpenCode.connect(endpoint, defaults, timeout=timeout)
                    )
                    for endpoint in endpoints
                ]
            )

    @property
    def members(self) -> Sequence[OpenCode]:
        return self._members

    @property
    def connected(self) -> bool:
        """Whether new sessions can be worked on."""
        return any(member.connected for member in self._members)

    @property
    def problem(self) -> str | None:
        return self.idlest().problem

    @property
    def release(self) -> Release | None:
        """All of them are started from one executable."""
        return next((each.release for each in self._members if each.release is not None), None)

    @property
    def catalog(self) -> Catalog:
        return self.idlest().driver.catalog(self.http)

    def of_session(self, session: str) -> OpenCode:
        """The one that works on this session: always the same."""
        member = self._member_of.pop(session, None) or self._next()
        self._keep(session, member)
        return member

    def idlest(self) -> OpenCode:
        """Of those that are connected, the one with the fewest sessions at work."""
        connected = [member for member in self._members if member.connected]
        # A session that was just given away is not at work yet.
        return min(connected or self._members, key=lambda m: (m.sessions_at_work, self._given[m]))

    async def available(self) -> None:
        await self.idlest().available()

    def new_message_id(self) -> str:
        return self._members[0].new_message_id()

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        member = self._next()
        created = await member.create(title, context_id, location=location, rules=rules)
        self._keep(created.id, member)
        return created

    async def delete(self, ref: SessionRef) -> None:
        await self.of_session(ref.id).delete(ref)
        del self._member_of[ref.id]

    def tools(self, url: str, headers: Mapping[str, str]) -> FleetTools:
        """What offers the tools of this MCP server to sessions."""
        hosts = {member: member.tools(url, headers) for member in self._members}
        return FleetTools(lambda session: hosts[self.of_session(session)])

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> AgentSession:
        return self.of_session(ref.id).session(ref, rules)

    def _next(self) -> OpenCode:
        member = self.idlest()
        self._given[member] += 1
        return member

    def _keep(self, session: str, member: OpenCode) -> None:
        self._member_of[session] = member
        if len(self._member_of) > REMEMBERED:
            del self._member_of[next(iter(self._member_of))]


class FleetTools:
    """Implements `domain.ports.ToolHost`: each OpenCode has the tools registered for itself."""

    def __init__(self, host_of: Callable[[str], ToolHost]) -> None:
        self._host_of = host_of

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        return await self._host_of(session.id).offer(session)


class FleetHttp(Requests):
    """Sends a request about a session to the OpenCode that has it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def exchange(
        self, method: str, *segments: str, **options: Unpack[Options]
    ) -> tuple[Any, Mapping[str, str]]:
        if segments in STATUSES:
            return await self._statuses(segments, **options), {}
        return await self._member(segments).http.exchange(method, *segments, **options)

    def _member(self, segments: tuple[str, ...]) -> OpenCode:
        match segments:
            case ("session", session, *_) | ("api", "session", session, *_):
                return self._fleet.of_session(session)
            case ("api", "experimental", "session", session, *_):
                return self._fleet.of_session(session)
            case _:
                return self._fleet.idlest()

    async def _statuses(self, segments: tuple[str, ...], **options: Unpack[Options]) -> Any:
        """What each OpenCode is doing; none of them knows of the others."""
        answers = await asyncio.gather(
            *(
                member.http.call("GET", *segments, **options)
                for member in self._fleet.members
                if member.connected
            )
        )
        if "api" not in segments:
            return {session: status for each in answers for session, status in each.items()}
        active = [each["data"].items() for each in answers]
        return {"data": {session: status for each in active for session, status in each}}
