"""What the catalogs of both generations of OpenCode have in common."""

from __future__ import annotations

from typing import Any

from ..domain import events as ev
from ..domain.values import Data, Part, Text
from ..errors import SessionNotFound, UpstreamBusy, UpstreamHttpError

CREATION_SECONDS = 60.0  # seconds for a worktree or workspace; OpenCode itself gives up after a few


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


def origin(metadata: Any) -> dict[str, str]:
    """What this service, or another, has noted of a session that it made."""
    noted = metadata.get("a2a") if isinstance(metadata, dict) else None
    ours = noted if isinstance(noted, dict) else {}
    names = {"context_id": "contextId", "workspace_root": "root"}
    found = {name: ours.get(theirs) for name, theirs in names.items()}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def without_none(body: dict[str, Any]) -> dict[str, Any]:
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
