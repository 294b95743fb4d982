"""The values that travel through the service: frozen, and valid once built."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. Everything a caller creates belongs to its principal."""

    principal: str
    scopes: frozenset[str] = frozenset()


MAX_PRINCIPAL = 255  # characters; what the database can keep


def named_principal(prefix: str, name: str) -> str | None:
    """What somebody is called here whom another program names; None where that is no name."""
    principal = prefix + name
    fits = name.strip() and name.isprintable() and len(principal) <= MAX_PRINCIPAL
    return principal if fits else None


@dataclass(frozen=True, slots=True)
class CallPath:
    """On whose behalf a message was sent: how many agents have called each other before."""

    depth: int = 0  # 0: no agent has, the caller itself sent it
    trace: str = ""  # 32 hexadecimal digits, the same for all calls; "" before it was stored
    span: str = ""  # 16 hexadecimal digits: of the request, or of its client where we record none
    sampled: bool = False  # somebody records this trace


def deepest(paths: Iterable[CallPath]) -> CallPath:
    """The first of those with the greatest depth."""
    return max(paths, key=lambda path: path.depth, default=CallPath())


class TaskState(StrEnum):
    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED})


class Role(StrEnum):
    USER = "user"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """Any JSON value. A 0.3 client can get only an object as it is."""

    value: Any
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FileBytes:
    """A file carried inline. `content` stays base64, the form it has on both sides of us."""

    content: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FileUrl:
    url: str
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, Any] | None = None


Part: TypeAlias = Text | Data | FileBytes | FileUrl


def file_at(url: str, *, media_type: str | None, filename: str | None) -> FileBytes | FileUrl:
    """The file at a URL. A `data:` URL holds the file itself."""
    if not url.startswith("data:"):
        return FileUrl(url, media_type=media_type, filename=filename)
    head, _, content = url.partition(",")
    if not head.endswith(";base64"):
        content = base64.b64encode(unquote_to_bytes(content)).decode()
    return FileBytes(content, media_type=media_type, filename=filename)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as its author sent it."""

    message_id: str
    role: Role
    parts: tuple[Part, ...]
    metadata: Mapping[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file as the agent gets it: its bytes and its type. A path or URL would not be safe."""

    content: str
    media_type: str
    filename: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRef:
    # Clients write it as OpenCode does.
    provider: str = field(metadata={"serialization_alias": "providerID"})
    model: str = field(metadata={"serialization_alias": "modelID"})


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What the metadata of a request asks for, not checked yet."""

    session: str | None = None
    model: ModelRef | None = None
    agent: str | None = None
    variant: str | None = None
    directory: str | None = None
    workspace: str | None = None
    isolation: Literal["worktree", "none"] | None = None
    node: str | None = None  # the name or a label of a node


@dataclass(frozen=True, slots=True)
class Isolation:
    """A context that begins gets a git worktree and a branch of its own."""

    directory: str  # where it would work otherwise: its repository and commit are the base
    model: ModelRef | None = None  # what its session goes on with, if the first prompt has another


@dataclass(frozen=True, slots=True)
class Selection:
    """The model, agent and variant for one prompt, checked; None means the default.

    `isolation` comes with the first prompt of a context only. `node` is the name or label that the
    caller has given of the node that does it. `directory` is where a session for it works that is
    not in the workspace root, and `session` the one that the caller has named.
    """

    model: ModelRef | None = None
    agent: str | None = None
    variant: str | None = None
    isolation: Isolation | None = None
    node: str | None = None
    directory: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """The model, agent and variant that have answered a prompt."""

    model: ModelRef
    agent: str | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text and attachments for the agent, in the caller's order."""

    message_id: str
    parts: tuple[str | Attachment, ...]
    selection: Selection = Selection()


@dataclass(frozen=True, slots=True)
class OutputModes:
    """The media types a caller accepts; none named means all."""

    accepted: tuple[str, ...] = ()

    def allows(self, media_type: str) -> bool:
        if not self.accepted:
            return True
        kind = media_type.partition("/")[0]
        return any(mode in (media_type, f"{kind}/*", "*/*", "*") for mode in self.accepted)


COST_DIGITS = 9  # of the fraction of a dollar: less than a token of the cheapest model costs


