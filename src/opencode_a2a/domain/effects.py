"""What a run is fed, and what it asks for: the inputs and effects of `run.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .events import AgentEvent
from .permissions import AllowRule
from .updates import InterruptAnswered, Update
from .values import (
    Decision,
    FileChange,
    Interrupt,
    Isolation,
    Problem,
    Prompt,
    Selection,
    WorktreeRef,
)

# -- what can happen: other parts of the service say so


@dataclass(frozen=True, slots=True)
class PromptExpected:
    """A message for this task is being stored. The task stays open until it is, or is not."""

    key: int


@dataclass(frozen=True, slots=True)
class PromptStored:
    key: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class PromptWithdrawn:
    key: int


@dataclass(frozen=True, slots=True)
class TaskNotStored:
    """The task itself could not be stored: it does not exist."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    pass


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The caller may not spend more, so the task is stopped."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another process works on the task now."""


@dataclass(frozen=True, slots=True)
class TaskQueued:
    """The task waits, behind an older task of its context or (None) for a slot."""

    behind: str | None = None


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """A decision about a request of the agent is stored."""

    answer: InterruptAnswered


@dataclass(frozen=True, slots=True)
class ServiceBroken:
    """The service has failed in a way that nobody foresaw."""

    problem: Problem


FromOthers: TypeAlias = (
    PromptExpected
    | PromptStored
    | PromptWithdrawn
    | TaskNotStored
    | CancelRequested
    | BudgetSpent
    | LeaseLost
    | TaskQueued
    | RequestAnswered
    | ServiceBroken
)

# -- what can happen: what came of an effect


@dataclass(frozen=True, slots=True)
class OlderTasksChecked:
    left: bool  # an older task of the same context has not ended


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session_id: str
    title: str
    rules: Sequence[AllowRule] = ()
    worktree: WorktreeRef | None = None


@dataclass(frozen=True, slots=True)
class SessionDiscarded:
    pass


@dataclass(frozen=True, slots=True)
class SlotGranted:
    pass


@dataclass(frozen=True, slots=True)
class Subscribed:
    pass


@dataclass(frozen=True, slots=True)
class PromptSearched:
    found: bool


@dataclass(frozen=True, slots=True)
class PromptSent:
    pass


@dataclass(frozen=True, slots=True)
class Heard:
    events: Sequence[AgentEvent]


@dataclass(frozen=True, slots=True)
class NothingHeard:
    """Nothing has arrived until the time was up, or until something else has happened."""


@dataclass(frozen=True, slots=True)
class StoredRead:
    """What OpenCode has stored of this run, as events."""

    events: Sequence[AgentEvent]


@dataclass(frozen=True, slots=True)
class Delivered:
    interrupt: Interrupt
    wanted: bool  # the agent was still waiting for it


@dataclass(frozen=True, slots=True)
class RequestsExpired:
    """The time of some requests is up, and no answer to them is being stored."""


@dataclass(frozen=True, slots=True)
class Aborted:
    pass


@dataclass(frozen=True, slots=True)
class Flushed:
    pass


@dataclass(frozen=True, slots=True)
class ChangesRead:
    files: Sequence[FileChange]


@dataclass(frozen=True, slots=True)
class SessionMissing:
    """OpenCode does not know the session any more."""

    effect: Effect


@dataclass(frozen=True, slots=True)
class EffectFailed:
    effect: Effect
    problem: Problem
    unreachable: bool  # nobody has answered, so it may have been carried out all the same


Happened: TypeAlias = (
    FromOthers
    | OlderTasksChecked
    | SessionOpened
    | SessionDiscarded
    | SlotGranted
    | Subscribed
    | PromptSearched
    | PromptSent
    | Heard
    | NothingHeard
    | StoredRead
    | Delivered
    | RequestsExpired
    | Aborted
    | Flushed
    | ChangesRead
    | SessionMissing
    | EffectFailed
)

# -- what to do


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until then, or until something happens."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class AwaitOlderTasks:
    """Wait while an older task of the same context is left."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Find the session of the context, or make one: in a directory, or a worktree of its own."""

    isolation: Isolation | None = None
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class RenewSession:
    """Make a new session for the context, whose session was deleted in OpenCode."""


@dataclass(frozen=True, slots=True)
class DiscardSession:
    """Delete the session that was made for a task that does not exist."""


@dataclass(frozen=True, slots=True)
class AwaitSlot:
    """Wait for a slot; between two prompts only if a caller with fewer running tasks waits."""

    between_prompts: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Listen to the events of the session from now on."""


@dataclass(frozen=True, slots=True)
class FindPrompt:
    """Ask OpenCode whether it has a prompt."""

    message_id: str


@dataclass(frozen=True, slots=True)
class SendPrompt:
    prompt: Prompt
    replaces: bool = False  # OpenCode has stored it already, and not begun


@dataclass(frozen=True, slots=True)
class StoreContinuation:
    """Store a prompt that asks the agent to continue; `PromptStored` with this key says it is."""

    key: int
    selection: Selection


@dataclass(frozen=True, slots=True)
class Listen:
    until: float


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Read what OpenCode has stored from a message on."""

    message_id: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Tell the agent what was decided about a request. The run goes on meanwhile."""

    interrupt: Interrupt
    decision: Decision
    by_rule: bool = False  # nobody was asked: the caller has allowed the like before
    unstored: bool = False  # the log must have the decision first


@dataclass(frozen=True, slots=True)
class ExpireRequests:
    """Feed `RequestsExpired` when no answer is being stored. The run goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the run and its sub-agents, and refuse what they wait for."""

    sub_agents: frozenset[str]


@dataclass(frozen=True, slots=True)
class Flush:
    """Append these updates, and wait until the log has everything."""

    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Ask which files were changed in answer to these messages."""

    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do. These updates are the last; none where the task is not ours."""

    updates: tuple[Update, ...] = ()


Effect: TypeAlias = (
    Wait
    | AwaitOlderTasks
    | OpenSession
    | RenewSession
    | DiscardSession
    | AwaitSlot
    | Subscribe
    | FindPrompt
    | SendPrompt
    | StoreContinuation
    | Listen
    | Reconcile
    | Deliver
    | ExpireRequests
    | Abort
    | Flush
    | ReadChanges
    | Finish
)
