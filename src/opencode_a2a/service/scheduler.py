"""The tasks at work: one at a time per context, bounded in number, each to its end.

Who runs when is decided by `domain/admission.py`, what a task does by `domain/run.py`; a `Runner`
does it. Here the two meet: tasks come in, get their slots, hear what callers want of them, and
leave. Clients that come and go do not matter here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog

from ..domain.admission import Admission, Bound, Bounds, Phase
from ..domain.effects import (
    BudgetSpent,
    CancelRequested,
    PromptExpected,
    PromptStored,
    PromptWithdrawn,
    RequestAnswered,
    TaskNotStored,
    TaskQueued,
)
from ..domain.exchange import RunLimits
from ..domain.ports import InterruptStore, TaskLog
from ..domain.run import Run
from ..domain.task import Task, TaskHead
from ..domain.updates import InterruptAnswered, InterruptOpened
from ..domain.values import CallPath, Problem, Prompt, TaskState, deepest
from ..errors import (
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    UpstreamBusy,
)
from ..locks import KeyedLock
from ..observe import metrics
from .limits import Limiter
from .peer_calls import PeerCalls
from .retelling import Retelling
from .runner import FLUSH_SECONDS, Prepare, Runner, Tools, log_wait
from .sessions import Sessions

logger = structlog.get_logger()

MAX_RESTING = 1_024  # tasks that wait for people
MAX_WAITING_PROMPTS = 32  # messages to a task that wait until those before are answered


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits(RunLimits):
    """How many tasks, and how many seconds of what."""

    running: int = 32  # 0 means no limit, and then nothing waits but for its own context
    queued: int = 256
    queued_per_caller: int = 64  # when all these are queued
    record: float = 10.0  # until the end of a canceled task is in the log
    grace: float = 5.0  # for what is running when the service stops
    renewal: float = 2.0  # between two renewals of the leases meanwhile


@dataclass(frozen=True, slots=True)
class TaskAtWork:
    """A task that is here now, for whoever watches the service."""

    id: str
    title: str
    phase: Phase
    since_ms: int


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """One more prompt of a task, which keeps the task open until it is stored, or is not."""

    _runner: Runner
    _key: int

    def stored(self, prompt: Prompt) -> None:
        self._runner.post(PromptStored(self._key, prompt))

    def withdraw(self) -> None:
        self._runner.post(PromptWithdrawn(self._key))


class Scheduler:
    """Implements `runner.Slots`."""

    def __init__(
        self,
        *,
        log: TaskLog,
        sessions: Sessions,
        interrupts: InterruptStore,
        limits: SchedulerLimits,
        clock: Callable[[], int],
        peer_calls: PeerCalls | None = None,
        limiter: Limiter | None = None,
        retelling: Retelling | None = None,
    ) -> None:
        """`retelling`: what to tell a new session of a context; None where sessions do not move."""
        self._limiter = limiter or Limiter()
        self._limiter.tasks = self
        self.deciding: KeyedLock[str] = KeyedLock()  # by task: what is decided first counts
        self._log = log
        self._limits = limits
        self._tools = Tools(
            log=log,
            sessions=sessions,
            interrupts=interrupts,
            deciding=self.deciding,
            slots=self,
            clock=clock,
            changes_seconds=limits.abort,
            limiter=self._limiter,
            peer_calls=peer_calls,
            retelling=retelling,
        )
        self._runners: dict[str, Runner] = {}
        bounds = Bounds(
            running=limits.running,
            queued=limits.queued,
            per_caller=limits.queued_per_caller,
            resting=MAX_RESTING,
        )
        self._admission: Admission[Runner] = Admission(bounds, self._limiter.bounds)

    @asynccontextmanager
    async def running(self, stopping: asyncio.Future[None] | None = None) -> AsyncIterator[None]:
        """Run the tasks that come in. At the end they may finish until `stopping`, or a while."""
        try:
            yield
        finally:
            work = [runner.work for runner in self._runners.values() if runner.work is not None]
            finished = asyncio.gather(*work, return_exceptions=True)
            if stopping is None or not stopping.done():
                renewing = asyncio.create_task(self._renew_leases())
                either: set[asyncio.Future[Any]] = {finished}
                either |= set() if stopping is None else {stopping}
                await asyncio.wait(
                    either, timeout=self._limits.grace, return_when=asyncio.FIRST_COMPLETED
                )
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            for task in work:
                task.cancel()
            await finished

    async def _renew_leases(self) -> None:
        """Nobody else does, now that the service stops."""
        while True:
            try:
                await self._log.renew_leases()
            except StoreError:
                pass  # already logged
            except Exception:
                logger.exception("recovery.internal_error")
            await asyncio.sleep(self._limits.renewal)

    def at_work(self) -> list[TaskAtWork]:
        """The tasks that run or wait here, oldest first."""
        return [
            TaskAtWork(
                id=runner.head.id,
                title=runner.title,
                phase=self._admission.phase_of(runner),
                since_ms=runner.head.created_at,
            )
            for runner in sorted(self._runners.values(), key=lambda runner: runner.head.created_at)
        ]

    @property
    def gauges(self) -> dict[metrics.Gauge, Callable[[], metrics.Values]]:
        return {
            metrics.QUEUE_DEPTH: self._queue_depth,
            metrics.QUEUE_LIMIT: lambda: metrics.one(self._limits.queued),
        }

    def _queue_depth(self) -> metrics.Values:
        phases = Counter(map(self._admission.phase_of, self._runners.values()))
        return {("slot",): phases[Phase.WAITING], ("context",): phases[Phase.PRESENT]}

    # -- tasks come in

    @contextmanager
    def admit(self, caller: str) -> Iterator[None]:
        """Keep room for a task that is being made, or refuse it: too much is waiting already."""
        bound = self._admission.bound_for(caller)
        if bound is Bound.OWN:
            raise self._limiter.too_many_tasks(caller, present=self._admission.present_of(caller))
        if bound is not None:
            raise _too_many(bound, self._admission.waiting_of(caller))
        self._admission.arrive(caller)
        try:
            yield
        finally:
            self._admission.arrived(caller)

    def start(
        self, head: TaskHead, title: str, *, path: CallPath, fresh: bool = False
    ) -> PendingPrompt:
        """Work on a new task once its prompt is stored; `abandon` it if it is not.

        In a `fresh` context, made for this task, its session is opened meanwhile.
        """
        run = Run(self._limits, fresh=fresh)
        order = _order(head)
        runner = Runner(self._tools, head, title, run=run, order=order, path=path, origin=path)
        prompt = _expect_prompt(runner)
        self._begin(runner)
        return prompt

    def abandon(self, task_id: str) -> None:
        """Leave a task that was not stored, and nothing of it behind."""
        runner = self._runners.get(task_id)
        if runner is not None:
            runner.post(TaskNotStored())

    def resume(self, task: Task, title: str, prompts: Sequence[Prompt], prepare: Prepare) -> None:
        """Go on with a task that another process began, with its prompts, oldest first.

        Parts that a prompt does not have yet are prepared only if it must still be sent.
        """
        run = Run(self._limits, resumed=task, prompts=prompts)
        order = _order(task.head, begun=task.session is not None)
        runner = Runner(
            self._tools,
            task.head,
            title,
            run=run,
            order=order,
            path=task.path,
            origin=task.origin,
            prepare=prepare,
        )
        # First: once it has begun, nothing may fail. Its caller would take it for not resumed.
        spent = self._limiter.budget_problem(task.head.owner)
        # What OpenCode already works on has no use for a slot that it would have to wait for.
        self._begin(runner, running=task.state is TaskState.WORKING)
        if spent is not None and task.state is TaskState.WORKING:
            runner.post(BudgetSpent(spent))

    def _begin(self, runner: Runner, *, running: bool = False) -> None:
        before = self._runners.get(runner.head.id)
        if before is not None and before.work is not None and before.run.task_exists:
            before.work.cancel()  # the task was lost, and has come back
            self._admission.stop_waiting(before)
            if not before.entered:
                self._leave(before)  # asyncio will not even enter `_work`, nor its `finally`
        self._runners[runner.head.id] = runner
        self._admission.enter(runner, running=running)
        if running:
            self.hand_out_slots()  # a caller with nothing running need not wait for this one
        runner.work = asyncio.create_task(self._work(runner))

    async def _work(self, runner: Runner) -> None:
        # The context is free only when the end is in the log: were the next prompt sent before and
        # the end lost, this task would take the next one's answer for its own.
        runner.enter_context()
        try:
            await runner.until_finished()
        finally:
            self._leave(runner)

    def _leave(self, runner: Runner) -> None:
        self._admission.leave(runner)
        self.hand_out_slots()
        if self._runners.get(runner.head.id) is runner:
            del self._runners[runner.head.id]
        runner.over.set_result(None)

    # -- what callers want of them

    def steer(self, task_id: str, path: CallPath) -> PendingPrompt | None:
        """One more prompt of a running task, or None when it is too late."""
        runner = self._runners.get(task_id)
        if runner is None or runner.run.closed:
            return None
        if runner.run.waiting_prompts >= MAX_WAITING_PROMPTS:
            raise UpstreamBusy(
                "Too many messages to this task are waiting for OpenCode. Try again later.",
                retry_after=10,
                task_id=task_id,
            )
        runner.path = deepest([runner.path, path])
        return _expect_prompt(runner)

    async def cancel(self, task_id: str) -> None:
        """Ask a task to stop, and wait (a bounded time) until it has."""
        runner = self._runners.get(task_id)
        if runner is None:
            return
        self._admission.stop_waiting(runner)  # it leaves only when its end is recorded
        runner.post(CancelRequested())
        await asyncio.wait({runner.over}, timeout=2 * self._limits.abort + self._limits.record)
        if not runner.over.done():
            raise OutcomeUnknown(
                "The task is being stopped, but it cannot be recorded right now that it has "
                "stopped. Read the task in a moment: if it still runs then, cancel it again."
            )

    # -- budgets

    def others_at_work(self, caller: str, task: str) -> int:
        return sum(
            runner.caller == caller
            and runner.head.id != task
            and self._admission.phase_of(runner) is Phase.RUNNING
            and not runner.run.canceled
            for runner in self._runners.values()
        )

    def stop_tasks_of(self, caller: str, problem: Problem, spending: str | None) -> None:
        """Stop what runs or waits to run, and the task that has spent something just now.

        What only waits for a person waits on. While one sub-agent asks, others may be at work.
        """
        for runner in list(self._runners.values()):
            rests = self._admission.phase_of(runner) is Phase.RESTING
            if runner.caller == caller and (not rests or runner.head.id == spending):
                self._stop(runner, problem)

    def stop_task(self, task: str, problem: Problem) -> None:
        if (runner := self._runners.get(task)) is not None:
            self._stop(runner, problem)

    def _stop(self, runner: Runner, problem: Problem) -> None:
        if runner.run.canceled:
            return
        self._admission.stop_waiting(runner)
        try:
            runner.post(BudgetSpent(problem))
        except Exception:  # of this task; the others are stopped all the same
            logger.exception("task.internal_error", task=runner.head.id)

    def open_requests(self, task: Task) -> dict[str, InterruptOpened]:
        """What the agent waits for at this moment; the log may be a moment behind."""
        runner = self._runners.get(task.head.id)
        if runner is None:
            return task.interrupts
        if runner.run.canceled:
            return {}  # what is allowed now would be done although the task was canceled
        found = runner.run.open_requests
        return task.interrupts if found is None else found

    async def deliver(self, task_id: str, answers: Sequence[InterruptAnswered]) -> bool:
        """Deliver stored decisions to the agent. Returns whether it still waited for all of them.

        An agent that cannot be reached gets them later.
        """
        runner = self._runners.get(task_id)
        if runner is None:
            return True
        if runner.run.open_requests is None:  # there is no turn yet: it will take them up
            for answer in answers:
                runner.post(RequestAnswered(answer))
            return True
        delivered = [runner.deliver(answer) for answer in answers]
        for each in delivered:
            await asyncio.wait({each})  # the caller may leave, the delivery goes on
        with suppress(StoreUnavailable):  # the decisions are stored; others wait to decide more
            await self._log.flushed(task_id, within=FLUSH_SECONDS)
        return all(each.result() for each in delivered)

    # -- slots

    async def older_tasks_ended(self, runner: Runner) -> bool:
        """One at a time per context, oldest first, also where another process has the older one."""
        if (older := self._admission.before(runner)) is not None:
            log_wait(runner.head, "for an older task of its context", older=older.head.id)
            runner.post(TaskQueued(older.head.id))
            await asyncio.wait({older.over})
        elif (held_by_other := await self._log.older_held_by_other(runner.head)) is not None:
            log_wait(runner.head, "for an older task of its context, which another process has")
            runner.post(TaskQueued(held_by_other))
            await asyncio.sleep(self._limits.retry)
        else:
            return True
        return False

    async def slot(self, runner: Runner, *, between_prompts: bool) -> None:
        if between_prompts:
            self.rest(runner, resting=False)  # the prompt before may have ended while it rested
            if not self._admission.give_way(runner):
                return
            runner.granted = asyncio.get_running_loop().create_future()
        else:
            self._admission.wait(runner)
        self.hand_out_slots()
        if not runner.granted.done():
            own = self._admission.may_run(runner.caller)
            limits = "running_tasks, or the budget, of its caller"
            setting = "OPENCODE_MAX_CONCURRENT_STREAMS" if own else limits
            log_wait(runner.head, f"for a slot ({setting})")
            runner.post(TaskQueued())
            await asyncio.wait({runner.granted})

    def rest(self, runner: Runner, *, resting: bool) -> None:
        """A task that waits for a person keeps nobody from working, nor from waiting."""
        if resting:
            if self._admission.rest(runner):
                log_wait(runner.head, "for a person to decide")
                self.hand_out_slots()
        elif self._admission.go_on(runner):
            self.hand_out_slots()  # a caller with nothing running need not wait for this one

    def hand_out_slots(self) -> None:
        """Let those tasks run that may. For whoever changes how many of a caller's may."""
        for runner in self._admission.assign_slots():
            if not runner.granted.done():
                runner.granted.set_result(None)


