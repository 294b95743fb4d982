"""Registers this service's tools in OpenCode, and gives sessions their rules for them.

OpenCode keeps an MCP server for each directory, in memory: it is gone when OpenCode ends, and when
the instance for the directory is disposed. `offer` comes before every prompt, and registers the
server where it is not there. A task goes on without tools if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from pydantic import Field

from ...domain.peer_calls import ASK, ASK_ALWAYS, CALL, DENY, SERVER
from ...domain.permissions import action_of
from ...domain.values import PermissionAction, PermissionRule, SessionRef
from ...errors import UpstreamError
from ...locks import KeyedLock
from ..feed import Feed
from ..http import Http
from ..recent import Recent
from . import wire

logger = structlog.get_logger()

CALL_MS = 300_000  # until OpenCode gives up on a call that shows no sign of life


class _Rule(wire.Wire):
    permission: str
    pattern: str
    action: PermissionAction

    @property
    def rule(self) -> PermissionRule:
        return PermissionRule(self.permission, self.pattern, self.action)


class _HasRules(wire.Wire):
    """A session or an agent."""

    name: str = ""
    permission: list[_Rule] = Field(default=[])

    @property
    def rules(self) -> list[PermissionRule]:
        return [each.rule for each in self.permission]


class _McpStatus(wire.Wire):
    status: str


@dataclass(frozen=True, slots=True)
class _Registered:
    """Where the tools are registered: in which instance for a directory, with which agents."""

    instance: object
    agents: Mapping[str, Sequence[PermissionRule]]


class OpenCodeTools:
    """Implements `domain.ports.ToolHost`."""

    def __init__(
        self,
        http: Http,
        feed: Feed,
        *,
        url: str,
        headers: Mapping[str, str],
        rules: Callable[[], Sequence[PermissionRule]],
        directory: str,
    ) -> None:
        """`rules` tells those of the deployment, `directory` is for sessions that tell none."""
        self._http = http
        self._feed = feed
        self._config = {
            "type": "remote",
            "url": url,
            "headers": dict(headers),
            "oauth": False,
            "timeout": CALL_MS,
        }
        self._rules = rules
        self._directory = directory
        self._registering: KeyedLock[str] = KeyedLock()
        self._registered = Recent[_Registered]()

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        directory = session.directory or self._directory
        try:
            async with self._registering(directory):
                await self._register(directory)
            own = await self._restrict(session.id)
        except UpstreamError as exc:
            logger.warning("tools.not_offered", directory=directory, problem=exc.type)
            return lambda _: ASK_ALWAYS
        registered = self._registered.get(directory)
        agents = registered.agents if registered is not None else {}
        return lambda agent: [*agents.get(agent or "", ASK_ALWAYS), *own, *self._rules()]

    async def _register(self, directory: str) -> None:
        instance, known = self._feed.instance(directory), self._registered.get(directory)
        if known is not None and instance == known.instance:
            return
        query = {"directory": directory}
        # A connection that was lost does not mean that OpenCode was: to register again would break
        # the calls that are going on.
        status = _status(await self._http.call("GET", "mcp", query=query))
        if known is None or status != "connected":
            if known is None and status is not None:
                # Of an earlier process of this service, or somebody's own.
                logger.info("tools.replaced", directory=directory, server=SERVER)
            body = {"name": SERVER, "config": self._config}
            found = await self._http.call("POST", "mcp", query=query, body=body)
            if (status := _status(found)) != "connected":
                logger.warning("tools.not_connected", directory=directory, status=status)
                return
            logger.info("tools.registered", directory=directory)
        answer = await self._http.call("GET", "agent", query=query)
        agents = {agent.name: agent.rules for agent in wire.read(list[_HasRules], answer)}
        self._registered.put(directory, _Registered(instance, agents))

    async def _restrict(self, session: str) -> list[PermissionRule]:
        """Have OpenCode ask before the calls of a session; the other rules that the session has.

        Where somebody has denied the tools to the session, they stay denied.
        """
        found = wire.read(_HasRules, await self._http.call("GET", "session", session)).rules
        action = action_of(found, CALL)
        if action != "deny" and not (action == "ask" and DENY in found):
            body = {"permission": [asdict(DENY), asdict(ASK)]}
            await self._http.call("PATCH", "session", session, body=body)
        return [rule for rule in found if rule not in (DENY, ASK)]


def _status(servers: Any) -> str | None:
    found = wire.read(dict[str, _McpStatus], servers).get(SERVER)
    return found.status if found is not None else None
