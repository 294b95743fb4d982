"""What is different between the generations of OpenCode's API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..domain import events as ev
from ..domain.catalog import Catalog, Location
from ..domain.ports import AgentSession, SessionGone
from ..domain.values import PermissionRule, SessionRef
from .http import NotFound, Requests

ABORT_WAIT_SECONDS = 1.0  # that an abort waits for events
CALL_MS = 300_000  # until OpenCode gives up on a call of a tool that shows no sign of life


@dataclass(frozen=True, slots=True)
class Defaults:
    """What goes with every prompt of this deployment."""

    directory: str
    agent: str | None = None
    system: str | None = None
    variant: str | None = None
    rules: Callable[[], Sequence[PermissionRule]] = tuple  # for new sessions, as they are now
    run_seconds: float = 1800.0  # for requests that OpenCode answers only when a run is over


class Driver(Protocol):
    """How to talk to a generation of OpenCode."""

    tells_of_disposals: bool  # and of the MCP servers that are gone with them

    async def connected(self) -> None:
        """Called after each connection."""
        ...

    async def create(
        self, title: str, context_id: str, *, location: Location, rules: Sequence[PermissionRule]
    ) -> SessionRef: ...

    async def delete(self, ref: SessionRef) -> None: ...

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule]) -> AgentSession:
        """`rules` are for where OpenCode has lost those that the session was made with."""
        ...

    def catalog(self, requests: Requests) -> Catalog: ...

    # -- MCP servers and rules, for the tools of this service

    async def mcp_status(self, directory: str, server: str) -> str | None:
        """None where there is no such server."""
        ...

    async def add_mcp(
        self, directory: str, server: str, *, url: str, headers: Mapping[str, str]
    ) -> None: ...

    async def agent_rules(self, directory: str) -> Mapping[str, Sequence[PermissionRule]]:
        """By the name of the agent."""
        ...

    async def session_rules(self, session: str) -> Sequence[PermissionRule]: ...

    async def add_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """The last rule that matches counts."""
        ...


def subagents_in(events: Sequence[ev.AgentEvent]) -> list[str]:
    """Those that were started and, if one of an earlier turn works again, named by a tool call."""
    found = [event.session for event in events if isinstance(event, ev.ChildStarted)]
    calls = [event for event in events if isinstance(event, ev.ToolSnapshot)]
    return [*found, *(call.child.session for call in calls if call.child is not None)]


@contextmanager
def gone_if_unknown() -> Iterator[None]:
    try:
        yield
    except NotFound as exc:
        raise SessionGone from exc