def _order(head: TaskHead, *, begun: bool = False) -> tuple[bool, int, str]:
    """What has begun goes on before anything new is begun."""
    return (not begun, head.created_at, head.id)


def _expect_prompt(runner: Runner) -> PendingPrompt:
    key = runner.next_key
    runner.next_key += 1
    runner.post(PromptExpected(key))
    return PendingPrompt(runner, key)


def _too_many(bound: Bound, waiting: int) -> UpstreamBusy:
    match bound:
        case Bound.OWN:
            raise AssertionError("the limits of a caller have an error of their own")
        case Bound.QUEUE:
            return UpstreamBusy(
                f"Too many tasks are waiting for OpenCode ({waiting}, all of them yours). Try "
                "again when some are done, or raise OPENCODE_MAX_CONCURRENT_STREAMS or "
                "A2A_MAX_QUEUED_TASKS.",
                retry_after=10,
                bound=bound.value,
                setting="A2A_MAX_QUEUED_TASKS",
            )
        case Bound.CALLER:
            return UpstreamBusy(
                f"Too many of your tasks are waiting for OpenCode ({waiting}), and those of "
                "other callers wait too. Try again when some are done, or raise "
                "A2A_MAX_QUEUED_TASKS (when the queue is full, each caller has a quarter of it) or "
                "OPENCODE_MAX_CONCURRENT_STREAMS.",
                retry_after=10,
                bound=bound.value,
                setting="A2A_MAX_QUEUED_TASKS",
            )
        case Bound.RESTING:
            return UpstreamBusy(
                "Too many tasks wait for an answer, and too many of them are yours. Answer or "
                "cancel some, or try again later.",
                retry_after=60,
                bound=bound.value,
            )
