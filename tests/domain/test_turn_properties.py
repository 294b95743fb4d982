"""Whatever is lost, repeated or mixed in, a client ends with what the agent has stored.

A run is made up as a list of events in the order OpenCode would send them. Then some are
lost, what is stored is read (a little early, or late), snapshots come twice, a sub-agent
talks in between. A client must end with the stored text, and never see a hole in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    Busy,
    CaughtUp,
    ChildStarted,
    Compacting,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    Retrying,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    TextDelta,
    TextSnapshot,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.turn import Outcome, Turn
from opencode_a2a.domain.updates import BlockText, Progress, Update
from opencode_a2a.domain.values import Failure, PermissionAsk, Problem, TaskState, Usage
from tests.domain.logs import STEADY, folded

ROOT, CHILD = "ses_root", "ses_child"
ASK = "msg_001"
PROBLEM = Problem(Failure.PROVIDER_ERROR, "The model could not answer.")
SPENT = Usage(3, 1)


@dataclass
class Run:
    """What OpenCode sends during a run, and what is in its store afterwards."""

    events: list[AgentEvent] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)  # all a part ever said
    stored: dict[str, str] = field(default_factory=dict)  # what its closing text is
    tools: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    outcome: TaskState = TaskState.COMPLETED
    parts: int = 0
    messages: int = 1

    def message(self) -> tuple[str, int]:
        self.messages += 1
        return f"msg_{self.messages:03}", 100 + self.messages // 2  # some within one millisecond

    def part(self) -> str:
        self.parts += 1
        return f"prt_{self.parts:03}"


# -- making up a run

# The last events of the previous run may well come after the prompt.
PREVIOUS: Sequence[AgentEvent] = (
    TextSnapshot(ROOT, "msg_000", "prt_000", BlockKind.TEXT, "SECRET", ended=True),
    MessageSeen(ROOT, "msg_000", Speaker.AGENT, 99, "msg_000_ask", completed=True, finish="stop"),
    Idle(ROOT),
    MessageSeen(ROOT, "msg_000_ask", Speaker.USER, 98),
)

Pieces = st.lists(st.text("abc ", min_size=1, max_size=3), max_size=4)
ENDS = [TaskState.COMPLETED, TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED]
Kinds = st.sampled_from([BlockKind.TEXT, BlockKind.TEXT, BlockKind.REASONING])


def text_part(draw: st.DrawFn, run: Run, message: str, cut: bool) -> list[AgentEvent]:
    part, kind, pieces = run.part(), draw(Kinds), draw(Pieces)
    where = (ROOT, message, part)
    events: list[AgentEvent] = [TextSnapshot(*where, kind, "", ended=False)]
    events += [TextDelta(*where, piece) for piece in pieces]
    run.said[part] = "".join(pieces)
    if cut:
        return events
    closing = "".join(pieces)
    match draw(st.integers(0, 7)):
        case 0:
            closing += "and more"  # as a plugin may have it
        case 1:
            closing = closing.strip() or "something else"
        case _:
            pass
    run.said[part] = closing if closing.startswith(run.said[part]) else ""
    run.stored[part] = closing
    return [*events, TextSnapshot(*where, kind, closing, ended=True)]


Status = Literal["pending", "running", "completed", "error"]


def tool_part(draw: st.DrawFn, run: Run, message: str) -> list[AgentEvent]:
    part = run.part()
    ending: Status = draw(st.sampled_from(["completed", "error"]))
    running: list[Status] = ["running"] * draw(st.integers(0, 2))
    states: list[Status] = ["pending", *running, ending]
    run.tools[part] = ending
    events: list[AgentEvent] = [
        ToolSnapshot(ROOT, message, part, ToolCall(part, "bash", status, title=str(n)))
        for n, status in enumerate(states)
    ]
    if draw(st.booleans()):
        ask = PermissionAsk(f"per_{part}", ROOT, "bash")
        events.insert(1, InterruptAsked(ROOT, ask))
        events.insert(2, InterruptClosed(ROOT, ask.request_id, "once"))
    return events


def mixed(draw: st.DrawFn, strands: list[list[AgentEvent]]) -> Iterator[AgentEvent]:
    """The strands side by side; each begins no earlier than the one before it."""
    waiting = [list(strand) for strand in strands if strand]
    begun = 0
    while waiting:
        pick = draw(st.integers(0, min(begun, len(waiting) - 1)))
        begun = max(begun, pick + 1)
        yield waiting[pick].pop(0)
        if not waiting[pick]:
            del waiting[pick]
            begun -= 1


def parts(draw: st.DrawFn, run: Run, message: str, cut: bool) -> list[AgentEvent]:
    strands = []
    for is_text in draw(st.lists(st.sampled_from([True, True, False]), max_size=3)):
        if is_text:
            strands.append(text_part(draw, run, message, cut and draw(st.booleans())))
        elif not cut:
            strands.append(tool_part(draw, run, message))
    return list(mixed(draw, strands))


def answer(draw: st.DrawFn, run: Run, parent: str, last: bool) -> None:
    message, created = run.message()
    begun = MessageSeen(ROOT, message, Speaker.AGENT, created, parent)
    run.events += [begun, Busy(ROOT)]
    for attempt in range(1, 1 + draw(st.sampled_from([0, 0, 0, 1, 2]))):
        run.events += [StepStarted(ROOT, message, run.part())]
        run.events += parts(draw, run, message, cut=True)
        run.events += [Retrying(ROOT, attempt, "again", next_at=attempt), Busy(ROOT)]
    run.events += [StepStarted(ROOT, message, run.part()), *parts(draw, run, message, cut=False)]
    if last:
        run.outcome = draw(st.sampled_from(ENDS))
    if last and run.outcome is TaskState.FAILED:
        run.events += [SessionErred(ROOT, PROBLEM), Idle(ROOT), Idle(ROOT)]
        run.events += [replace(begun, completed=True, problem=PROBLEM)]
        return
    run.events += [StepFinished(ROOT, message, run.part(), SPENT)]
    run.steps += 1
    if last and run.outcome is TaskState.CANCELED:
        refused = run.part()
        run.tools[refused] = "error"
        run.events += [
            ToolSnapshot(ROOT, message, refused, ToolCall("call", "bash", "error"), stops=True)
        ]
    finish = "stop" if last and run.outcome is TaskState.COMPLETED else "tool-calls"
    done = replace(begun, completed=True, finish=finish)
    run.events += [replace(begun, finish=finish), done, done]


def compaction(run: Run) -> str:
    """A summary that must not be shown, and the user message the run goes on under."""
    request, asked_at = run.message()
    summary, begun_at = run.message()
    follow_up, followed_at = run.message()
    begun = MessageSeen(ROOT, summary, Speaker.HOUSEKEEPING, begun_at, request)
    where = (ROOT, summary, run.part())
    run.events += [
        MessageSeen(ROOT, request, Speaker.USER, asked_at),
        Compacting(ROOT, done=False, part_id=run.part()),
        begun,
        TextSnapshot(*where, BlockKind.TEXT, "", ended=False),
        TextDelta(*where, "SECRET"),
        TextSnapshot(*where, BlockKind.TEXT, "SECRET", ended=True),
        StepFinished(ROOT, summary, run.part(), SPENT),
        replace(begun, completed=True, finish="stop"),
        Compacting(ROOT, done=True),
        MessageSeen(ROOT, follow_up, Speaker.USER, followed_at),
        TextSnapshot(ROOT, follow_up, run.part(), BlockKind.TEXT, "SECRET", ended=True),
    ]
    run.steps += 1
    return follow_up


def sub_agent(run: Run) -> list[AgentEvent]:
    run.steps += 1
    where = (CHILD, "msg_child", "prt_child")
    return [
        ChildStarted(CHILD, ROOT),
        MessageSeen(CHILD, "msg_child", Speaker.AGENT, 101, "msg_child_ask"),
        TextSnapshot(*where, BlockKind.TEXT, "", ended=False),
        TextDelta(*where, "SECRET"),
        SessionErred(CHILD, PROBLEM),
        TextSnapshot(*where, BlockKind.TEXT, "SECRET", ended=True),
        StepFinished(CHILD, "msg_child", "prt_child_step", SPENT),
        MessageSeen(CHILD, "msg_child", Speaker.AGENT, 101, "msg_child_ask", completed=True),
        Idle(CHILD),
    ]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    run = Run()
    asked = MessageSeen(ROOT, ASK, Speaker.USER, 100)
    run.events += [
        asked,
        TextSnapshot(ROOT, ASK, "prt_ask", BlockKind.TEXT, "SECRET", ended=False),
        *PREVIOUS[: draw(st.integers(0, len(PREVIOUS)))],
        Busy(ROOT),
    ]
    parent, count = ASK, draw(st.integers(1, 4))
    for number in range(count):
        answer(draw, run, parent, last=number == count - 1)
        if number < count - 1 and draw(st.sampled_from([False, False, True])):
            parent = compaction(run)
    run.events += [Idle(ROOT), Idle(ROOT), asked]
    if draw(st.booleans()):
        child = sub_agent(run)
        busy = run.events.index(Busy(ROOT))
        end = run.events.index(Idle(ROOT), busy)
        at = sorted(draw(st.integers(busy + 1, end)) for _ in child)
        for number, (place, event) in enumerate(zip(at, child, strict=True)):
            run.events.insert(place + number, event)
    return run


# -- OpenCode's store


def stored(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """What reading the session from the prompt on tells after these events."""
    messages: dict[str, MessageSeen] = {}
    pieces: dict[str, TextSnapshot | ToolSnapshot | StepStarted | StepFinished] = {}
    children: list[AgentEvent] = []
    pending: dict[str, InterruptAsked] = {}
    status: AgentEvent = Idle(ROOT)
    for event in events:
        match event:
            case MessageSeen(session=session) if session == ROOT and event.message_id >= ASK:
                messages[event.message_id] = event
            case TextSnapshot() | ToolSnapshot() | StepStarted() if event.session == ROOT:
                pieces[event.part_id] = event
            case StepFinished(session=session) if session == ROOT:
                pieces[event.part_id] = event
            case ChildStarted() | StepFinished():
                children.append(event)
            case InterruptAsked():
                pending[event.interrupt.request_id] = event
            case InterruptClosed():
                pending.pop(event.request_id)
            case Busy() | Idle() | Retrying() if event.session == ROOT:
                status = event
            case _:
                pass
    told: list[AgentEvent] = []
    for message in sorted(messages.values(), key=lambda message: message.message_id):
        begun = replace(message, completed=False, finish=None, problem=None)
        own = [part for part in pieces.values() if part.message_id == message.message_id]
        told += [begun, *own, message]
    births = [event for event in children if isinstance(event, ChildStarted)]
    steps = [event for event in children if isinstance(event, StepFinished)]
    caught_up = CaughtUp(ROOT, frozenset(pending))
    return [*births, *told, *steps, status, *pending.values(), caught_up]


# -- what can go wrong on the way


@dataclass(frozen=True)
class Loss:
    """Events never heard, how many are heard before the look, how far the look is ahead."""

    first: int
    count: int
    unread: int
    ahead: int

    @property
    def after(self) -> int:
        return self.first + self.count


@dataclass
class Heard:
    turn: Turn = field(default_factory=lambda: Turn(ROOT, ASK))
    updates: list[Update] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def feed(self, *events: AgentEvent) -> None:
        for event in events:
            said = self.turn.feed(event)
            assert not (said and self.outcomes), "something was said after the end"
            self.updates += said
            if self.turn.outcome is not None and self.turn.outcome not in self.outcomes:
                self.outcomes.append(self.turn.outcome)


def hear(run: Run, losses: Sequence[Loss], twice: set[int], look: int | None) -> Heard:
    """As the service does it: a gap calls for a look, which follows within a few events."""
    heard, reached, due, ahead = Heard(), 0, -1, 0
    for number, event in enumerate(run.events):
        reached = max(reached, number + 1)
        if not any(loss.first <= number < loss.after for loss in losses):
            heard.feed(event)
            if number in twice and not isinstance(event, TextDelta | Compacting):
                heard.feed(event)
        for loss in losses:
            if number == min(loss.after, len(run.events)) - 1:
                heard.feed(Gap(ROOT))
                due, ahead = number + loss.unread, loss.ahead
        if number == due:
            reached = max(reached, number + 1 + ahead)
            heard.feed(*stored(run.events[:reached]))
        elif number == look and due < number:
            heard.feed(*stored(run.events[:reached]))
    if heard.turn.outcome is None:
        heard.feed(*stored(run.events))
    return heard


@st.composite
def troubles(draw: st.DrawFn, run: Run) -> tuple[list[Loss], set[int], int | None]:
    size = len(run.events)
    loss = st.builds(
        Loss,
        st.integers(0, size - 1),
        st.integers(1, 3) | st.integers(1, size // 2),
        st.sampled_from([0, 0, 1, 4]),
        st.sampled_from([0, 0, 2, 6]),
    )
    losses = draw(st.lists(loss, min_size=1, max_size=3))
    twice = draw(st.sets(st.integers(0, size - 1), max_size=5))
    busy = [n for n, event in enumerate(run.events) if isinstance(event, TextDelta | ToolSnapshot)]
    look = draw(st.none() | st.sampled_from(busy)) if busy else None
    return losses, twice, look


# -- what must hold


@STEADY
@given(st.data())
def test_a_client_ends_with_what_is_stored_whatever_happens_on_the_way(data: st.DataObject) -> None:
    run = data.draw(runs())
    losses, twice, look = data.draw(troubles(run))
    heard = hear(run, losses, twice, look)

    assert [outcome.state for outcome in heard.outcomes] == [run.outcome]
    blocks = folded(heard.updates).visible_blocks()
    shown = Counter(block.text for block in blocks if block.call is None)
    assert shown == Counter(text for text in run.stored.values() if text)
    tools = {block.id: block.call.status for block in blocks if block.call is not None}
    assert tools == run.tools
    assert heard.turn.usage.total_tokens == SPENT.total_tokens * run.steps
    assert not heard.turn.requests.open
    assert "SECRET" not in str(heard.updates)
    check_every_step(heard.updates, run)


def check_every_step(updates: Sequence[Update], run: Run) -> None:
    """Each piece is fit for a client that has the ones before it."""
    blocks: dict[str, str] = {}
    closed: set[str] = set()
    for update in updates:
        if not isinstance(update, BlockText):
            continue
        if update.append:
            assert update.block_id in blocks, "the first piece of a block begins it"
            assert update.block_id not in closed, "a closed block is not continued"
        before = blocks.get(update.block_id, "") if update.append else ""
        blocks[update.block_id] = before + update.text
        if update.last:
            closed.add(update.block_id)
        else:
            closed.discard(update.block_id)
        whole = run.said.get(update.part_id)
        if whole:
            assert whole.startswith(blocks[update.block_id]), "no holes, whatever was lost"


@STEADY
@given(st.data())
def test_without_trouble_everything_is_reported_once_and_in_order(data: st.DataObject) -> None:
    run = data.draw(runs())
    heard = hear(run, [], set(), None)
    alone = folded(heard.updates).visible_blocks()
    progress = [update for update in heard.updates if isinstance(update, Progress)]

    look = data.draw(st.integers(3, len(run.events) - 1))
    looked = hear(run, [], set(), look)
    assert [(b.id, b.text, b.call) for b in folded(looked.updates).visible_blocks()] == [
        (b.id, b.text, b.call) for b in alone
    ]
    assert [update for update in looked.updates if isinstance(update, Progress)] == progress
    assert len(set(progress)) >= len(progress) - run.steps  # compactions end without a number
