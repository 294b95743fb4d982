"""OpenCode as an agent, whichever version is connected: implements the port `Agent`.

One OpenCode is one process, so it uses little more than one core however many prompts it gets; a
deployment may have several. They share the folder in which OpenCode keeps sessions: each of them
can read and continue every session. A prompt that runs, its events and its open requests are in
the memory of one process. So a session stays with one OpenCode for as long as this service runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Unpack

from ..domain.catalog import Catalog, Location
from ..domain.ports import AgentSession, ToolHost
from ..domain.release import Release
from ..domain.values import PermissionRule, SessionRef
from ..errors import UpstreamError, UpstreamUnreachable
from .api import Api, Defaults
from .feed import SILENCE_SECONDS, Feed, beside
from .http import Endpoint, Http, Options, Requests
from .ids import new_id
from .recent import Recent
from .tools import OpenCodeTools
from .v1.catalog import Api1
from .v2.catalog import Api2

FIRST_ANSWER_SECONDS = 1.0  # that a start waits
STATUSES = (("session", "status"), ("api", "session", "active"))  # of all sessions at work
REMEMBERED = 100_000  # sessions whose OpenCode is known; one that was forgotten gets the idlest


class Connection:
    """One OpenCode: requests to it, what it tells, and how its version is talked to."""

    def __init__(self, http: Http, feed: Feed, defaults: Defaults) -> None:
        self.http = http
        self.feed = feed
        self.given = 0  # how many sessions it has got
        self._apis: Mapping[int, Api] = {
            1: Api1(http, feed, defaults),
            2: Api2(http, feed, defaults),
        }

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        endpoint: Endpoint,
        defaults: Defaults,
        *,
        timeout: float,
        silence: float,
    ) -> AsyncIterator[Connection]:
        async with (
            Http.open(endpoint, timeout) as http,
            Feed.open(http, silence) as feed,
        ):
            self = cls(http, feed, defaults)
            async with beside(self._prepare()):
                await feed.first_answer(FIRST_ANSWER_SECONDS)  # what can be called depends on it
                yield self

    async def _prepare(self) -> None:
        async for _ in self.feed.connections():
            with suppress(UpstreamError):  # the feed tells, and it is tried at the next connection
                await self.api.connected()

    @property
    def api(self) -> Api:
        """For the OpenCode that is connected, or was last."""
        if self.feed.release is None:
            problem = self.feed.problem or UpstreamUnreachable(
                "OpenCode has not answered yet.", retry_after=1
            )
            raise problem.with_traceback(None)
        return self._apis[self.feed.release.generation]


class OpenCode:
    def __init__(self, members: Sequence[Connection], defaults: Defaults) -> None:
        self.members = members
        self._defaults = defaults
        self._member_of = Recent[Connection](REMEMBERED)  # by session
        feed = members[0].feed
        self._catalogs: Mapping[int, Catalog] = {
            1: Api1(_Routed(self), feed, defaults),
            2: Api2(_Routed(self), feed, defaults),
        }

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoints: Sequence[Endpoint],
        defaults: Defaults,
        timeout: float = 30.0,
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[OpenCode]:
        """`timeout` bounds each request, `silence` the time between two events."""
        async with AsyncExitStack() as stack:
            opened = [
                Connection.open(endpoint, defaults, timeout=timeout, silence=silence)
                for endpoint in endpoints
            ]
            yield cls([await stack.enter_async_context(each) for each in opened], defaults)

    @property
    def connected(self) -> bool:
        """Whether new sessions can be worked on."""
        return any(member.feed.connected for member in self.members)

    @property
    def problem(self) -> str | None:
        """Why it is not connected, for people."""
        problem = self.idlest().feed.problem
        return problem.message if problem is not None and not self.connected else None

    @property
    def release(self) -> Release | None:
        """The version that is connected, or was last; None before the first answer."""
        return next((each.feed.release for each in self.members if each.feed.release), None)

    @property
    def catalog(self) -> Catalog:
        """What it asks about a session, it asks the OpenCode that has it."""
        if self.release is None:
            return self.idlest().api  # which says why there is none
        return self._catalogs[self.release.generation]

    def of_session(self, session: str) -> Connection:
        """The one that works on this session: always the same."""
        member = self._member_of.get(session) or self._next()
        self._member_of.put(session, member)
        return member

    def idlest(self) -> Connection:
        """Of those that are connected, the one with the fewest sessions at work."""
        connected = [member for member in self.members if member.feed.connected]
        # A session that was just given away is not at work yet.
        return min(connected or self.members, key=lambda m: (m.feed.subscribed, m.given))

    async def available(self) -> None:
        await self.idlest().feed.ready()

    def new_message_id(self) -> str:
        return new_id("msg")

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        member = self._next()
        await member.feed.ready()
        created = await member.api.create(
            title,
            context_id,
            location=location or Location(self._defaults.directory),
            rules=(*self._defaults.rules(), *rules),
        )
        self._member_of.put(created.id, member)
        return created

    async def delete(self, ref: SessionRef) -> None:
        await self.of_session(ref.id).api.delete(ref.id)
        self._member_of.forget(ref.id)

    def tools(self, url: str, headers: Mapping[str, str]) -> ToolHost:
        """What offers the tools of this MCP server to sessions; each OpenCode has its own."""
        hosts = {
            member: OpenCodeTools(member, self._defaults, url=url, headers=headers)
            for member in self.members
        }
        return _Tools(self, hosts)

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> AgentSession:
        return self.of_session(ref.id).api.open(ref, (*self._defaults.rules(), *rules))

    def _next(self) -> Connection:
        member = self.idlest()
        member.given += 1
        return member


class _Tools(ToolHost):
    def __init__(self, opencode: OpenCode, hosts: Mapping[Connection, ToolHost]) -> None:
        self._opencode = opencode
        self._hosts = hosts

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        return await self._hosts[self._opencode.of_session(session.id)].offer(session)


class _Routed(Requests):
    """Sends a request about a session to the OpenCode that has it."""

    def __init__(self, opencode: OpenCode) -> None:
        self._opencode = opencode

    async def exchange(
        self, method: str, *segments: str, **options: Unpack[Options]
    ) -> tuple[Any, Mapping[str, str]]:
        if segments in STATUSES:
            return await self._statuses(segments, **options), {}
        return await self._member(segments).http.exchange(method, *segments, **options)

    def _member(self, segments: tuple[str, ...]) -> Connection:
        match segments:
            case (
                ("session", session, *_)
                | ("api", "session", session, *_)
                | ("api", "experimental", "session", session, *_)
            ):
                return self._opencode.of_session(session)
            case _:
                return self._opencode.idlest()

    async def _statuses(self, segments: tuple[str, ...], **options: Unpack[Options]) -> Any:
        """What each OpenCode is doing; none of them knows of the others."""
        connected = [each for each in self._opencode.members if each.feed.connected]
        calls = (each.http.call("GET", *segments, **options) for each in connected)
        answers = await asyncio.gather(*calls)
        if "api" not in segments:
            return {session: status for each in answers for session, status in each.items()}
        active = [each["data"].items() for each in answers]
        return {"data": {session: status for each in active for session, status in each}}
