"""What is different between the generations of OpenCode's API, and what their drivers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..domain import events as ev
from ..domain.catalog import Catalog, Location
from ..domain.ports import AgentSession, SessionGone
from ..domain.values import Data, Part, PermissionRule, SessionRef, Text
from ..errors import SessionNotFound, UpstreamBusy, UpstreamHttpError
from .http import NotFound

CALL_MS = 300_000  # until OpenCode gives up on a call of a tool that shows no sign of life
CREATION_SECONDS = 60.0  # for a worktree or workspace; OpenCode itself gives up after a few


@dataclass(frozen=True, slots=True)
class Defaults:
    """What goes with every prompt of this deployment."""

    directory: str
    agent: str | None = None
    system: str | None = None
    variant: str | None = None
    rules: Callable[[], Sequence[PermissionRule]] = tuple  # for new sessions, as they are now
    run_seconds: float = 1800.0  # for requests that OpenCode answers only when a run is over


class Api(Catalog, Protocol):
    """How to talk to a generation of OpenCode."""

    tells_of_disposals: bool  # and of the MCP servers that are gone with them

    async def connected(self) -> None:
        """Called after each connection."""
        ...

    async def create(
        self, title: str, context_id: str, *, location: Location, rules: Sequence[PermissionRule]
    ) -> SessionRef: ...

    def open(self, ref: SessionRef, rules: Sequence[PermissionRule]) -> AgentSession:
        """`rules` are for where OpenCode has lost those that the session was made with."""
        ...

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


@contextmanager
def gone_if_unknown() -> Iterator[None]:
    try:
        yield
    except NotFound as exc:
        raise SessionGone from exc


def session_error(
    exc: UpstreamHttpError, session: str
) -> SessionNotFound | UpstreamBusy | UpstreamHttpError:
    """What an error means that OpenCode has answered to a request about a session."""
    match exc.facts.get("upstream_status"):
        case 404:
            return SessionNotFound(session)
        case 409:
            return UpstreamBusy("The session is at work. Try again when it is idle.", retry_after=5)
        case _:
            return exc


def metadata(context_id: str, root: str) -> dict[str, Any]:
    """What a session is noted with: it shows services for other roots that it is not theirs."""
    return {"a2a": {"contextId": context_id, "root": root}}


def origin(metadata: Any) -> dict[str, str]:
    """What this service, or another, has noted of a session that it made."""
    noted = metadata.get("a2a") if isinstance(metadata, dict) else None
    ours = noted if isinstance(noted, dict) else {}
    names = {"context_id": "contextId", "workspace_root": "root"}
    found = {name: ours.get(theirs) for name, theirs in names.items()}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def block_part(event: ev.AgentEvent) -> Part | None:
    """A block of a message as A2A has it."""
    match event:
        case ev.TextSnapshot(text=text) if text:
            return Text(text, metadata=_block(event.kind.value))
        case ev.ToolSnapshot():
            return Data(event.call.told(), metadata=_block("tool_call"))
        case ev.FileSnapshot():
            return event.part
        case _:
            return None


def _block(kind: str) -> dict[str, Any]:
    return {"shared": {"stream": {"block_type": kind}}}
