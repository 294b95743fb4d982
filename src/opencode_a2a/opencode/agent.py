"""OpenCode as an agent, whichever version is connected: implements the port `Agent`.

What depends on the version is in a driver for each generation of OpenCode's API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from ..domain.catalog import Catalog, Location
from ..domain.ports import AgentSession, ToolHost
from ..domain.release import Release
from ..domain.values import PermissionRule, SessionRef
from ..errors import UpstreamUnreachable
from .driver import Defaults, Driver
from .feed import SILENCE_SECONDS, Feed
from .http import Endpoint, Http
from .ids import new_id
from .tools import OpenCodeTools
from .v1.session import Driver as Driver1
from .v2.session import Driver as Driver2

FIRST_ANSWER_SECONDS = 1.0  # that a start waits


class OpenCode:
    def __init__(self, http: Http, feed: Feed, defaults: Defaults) -> None:
        self.http = http
        self._feed = feed
        self._defaults = defaults
        self._drivers: Mapping[int, Driver] = {
            1: Driver1(http, feed, defaults),
            2: Driver2(http, feed, defaults),
        }

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        endpoint: Endpoint,
        defaults: Defaults,
        timeout: float = 30.0,
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[OpenCode]:
        """`timeout` bounds each request, `silence` the time between two events."""
        async with (
            Http.open(endpoint, timeout) as http,
            Feed.open(http, silence) as feed,
        ):
            self = cls(http, feed, defaults)
            async with feed.after_each_connection(self._on_connection):
                await feed.first_answer(FIRST_ANSWER_SECONDS)  # what can be called depends on it
                yield self

    async def _on_connection(self) -> None:
        await self.driver.connected()

    @property
    def driver(self) -> Driver:
        """For the OpenCode that is connected, or was last."""
        if self.release is None:
            problem = self._feed.problem or UpstreamUnreachable(
                "OpenCode has not answered yet.", retry_after=1
            )
            raise problem.with_traceback(None)
        return self._drivers[self.release.generation]

    @property
    def connected(self) -> bool:
        return self._feed.connected

    @property
    def problem(self) -> str | None:
        """Why it is not connected, for people."""
        problem = self._feed.problem
        return problem.message if problem is not None and not self.connected else None

    @property
    def release(self) -> Release | None:
        """The version that is connected, or was last; None before the first answer."""
        return self._feed.release

    @property
    def sessions_at_work(self) -> int:
        """With their sub-agents."""
        return self._feed.subscribed

    @property
    def catalog(self) -> Catalog:
        return self.driver.catalog(self.http)

    async def available(self) -> None:
        await self._feed.ready()

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
        await self._feed.ready()
        return await self.driver.create(
            title,
            context_id,
            location=location or Location(self._defaults.directory),
            rules=(*self._defaults.rules(), *rules),
        )

    async def delete(self, ref: SessionRef) -> None:
        await self.driver.delete(ref)

    def tools(self, url: str, headers: Mapping[str, str]) -> ToolHost:
        """What offers the tools of this MCP server to sessions."""
        return OpenCodeTools(
            lambda: self.driver, self._feed, defaults=self._defaults, url=url, headers=headers
        )

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> AgentSession:
        return self.driver.session(ref, (*self._defaults.rules(), *rules))
