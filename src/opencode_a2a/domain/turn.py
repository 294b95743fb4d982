"""One prompt and everything the agent does about it, as a pure state machine.

`Turn.feed` takes one `AgentEvent` and returns the updates a client should see;
`Turn.outcome` appears once the run is really over. It performs no I/O and never
awaits, so each rule is testable with a list of events:

Whose text
* only assistant messages that answer this turn's prompt produce output; a user's
  parts, attachments, synthetic prompts and compaction summaries never do;
* after a compaction the run goes on under new user messages: those younger than
  our prompt belong to the turn, older ones do not;
* sub-agent sessions contribute usage, the questions they ask, and signs of life (their steps
  and tool calls, each with who does it), not text or files.

What a block says
* deltas extend a block; its closing snapshot adds what is missing or, where what
  was shown is not its beginning, replaces the block;
* after a gap, deltas of a block that was open cannot be trusted and are dropped:
  its closing snapshot brings the rest;
* a part the provider's retry left behind is void: the retried part takes over its
  block, and a block nobody takes over is emptied;
* reading what is stored tells again what events have told: nothing is said twice,
  and what is over (a closed text, a finished tool) stays over.

When it is over
* the session is idle and the newest assistant message is completed. Idle comes
  early on errors, and an error event is not an end, so neither decides alone;
* a message that ends in tool calls is followed by another, unless one of the calls
  ends the run; so is a user message that a compaction has added;
* the outcome is read from that newest message;
* after a gap nothing ends until the stored messages have been replayed; a session
  found idle twice with an unfinished message has lost the run;
* what was open is closed then, as far as it got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from .events import (
    AgentEvent,
    BlockKind,
    Busy,
    CaughtUp,
    ChildStarted,
    Compacting,
    FilesChanged,
    FileSnapshot,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    PartRemoved,
    Retrying,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    SubAgent,
    TextDelta,
    TextSnapshot,
    TitleChanged,
    TodosChanged,
    ToolCall,
    ToolSnapshot,
)
from .requests import ELSEWHERE, Requests
from .task import Task
from .updates import BlockFile, BlockText, BlockTool, Progress, Update
from .values import Failure, Interrupt, PermissionAsk, Problem, QuestionAsk, TaskState, Usage

LOST = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "OpenCode stopped before it finished this task, and will not finish it. "
    "The conversation is intact: send the request again in the same context.",
)
STOPPED = "The run stopped because a request of the agent was refused."
ABORTED = "The run was aborted."
CUT_SHORT = "The run ended before this call did."
CUT = Problem(
    Failure.OUTPUT_LIMIT,
    "The model stopped at its output limit, so the answer is incomplete. "
    "Ask it to continue in the same context.",
)
UNANSWERED = Problem(
    Failure.DEADLINE_EXCEEDED,
    "Nobody answered the agent's question in time, so it stopped. Send the request again in the "
    "same context; A2A_INTERRUPT_REQUEST_TTL_SECONDS sets the time.",
)
FILTERED = Problem(Failure.PROVIDER_ERROR, "The provider's content filter blocked the answer.")


@dataclass(frozen=True, slots=True)
class Outcome:
    state: TaskState
    message: str | None = None
    problem: Problem | None = None


@dataclass(slots=True)
class _Block:
    id: str
    kind: BlockKind
    message_id: str
    part_id: str = ""  # whose text it shows: a retried part takes over a block
    chunks: list[str] = field(default_factory=list)
    started: bool = False
    leftover: bool = False  # under this id the client holds text that is void
    ended: bool = False
    behind: bool = False
    call: ToolCall | None = None

    @property
    def open(self) -> bool:
        return self.call is None and not self.ended

    def shown(self) -> str:
        """What a client has of this block. Called when a snapshot arrives, never per delta."""
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return self.chunks[0] if self.chunks else ""


_Shown: TypeAlias = TextSnapshot | ToolSnapshot | FileSnapshot


def _age(message: MessageSeen) -> tuple[int, str]:
    return message.created, message.message_id


class Turn:
    def __init__(
        self, session: str, message_id: str, deadline: Callable[[], int | None] = lambda: None
    ) -> None:
        """`deadline` says until when a person must decide what is asked now."""
        self.session = session
        self.message_id = message_id
        self.outcome: Outcome | None = None
        self.requests = Requests(deadline)
        self.family: set[str] = {session}
        self.files_changed = False
        self.title = ""
        self._asked_at: int | None = None
        self._asks: set[str] = set()
        self._answers: dict[str, MessageSeen] = {}
        self._newest: MessageSeen | None = None
        self._newest_ask: MessageSeen | None = None
        self._answered: set[str | None] = set()
        self._stops: dict[str, ToolCall] = {}  # the call that ends a run, by message
        self._finished = False  # so the newest says, and nothing has spoken against it
        self._blocks: dict[str, _Block] = {}
        self._void: list[_Block] = []
        self._early: dict[str, dict[str, _Shown]] = {}
        self._dead: set[str] = set()
        self._calls: dict[str, ToolCall] = {}  # by their id, of sub-agents too: what requests need
        self._refused: set[str] = set()
        self._held: dict[str, Interrupt] = {}
        self._used: set[str] = set()  # ids of blocks
        self._counted: dict[str, Usage] = {}
        self._subagents: dict[str, SubAgent] = {}  # by their session
        self._reported: set[Progress] = set()
        self._error: Problem | None = None
        self._idle = False
        self._stale = False
        self._idle_reads = 0

    def resume(self, task: Task) -> None:
        """Take up where the log of the task ends, as after a gap.

        What the log shows was shown; what was open there may have gone on meanwhile.
        """
        for block in task.blocks.values():
            shown = _Block(block.id, block.kind, block.message_id, block.part_id, call=block.call)
            if block.call is not None or block.file is not None:
                shown.ended = True
                self._blocks[block.id] = shown
            elif block.part_id:
                shown.chunks, shown.started = [block.text], True
                shown.ended, shown.behind = block.last, not block.last
                if block.part_id in self._blocks:  # given up too soon, and begun again
                    self._void.append(self._blocks[block.part_id])
                self._blocks[block.part_id] = shown
        self._used = set(task.blocks)
        self.requests.resume(task)
        self._counted = dict(task.steps)
        self._reported = {_known_as(progress) for progress in task.reported}
        self._stale = True

    @property
    def usage(self) -> Usage:
        """Of every step that has told it, and how many have not: final when the run is over."""
        begun = sum(progress.type == "step-start" for progress in self._reported)
        unreported = Usage(unreported_steps=max(0, begun - len(self._counted)))
        return sum(self._counted.values(), unreported)

    @property
    def stale(self) -> bool:
        """Events were lost and nothing has made up for them yet."""
        return self._stale

    @property
    def doubtful(self) -> bool:
        """Something says the run may be over and nothing proves it: look again soon."""
        hint = self._stale or self._idle or self._finished or self._error is not None
        return self.outcome is None and (hint or self.owing)

    @property
    def owing(self) -> bool:
        """Somebody waits for us, however much is heard from elsewhere: look soon, too."""
        return bool(self._held) or self.requests.unsettled

    def feed(self, event: AgentEvent) -> list[Update]:
        if self.outcome is not None:
            return []
        match event:
            case TextDelta():
                return self._on_delta(event)
            case MessageSeen():
                return self._on_message(event)
            case TextSnapshot():
                return self._on_text(event)
            case ToolSnapshot():
                return self._on_tool(event)
            case FileSnapshot():
                return self._on_file(event)
            case StepStarted():
                return self._on_step_started(event)
            case StepFinished():
                return self._on_step_finished(event)
            case FilesChanged():
                self.files_changed |= self._is_ours(event.message_id)
                return []
            case PartRemoved():
                block = self._blocks.pop(event.part_id, None)
                if block and block.open and (block.started or block.leftover):
                    return [self._emptied(block)]
                return []
            case ChildStarted(session=child, parent=parent):
                if parent in self.family:
                    self._meet(SubAgent(child, event.agent))
                return []
            case TitleChanged():
                if event.session == self.session:
                    self.title = event.title
                return []
            case InterruptAsked():
                return self._on_asked(event)
            case InterruptClosed(request_id=request_id, resolution=resolution):
                self._held.pop(request_id, None)
                return self.requests.close(request_id, resolution)
            case TodosChanged():
                if event.session != self.session:
                    return []
                return [Progress("todo", "updated", todos=event.todos)]
            case Compacting():
                if event.session != self.session or self._asked_at is None:
                    return []
                if event.done:
                    return [Progress("compaction", "completed")]
                return self._once(Progress("compaction", "started", part_id=event.part_id))
            case Busy():
                if event.session == self.session:
                    self._idle, self._idle_reads, self._finished = False, 0, False
                return []
            case Retrying():
                return self._on_retry(event)
            case Idle():
                if event.session == self.session:
                    self._idle = True
                    return self._settle()
                return []
            case SessionErred():
                if event.session == self.session:  # the first says why, a second only that
                    self._error = self._error or event.problem
                return []
            case Gap():
                self._stale, self._idle_reads = True, 0
                for block in self._blocks.values():
                    block.behind |= block.open
                return []
            case CaughtUp():
                return self._on_caught_up(event)
            case _:
                assert_never(event)

    # -- whose message is it

    def _on_message(self, event: MessageSeen) -> list[Update]:
        if event.session != self.session:
            return []
        if event.speaker is Speaker.USER:
            if event.message_id == self.message_id:
                self._asked_at = event.created
            if self._asked_at is not None and event.created >= self._asked_at:
                self._asks.add(event.message_id)
                if self._newest_ask is None or _age(event) >= _age(self._newest_ask):
                    self._newest_ask = event
            self._early.pop(event.message_id, None)
            return []
        if event.parent_id not in self._asks:
            self._early.pop(event.message_id, None)
            return []
        known = event.message_id in self._answers
        self._answers[event.message_id] = event
        self._answered.add(event.parent_id)
        # By age: after a gap, a message can be heard of before an older one is read.
        if self._newest is None or _age(event) >= _age(self._newest):
            self._newest = event
            self._finished = event.completed and event.finish != "tool-calls"
        updates: list[Update] = []
        if not known:
            # A new answer has begun: an idle seen before was another's, an error was survived.
            self._idle, self._error = False, None
            for early in self._early.pop(event.message_id, {}).values():
                updates += self.feed(early)
        if event.completed and not self._stale:
            updates += self._void_leftovers(event.message_id)
        return updates + self._settle()

    def _is_ours(self, message_id: str) -> bool:
        return message_id in self._answers

    def _speaks(self, event: _Shown) -> bool:
        if event.session != self.session:
            return False
        answer = self._answers.get(event.message_id)
        if answer is None:
            if event.message_id not in self._asks:
                self._early.setdefault(event.message_id, {})[event.part_id] = event
            return False
        return answer.speaker is Speaker.AGENT

    # -- blocks

    def _on_delta(self, event: TextDelta) -> list[Update]:
        block = self._blocks.get(event.part_id)
        if block is None or block.behind or block.ended or not event.text:
            return []
        return [self._append(block, event.part_id, event.text)]

    def _on_text(self, event: TextSnapshot) -> list[Update]:
        if not self._speaks(event):
            return []
        block = self._blocks.get(event.part_id)
        if block is None:
            if not event.ended and (
                event.part_id in self._dead or self._answers[event.message_id].completed
            ):
                return []  # left behind, and heard of late
            block = self._blocks[event.part_id] = self._new_block(event)
            block.behind = self._stale and not event.ended
        shown = block.shown()
        if not event.ended and (block.ended or len(event.text) <= len(shown)):
            return []  # opened, or an older state than the deltas have brought
        if event.text == shown and block.ended:
            return []
        block.ended = event.ended
        if not event.text.startswith(shown):
            block.chunks, block.started, block.leftover = [], False, True
            shown = ""
        suffix = event.text[len(shown) :]
        if not suffix and not block.started and not block.leftover:
            return []  # never shown, and nothing to show
        return [self._append(block, event.part_id, suffix, last=event.ended)]

    def _new_block(self, event: TextSnapshot) -> _Block:
        for block in self._void:
            if block.message_id == event.message_id and block.kind is event.kind:
                self._void.remove(block)
                leftover = block.started or block.leftover
                return _Block(
                    block.id, event.kind, event.message_id, event.part_id, leftover=leftover
                )
        # A part that was given up too soon (an old retry, heard late) has lost its block for good.
        block_id = event.part_id
        while block_id in self._used:
            block_id += "-again"
        self._used.add(block_id)
        return _Block(block_id, event.kind, event.message_id, event.part_id)

    def _append(self, block: _Block, part_id: str, text: str, last: bool = False) -> BlockText:
        append, block.started, block.leftover = block.started, True, False
        block.chunks.append(text)
        return BlockText(block.id, block.message_id, part_id, block.kind, text, append, last)

    def _on_tool(self, event: ToolSnapshot) -> list[Update]:
        updates: list[Update] = []
        if event.session in self.family:
            if event.child is not None:
                self._meet(event.child)
            self._calls[event.call.call_id] = _asking(event.call)
            if event.refused:
                self._refused.add(event.call.call_id)
            if self._held and event.call.status != "pending":
                updates = self._ask_held(event.call.call_id)
            if event.session != self.session:
                return [*self._on_tool_of_subagent(event), *updates]
        return [*self._tool_block(event), *updates]

    def _on_tool_of_subagent(self, event: ToolSnapshot) -> list[Update]:
        """Its beginning and its end, not what happens in between, nor what it is given."""
        call = event.call
        if call.status == "pending":
            return []
        told = Progress(
            "tool-call",
            call.status,
            part_id=event.part_id,
            message_id=event.message_id,
            subagent=self._subagents.get(event.session),
            tool=call.tool,
            call_id=call.call_id,
            title=call.title or call.subtitle,
        )
        over = (replace(told, status=status) for status in ("completed", "error"))
        if any(_known_as(progress) in self._reported for progress in over):
            return []  # an older state is read again
        return self._once(told)

    def _tool_block(self, event: ToolSnapshot) -> list[Update]:
        if not self._speaks(event):
            return []
        if event.stops:
            self._stops[event.message_id] = event.call
        block = self._blocks.get(event.part_id)
        if block is None:
            block = _Block(event.part_id, BlockKind.TOOL_CALL, event.message_id)
            self._blocks[event.part_id] = block
        if block.call == event.call:
            return []
        if block.call is not None and block.call.over and not event.call.over:
            return []
        block.call = event.call
        return [BlockTool(block.id, block.message_id, event.call)]

    def _on_file(self, event: FileSnapshot) -> list[Update]:
        if not self._speaks(event) or event.part_id in self._blocks:
            return []
        block = _Block(event.part_id, BlockKind.FILE, event.message_id, ended=True)
        self._blocks[event.part_id] = block
        return [BlockFile(block.id, block.message_id, event.part)]

    def _void_leftovers(self, message_id: str) -> list[Update]:
        """A completed message keeps only what it closed."""
        updates: list[Update] = []
        for part_id, block in list(self._blocks.items()):
            if block.message_id == message_id and block.open:
                del self._blocks[part_id]
                self._void.append(block)
        for block in [b for b in self._void if b.message_id == message_id]:
            self._void.remove(block)
            if block.started or block.leftover:
                updates.append(self._emptied(block))
        return updates

    def _emptied(self, block: _Block) -> BlockText:
        """It shows no part any more."""
        return BlockText(block.id, block.message_id, "", block.kind, "", append=False, last=True)

    # -- signs of life

    def _once(self, progress: Progress) -> list[Update]:
        known_as = _known_as(progress)
        if known_as in self._reported:
            return []
        self._reported.add(known_as)
        return [progress]

    def _meet(self, subagent: SubAgent) -> None:
        """Its session tells the name of a sub-agent, its tool call what it works for."""
        self.family.add(subagent.session)
        known = self._subagents.get(subagent.session, subagent)
        self._subagents[subagent.session] = replace(
            known,
            agent=known.agent or subagent.agent,
            call_id=known.call_id or subagent.call_id,
        )

    def _has_step(self, event: StepStarted | StepFinished) -> bool:
        if event.session == self.session:
            return self._is_ours(event.message_id)
        return event.session in self.family

    def _on_step_started(self, event: StepStarted) -> list[Update]:
        if not self._has_step(event):
            return []
        return self._once(
            Progress(
                "step-start",
                "started",
                part_id=event.part_id,
                message_id=event.message_id,
                subagent=self._subagents.get(event.session),
            )
        )

    def _on_step_finished(self, event: StepFinished) -> list[Update]:
        if not self._has_step(event) or event.part_id in self._counted:
            return []
        self._counted[event.part_id] = event.usage
        return [
            Progress(
                "step-finish",
                "completed",
                part_id=event.part_id,
                usage=event.usage,
                message_id=event.message_id,
                subagent=self._subagents.get(event.session),
            )
        ]

    def _on_retry(self, event: Retrying) -> list[Update]:
        if event.session not in self.family:
            return []
        retry = self._once(
            Progress(
                "retry",
                "waiting",
                attempt=event.attempt,
                next_at=event.next_at,
                message=event.message,
                subagent=self._subagents.get(event.session),
            )
        )
        if event.session == self.session:
            self._idle, self._idle_reads = False, 0
            for part_id, block in list(self._blocks.items()):
                if block.open and retry and not block.behind:  # reading tells of the others
                    del self._blocks[part_id]
                    self._dead.add(part_id)
                    self._void.append(block)
        return retry

    def _on_asked(self, event: InterruptAsked) -> list[Update]:
        """A tool asks just before it tells what it was called with: wait for that."""
        ask = event.interrupt
        if event.session not in self.family:
            return []
        call = self._calls.get(ask.call_id or "")
        begun = call is not None and call.status != "pending"
        if begun or ask.call_id is None or isinstance(ask, QuestionAsk):
            return self.requests.ask(_explained(ask, call))
        self._held[ask.request_id] = ask
        return []

    def _ask_held(self, call_id: str | None = None) -> list[Update]:
        held = [a for a in self._held.values() if call_id is None or a.call_id == call_id]
        updates: list[Update] = []
        for ask in held:
            del self._held[ask.request_id]
            updates += self.requests.ask(_explained(ask, self._calls.get(ask.call_id or "")))
        return updates

    def _settled_how(self, interrupt: Interrupt) -> str:
        """Nobody heard how a request was settled: the tool call that waited may tell."""
        call = self._calls.get(interrupt.call_id or "")
        permission = isinstance(interrupt, PermissionAsk)
        if call is None or not call.over:
            return ELSEWHERE
        if call.call_id in self._refused:
            return "reject" if permission else "rejected"
        if call.status == "error":
            return ELSEWHERE  # it failed by itself, allowed or not
        return "once" if permission else "answered"

    # -- the end

    def _on_caught_up(self, event: CaughtUp) -> list[Update]:
        self._stale = False
        for request_id in self._held.keys() - event.open_requests:
            del self._held[request_id]
        updates = self._ask_held()
        updates += self.requests.keep(event.open_requests, self._settled_how)
        for answer in self._answers.values():
            if answer.completed:
                updates += self._void_leftovers(answer.message_id)
        updates += self._settle()
        if self.outcome is None and self._idle:
            self._idle_reads += 1
            if self._idle_reads >= 2:
                problem = self._error or LOST
                updates += self._end(Outcome(TaskState.FAILED, problem.message, problem))
        return updates

    def _settle(self) -> list[Update]:
        """Look whether the run is over; the only updates are what its end closes."""
        newest = self._newest
        if self._stale or not self._idle or newest is None or not self._is_last(newest):
            return []
        return self._end(self._judge(newest))

    def _is_last(self, answer: MessageSeen) -> bool:
        """Whether a run may end with this answer: not in the middle, where it could be lost."""
        if not answer.completed or answer.aborted or answer.problem is not None:
            return answer.completed
        if self._newest_ask is not None and self._newest_ask.message_id not in self._answered:
            return False
        return answer.finish != "tool-calls" or answer.message_id in self._stops

    def _end(self, outcome: Outcome) -> list[Update]:
        """Nothing stays open: not what is asked, nor what a lost run has left unfinished."""
        self.outcome = outcome
        updates = self.requests.end()
        for block in (*self._blocks.values(), *self._void):
            if block.open and (block.started or block.leftover):
                updates.append(self._append(block, block.part_id, "", last=True))
            elif block.call is not None and not block.call.over:
                call = replace(block.call, status="error", error=CUT_SHORT)
                updates.append(BlockTool(block.id, block.message_id, call))
        return updates

    def _judge(self, newest: MessageSeen) -> Outcome:
        if newest.aborted:
            return Outcome(TaskState.CANCELED, ABORTED)
        if newest.problem is not None:
            return Outcome(TaskState.FAILED, newest.problem.message, newest.problem)
        match newest.finish:
            case "length":
                return Outcome(TaskState.FAILED, CUT.message, CUT)
            case "content-filter":
                return Outcome(TaskState.FAILED, FILTERED.message, FILTERED)
            case "tool-calls" if (stop := self._stops[newest.message_id]).status == "error":
                if stop.call_id in self.requests.unanswered:
                    return Outcome(TaskState.FAILED, UNANSWERED.message, UNANSWERED)
                return Outcome(TaskState.CANCELED, STOPPED)
            case None if newest.speaker is Speaker.AGENT:
                return Outcome(TaskState.CANCELED, ABORTED)
            case _:
                return Outcome(TaskState.COMPLETED)


def _known_as(progress: Progress) -> Progress:
    """What makes one of two reports a repetition of the other, however much each knew."""
    return replace(progress, message_id=None, subagent=None, tool=None, call_id=None, title=None)


def _asking(call: ToolCall) -> ToolCall:
    """What matters of a call to what it asks for: its status, and until it is over its input."""
    told = ToolCall(call.call_id, call.tool, call.status)
    return told if call.over else replace(told, subtitle=call.subtitle, input=call.input)


def _explained(ask: Interrupt, call: ToolCall | None) -> Interrupt:
    """What a person needs to decide and only the tool call tells: why, and with what."""
    if call is None or isinstance(ask, QuestionAsk):
        return ask
    shown = ask.command or ask.filepath or ask.diff
    return replace(
        ask, title=ask.title or call.subtitle, arguments=None if shown else call.input or None
    )
