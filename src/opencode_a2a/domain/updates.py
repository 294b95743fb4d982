"""What a client should see: the closed set of updates that a task's log consists of.

An update becomes a `LogEntry` when the log commits it under its number. Entries
carry upstream message and part ids, so that a running turn can be rebuilt from
its log alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, assert_never

from .events import BlockKind, ToolCall
from .values import (
    AnsweredBy,
    CallPath,
    Decision,
    FileChange,
    Interrupt,
    Message,
    Part,
    Problem,
    Selection,
    SubAgent,
    TaskState,
    TodoItem,
    Usage,
    WorktreeRef,
)


@dataclass(frozen=True, slots=True)
class MessageAdded:
    """The user's message, with the id under which it goes (or went) to the agent.

    What answers a request of the agent goes to it in another way, and has no such id.
    """

    message: Message
    upstream_id: str | None
    selection: Selection = Selection()
    path: CallPath = CallPath()


@dataclass(frozen=True, slots=True)
class Queued:
    """The task waits for an older task of its context to end, or for a slot (`behind` is None)."""

    behind: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLost:
    """No node that can work on the task is running. It waits for one to return until then."""

    opencode: str
    until: int  # milliseconds since 1970


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A node goes on with the task."""


@dataclass(frozen=True, slots=True)
class Retold:
    """The session is a new one, and is told with the prompt what was said in the context before."""


@dataclass(frozen=True, slots=True)
class Continued:
    """OpenCode has lost its work, and is asked to continue, with a prompt of this id.

    The prompt is this service's own: no message of a caller stands behind it.
    """

    upstream_id: str
    selection: Selection = Selection()


@dataclass(frozen=True, slots=True)
class PromptDone:
    """The answer to a prompt has ended, well or not, and another prompt follows.

    A process that takes the task over neither looks for this prompt nor sends it.
    """

    upstream_id: str


@dataclass(frozen=True, slots=True)
class Started:
    """The agent works on the task, in this session."""

    session: str
    title: str = ""
    worktree: WorktreeRef | None = None


@dataclass(frozen=True, slots=True)
class SessionTitled:
    """The session has another title: a model has made one, or somebody has changed it."""

    session: str
    title: str


@dataclass(frozen=True, slots=True)
class BlockText:
    """Text for one block; `append` is false when it begins or replaces the block."""

    block_id: str
    message_id: str
    part_id: str
    kind: BlockKind
    text: str
    append: bool
    last: bool = False


@dataclass(frozen=True, slots=True)
class BlockTool:
    """The whole of a tool call as it stands now."""

    block_id: str
    message_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """What a running tool call has printed since the last update about it."""

    block_id: str
    call_id: str
    tool: str
    output: str
    start: int  # the length of the output before it


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A block that comes in one piece."""

    block_id: str
    message_id: str
    part: Part


@dataclass(frozen=True, slots=True)
class BlockPhase:
    """What a text block has turned out to be: said on the way, or the answer to the prompt."""

    block_id: str
    phase: Literal["commentary", "answer"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life that is not output.

    The tool calls of sub-agents are reported here: those of the agent itself are blocks.
    """

    type: Literal["step-start", "step-finish", "tool-call", "retry", "todo", "compaction", "run"]
    status: str
    part_id: str | None = None
    usage: Usage | None = None
    attempt: int | None = None
    next_at: int | None = None
    message: str | None = None
    todos: tuple[TodoItem, ...] | None = None
    message_id: str | None = None  # of the agent's message that a step belongs to
    subagent: SubAgent | None = None  # who does it, if not the agent itself
    tool: str | None = None
    call_id: str | None = None
    title: str | None = None
    started_at: int | None = None  # of a tool call
    ended_at: int | None = None
    answered_by: AnsweredBy | None = None  # of a step; with step-start, of the agent's own only


@dataclass(frozen=True, slots=True)
class PeerUsageAdded:
    """What one more call to a peer has used."""

    peer: str
    usage: Usage


