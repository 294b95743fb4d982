"""One prompt and everything the agent does about it, as a pure state machine.

`Turn.feed` takes one `AgentEvent` and returns the updates a client should see;
`Turn.outcome` appears once the run is really over. It performs no I/O and never
awaits, so each rule is testable with a list of events:

Whose text
* only assistant messages that answer this turn's prompt produce output: by what they name, or
  because they came after it; a user's parts, attachments, synthetic prompts and compaction
  summaries never do;
* after a compaction the run goes on under new user messages: those younger than
  our prompt belong to the turn, older ones do not;
* sub-agent sessions contribute usage, the questions they ask, and signs of life (their steps
  and tool calls, each with who does it), not text or files;
* what called peers have used is summed under their names, apart from the rest.

What a block shows is decided in `blocks.py`.

When it is over
* the session is idle and the newest assistant message is completed. Idle comes
  early on errors, and an error event is not an end, so neither decides alone;
* a message that ends in tool calls is followed by another, unless one of the calls
  ends the run; so is a user message that a compaction has added;
* the outcome is read from that newest message;
* after a gap nothing ends until the stored messages have been replayed; a session
  found idle twice with an unfinished message has lost the run;
* one found idle twice without any answer never began it, so the prompt can be sent again:
  OpenCode stores an answer before it asks the model;
* some agents say once and for all how a run has ended (`RunEnd`): then nothing else is waited for;
* a sub-agent in the background begins another run of its parent when it ends: until then, and until
  nothing more is found to come twice, the end of a run is not the end;
* what was open is closed then, as far as it got.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from .blocks import Blocks
from .events import (
    AgentEvent,
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
    PeerUsage,
    Retrying,
    RunEnd,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    TextDelta,
    TextSnapshot,
    TitleChanged,
    TodosChanged,
    ToolCall,
    ToolSnapshot,
)
from .permissions import SHELL
from .requests import ELSEWHERE, Requests
from .task import Task
from .updates import PeerUsageAdded, Progress, SessionTitled, Update
from .values import (
    AnsweredBy,
    Failure,
    Interrupt,
    PermissionAsk,
    Problem,
    QuestionAsk,
    SubAgent,
    TaskState,
    Usage,
)

LOST = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "OpenCode was interrupted before it finished this task, and will not finish it by itself. "
    "The conversation is intact: send what metadata.opencode.resume holds, or another request, in "
    "the same context.",
    resumable=True,
)
STOPPED = "The run stopped because a request of the agent was refused."
ABORTED = "The run was aborted."
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


_Part: TypeAlias = TextSnapshot | ToolSnapshot | FileSnapshot
SessionEvent: TypeAlias = (
    ChildStarted
    | PeerUsage
    | TitleChanged
    | TodosChanged
    | Compacting
    | Busy
    | Retrying
    | Idle
    | SessionErred
)


def _age(message: MessageSeen) -> tuple[int, str]:
    return message.created, message.message_id


class Turn:
    def __init__(
        self,
        session: str,
        message_id: str,
        *,
        title: str = "",
    ) -> None:
        """`title` is what clients know as the title of the session."""
        self.session = session
        self.message_id = message_id
        self.outcome: Outcome | None = None
        self.requests = Requests()
        self.family: set[str] = {session}
        self.files_changed = False
        self.title = title
        self.answered_by: AnsweredBy | None = None
        self._prompted_at: int | None = None
        self._user_messages: set[str] = set()
        self._answers: dict[str, MessageSeen] = {}
        self._newest: MessageSeen | None = None
        self._newest_user_message: MessageSeen | None = None
        self._answered: set[str | None] = set()
        self._stops: dict[str, ToolCall] = {}  # the call that ends a run, by message
        self._finished = False  # the newest message says so, and nothing contradicts it
        self._blocks = Blocks()
        self._unclaimed_parts: dict[str, dict[str, _Part]] = {}
        self._calls: dict[str, ToolCall] = {}  # by their id, of sub-agents too: what requests need
        self._refused: set[str] = set()
        self._unexplained: dict[str, Interrupt] = {}
        self._step_usage: dict[str, Usage] = {}
        self._models: dict[str, AnsweredBy] = {}  # of sub-agents, by message
        self._peer_usage = Usage()
        self.not_begun = False  # OpenCode was found at rest, and has never asked the model
        self.awaits_end = False  # the last step may have been the last of the answer
        self._subagents: dict[str, SubAgent] = {}  # by their session
        self._reported: set[Progress] = set()
        self._error: Problem | None = None
        self._idle = False
        self._run_end: RunEnd | None = None
        self._background: dict[str, bool] = {}  # sub-agents that no call waits for: at work or not
        self._may_begin_again = False  # there was one, and what is stored has not been read since
        self._needs_reconcile = False
        self._idle_reads = 0

    def resume(self, task: Task) -> None:
        """Take up where the log of the task ends, as after a gap.

        What the log shows was shown; what was open there may have gone on meanwhile.
        """
        self._blocks.resume(task)
        self.requests.resume(task)
        self._step_usage = dict(task.steps)
        if task.usage is not None:
            self._peer_usage = Usage(peers=task.usage.peers)
        self._reported = {_identity(progress) for progress in task.reported}
        self._needs_reconcile = True

    @property
    def usage(self) -> Usage:
        """Of all steps that reported theirs, and how many did not. Final when the run is over."""
        begun = sum(progress.type == "step-start" for progress in self._reported)
        unreported = Usage(unreported_steps=max(0, begun - len(self._step_usage)))
        reported = sum(self._step_usage.values(), unreported)
        return reported + self._peer_usage if self._peer_usage.peers else reported

    @property
    def prompt_is_stored(self) -> bool:
        return self._prompted_at is not None

    @property
    def needs_reconcile(self) -> bool:
        """Events were lost, and what is stored has not been read since."""
        return self._needs_reconcile

    @property
    def in_doubt(self) -> bool:
        """Something says that the run may be over, and nothing proves it."""
        hint = self._needs_reconcile or self._idle or self._finished or self._error is not None
        return self.outcome is None and (hint or self.awaits_settlement)

    @property
    def awaits_settlement(self) -> bool:
        """A request waits for its tool call to be explained, or a decision to be confirmed."""
        return bool(self._unexplained) or self.requests.unsettled

    def feed(self, event: AgentEvent) -> list[Update]:
        if self.outcome is not None:
            return []
        if isinstance(event, TextDelta):  # by far the most frequent
            return self._blocks.on_delta(event.part_id, event.text)
        if isinstance(event, SessionEvent):
            return self._feed_session(event)
        match event:
            case MessageSeen():
                return self._on_message(event)
            case TextSnapshot():
                return self._on_text(event)
            case ToolSnapshot():
                return self._on_tool(event)
            case FileSnapshot():
                return self._blocks.on_file(event) if self._is_output(event) else []
            case PartRemoved():
                return self._blocks.on_removed(event.part_id)
            case StepStarted():
                return self._on_step_started(event)
            case StepFinished():
                return self._on_step_finished(event)
            case InterruptAsked() | InterruptClosed():
                return self._on_interrupt(event)
            case FilesChanged():
                self.files_changed |= self._is_ours(event.message_id)
                return []
            case Gap():
                self._needs_reconcile, self._idle_reads = True, 0
                self._blocks.on_gap()
                return []
            case CaughtUp():
                return self._on_caught_up(event)
            case _:
                assert_never(event)

    def _feed_session(self, event: SessionEvent) -> list[Update]:
        """What concerns a session as a whole."""
        ours = event.session == self.session
        match event:
            case TitleChanged(title=title) if ours:
                known, self.title = self.title, title
                return [SessionTitled(self.session, title)] if title != known else []
            case Busy() if ours:
                self._idle, self._idle_reads, self._finished = False, 0, False
                self._run_end = None
            case Idle() if ours:
                return self._on_idle(event)
            case Idle(session=child) if child in self._background:
                self._background[child] = False
            case ChildStarted(session=child, parent=parent):
                if parent in self.family:
                    self._add_subagent(SubAgent(child, event.agent))
            case PeerUsage():
                return self._on_peer_usage(event)
            case Retrying():
                return self._on_retry(event)
            case TodosChanged() if ours:
                return [Progress("todo", "updated", todos=event.todos)]
            case Compacting() if ours and self._prompted_at is not None:
                return self._on_compacting(event)
            case SessionErred() if ours:  # the first says why, a second only that
                self._error = self._error or event.problem
            case _:
                pass
        return []

    def _on_compacting(self, event: Compacting) -> list[Update]:
        status = "completed" if event.done else "started"
        progress = Progress("compaction", status, part_id=event.part_id)
        # The end of one without a name is told when it comes, and not read again.
        return [progress] if event.done and event.part_id is None else self._report_once(progress)

    def _on_idle(self, event: Idle) -> list[Update]:
        if any(self._background.values()):
            return []
        self._idle = True
        self._run_end = event.end if self.prompt_is_stored else None
        if self._run_end is None and event.end is not None:  # it may have failed before the prompt
            self._error = self._error or event.end.problem
        # Somebody else may have stopped it. What is stored tells whether the session still exists.
        self._needs_reconcile |= self._run_end is not None and self._run_end.aborted
        return self._end_if_over()

    # -- whose message is it

    def _on_message(self, event: MessageSeen) -> list[Update]:
        if event.session != self.session:
            if event.answered_by is not None and event.session in self.family:
                self._models[event.message_id] = event.answered_by
            return []
        if event.speaker is Speaker.USER:
            self._on_prompt(event)
            return []
        known = self._answers.get(event.message_id)
        if known is not None:  # its end need not tell of its beginning
            event = replace(event, created=known.created, parent_id=known.parent_id)
        elif event.parent_id is None:
            event = replace(event, parent_id=self._answered_in_order(event))
        if event.parent_id not in self._user_messages:
            self._unclaimed_parts.pop(event.message_id, None)
            return []
        self._answers[event.message_id] = event
        self._answered.add(event.parent_id)
        # By age: after a gap, a message can be heard of before an older one is read.
        if self._newest is None or _age(event) >= _age(self._newest):
            self._newest = event
            if event.speaker is Speaker.AGENT:
                self.answered_by = event.answered_by or self.answered_by
            self._finished = event.completed and event.finish != "tool-calls"
        updates: list[Update] = []
        if known is None:
            # A new answer has begun: an idle seen before was another's, an error was survived.
            self._idle, self._error, self._run_end = False, None, None
            for early in self._unclaimed_parts.pop(event.message_id, {}).values():
                updates += self.feed(early)
        if event.completed and event.finish == "tool-calls":
            updates += self._blocks.on_calls_completed(event.message_id)
        if event.completed and not self._needs_reconcile:
            updates += self._blocks.on_message_completed(event.message_id)
        return updates + self._end_if_over()

    def _on_prompt(self, event: MessageSeen) -> None:
        if event.message_id == self.message_id:
            self._prompted_at = event.created
        if self._prompted_at is not None and event.created >= self._prompted_at:
            self._user_messages.add(event.message_id)
            newest = self._newest_user_message
            if newest is None or _age(event) >= _age(newest):
                self._newest_user_message = event
        self._unclaimed_parts.pop(event.message_id, None)

    def _answered_in_order(self, answer: MessageSeen) -> str | None:
        """The prompt before an answer that does not name one."""
        newest = self._newest_user_message
        if newest is None or self._prompted_at is None or answer.created < self._prompted_at:
            return None
        return newest.message_id

    def _is_ours(self, message_id: str) -> bool:
        return message_id in self._answers

    def _is_output(self, event: _Part) -> bool:
        if event.session != self.session:
            return False
        answer = self._answers.get(event.message_id)
        if answer is None:
            if event.message_id not in self._user_messages:
                self._unclaimed_parts.setdefault(event.message_id, {})[event.part_id] = event
            return False
        return answer.speaker is Speaker.AGENT

    # -- blocks

    def _on_text(self, event: TextSnapshot) -> list[Update]:
        if not self._is_output(event):
            return []
        return self._blocks.on_text(
            event,
            after_gap=self._needs_reconcile,
            message_completed=self._answers[event.message_id].completed,
        )

    def _on_tool(self, event: ToolSnapshot) -> list[Update]:
        updates: list[Update] = []
        if event.session in self.family:
            if event.child is not None:
                self._add_subagent(event.child)
                if event.child.background and event.session == self.session:
                    self._on_background(event.child.session, event.call)
            call = event.call.begun_as(self._calls.get(event.call.call_id))
            event = replace(event, call=call)
            self._calls[call.call_id] = _for_requests(call)
            if event.refused:
                self._refused.add(event.call.call_id)
            if self._unexplained and event.call.status != "pending":
                updates = self._open_explained(event.call.call_id)
            if event.session != self.session:
                return [*self._on_tool_of_subagent(event), *updates]
        return [*self._tool_block(event), *updates]

    def _on_tool_of_subagent(self, event: ToolSnapshot) -> list[Update]:
        """Its beginning and its end, not what happens in between, nor what it is given."""
        call = event.call
        if call.status == "pending":
            return []
        progress = Progress(
            "tool-call",
            call.status,
            part_id=event.part_id,
            message_id=event.message_id,
            subagent=self._subagents.get(event.session),
            tool=call.tool,
            call_id=call.call_id,
            title=call.title or call.subtitle,
            started_at=call.started_at,
            ended_at=call.ended_at,
        )
        over = (replace(progress, status=status) for status in ("completed", "error"))
        if any(_identity(each) in self._reported for each in over):
            return []  # an older state is read again
        return self._report_once(progress)

    def _tool_block(self, event: ToolSnapshot) -> list[Update]:
        if not self._is_output(event):
            return []
        if event.stops:
            self._stops[event.message_id] = event.call
        return self._blocks.on_tool(event)

    # -- signs of life

    def _report_once(self, progress: Progress) -> list[Update]:
        known_as = _identity(progress)
        if known_as in self._reported:
            return []
        self._reported.add(known_as)
        return [progress]

    def _add_subagent(self, subagent: SubAgent) -> None:
        """Its session tells the name of a sub-agent, its tool call what it works for."""
        self.family.add(subagent.session)
        known = self._subagents.get(subagent.session, subagent)
        self._subagents[subagent.session] = replace(
            known,
            agent=known.agent or subagent.agent,
            call_id=known.call_id or subagent.call_id,
        )

    def _on_background(self, session: str, call: ToolCall) -> None:
        """A call has started a sub-agent and does not wait for it. It is told of more than once."""
        if session not in self._background and call.status != "error":
            self._background[session] = self._may_begin_again = True

    def _has_step(self, event: StepStarted | StepFinished) -> bool:
        if event.session == self.session:
            return self._is_ours(event.message_id)
        return event.session in self.family

    def _on_step_started(self, event: StepStarted) -> list[Update]:
        if not self._has_step(event):
            return []
        self.awaits_end = False
        answer = self._answers.get(event.message_id)
        return self._report_once(
            Progress(
                "step-start",
                "started",
                part_id=event.part_id,
                message_id=event.message_id,
                subagent=self._subagents.get(event.session),
                answered_by=answer.answered_by if answer is not None else None,
            )
        )

    def _on_step_finished(self, event: StepFinished) -> list[Update]:
        if not self._has_step(event) or event.part_id in self._step_usage:
            return []
        self._step_usage[event.part_id] = event.usage
        self.awaits_end = event.may_be_last and event.session == self.session
        answer = self._answers.get(event.message_id)
        by = answer.answered_by if answer else self._models.get(event.message_id)
        return [
            Progress(
                "step-finish",
                "completed",
                part_id=event.part_id,
                usage=event.usage,
                message_id=event.message_id,
                subagent=self._subagents.get(event.session),
                answered_by=by,
            )
        ]

    def _on_peer_usage(self, event: PeerUsage) -> list[Update]:
        if event.session not in self.family:
            return []
        self._peer_usage += Usage(peers={event.peer: event.usage})
        return [PeerUsageAdded(event.peer, event.usage)]

    def _on_retry(self, event: Retrying) -> list[Update]:
        if event.session not in self.family:
            return []
        retry = self._report_once(
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
            if retry:
                self._blocks.on_retry()
        return retry

    def _on_interrupt(self, event: InterruptAsked | InterruptClosed) -> list[Update]:
        if isinstance(event, InterruptAsked):
            return self._on_request(event)
        self._unexplained.pop(event.request_id, None)
        return self.requests.close(event.request_id, event.resolution)

    def _on_request(self, event: InterruptAsked) -> list[Update]:
        """A tool asks just before it tells what it was called with: wait for that."""
        if event.session not in self.family:
            return []
        ask = replace(event.interrupt, subagent=self._subagents.get(event.session))
        call = self._calls.get(ask.call_id or "")
        begun = call is not None and call.status != "pending"
        if begun or ask.call_id is None or isinstance(ask, QuestionAsk):
            return self.requests.ask(_explained(ask, call))
        self._unexplained[ask.request_id] = ask
        return []

    def _open_explained(self, call_id: str | None = None) -> list[Update]:
        held = [a for a in self._unexplained.values() if call_id is None or a.call_id == call_id]
        updates: list[Update] = []
        for ask in held:
            del self._unexplained[ask.request_id]
            updates += self.requests.ask(_explained(ask, self._calls.get(ask.call_id or "")))
        return updates

    def _resolution_of(self, interrupt: Interrupt) -> str:
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
        self._needs_reconcile = self.not_begun = False
        # Twice: between the end of a sub-agent and the run that it begins, nothing is at work.
        self._may_begin_again &= not self._idle or self._idle_reads == 0
        for request_id in self._unexplained.keys() - event.open_requests:
            del self._unexplained[request_id]
        updates = self._open_explained()
        updates += self.requests.keep(event.open_requests, self._resolution_of)
        for answer in self._answers.values():
            if answer.completed:
                updates += self._blocks.on_message_completed(answer.message_id)
        updates += self._end_if_over()
        if self.outcome is None and self._idle:
            self._idle_reads += 1
            if self._idle_reads >= 2:
                updates += self._on_lost()
        return updates

    def _on_lost(self) -> list[Update]:
        """OpenCode rests, and has not finished the run."""
        others = self._user_messages - {self.message_id}  # the answer would be for the newest
        if self._error is None and self._newest is None and not others:
            self.not_begun = True
            return []
        problem = self._error or LOST
        return self._end(Outcome(TaskState.FAILED, problem.message, problem))

    def begin_again(self) -> None:
        """The prompt is sent once more."""
        self.not_begun, self._idle, self._idle_reads = False, False, 0

    def _end_if_over(self) -> list[Update]:
        """Look whether the run is over; the only updates are what its end closes."""
        newest, end = self._newest, self._run_end
        if self._needs_reconcile or self._may_begin_again or not self._idle:
            return []
        if newest is not None and (newest.completed if end is not None else self._is_last(newest)):
            return self._end(self._judge(newest))
        if end is not None and end.problem is not None:
            return self._end(Outcome(TaskState.FAILED, end.problem.message, end.problem))
        if end is not None and end.aborted:
            return self._end(Outcome(TaskState.CANCELED, ABORTED))
        return []

    def _is_last(self, answer: MessageSeen) -> bool:
        """Whether a run may end with this answer: not in the middle, where it could be lost."""
        if not answer.completed or answer.aborted or answer.problem is not None:
            return answer.completed
        newest = self._newest_user_message
        if newest is not None and newest.message_id not in self._answered:
            return False
        return answer.finish != "tool-calls" or answer.message_id in self._stops

    def close(self, outcome: Outcome) -> list[Update]:
        """End a run whose end was not seen."""
        return [] if self.outcome is not None else self._end(outcome)

    def _end(self, outcome: Outcome) -> list[Update]:
        """Nothing stays open: no request, and nothing that a lost run has left unfinished."""
        self.outcome = outcome
        answer = self._blocks.answer() if outcome.state is TaskState.COMPLETED else []
        return [*self.requests.end(), *self._blocks.end(), *answer]

    def _was_refused(self, answer: MessageSeen) -> bool:
        stop = self._stops.get(answer.message_id)
        return stop is not None and stop.status == "error"

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
            case "tool-calls" if self._was_refused(newest):
                if self._stops[newest.message_id].call_id in self.requests.unanswered:
                    return Outcome(TaskState.FAILED, UNANSWERED.message, UNANSWERED)
                return Outcome(TaskState.CANCELED, STOPPED)
            case None if newest.speaker is Speaker.AGENT:
                return Outcome(TaskState.CANCELED, ABORTED)
            case _:
                return Outcome(TaskState.COMPLETED)


def _identity(progress: Progress) -> Progress:
    """What makes one of two reports a repetition of the other, however much each knew."""
    return Progress(
        progress.type,
        progress.status,
        part_id=progress.part_id,
        usage=progress.usage,
        attempt=progress.attempt,
        next_at=progress.next_at,
        message=progress.message,
        todos=progress.todos,
    )


def _for_requests(call: ToolCall) -> ToolCall:
    """What matters of a call to what it asks for: its status, and until it is over its input.

    When it began is for the next report of it.
    """
    kept = ToolCall(call.call_id, call.tool, call.status, started_at=call.started_at)
    return kept if call.over else replace(kept, subtitle=call.subtitle, input=call.input)


def _explained(ask: Interrupt, call: ToolCall | None) -> Interrupt:
    """What a person needs to decide and only the tool call tells: why, and with what."""
    if call is None or isinstance(ask, QuestionAsk):
        return ask
    command = ask.command
    if command is None and ask.permission in SHELL and call.tool in SHELL:
        given = (call.input or {}).get("command")  # not every agent tells it with the request
        command = given if isinstance(given, str) else None
    shown = command or ask.filepath or ask.diff
    return replace(
        ask,
        command=command,
        title=ask.title or call.subtitle,
        arguments=None if shown else call.input or None,
    )
