"""What an agent session reports while it works, in this service's own words.

Adapters translate upstream traffic into these; nothing here knows about HTTP,
JSON, OpenCode or A2A. Every event names the session it happened in, because a
turn follows the sub-agent sessions of its own session too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from .values import AnsweredBy, Interrupt, Part, Problem, SubAgent, TodoItem, Usage, timestamp


class Speaker(StrEnum):
    USER = "user"
    AGENT = "agent"
    HOUSEKEEPING = "housekeeping"  # compaction summaries: the agent's pen, not its answer


class BlockKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class ToolCall:
    call_id: str
    tool: str
    status: Literal["pending", "running", "completed", "error"]
    title: str | None = None
    subtitle: str | None = None
    input: dict[str, Any] | None = None
    output: str | None = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int | None = None

    @property
    def over(self) -> bool:
        return self.status in ("completed", "error")

    def begun_as(self, known: ToolCall | None) -> ToolCall:
        """This call with the start that was first reported.

        Some agents begin again with each report of a running call.
        """
        if known is None or known.started_at is None:
            return self
        return replace(self, started_at=known.started_at)

    def told(self) -> dict[str, Any]:
        """The call as clients get it, without what it does not have."""
        told: dict[str, Any] = {"call_id": self.call_id, "tool": self.tool, "status": self.status}
        for name in ("title", "subtitle", "input", "output", "error"):
            if (value := getattr(self, name)) is not None:
                told[name] = value
        for name in ("started_at", "ended_at"):
            if (moment := getattr(self, name)) is not None:
                told[name] = timestamp(moment)
        return told


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """A message exists, or has changed. The stored message is the truth about how a run ended."""

    session: str
    message_id: str
    speaker: Speaker
    created: int
    parent_id: str | None = None
    completed: bool = False
    finish: str | None = None
    problem: Problem | None = None
    aborted: bool = False
    answered_by: AnsweredBy | None = None


@dataclass(frozen=True, slots=True)
class TextSnapshot:
    session: str
    message_id: str
    part_id: str
    kind: BlockKind
    text: str
    ended: bool


@dataclass(frozen=True, slots=True)
class TextDelta:
    session: str
    message_id: str
    part_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolSnapshot:
    session: str
    message_id: str
    part_id: str
    call: ToolCall
    child: SubAgent | None = None
    stops: bool = False  # the run ends with this call: it was refused, or it is the answer
    refused: bool = False  # by a person, with or without a reason; not one that failed by itself


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """What is handed over whole: a file the agent was shown by a tool, or has made."""

    session: str
    message_id: str
    part_id: str
    part: Part


@dataclass(frozen=True, slots=True)
class StepStarted:
    session: str
    message_id: str
    part_id: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    session: str
    message_id: str
    part_id: str
    usage: Usage
    may_be_last: bool = False  # it has called no tools, so no other step need follow


@dataclass(frozen=True, slots=True)
class PeerUsage:
    """What a call to a peer has used, made by the agent in this session.

    This service reports it itself, once for each call. Several to one peer add up.
    """

    session: str
    peer: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class FilesChanged:
    session: str
    message_id: str


@dataclass(frozen=True, slots=True)
class PartRemoved:
    session: str
    message_id: str
    part_id: str


@dataclass(frozen=True, slots=True)
class ChildStarted:
    session: str
    parent: str
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class TitleChanged:
    session: str
    title: str


@dataclass(frozen=True, slots=True)
class InterruptAsked:
    session: str
    interrupt: Interrupt


@dataclass(frozen=True, slots=True)
class InterruptClosed:
    session: str
    request_id: str
    resolution: Literal["once", "always", "reject", "answered", "rejected", "elsewhere"]


@dataclass(frozen=True, slots=True)
class TodosChanged:
    session: str
    todos: tuple[TodoItem, ...]


@dataclass(frozen=True, slots=True)
class Compacting:
    session: str
    done: bool
    part_id: str | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    session: str


@dataclass(frozen=True, slots=True)
class Retrying:
    session: str
    attempt: int
    message: str
    next_at: int


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run has ended, where the agent says it once and for all."""

    problem: Problem | None = None
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """The session is at rest. Without `end` this may be early, and the run go on."""

    session: str
    end: RunEnd | None = None


@dataclass(frozen=True, slots=True)
class SessionErred:
    """Something went wrong. Not an end: OpenCode may well go on afterwards."""

    session: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Gap:
    """Events were lost. What is open cannot be continued from later deltas."""

    session: str


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything the session has stored was just replayed, and these requests are open."""

    session: str
    open_requests: frozenset[str] = frozenset()


AgentEvent: TypeAlias = (
    MessageSeen
    | TextSnapshot
    | TextDelta
    | ToolSnapshot
    | FileSnapshot
    | StepStarted
    | StepFinished
    | PeerUsage
    | FilesChanged
    | PartRemoved
    | ChildStarted
    | TitleChanged
    | InterruptAsked
    | InterruptClosed
    | TodosChanged
    | Compacting
    | Busy
    | Retrying
    | Idle
    | SessionErred
    | Gap
    | CaughtUp
)
