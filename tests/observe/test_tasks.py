"""What is counted and recorded of a task, from the entries of its log alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from opencode_a2a.domain.events import BlockKind, ToolCall
from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import (
    BlockText,
    BlockTool,
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
from opencode_a2a.domain.values import (
    AnsweredBy,
    CallPath,
    Failure,
    Message,
    ModelRef,
    PermissionAsk,
    PermissionDecision,
    Problem,
    Role,
    SubAgent,
    TaskState,
    Text,
    Usage,
)
from opencode_a2a.observe import tracing
from opencode_a2a.observe.metrics import render
from opencode_a2a.observe.tasks import TaskObserver
from opencode_a2a.observe.tracing import Span, SpanRef

TRACE, REQUEST = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BEGAN = 1_000_000  # milliseconds
ASK = PermissionAsk("per_1", "ses_1", "bash")
NOBODYS = CallPath()
MODEL = AnsweredBy(ModelRef("acme", "large"))


def observer_of(task: Task) -> TaskObserver:
    return TaskObserver.of(task)


@dataclass
class Watched:
    """A task whose log grows, in one process or several."""

    task: Task = field(
        default_factory=lambda: Task(TaskHead("t", "c", "alice", BEGAN), status_at=BEGAN)
    )
    observer: TaskObserver = field(init=False)

    def __post_init__(self) -> None:
        self.observer = observer_of(self.task)

    def commit(self, *updates: Update, at: float) -> None:
        """So many seconds after the task was created."""
        first, moment = self.task.last_seq + 1, BEGAN + int(at * 1000)
        entries = [LogEntry(first + i, moment, update) for i, update in enumerate(updates)]
        for entry in entries:
            self.task.apply(entry)
        self.observer.observe(entries)

    def restart(self) -> None:
        """Another process takes the task over, with no more than the log."""
        self.task = self.task.snapshot()
        self.observer = observer_of(self.task)


@dataclass
class Recorder:
    """Implements `tracing.Tracer`."""

    spans: list[Span] = field(default_factory=list)

    def samples(self, trace: str, parent: SpanRef | None, name: str) -> bool:
        return True

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        """There is nothing to send."""


@contextmanager
def recording() -> Iterator[Recorder]:
    tracing.process.tracer = recorder = Recorder()
    try:
        yield recorder
    finally:
        tracing.process.tracer = None


def counted(name: str) -> dict[str, float]:
    """The samples of a metric as Prometheus would see them."""
    lines = render("")[0].decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(f"opencode_a2a_{name}"))
    return {key.removeprefix("opencode_a2a_"): float(value) for key, _, value in found}


@contextmanager
def growth(name: str) -> Iterator[dict[str, float]]:
    """How much the samples of a metric grow in the block."""
    before, grown = counted(name), dict[str, float]()
    yield grown
    after = counted(name)
    # Rounded: sums of other tests in this process are no whole numbers.
    grown |= {k: round(v - before.get(k, 0), 6) for k, v in after.items() if v != before.get(k, 0)}


def message(path: CallPath = NOBODYS) -> MessageAdded:
    return MessageAdded(Message("m", Role.USER, (Text("secret words"),)), "msg_1", path=path)


def text(words: str, *, append: bool = True) -> BlockText:
    return BlockText("b", "msg_2", "prt", BlockKind.TEXT, words, append)


def tool(status: str, **times: int) -> BlockTool:
    call = ToolCall("call_1", "bash", status, **times)  # type: ignore[arg-type]
    return BlockTool("b2", "msg_2", call)


def test_a_task_is_counted_from_its_creation_to_its_end() -> None:
    watched = Watched()
    with (
        growth("tasks_created_total") as created,
        growth("task_queue_seconds_sum") as queued,
        growth("task_first_token_seconds_sum") as first,
        growth("turns_total") as turns,
        growth("tasks_ended_total") as ended,
        growth("task_duration_seconds_sum") as took,
    ):
        watched.commit(message(), at=0)
        watched.commit(Started("ses_1"), at=2)
        watched.commit(text("Hello", append=False), at=3)
        watched.commit(text(" world"), at=4)
        problem = Problem(Failure.PROVIDER_QUOTA, "used up")
        watched.commit(Ended(TaskState.FAILED, problem=problem), at=10)
    assert created == {"tasks_created_total": 1}
    assert queued == {"task_queue_seconds_sum": 2}
    assert first == {"task_first_token_seconds_sum": 3}
    assert turns == {'turns_total{kind="message"}': 1}
    assert ended == {'tasks_ended_total{problem="PROVIDER_QUOTA",state="failed"}': 1}
    assert took == {'task_duration_seconds_sum{state="failed"}': 10}


def test_usage_counts_for_the_model_and_the_caller_of_its_step_also_of_a_sub_agent() -> None:
    watched = Watched()
    with growth("tokens_total") as tokens, growth("cost_dollars_total") as cost:
        watched.commit(message(), Started("ses_1"), at=0)
        watched.commit(Progress("step-start", "started", answered_by=MODEL), at=1)
        usage = Usage(input_tokens=7, output_tokens=3, cost=0.5)
        watched.commit(Progress("step-finish", "completed", "p1", usage, answered_by=MODEL), at=2)
        watched.restart()
        small, child = AnsweredBy(ModelRef("acme", "small")), SubAgent("ses_2")
        step = Progress("step-finish", "completed", "p2", Usage(output_tokens=1), subagent=child)
        watched.commit(replace(step, answered_by=small), at=3)
        watched.commit(replace(step, part_id="p3"), at=4)
    of_alice = 'model="acme/large",principal="alice"'
    assert tokens == {
        f'tokens_total{{kind="input",{of_alice}}}': 7,
        f'tokens_total{{kind="output",{of_alice}}}': 3,
        'tokens_total{kind="output",model="acme/small",principal="alice"}': 1,
        'tokens_total{kind="output",model="unknown",principal="alice"}': 1,
    }
    assert cost == {f"cost_dollars_total{{{of_alice}}}": 0.5}


def test_a_request_of_the_agent_is_settled_once_and_waits_until_then() -> None:
    watched = Watched()
    with growth("interrupts_total") as settled, growth("interrupt_wait_seconds_sum") as waited:
        watched.commit(message(), Started("ses_1"), InterruptOpened(ASK), at=0)
        watched.commit(InterruptAnswered(ASK, PermissionDecision("once"), "once"), at=30)
        watched.commit(InterruptResolved(ASK, "once"), at=31)
        watched.commit(DecisionRecord(ASK, "once", by="rule"), at=32)
    assert settled == {
        'interrupts_total{kind="permission",outcome="once"}': 1,
        'interrupts_total{kind="permission",outcome="rule"}': 1,
    }
    assert waited == {'interrupt_wait_seconds_sum{kind="permission"}': 30}


def test_a_tool_call_counts_when_it_is_over_and_only_once() -> None:
    watched = Watched()
    with growth("tool_calls_total") as calls:
        watched.commit(message(), Started("ses_1"), tool("running"), at=0)
        watched.commit(tool("completed"), at=1)
        watched.restart()
        watched.commit(tool("completed"), at=2)
    assert calls == {'tool_calls_total{outcome="completed",tool="bash"}': 1}


def test_a_turn_goes_on_with_the_model_that_answered_last_after_a_restart() -> None:
    watched = Watched()
    with recording() as recorder:
        watched.commit(message(CallPath(0, TRACE, span=REQUEST, sampled=True)), at=0)
        for part in range(9):
            by = AnsweredBy(ModelRef("acme", f"m{part}"))
            step = Progress("step-start", "started", f"prt_{part}", answered_by=by)
            watched.commit(step, at=1)
        watched.restart()
        watched.commit(Ended(TaskState.COMPLETED), at=2)
    assert recorder.spans[0].attributes["gen_ai.request.model"] == "acme/m8"


def test_two_calls_with_the_same_id_are_two() -> None:
    """Some providers begin anew with `call_0` in every answer."""
    watched = Watched()
    path = CallPath(0, TRACE, span=REQUEST, sampled=True)
    call = ToolCall("call_0", "bash", "completed")
    with recording() as recorder, growth("tool_calls_total") as calls:
        watched.commit(message(path), Started("ses_1"), BlockTool("b1", "msg_2", call), at=0)
        watched.restart()
        watched.commit(BlockTool("b2", "msg_3", call), BlockTool("b2", "msg_3", call), at=1)
        other = Watched(Task(TaskHead("t2", "c", "alice", BEGAN), status_at=BEGAN))
        other.commit(message(path), Started("ses_2"), BlockTool("b1", "msg_2", call), at=0)
    assert calls == {'tool_calls_total{outcome="completed",tool="bash"}': 3}
    assert len({span.ref.span for span in recorder.spans}) == 3


def test_after_a_restart_the_same_spans_end_below_the_same_request() -> None:
    """A process that is killed leaves no span half done; the next one records it all."""
    path = CallPath(0, TRACE, span=REQUEST, sampled=True)

    def lived(*, restarted: bool) -> list[Span]:
        watched = Watched()
        with recording() as recorder:
            watched.commit(message(path), at=0)
            watched.commit(Started("ses_1"), at=0)
            watched.commit(tool("running", started_at=BEGAN + 100), at=0.1)
            if restarted:
                watched.restart()
            times = {"started_at": BEGAN + 100, "ended_at": BEGAN + 900}
            watched.commit(tool("completed", **times), at=1)
            watched.commit(Ended(TaskState.COMPLETED), at=2)
        return recorder.spans

    spans = {span.name: span for span in lived(restarted=True)}
    assert list(spans) == ["tool bash", "turn", "task"]
    assert [span.ref.trace for span in spans.values()] == [TRACE] * 3
    assert spans["task"].parent == REQUEST
    assert spans["turn"].parent == spans["task"].ref.span
    assert spans["tool bash"].parent == spans["turn"].ref.span
    assert spans["tool bash"].end_ns - spans["tool bash"].start_ns == 800_000_000
    assert lived(restarted=False) == list(spans.values())
    assert "secret words" not in str(spans)


def test_the_calls_of_a_sub_agent_lie_below_the_call_that_waits_for_it() -> None:
    watched = Watched()
    child = SubAgent("ses_2", call_id="call_1")
    with recording() as recorder:
        watched.commit(message(CallPath(0, TRACE, span=REQUEST, sampled=True)), at=0)
        inner = Progress("tool-call", "error", subagent=child, tool="grep", call_id="call_2")
        watched.commit(Started("ses_1"), inner, tool("completed"), at=1)
    inner_span, outer_span = recorder.spans
    assert (inner_span.name, inner_span.error) == ("tool grep", "error")
    assert inner_span.parent == outer_span.ref.span


@pytest.mark.parametrize("path", [CallPath(), CallPath(0, TRACE, span=REQUEST)])
def test_nothing_is_recorded_of_a_trace_that_is_not_sampled(path: CallPath) -> None:
    watched = Watched()
    with recording() as recorder:
        watched.commit(message(path), Started("ses_1"), tool("completed"), at=0)
        watched.commit(Ended(TaskState.COMPLETED), at=1)
    assert recorder.spans == []


def test_a_task_that_another_process_began_is_counted_as_taken_over() -> None:
    watched = Watched()
    watched.commit(message(), at=0)
    with growth("tasks_resumed_total") as resumed:
        watched.restart()
    assert resumed == {"tasks_resumed_total": 1}
