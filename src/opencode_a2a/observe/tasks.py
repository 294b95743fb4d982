"""Counts and traces what happens to tasks, from the entries that their log has committed.

The log is the one place that everything passes, in order and once, whichever process works on a
task. So nothing is counted that a crash could undo, and the spans of a task that an earlier
process began are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..domain.events import ToolCall
from ..domain.task import Task
from ..domain.updates import (
    BlockText,
    BlockTool,
    Continued,
    DecisionRecord,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    LogEntry,
    MessageAdded,
    Progress,
    Started,
    Update,
)
from ..domain.values import CallPath, Interrupt, PermissionAsk, Usage
from . import metrics, tracing
from .tracing import Attributes, Span, SpanRef

NANOSECONDS = 1_000_000  # in a millisecond
UNKNOWN = "unknown"  # in the place of a name

OVER = ("completed", "error")  # of a tool call


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    message_id: str
    began_at: int


@dataclass(eq=False, slots=True)
class TaskObserver:
    """Watches one task of this process."""

    task: Task
    _turn: _OpenTurn | None = None
    _model: str = UNKNOWN
    _is_silent: bool = True  # nothing was said yet
    _asked_at: dict[str, int] = field(default_factory=dict)  # by request
    _ended_calls: set[str] = field(default_factory=set)  # by block, or part of a sub-agent
    # By id, which block has it. Some providers begin anew with `call_0` in every answer.
    _calls: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task) -> TaskObserver:
        """For a new task, or one that another process began."""
        self = cls(task)
        if task.last_seq:
            metrics.TASKS_RESUMED.inc()
            self._restore()
        return self

    def _restore(self) -> None:
        """Know what an earlier process knew."""
        task = self.task
        for entry in task.history:
            if (message_id := _prompt_of(entry.update)) is not None:
                self._turn = _OpenTurn(message_id, entry.at)
        steps = [each for each in task.reported if each.answered_by is not None]
        if steps:  # OpenCode's ids of parts are in the order of time
            self._model = _model_of(max(steps, key=lambda each: each.part_id or ""))
        self._is_silent = not task.blocks
        self._asked_at = dict.fromkeys(task.interrupts, task.status_at)
        for block_id, block in task.blocks.items():
            if block.tool is not None and block.tool.over:
                self._ended_calls.add(block_id)
                self._calls.setdefault(block.tool.call_id, block_id)
        for each in task.reported:
            if each.type == "tool-call" and each.status in OVER:
                self._ended_calls.add(each.part_id or "")
                self._calls.setdefault(each.call_id or "", each.part_id or "")

    def wants(self, entries: Sequence[LogEntry]) -> bool:
        """Whether there is anything to observe: more of a running text is the usual case."""
        return self._is_silent or any(type(entry.update) is not BlockText for entry in entries)

    def observe(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            update = entry.update
            kind = type(update)
            if kind is BlockText:
                if self._is_silent:
                    self._is_silent = False
                    metrics.FIRST_TOKEN_SECONDS.observe(self._seconds(entry))
            elif (handle := _HANDLERS.get(kind)) is not None:
                handle(self, update, entry)

    def _seconds(self, entry: LogEntry) -> float:
        """Since the task was created; the clock may have been set back."""
        return max(0.0, (entry.at - self.task.head.created_at) / 1000)

    # -- its turns

    def _on_prompt(self, update: MessageAdded | Continued, entry: LogEntry) -> None:
        if entry.seq == 1:
            metrics.TASKS_CREATED.inc()
        if (message_id := _prompt_of(update)) is None:
            return  # an answer to a request of the agent
        metrics.TURNS.labels(
            "message" if isinstance(update, MessageAdded) else "continuation"
        ).inc()
        self._end_turn(entry.at)
        self._turn = _OpenTurn(message_id, entry.at)

    def _on_started(self, update: Started, entry: LogEntry) -> None:
        metrics.QUEUE_SECONDS.observe(self._seconds(entry))
        if self._turn is not None:
            self._turn = _OpenTurn(self._turn.message_id, entry.at)

    def _on_ended(self, update: Ended, entry: LogEntry) -> None:
        problem = update.problem.type.value if update.problem is not None else ""
        metrics.TASKS_ENDED.labels(update.state.value, problem).inc()
        metrics.TASK_SECONDS.labels(update.state.value).observe(self._seconds(entry))
        self._end_turn(entry.at, error=problem or None)
        self._record_task(update, entry)

    def _end_turn(self, at: int, error: str | None = None) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and (ref := self._recorded()) is not None:
            _record(
                "turn",
                turn_span(ref, turn.message_id),
                parent=task_span(ref, self.task.head.id).span,
                times=(turn.began_at, at),
                attributes={"gen_ai.request.model": self._model},
                error=error,
            )

    def _record_task(self, update: Ended, entry: LogEntry) -> None:
        if (ref := self._recorded()) is None:
            return
        head, usage = self.task.head, self.task.usage or Usage()
        _record(
            "task",
            task_span(ref, head.id),
            parent=ref.span,
            times=(head.created_at, entry.at),
            attributes={
                "a2a.task.id": head.id,
                "a2a.context.id": head.context_id,
                "a2a.task.state": update.state.value,
                "enduser.id": head.owner,
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
            },
            error=update.problem.type.value if update.problem is not None else None,
        )

    # -- what the agent does

    def _on_tool(self, update: BlockTool, entry: LogEntry) -> None:
        if update.call.over:
            self._on_call(update.call, entry, block_id=update.block_id)

    def _on_progress(self, update: Progress, entry: LogEntry) -> None:
        if update.usage is not None:
            self._count_usage(update.usage, _model_of(update))
        elif update.type == "step-start" and update.answered_by is not None:
            self._model = _model_of(update)
        elif update.type == "retry":
            metrics.PROVIDER_RETRIES.inc()
        elif update.type == "tool-call" and update.status in OVER:
            call = ToolCall(
                call_id=update.call_id or "",
                tool=update.tool or UNKNOWN,
                status=update.status,  # type: ignore[arg-type]  # one of the two
                started_at=update.started_at,
                ended_at=update.ended_at,
            )
            child_of = update.subagent.call_id if update.subagent is not None else None
            self._on_call(call, entry, block_id=update.part_id or "", child_of=child_of)

    def _on_call(
        self, call: ToolCall, entry: LogEntry, *, block_id: str, child_of: str | None = None
    ) -> None:
        if block_id in self._ended_calls:
            return
        self._ended_calls.add(block_id)
        is_first = self._calls.setdefault(call.call_id, block_id) == block_id
        metrics.TOOL_CALLS.labels(metrics.TOOLS[call.tool], call.status).inc()
        if (ref := self._recorded()) is None:
            return
        if child_of is not None:
            parent = tool_span(ref, self.task.head.id, child_of)
        elif self._turn is not None:
            parent = turn_span(ref, self._turn.message_id)
        else:
            parent = task_span(ref, self.task.head.id)
        ended_at = call.ended_at or entry.at
        _record(
            f"tool {call.tool}",
            tool_span(ref, self.task.head.id, call.call_id if is_first else block_id),
            parent=parent.span,
            times=(call.started_at or ended_at, ended_at),
            attributes={"gen_ai.tool.name": call.tool, "gen_ai.tool.call.id": call.call_id},
            error="error" if call.status == "error" else None,
        )

    def _count_usage(self, usage: Usage, model: str) -> None:
        name, principal = metrics.payer(model, self.task.head.owner)
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("reasoning", usage.reasoning_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ):
            if tokens:
                metrics.TOKENS.labels(name, principal, kind).inc(tokens)
        metrics.COST.labels(name, principal).inc(usage.cost)

    # -- what it asks for

    def _on_rule(self, update: DecisionRecord, entry: LogEntry) -> None:
        """A rule has decided, so nobody was asked."""
        metrics.INTERRUPTS.labels(kind_of(update.interrupt), update.by).inc()

    def _on_asked(self, update: InterruptOpened, entry: LogEntry) -> None:
        self._asked_at[update.interrupt.request_id] = entry.at

    def _on_settled(self, update: InterruptAnswered | InterruptResolved, entry: LogEntry) -> None:
        asked_at = self._asked_at.pop(update.interrupt.request_id, None)
        if asked_at is None:
            return  # it was answered before, and now the agent has confirmed that
        kind = kind_of(update.interrupt)
        metrics.INTERRUPTS.labels(kind, update.resolution).inc()
        metrics.INTERRUPT_SECONDS.labels(kind).observe(max(0.0, (entry.at - asked_at) / 1000))

    def _recorded(self) -> SpanRef | None:
        """The span of the request that began the task, if its trace is recorded."""
        if tracing.process.tracer is None:
            return None
        origin = self.task.origin
        return ref_of(origin) if origin.sampled else None


def ref_of(path: CallPath) -> SpanRef:
    return SpanRef(path.trace, path.span, sampled=path.sampled)


def task_span(ref: SpanRef, task_id: str) -> SpanRef:
    return tracing.derived(ref, "task", task_id)


def turn_span(ref: SpanRef, message_id: str) -> SpanRef:
    return tracing.derived(ref, "turn", message_id)


def tool_span(ref: SpanRef, task_id: str, call_id: str) -> SpanRef:
    """Of a call, by its id, or by its block if another call of the task had the same id."""
    return tracing.derived(ref, "tool", f"{task_id} {call_id}")


def _model_of(step: Progress) -> str:
    by = step.answered_by
    return f"{by.model.provider}/{by.model.model}" if by is not None else UNKNOWN


def kind_of(interrupt: Interrupt) -> str:
    return "permission" if isinstance(interrupt, PermissionAsk) else "question"


def _prompt_of(update: Update) -> str | None:
    """The id under which the agent gets what this update adds, if it does."""
    return update.upstream_id if isinstance(update, MessageAdded | Continued) else None


def _record(
    name: str,
    ref: SpanRef,
    *,
    parent: str,
    times: tuple[int, int],
    attributes: Attributes,
    error: str | None,
) -> None:
    tracer = tracing.process.tracer
    assert tracer is not None, "otherwise nothing is recorded"
    began, ended = times
    tracer.record(
        Span(
            ref,
            name,
            start_ns=began * NANOSECONDS,
            end_ns=ended * NANOSECONDS,
            parent=parent,
            attributes=attributes,
            error=error,
        )
    )


_HANDLERS: dict[type[Update], Callable[[TaskObserver, Any, LogEntry], None]] = {
    MessageAdded: TaskObserver._on_prompt,
    Continued: TaskObserver._on_prompt,
    Started: TaskObserver._on_started,
    BlockTool: TaskObserver._on_tool,
    Progress: TaskObserver._on_progress,
    InterruptOpened: TaskObserver._on_asked,
    InterruptAnswered: TaskObserver._on_settled,
    InterruptResolved: TaskObserver._on_settled,
    DecisionRecord: TaskObserver._on_rule,
    Ended: TaskObserver._on_ended,
}
