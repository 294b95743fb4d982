"""What the service needs from the outside, stated by the side that needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, Protocol, TypeAlias

from .catalog import Location
from .events import AgentEvent
from .limits import Spent
from .peer_calls import CallSite, ToolResult
from .permissions import AllowRule
from .task import Task, TaskHead
from .updates import LogEntry, Update
from .values import (
    Decision,
    FileChange,
    Interrupt,
    ModelRef,
    PermissionRule,
    Prompt,
    SessionRef,
    TaskQuery,
    TaskState,
)


class SessionGone(Exception):
    """The agent does not know this session any more: somebody deleted it."""


class AgentSession(Protocol):
    """One conversation with the agent, sub-agents included."""

    @property
    def ref(self) -> SessionRef: ...

    async def events(self) -> AbstractContextManager[AsyncIterator[Sequence[AgentEvent]]]:
        """Subscribe, until it is left; it is live already, so nothing sent later is missed.

        Yields what has arrived since the last look, in order. A `Gap` among the
        events says that some were lost: `read` brings the session up to date.
        """
        ...

    async def prompt(self, prompt: Prompt, *, replaces: bool = False) -> None:
        """Start the agent working; output arrives through `events`.

        `replaces`: the prompt is stored already, and the agent has not begun to answer it.
        `SessionGone` says that the prompt was not taken.
        """
        ...

    async def has(self, message_id: str) -> bool:
        """Whether a prompt of this id has arrived."""
        ...

    async def read(self, since: str) -> Sequence[AgentEvent]:
        """What is stored from message `since` on, as events, closed by `CaughtUp`.

        Or `SessionGone`, when nothing is stored and nothing more will happen.
        """
        ...

    async def abort(self, sub_agents: Collection[str]) -> None:
        """Stop the run and its sub-agents; what they wait for cannot be approved later."""
        ...

    async def settle(self, interrupt: Interrupt, decision: Decision) -> bool:
        """Tell the agent what was decided. False when it does not wait for that any more."""
        ...

    async def changes(self, message_id: str) -> tuple[FileChange, ...]:
        """The files changed in answer to a message."""
        ...


class Agent(Protocol):
    """The agent itself: where conversations come from."""

    async def available(self) -> None:
        """Return once the agent can be talked to, or raise what is wrong with it."""
        ...

    def new_message_id(self) -> str:
        """An id for a prompt: the agent knows it by this, so it is never carried out twice."""
        ...

    async def create(
        self,
        title: str,
        context_id: str,
        *,
        location: Location | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> SessionRef:
        """A new session. `rules` are for its caller alone, and come after those for everybody."""
        ...

    async def delete(self, ref: SessionRef) -> None:
        """Delete a session, with all that is in it."""
        ...

    def session(self, ref: SessionRef, rules: Sequence[PermissionRule] = ()) -> AgentSession:
        """`rules` are those of its caller, for where the agent has lost them.

        UpstreamUnreachable: no agent has answered yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task without its log: what a list shows."""

    head: TaskHead
    state: TaskState
    status_at: int
    message: str | None = None
    session: SessionRef | None = None


@dataclass(frozen=True, slots=True)
class EarlierTask:
    """A task that was in a context before another one."""

    id: str
    session: str | None
    elsewhere: bool  # it was done in another OpenCode


@dataclass(frozen=True, slots=True)
class TaskPage:
    rows: tuple[TaskRow, ...]
    total: int
    next: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class Key:
    """The name by which a repeated request is recognised, and a digest of its content."""

    name: str
    digest: str
    at: int


class KeyTaken(Exception):
    """Another request with the same key was first."""


class Cursor(Protocol):
    """A position in a task's log. A reader that is slow, or leaves, costs nobody anything."""

    @property
    def caught_up(self) -> bool:
        """Whether what was read last was the end of what is known."""
        ...

    def change(self) -> Awaitable[None] | None:
        """Done when something may have come; None when there may be something already.

        Nobody needs it, `read` waits as well. But a thousand who wait here are woken at less cost.
        """
        ...

    async def read(self) -> Sequence[LogEntry]:
        """The next entries, waiting for some; none when the log has ended. Safe to cancel."""
        ...


