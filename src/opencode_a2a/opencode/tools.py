"""Registers this service's tools in OpenCode, and gives sessions their rules for them.

OpenCode keeps an MCP server for each directory, in memory: it is gone when OpenCode ends, and when
the instance for the directory is disposed. `offer` comes before every prompt, and registers the
server where it is not there. A task goes on without tools if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from ..domain.peer_calls import ASK, ASK_ALWAYS, CALL, DENY, SERVER
from ..domain.permissions import action_of
from ..domain.values import PermissionRule, SessionRef
from ..errors import SessionNotFound, UpstreamError
from ..locks import KeyedLock
from .api import Api, Defaults
from .feed import Feed
from .recent import Recent

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Registered:
    """Where the tools are registered: in which instance for a directory, with which agents."""

    instance: object
    agents: Mapping[str, Sequence[PermissionRule]]


class ConnectionToApi(Protocol):
    """One OpenCode."""

    feed: Feed

    @property
    def api(self) -> Api: ...


class OpenCodeTools:
    """Implements `domain.ports.ToolHost`."""

    def __init__(
        self,
        connection: ConnectionToApi,
        defaults: Defaults,
        *,
        url: str,
        headers: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._defaults = defaults
        self._url = url
        self._headers = headers
        self._registering: KeyedLock[str] = KeyedLock()
        self._registered = Recent[_Registered]()

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        directory = session.directory or self._defaults.directory
        try:
            async with self._registering(directory):
                await self._register(directory)
            own = await self._restrict(session.id)
        except (UpstreamError, SessionNotFound) as exc:
            logger.warning("tools.not_offered", directory=directory, problem=exc.type)
            return lambda _: ASK_ALWAYS
        registered = self._registered.get(directory)
        agents = registered.agents if registered is not None else {}
        return lambda agent: [*agents.get(agent or "", ASK_ALWAYS), *own, *self._defaults.rules()]

    async def _register(self, directory: str) -> None:
        instance, known = self._connection.feed.instance(directory), self._registered.get(directory)
        api = self._connection.api
        if api.tells_of_disposals and known is not None and instance == known.instance:
            return
        # A connection that was lost does not mean that OpenCode was: to register again would break
        # the calls that are going on.
        status = await api.mcp_status(directory, SERVER)
        if known is None or status != "connected":
            if known is None and status is not None:
                # Of an earlier process of this service, or somebody's own.
                logger.info("tools.replaced", directory=directory, server=SERVER)
            await api.add_mcp(directory, SERVER, url=self._url, headers=self._headers)
            if (status := await api.mcp_status(directory, SERVER)) != "connected":
                logger.warning("tools.not_connected", directory=directory, status=status)
                return
            logger.info("tools.registered", directory=directory)
        elif instance == known.instance:
            return
        agents = await api.agent_rules(directory)
        self._registered.put(directory, _Registered(instance, agents))

    async def _restrict(self, session: str) -> list[PermissionRule]:
        """Have OpenCode ask before the calls of a session; the other rules that the session has.

        Where somebody has denied the tools to the session, they stay denied.
        """
        api = self._connection.api
        found = await api.session_rules(session)
        action = action_of(found, CALL)
        if action != "deny" and not (action == "ask" and DENY in found):
            await api.restrict(session, [DENY, ASK])
        return [rule for rule in found if rule not in (DENY, ASK)]