@dataclass(frozen=True, slots=True)
class Usage:
    """What the model providers have reported, in tokens and dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0
    unreported_steps: int = 0  # stopped early: their provider has not reported what they used
    # By name, and in none of the above. A dictionary has no hash; equal values still have one.
    peers: Mapping[str, Usage] = field(default_factory=dict, hash=False)

    @property
    def total_tokens(self) -> int:
        return (
            self.input_tokens
            + self.output_tokens
            + self.reasoning_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            # A bare sum of floats gathers noise (0.1 + 0.2); in billionths it is exact.
            cost=round(self.cost + other.cost, COST_DIGITS),
            unreported_steps=self.unreported_steps + other.unreported_steps,
            peers={
                name: self.peers.get(name, Usage()) + other.peers.get(name, Usage())
                for name in (*self.peers, *other.peers)
            },
        )


class Failure(StrEnum):
    """Why a task failed, as a stable word for machines."""

    UPSTREAM_UNREACHABLE = "UPSTREAM_UNREACHABLE"
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"
    UPSTREAM_HTTP_ERROR = "UPSTREAM_HTTP_ERROR"
    UPSTREAM_PAYLOAD_ERROR = "UPSTREAM_PAYLOAD_ERROR"
    UPSTREAM_INTERRUPTED = "UPSTREAM_INTERRUPTED"
    PROVIDER_AUTH = "PROVIDER_AUTH"
    PROVIDER_QUOTA = "PROVIDER_QUOTA"
    PROVIDER_ERROR = "PROVIDER_ERROR"
    CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INPUT_UNAVAILABLE = "INPUT_UNAVAILABLE"
    OTHER_WORKSPACE = "OTHER_WORKSPACE"
    DIRECTORY_GONE = "DIRECTORY_GONE"
    ISOLATION_FAILED = "ISOLATION_FAILED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something failed: a stable word for machines, a sentence for people."""

    type: Failure
    message: str
    upstream_status: int | None = None
    resumable: bool = False  # the agent has all that it needs to continue, if it is asked to
    renews_at: int | None = None  # when a budget that was used up renews


@dataclass(frozen=True, slots=True)
class SubAgent:
    """Who works for the agent, in a session of its own."""

    session: str
    agent: str | None = None
    call_id: str | None = None  # the tool call of its parent that has started it
    background: bool = False  # the call does not wait: its end begins another run of its parent


@dataclass(frozen=True, slots=True)
class PermissionAsk:
    """The agent may not do something unless somebody allows it."""

    request_id: str
    session: str
    permission: str
    patterns: tuple[str, ...] = ()
    command: str | None = None
    filepath: str | None = None
    diff: str | None = None
    title: str | None = None
    always: tuple[str, ...] = ()  # the patterns that "always" would allow from then on
    call_id: str | None = None  # the tool call that waits
    arguments: Mapping[str, Any] | None = None  # of the call, where nothing else tells
    subagent: SubAgent | None = None  # who asks, if not the agent itself
    peer: str | None = None  # another agent that it has called asks for this


@dataclass(frozen=True, slots=True)
class Choice:
    label: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    header: str = ""
    question: str = ""
    options: tuple[Choice, ...] = ()
    multiple: bool = False
    custom: bool = True


@dataclass(frozen=True, slots=True)
class QuestionAsk:
    """The agent cannot go on unless somebody answers."""

    request_id: str
    session: str
    questions: tuple[Question, ...]
    call_id: str | None = None
    subagent: SubAgent | None = None  # who asks, if not the agent itself
    peer: str | None = None  # another agent that it has called asks this


Interrupt: TypeAlias = PermissionAsk | QuestionAsk


def in_brief(interrupt: Interrupt) -> Interrupt:
    """What tells a request from others, without what may be long."""
    if isinstance(interrupt, QuestionAsk):
        return interrupt
    return replace(interrupt, diff=None, arguments=None)


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """A refusal that says why lets the agent look for another way; a bare one stops the run."""

    reply: Literal["once", "always", "reject"]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionDecision:
    """One answer per question, each of one or more words; none at all dismisses them."""

    answers: tuple[tuple[str, ...], ...] | None


Decision: TypeAlias = PermissionDecision | QuestionDecision


PermissionAction: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """What the agent may do: the last rule that matches counts."""

    permission: str
    pattern: str
    action: PermissionAction


@dataclass(frozen=True, slots=True)
class FileChange:
    file: str
    additions: int
    deletions: int
    status: str
    patch: str = ""


# An entry of the agent's own list, as OpenCode sends it and as callers get it. (No docstring: it
# would be published with the schema).
@dataclass(frozen=True, slots=True)
class TodoItem:
    content: str
    status: str
    priority: str


@dataclass(frozen=True, slots=True)
class WorktreeRef:
    """The worktree of an isolated context."""

    branch: str
    directory: str
    base: str  # the commit that the branch began at
    base_branch: str | None = None  # what was checked out then; None for a detached HEAD


@dataclass(frozen=True, slots=True)
class SessionRef:
    """The OpenCode conversation that serves a context."""

    id: str
    title: str = ""
    directory: str = ""
    model: ModelRef | None = None  # what it goes on with after a request that chose another
    worktree: WorktreeRef | None = None  # of its context, if that is isolated


@dataclass(frozen=True, slots=True)
class TaskQuery:
    """Which tasks to list, and from where."""

    owner: str | None  # None: everybody's
    context_id: str | None = None
    state: TaskState | None = None
    since: int | None = None
    limit: int = 50
    after: tuple[int, str] | None = None


def timestamp(ms: int) -> str:
    """A moment as both protocol lines write it."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