class TaskLog(Protocol):
    """Stores what happens to tasks. What it acknowledges is committed, and only that is shown."""

    async def create(
        self, head: TaskHead, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> Task:
        """Begin a task; the task as it was committed, or an error (or `KeyTaken`) and no task.

        After `OutcomeUnknown` there may be one: it is taken up again like one that nobody holds.
        """
        ...

    async def write(
        self, task_id: str, updates: Sequence[Update], keys: Sequence[Key] = ()
    ) -> None:
        """Write updates of a running task; returns once they are committed.

        After an error (or `KeyTaken`) they are not written. After `OutcomeUnknown` they may be:
        then the task is taken up again like one that nobody holds.
        """
        ...

    async def settled(self, task_id: str) -> None:
        """Wait until it is known what was stored of a task, or raise `OutcomeUnknown`."""
        ...

    async def known(self, owner: str, key: str) -> tuple[str, str] | None:
        """The task that a key stands for, and the digest of its request."""
        ...

    def append(self, task_id: str, updates: Sequence[Update]) -> None:
        """Write updates without waiting. They are committed in order, with retries."""
        ...

    async def flushed(self, task_id: str, *, within: float | None = None) -> None:
        """Wait until everything appended so far is committed.

        Raises `StoreUnavailable` if it is not within so many seconds: it may be committed later.
        """
        ...

    async def get(self, owner: str, task_id: str) -> Task:
        """A snapshot of the task as its owner may see it; another's does not exist."""
        ...

    async def owner_of(self, task_id: str) -> str | None:
        """Whose task it is; None where there is none."""
        ...

    async def get_own(self, owner: str, task_id: str) -> Task:
        """The task to act on: the same, or `OtherWorkspace` if it belongs to another root."""
        ...

    async def check_context(self, owner: str, context_id: str) -> None:
        """Raise `OtherWorkspace` if the context belongs to another root."""
        ...

    async def list(self, query: TaskQuery) -> TaskPage: ...

    async def listed(self, task_ids: Sequence[str], *, max_bytes: int) -> Sequence[Task | None]:
        """The first of these tasks, read together; None for those that were deleted meanwhile.

        As many as are stored in so many bytes, but at least one.
        """
        ...

    def follow(self, task_id: str, after: int) -> Cursor:
        """Every entry after a number, as it is committed, to the last there will be."""
        ...

    async def as_of(self, task_id: str, seq: int) -> Task | None:
        """The task as it was after an entry; None when its single entries are gone."""
        ...

    async def renew_leases(self) -> Sequence[str]:
        """Renew our leases. Returns the tasks of ours that another process was asked to cancel."""
        ...

    async def expired(self) -> Sequence[str]:
        """The tasks that no process holds any more, in the order in which to take them up."""
        ...

    async def claim(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """Take up those of these tasks that still nobody holds, in one transaction: a few."""
        ...

    async def older_held_by_other(self, head: TaskHead) -> str | None:
        """An older task of the same context that another process works on, if there is one."""
        ...

    async def earlier_tasks(self, head: TaskHead) -> Sequence[EarlierTask]:
        """The newest ones of its context, oldest first; none where all OpenCodes are one."""
        ...

    async def ask_to_stop(self, task_id: str) -> None:
        """Ask the process that holds a task to cancel it."""
        ...

    def is_mine(self, task_id: str) -> bool:
        """Whether the task is ours to write, as far as we know."""
        ...

    async def confirm_lease(self, task_id: str) -> bool:
        """The same, for what the log cannot undo. Looks it up after a time without a renewal."""
        ...


@dataclass(frozen=True, slots=True)
class TaskVersion:
    """Which task, and how far its log is; `seq` is 0 for a task that has ended."""

    task_id: str
    owner: str
    state: str
    seq: int


class TaskSummaries(Protocol):
    """Tasks without their output and history (`Task.summary`). `owner`: None means everybody's."""

    async def open_tasks(self, owner: str | None) -> Sequence[Task]:
        """All that have not ended."""
        ...

    async def ended_tasks(
        self, owner: str | None, *, after: tuple[int, str], limit: int
    ) -> Sequence[Task]:
        """Those that ended after a time (the time and id of a task), in the order of their ends."""
        ...

    async def held_by_others(self, since: int) -> Sequence[TaskVersion]:
        """All open tasks that other processes write, and all tasks that ended since a time."""
        ...

    async def summary(self, version: TaskVersion, base: Task | None = None) -> Task | None:
        """A task that another process writes, or that has ended; None if there is no such task.

        `base` is what was returned for an earlier version of it: only what is new is read.
        """
        ...


class Bindings(Protocol):
    """Which session serves which context of which caller."""

    async def session_of(self, owner: str, context_id: str) -> SessionRef | None:
        """The session to work in, or `OtherWorkspace` if it belongs to another root."""
        ...

    async def former_directory(self, owner: str, context_id: str) -> str | None:
        """Where a context without a session has worked last."""
        ...

    async def context_of(self, owner: str, session_id: str) -> str | None: ...

    async def bind(self, owner: str, context_id: str, *, session: SessionRef) -> None:
        """The session may be this owner's already, but must not serve another context."""
        ...

    async def keep_model(self, session_id: str, model: ModelRef) -> None:
        """Remember what a session goes on with after a request that chooses another."""
        ...

    async def unbind(self, owner: str, context_id: str, *, session_id: str) -> None:
        """Forget a session, if it is the one that serves this context."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """A request of the agent, where it belongs, and what became of it."""

    interrupt: Interrupt
    task_id: str
    context_id: str
    expires_at: int | None
    resolution: str | None = None  # none while it is open


class InterruptStore(Protocol):
    """The requests of the agent, and whose task they belong to. Settled ones are deleted later."""

    async def pending(self, owner: str) -> Sequence[Pending]:
        """What a caller could answer here and now, oldest first."""
        ...

    async def find(self, owner: str, request_id: str) -> Pending | None: ...

    async def waiting_tasks(self, owner: str, context_id: str) -> Sequence[str]:
        """The tasks of this context that wait for a person."""
        ...

    async def allow_rules(self, owner: str, context_id: str) -> Sequence[AllowRule]:
        """The rules by which requests of this context are allowed without asking again."""
        ...


@dataclass(frozen=True, slots=True)
class PeerConversation:
    """Where a conversation with a peer goes on: the peer's own context, and its last task there."""

    context_id: str
    task_id: str | None = None


class PeerConversations(Protocol):
    """The last conversation with each peer, of each context of each caller."""

    async def last(self, owner: str, context_id: str, peer: str) -> PeerConversation | None: ...

    async def keep(
        self, owner: str, context_id: str, peer: str, conversation: PeerConversation
    ) -> None:
        """Replace the last conversation. Ids that cannot be stored are forgotten instead."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    content: bytes
    media_type: str


class Refused(Exception):
    """A file named by URL that we will not, or cannot, get; the text says why."""


class Files(Protocol):
    """Where files named by URL come from, under the deployment's policy."""

    async def fetch(self, url: str, limit: int) -> Fetched:
        """The file, or `Refused`."""
        ...


class PeerTools(Protocol):
    """What the tools do by which the agent calls other agents."""

    async def run(self, tool: str, arguments: Mapping[str, Any], site: CallSite) -> ToolResult:
        """Never raises for what a peer, or the model, has done wrong: the model gets to read it.

        Canceled, it has the peer cancel what it works on.
        """
        ...


class ToolHost(Protocol):
    """Where the agent gets these tools from."""

    async def offer(self, session: SessionRef) -> Callable[[str | None], Sequence[PermissionRule]]:
        """Let a session have the tools, if that is possible; what an agent's rules are there.

        The rules are those that people and operators have made, without what this needs itself.
        """
        ...


UsageKey: TypeAlias = Literal["day", "principal", "model"]


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Whose usage, of which days (both included), and summed by what."""

    owner: str | None  # None: everybody's
    first: date | None = None
    last: date | None = None
    by: frozenset[UsageKey] = frozenset()


@dataclass(frozen=True, slots=True)
class UsageSum:
    steps: int = field(
        metadata={"description": "Answers of a model, sub-agents and retries included"}
    )
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    total_tokens: int = field(metadata={"description": "All of them; what budgets count"})
    cost: float = field(metadata={"description": "In dollars, as OpenCode reports it"})


@dataclass(frozen=True, slots=True)
class UsageItem(UsageSum):
    day: str | None = field(default=None, metadata={"description": "If summed by day"})
    model: str | None = field(
        default=None, metadata={"description": "provider/model; empty: not known"}
    )
    principal: str | None = field(default=None, metadata={"description": "If summed by principal"})


class UsageStore(Protocol):
    """What callers have used."""

    async def spent(self, day: date) -> Mapping[str, Spent]:
        """What each caller has used on a day, and in its month until then."""
        ...

    async def sums(self, query: UsageQuery) -> Sequence[UsageItem]: ...
