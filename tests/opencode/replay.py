"""What a client sees of a run that is replayed, and what must come of each recorded prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opencode_a2a.domain.events import AgentEvent, BlockKind
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import (
    BlockText,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
    Progress,
    Update,
)
from opencode_a2a.domain.values import Failure, PermissionAsk, TaskState

STEP = "step-start step-finish"
TWO_STEPS = f"{STEP} {STEP}"
COMPLETED, CANCELED, FAILED = TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")


def words(count: int) -> str:
    """What the recorded model says when told to say so many words."""
    return "".join(f"{WORDS[n % 8]} " for n in range(count))


@dataclass
class Seen:
    """A turn, and everything it said."""

    turn: Turn
    updates: list[Update] = field(default_factory=list)

    def feed(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            self.updates += self.turn.feed(event)

    @property
    def task(self) -> Task:
        entries = [LogEntry(n, n, update) for n, update in enumerate(self.updates, 1)]
        return Task.of(TaskHead("task", "context", "caller", 0), entries)

    @property
    def blocks(self) -> list[str]:
        return [
            f"{b.call.tool}: {b.call.status}" if b.call is not None else f"{b.kind.value}: {b.text}"
            for b in self.task.visible_blocks()
        ]

    @property
    def texts(self) -> list[str]:
        return [b.text for b in self.task.visible_blocks() if b.kind is BlockKind.TEXT]

    @property
    def sayings(self) -> list[BlockText]:
        return [update for update in self.updates if isinstance(update, BlockText)]

    @property
    def progress(self) -> str:
        return " ".join(update.type for update in self.updates if isinstance(update, Progress))

    @property
    def interrupts(self) -> str:
        said = []
        for update in self.updates:
            if isinstance(update, InterruptResolved):
                said.append(update.resolution)
            elif isinstance(update, InterruptOpened):
                ask = update.interrupt
                said.append(f"{ask.permission if isinstance(ask, PermissionAsk) else 'question'}?")
        return " ".join(said)

    @property
    def failure(self) -> Failure | None:
        problem = self.turn.outcome.problem if self.turn.outcome is not None else None
        return problem.type if problem is not None else None

    @property
    def state(self) -> TaskState | None:
        return self.turn.outcome.state if self.turn.outcome is not None else None


@dataclass(frozen=True, slots=True)
class Story:
    """One prompt of a recording and all that follows from it.

    A block is written `kind: text` or `tool: status`; `…` stands for the rest of a long
    text, which is compared with the stored one all the same. Interrupts are what was
    asked, with a question mark, and how each was resolved.
    """

    recording: str
    state: TaskState | None
    blocks: Sequence[str] = ()
    usage: tuple[int, int, int] = (0, 0, 0)
    progress: str = ""
    interrupts: str = ""
    failure: Failure | None = None
    files: bool = False
    prompt: int = 0
    merged: bool = False  # prompted while another prompt was being answered

    def __str__(self) -> str:
        return f"{self.recording}#{self.prompt}"

    def check(self, seen: Seen) -> None:
        _same((seen.state, seen.failure), (self.state, self.failure))
        _same(list(map(_cut, seen.blocks, self.blocks)), list(self.blocks))
        _same(len(seen.blocks), len(self.blocks))
        usage = seen.turn.usage
        _same((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), self.usage)
        _same(seen.progress, self.progress)
        _same(seen.interrupts, self.interrupts)
        _same(seen.turn.files_changed, self.files)
        _same(bool(self.state is not None and seen.turn.requests.open), False)


def _cut(shown: str, expected: str) -> str:
    """A long block as a story has it."""
    beginning, long, _ = expected.partition("…")
    return expected if long and shown.startswith(beginning) else shown


def check_same(seen: Seen, whole: Seen, why: object) -> None:
    """That the end is the same as where everything was heard."""
    _same((seen.state, seen.failure), (whole.state, whole.failure), why)
    _same(sorted(seen.blocks), sorted(whole.blocks), why)  # held-back text may come later
    _same(seen.texts[-1:], whole.texts[-1:], why)
    _same(seen.turn.usage, whole.turn.usage, why)
    _same(seen.turn.files_changed, whole.turn.files_changed, why)


def _same(found: object, expected: object, why: object = "") -> None:
    assert found == expected, f"{why}\nfound    {found}\nexpected {expected}"