DecidedBy: TypeAlias = Literal["message", "method", "rule", "expiry", "elsewhere"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the agent has asked for, for the task's history; without what may be long."""

    interrupt: Interrupt


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """What was decided, for the task's history, where no message of the caller says it.

    A decision of a rule is logged as this: nobody was asked. Of others the task makes it.
    """

    interrupt: Interrupt
    resolution: str
    by: DecidedBy
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class InterruptOpened:
    interrupt: Interrupt
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class InterruptUnclear:
    """Somebody answered and was not understood; the request is still open."""

    interrupt: Interrupt
    note: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class InterruptAnswered:
    """What was decided, committed before the agent hears of it.

    `grants` are the patterns that need not be asked for again in this context.
    """

    interrupt: Interrupt
    decision: Decision
    resolution: str
    still_open: int = 0
    grants: tuple[str, ...] = ()
    by: DecidedBy | None = None


@dataclass(frozen=True, slots=True)
class InterruptResolved:
    """The agent waits for this no longer."""

    interrupt: Interrupt
    resolution: str
    still_open: int = 0


@dataclass(frozen=True, slots=True)
class ChangesMade:
    """The files this turn changed."""

    files: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    state: TaskState
    message: str | None = None
    problem: Problem | None = None
    usage: Usage | None = None
    session: str | None = None
    title: str = ""
    answered_by: AnsweredBy | None = None


BlockUpdate: TypeAlias = BlockText | BlockTool | BlockOutput | BlockFile | BlockPhase
InterruptUpdate: TypeAlias = (
    InterruptOpened | InterruptUnclear | InterruptAnswered | InterruptResolved
)
Update: TypeAlias = (
    MessageAdded
    | Queued
    | NodeLost
    | NodeReturned
    | Retold
    | Started
    | Continued
    | PromptDone
    | SessionTitled
    | BlockText
    | BlockTool
    | BlockOutput
    | BlockFile
    | BlockPhase
    | Progress
    | PeerUsageAdded
    | RequestRecord
    | DecisionRecord
    | InterruptOpened
    | InterruptUnclear
    | InterruptAnswered
    | InterruptResolved
    | ChangesMade
    | Ended
)


_Piece: TypeAlias = BlockText | BlockTool | BlockOutput


def state_after(update: Update) -> TaskState | None:
    """The task state an update leads to, or None when it leaves the state alone."""
    match update:  # the most frequent first
        case BlockText() | Progress() | BlockTool() | BlockOutput() | BlockFile() | BlockPhase():
            return None
        case Queued():
            return TaskState.SUBMITTED
        case Started() | Continued():
            return TaskState.WORKING
        case InterruptOpened() | InterruptUnclear():
            return TaskState.INPUT_REQUIRED
        case InterruptAnswered(still_open=still_open) | InterruptResolved(still_open=still_open):
            return TaskState.INPUT_REQUIRED if still_open else TaskState.WORKING
        case Ended(state=state):
            return state
        case (
            MessageAdded()
            | PromptDone()
            | NodeLost()
            | NodeReturned()
            | Retold()
            | PeerUsageAdded()
            | ChangesMade()
            | SessionTitled()
            | RequestRecord()
            | DecisionRecord()
        ):
            return None
        case _:
            assert_never(update)


def changes_summary(update: Update) -> bool:
    """Whether it changes what a summary of the task shows: all but its output and history."""
    match update:  # the most frequent first
        case BlockText() | BlockTool() | BlockOutput() | BlockFile() | BlockPhase():
            return False
        case Progress(usage=usage, answered_by=answered_by):
            return usage is not None or answered_by is not None
        case ChangesMade() | RequestRecord() | DecisionRecord() | PromptDone():
            return False
        case _:
            return True


@dataclass(slots=True)
class LogEntry:
    """A committed update, and the state it leads to.

    `encoded` keeps its wire bytes while it is the newest, one form per dialect. Both serve every
    reader, made once.
    """

    seq: int
    at: int
    update: Update
    encoded: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    state: TaskState | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.state = state_after(self.update)


def coalesce(waiting: Sequence[Update]) -> list[Update]:
    """Merge neighbouring updates of one block: they fold to the same task.

    Only for updates that no client has seen yet. The cost is linear in their number.
    """
    if len(waiting) == 1:
        return list(waiting)
    merged: list[Update] = []
    run: list[_Piece] = []  # neighbours about one block

    for update in waiting:
        if isinstance(update, BlockText):  # by far the most frequent
            replaces = not update.append
        elif isinstance(update, BlockTool):
            replaces = True
        elif isinstance(update, BlockOutput):
            replaces = False
        else:
            if run:
                merged.append(_joined(run))
                run = []
            merged.append(update)
            continue
        if run and run[-1].block_id != update.block_id:
            merged.append(_joined(run))
            run = []
        elif replaces:
            run = []  # what waited here is replaced before anyone saw it
        run.append(update)
    if run:
        merged.append(_joined(run))
    return merged


def _joined(run: Sequence[_Piece]) -> Update:
    """One update for all of these, of which only the first may be a whole."""
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    if isinstance(first, BlockText) and isinstance(last, BlockText):
        text = "".join(piece.text for piece in run if isinstance(piece, BlockText))
        return BlockText(
            block_id=last.block_id,
            message_id=last.message_id,
            part_id=last.part_id,
            kind=last.kind,
            text=text,
            append=first.append,
            last=last.last,
        )
    output = "".join(piece.output for piece in run if isinstance(piece, BlockOutput))
    if isinstance(first, BlockTool):
        return replace(first, call=replace(first.call, output=(first.call.output or "") + output))
    assert isinstance(first, BlockOutput)
    return replace(first, output=output)
