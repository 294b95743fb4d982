"""Turns at work: one at a time per session, bounded in number, each to its end.

A turn subscribes, then prompts, feeds what arrives to the pure `Turn` and says
what follows in the log. It ends when the agent is done, when its caller cancels,
when its time is up, or when OpenCode cannot be reached any more; whatever
happens, the task ends too. Clients that come and go do not matter here.

Every gap is closed the same way, be it a lost connection, silence, or a restart
of this service: the turn takes up what its log shows, reads what OpenCode has
stored, and goes on. A prompt is sent once: where it is not certain whether it
arrived, OpenCode is asked before it is sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from ..domain.admission import Admission, Bound, Bounds
from ..domain.events import AgentEvent, Gap, InterruptClosed
from ..domain.permissions import Grant, covers
from ..domain.ports import AgentSession, Asked, SessionGone, TaskLog
from ..domain.requests import EXPIRED
from ..domain.task import Task, TaskHead
from ..domain.turn import Outcome, Turn
from ..domain.updates import (
    ChangesMade,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    Progress,
    Started,
    Update,
)
from ..domain.values import (
    Decision,
    Failure,
    FileChange,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Problem,
    Prompt,
    QuestionDecision,
    TaskState,
    Usage,
)
from ..errors import (
    ContentTypeNotSupported,
    InvalidParams,
    ServiceError,
    StoreUnavailable,
    UpstreamBusy,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from .sessions import Lanes, Sessions

logger = structlog.get_logger()
T = TypeVar("T")

ABORT_AGAIN = 0.2  # seconds
MOST_RESTING = 1_024  # tasks that wait for people
MOST_STEERING = 32  # messages that wait until a task has answered those before
UNDECIDED = "Nobody was there to decide in time. Go on without it, or say what you need."
Prepare = Callable[[str], Awaitable[Prompt]]
CANCELED = Outcome(TaskState.CANCELED, "Canceled by the caller.")
BROKEN = Problem(Failure.INTERNAL, "The service failed while it worked on this task.")
GONE = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "The session of this task was deleted in OpenCode. Send the request again in the same context: "
    "it goes on there in a new session.",
)


class Unasked(SessionGone):
    """The session was gone before the prompt: nothing of it has been done."""


class TakenOver(Exception):
    """Another process works on the task now: it is not ours to end, or to stop."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How many turns, and how many seconds of what."""

    deadline: float = 1800.0  # work; time spent waiting for a person does not count
    running: int = 32  # 0 means no limit, and then nothing waits but for its own session
    queued: int = 256
    queued_per_caller: int = 64  # when all these are queued
    abort: float = 10.0  # what a goodbye may take
    record: float = 10.0  # until the end of a task is in the log, for who waits for it
    quiet: float = 15.0  # without an event before we look for ourselves
    soon: float = 1.0  # the same when something is in doubt
    unreachable: float = 30.0  # OpenCode may be away before its runs are given up
    answer: float = 10_800.0  # a person may take to decide
    grace: float = 5.0  # for what is running when the service stops
    beat: float = 2.0  # between signs of life meanwhile


def _promise() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class _Job:
    """A task being worked on, or waiting for its turn. Implements `domain.admission.Entrant`."""

    head: TaskHead
    title: str
    fresh: bool = False  # the first of its context, which nobody else can know yet
    resumed: Task | None = None  # what the log of an earlier process shows
    prepare: Prepare | None = None  # makes the parts of a prompt of an earlier process
    granted: asyncio.Future[None] = field(default_factory=_promise)  # a slot
    inbox: list[asyncio.Future[Prompt | None]] = field(default_factory=list)
    canceled: asyncio.Future[None] = field(default_factory=_promise)  # done when it is
    over: asyncio.Future[None] = field(default_factory=_promise)
    closed: bool = False  # nothing more is asked of the agent
    abandoned: bool = False  # it was never stored
    begun: bool = False
    work: asyncio.Task[None] | None = None
    usage: Usage | None = None  # of all its runs; none before the first
    session: AgentSession | None = None
    session_title: str = ""
    run: _Run | None = None  # the prompt being answered
    grants: list[Grant] = field(default_factory=list)  # what need not be asked any more
    order: tuple[bool, int, str] = field(init=False)

    def __post_init__(self) -> None:
        # What has begun goes on before anything new is begun.
        begun = self.resumed is not None and self.resumed.session is not None
        self.order = (not begun, self.head.created_at, self.head.id)

    @property
    def caller(self) -> str:
        return self.head.owner

    @property
    def context(self) -> str:
        return self.head.context_id


@dataclass(slots=True)
class _Run:
    """One prompt of a task, and what the agent says to it."""

    job: _Job
    session: AgentSession
    turn: Turn
    asked: asyncio.Task[None]
    events: AsyncIterator[Sequence[AgentEvent]]
    listening: asyncio.Timeout | None = None  # while it waits for an event
    stopping: bool = False  # nothing may be allowed any more: it would run after the abort

    def hurry(self, seconds: float) -> None:
        """Something is owed now: listen no longer than this before the next look."""
        if self.listening is not None and not self.listening.expired():
            by = asyncio.get_running_loop().time() + seconds
            self.listening.reschedule(min(by, self.listening.when() or by))


class Turns:
    def __init__(
        self,
        log: TaskLog,
        sessions: Sessions,
        asked: Asked,
        limits: TurnLimits,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._asked = asked
        self._limits = limits
        self._clock = clock
        self.deciding: Lanes[str] = Lanes()  # by task: what is decided first counts
        self._jobs: dict[str, _Job] = {}
        bounds = Bounds(limits.running, limits.queued, limits.queued_per_caller, MOST_RESTING)
        self._admission: Admission[_Job] = Admission(bounds)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        log: TaskLog,
        sessions: Sessions,
        asked: Asked,
        limits: TurnLimits,
        clock: Callable[[], int],
        stopping: asyncio.Future[None] | None = None,
    ) -> AsyncIterator[Turns]:
        """Turns at work. On the way out they may finish until `stopping`, or for their grace."""
        self = cls(log, sessions, asked, limits, clock)
        try:
            yield self
        finally:
            work = [job.work for job in self._jobs.values() if job.work is not None]
            finished = asyncio.gather(*work, return_exceptions=True)
            if stopping is None or not stopping.done():
                holding = asyncio.create_task(self._hold(limits.beat))
                either: set[asyncio.Future[Any]] = {finished}
                either |= set() if stopping is None else {stopping}
                await asyncio.wait(
                    either, timeout=limits.grace, return_when=asyncio.FIRST_COMPLETED
                )
                holding.cancel()
                await asyncio.gather(holding, return_exceptions=True)
            for task in work:
                task.cancel()
            await finished

    async def _hold(self, every: float) -> None:
        """Go on showing that we are alive: nobody else does, now that the service stops."""
        while True:
            with suppress(StoreUnavailable):
                await self._log.beat()
            await asyncio.sleep(every)

    @contextmanager
    def admit(self, caller: str) -> Iterator[None]:
        """Keep a place for a task in the making, or refuse it: too much is waiting already."""
        bound = self._admission.bound_for(caller)
        if bound is not None:
            raise self._too_many(bound, self._admission.waiting_of(caller))
        self._admission.arrive(caller)
        try:
            yield
        finally:
            self._admission.arrived(caller)

    def _too_many(self, bound: Bound, waiting: int) -> UpstreamBusy:
        match bound:
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
                    "A2A_MAX_QUEUED_TASKS_PER_CALLER (what each caller may have waiting when the "
                    "queue is full), A2A_MAX_QUEUED_TASKS or OPENCODE_MAX_CONCURRENT_STREAMS.",
                    retry_after=10,
                    bound=bound.value,
                    setting="A2A_MAX_QUEUED_TASKS_PER_CALLER",
                )
            case Bound.RESTING:
                return UpstreamBusy(
                    "Too many tasks wait for an answer, and too many of them are yours. Answer or "
                    "cancel some, or try again later.",
                    retry_after=60,
                    bound=bound.value,
                )

    def start(
        self, head: TaskHead, title: str, *, fresh: bool = False
    ) -> asyncio.Future[Prompt | None]:
        """Work on a new task as soon as its session and a slot are free, and its prompt is there.

        Fill the place that is returned once the task is committed, or `abandon` it. In a `fresh`
        context, made for this task, nothing is in its way, and its session is made meanwhile.
        """
        job = _Job(head, title, fresh)
        self._begin(job)
        return _place(job)

    def abandon(self, task_id: str) -> None:
        """Leave a task that did not come to be, and nothing of it behind."""
        job = self._jobs.get(task_id)
        if job is not None and not job.canceled.done():
            job.abandoned = True
            job.canceled.set_result(None)
            job.inbox[0].set_result(None)

    def resume(self, task: Task, title: str, message_ids: Sequence[str], prepare: Prepare) -> None:
        """Go on with a task that another process began; its prompts, oldest first.

        Their parts are prepared only if a prompt must still be sent.
        """
        job = _Job(task.head, title, resumed=task, prepare=prepare)
        for message_id in message_ids:
            _place(job).set_result(Prompt(message_id, ()))
        self._begin(job)

    def _begin(self, job: _Job) -> None:
        before = self._jobs.get(job.head.id)
        if before is not None and before.work is not None and not before.abandoned:
            before.work.cancel()  # the task was lost, and has come back
            self._admission.stop_waiting(before)
            if not before.begun:
                self._leave(before)  # asyncio will not even enter `_work`, nor its `finally`
        self._jobs[job.head.id] = job
        # What OpenCode already works on has no use for a slot that it would have to wait for.
        running = job.resumed is not None and job.resumed.state is TaskState.WORKING
        self._admission.enter(job, running=running)
        if running:
            job.granted.set_result(None)
            self._hand_out_slots()  # a caller with nothing running need not wait for this one
        job.work = asyncio.create_task(self._work(job))

    def steer(self, task_id: str) -> asyncio.Future[Prompt | None] | None:
        """A place for one more prompt of a running task, or None when it is too late.

        The place keeps the task open: fill it once the prompt is committed, or with None.
        """
        job = self._jobs.get(task_id)
        if job is None or job.closed:
            return None
        if len(job.inbox) >= MOST_STEERING:
            raise UpstreamBusy(
                "Too many messages to this task are waiting for OpenCode. Try again later.",
                retry_after=10,
                task_id=task_id,
            )
        return _place(job)

    async def cancel(self, task_id: str) -> None:
        """Ask a task to stop, and wait (a bounded time) until it has."""
        job = self._jobs.get(task_id)
        if job is None or job.work is None:
            return
        if not job.closed and not job.canceled.done():
            job.canceled.set_result(None)
            self._admission.stop_waiting(job)  # it leaves only when its end is recorded
            if job.begun and job.session is None:
                job.work.cancel()  # it only waits, so nothing upstream needs stopping
        await asyncio.wait({job.over}, timeout=2 * self._limits.abort + self._limits.record)
        if not job.over.done():
            raise StoreUnavailable(
                "The task is being stopped, but this cannot be recorded right now.", retry_after=5
            )

    def waiting(self, task: Task) -> dict[str, InterruptOpened]:
        """What the agent waits for at this very moment; the log may be a moment behind."""
        job = self._jobs.get(task.head.id)
        if job is not None and job.canceled.done():
            return {}  # what is allowed now would be done although the task was canceled
        return job.run.turn.requests.open if job is not None and job.run else task.interrupts

    async def answered(self, task_id: str, answers: Sequence[InterruptAnswered]) -> bool:
        """Tell the agent what was decided, and is in the log. Whether it still wanted to know.

        Should it be away, the turn tells it later.
        """
        job = self._jobs.get(task_id)
        if job is None or (run := job.run) is None:
            return True  # it goes on from the log, and reads there what was decided
        for answer in answers:
            run.turn.requests.answer(answer)
            if isinstance(ask := answer.interrupt, PermissionAsk):
                job.grants += [Grant(ask.permission, pattern) for pattern in answer.grants]
        # To the end, also when who answered has left meanwhile.
        heard = await asyncio.shield(
            asyncio.gather(*(self._deliver(run, a.interrupt, a.decision) for a in answers))
        )
        await self._log.flushed(task_id)
        return all(heard)

    # -- the life of a job

    async def _work(self, job: _Job) -> None:
        job.begun = True
        try:
            # The session is free only when the end is in the log: were the next prompt sent before
            # and the end lost, this task would take the next one's answer for its own.
            outcome = await self._outcome(job)
            job.closed = True
            if not job.abandoned:
                self._end(job, outcome)
                await self._log.flushed(job.head.id)
            elif job.fresh:
                await self._sessions.forget(job.head.owner, job.head.context_id)
        finally:
            self._leave(job)

    def _leave(self, job: _Job) -> None:
        self._admission.leave(job)
        self._hand_out_slots()
        if self._jobs.get(job.head.id) is job:
            del self._jobs[job.head.id]
        job.over.set_result(None)

    async def _outcome(self, job: _Job) -> Outcome:
        try:
            return await self._queue(job)
        except asyncio.CancelledError:
            if not job.canceled.done():
                raise  # the service stops; the next one to start goes on with the task
            return CANCELED
        except ServiceError as exc:
            return CANCELED if job.canceled.done() else _failed(exc)
        except SessionGone:
            return CANCELED if job.canceled.done() else _because(GONE)
        except TakenOver:
            return CANCELED  # nobody will hear it
        except Exception:
            logger.exception("turn.broken", task=job.head.id)
            return _because(BROKEN)

    async def _queue(self, job: _Job) -> Outcome:
        if job.canceled.done():
            return CANCELED
        head, fresh = job.head, job.fresh
        if not fresh:
            if not await self._stored(job):
                return CANCELED
            await self._wait_for_older(job)
        session = await self._patiently(
            job, lambda: self._sessions.serving(head.owner, head.context_id, job.title, fresh=fresh)
        )
        if not await self._stored(job):
            return CANCELED
        self._admission.wait(job)
        self._hand_out_slots()
        if not job.granted.done():
            _waits(job, "for a slot (OPENCODE_MAX_CONCURRENT_STREAMS)")
        await job.granted
        job.session, job.session_title = session, session.ref.title
        if not fresh:
            with suppress(StoreUnavailable):  # asking once too often does no harm
                job.grants = list(await self._asked.grants(head.owner, head.context_id))
        return await self._converse(job, session)

    async def _stored(self, job: _Job) -> bool:
        """Wait until other processes can see the task, too. Whether it is still to be done."""
        for first in job.inbox[:1]:
            await _filled(first)
        return not job.canceled.done()

    def _hand_out_slots(self) -> None:
        for job in self._admission.grant():
            if not job.granted.done():  # else the service stops, and nothing is to begin
                job.granted.set_result(None)

    def _rest(self, job: _Job, resting: bool) -> None:
        """A task that waits for a person keeps nobody from working, nor from waiting."""
        if resting:
            _waits(job, "for a person to decide")
            self._admission.rest(job)
            self._hand_out_slots()
        elif self._admission.go_on(job):
            self._hand_out_slots()  # a caller with nothing running need not wait for this one

    async def _wait_for_older(self, job: _Job) -> None:
        """One at a time per context, oldest first, also where another process has the older one."""
        while True:
            if (older := self._admission.before(job)) is not None:
                _waits(job, "for an older task of its context", older=older.head.id)
                await asyncio.wait({older.over})
            elif await self._patiently(job, lambda: self._log.elsewhere(job.head)):
                _waits(job, "for an older task of its context, which another process has")
                await asyncio.sleep(self._limits.soon)
            else:
                return

    async def _patiently(self, job: _Job, attempt: Callable[[], Awaitable[T]]) -> T:
        """What is harmless to repeat is tried again while OpenCode or the store is away."""
        until = time.monotonic() + self._limits.unreachable
        while True:
            try:
                return await attempt()
            except (UpstreamUnreachable, UpstreamTimeout, StoreUnavailable) as exc:
                if job.canceled.done() or time.monotonic() > until:
                    raise
                _waits(job, "to try again", problem=exc.type)
                await asyncio.sleep(self._limits.soon)

    async def _converse(self, job: _Job, session: AgentSession) -> Outcome:
        """The task's prompts one after the other; more may arrive while one is answered."""
        outcome, changed, prompted = CANCELED, list[str](), False
        if job.resumed is None or job.resumed.session is None:
            self._log.append(job.head.id, [Started(session.ref.id, session.ref.title)])
        else:
            await self._skip_answered(job, session, changed)
        while job.inbox and not job.canceled.done():
            prompt = await _filled(job.inbox[0])
            if prompt is not None and prompted:
                await self._give_way(job)
            if job.canceled.done():
                break
            job.inbox.pop(0)
            if prompt is None:
                continue  # its place was given up
            prompted = True
            try:
                turn, outcome = await self._turn(job, session, prompt)
            except Unasked:
                session = await self._renewed(job, session)
                turn, outcome = await self._turn(job, session, prompt)
            if turn.files_changed:
                changed.append(prompt.message_id)
            if job.inbox:  # once OpenCode has the next one, nobody reads this answer again
                if outcome.state is not TaskState.COMPLETED:  # the task's end will not tell
                    ended = Progress("run", outcome.state.value, message=outcome.message)
                    self._log.append(job.head.id, [ended])
                await self._log.flushed(job.head.id)
            elif changed:
                await self._show_changes(job, session, changed)
        job.closed = True
        return CANCELED if job.inbox else outcome

    async def _give_way(self, job: _Job) -> None:
        """Between two prompts: let a caller who has fewer running tasks go first."""
        # The prompt before may have ended while it waited for a person.
        self._rest(job, resting=False)
        if job.canceled.done() or not self._admission.give_way(job):
            return
        job.granted = _promise()
        self._hand_out_slots()
        if not job.granted.done():
            _waits(job, "for a slot (OPENCODE_MAX_CONCURRENT_STREAMS)")
        either = {job.granted, job.canceled}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._log.holds(job.head.id):
            raise TakenOver

    async def _renewed(self, job: _Job, gone: AgentSession) -> AgentSession:
        """The context goes on in a new session: the one it had was deleted in OpenCode."""
        head = job.head
        session = await self._patiently(
            job,
            lambda: self._sessions.renewed(head.owner, head.context_id, job.title, gone.ref),
        )
        logger.warning("session.renewed", task=head.id, gone=gone.ref.id, session=session.ref.id)
        job.session, job.session_title = session, session.ref.title
        self._log.append(head.id, [Started(session.ref.id, session.ref.title)])
        return session

    async def _skip_answered(self, job: _Job, session: AgentSession, changed: list[str]) -> None:
        """Of the prompts that OpenCode has, only the last can be unanswered."""
        places = list(job.inbox)
        for index in range(len(places) - 1, 0, -1):
            prompt = await _filled(places[index])
            if prompt is not None and await self._arrived(job, session, prompt):
                for _ in range(index):
                    answered = job.inbox.pop(0).result()
                    changed += [answered.message_id] if answered is not None else []
                return

    async def _turn(self, job: _Job, session: AgentSession, prompt: Prompt) -> tuple[Turn, Outcome]:
        turn = Turn(session.ref.id, prompt.message_id, self._deadline)
        with await self._patiently(job, session.events) as events:
            # Not earlier: until the run is there, what is decided is said to the log only.
            resumed, job.resumed = job.resumed, None
            if resumed is not None:
                turn.resume(resumed)
            asking = self._ask(job, session, turn, prompt, maybe_sent=resumed is not None)
            asked = asyncio.create_task(asking)
            run = job.run = _Run(job, session, turn, asked, events)
            pump = asyncio.create_task(self._pump(run))
            either: set[asyncio.Future[Any]] = {pump, job.canceled}
            ended = False
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                ended = pump.done()
                if turn.outcome is None and self._log.holds(job.head.id):
                    await self._stop(run, pump)
                if ended:
                    outcome = pump.result()
                else:
                    outcome = CANCELED
            finally:
                job.run = None
                if not ended:  # else both are done: the pump waits for its prompt first
                    asked.cancel()
                    pump.cancel()
                    await asyncio.gather(asked, pump, return_exceptions=True)
                job.usage = (job.usage or Usage()) + turn.usage
                job.session_title = turn.title or job.session_title
        return turn, outcome

    async def _ask(
        self, job: _Job, session: AgentSession, turn: Turn, prompt: Prompt, *, maybe_sent: bool
    ) -> None:
        """Send the prompt, once. An answer that got lost does not mean that it did not arrive."""
        until = time.monotonic() + self._limits.unreachable
        while not (maybe_sent and await self._arrived(job, session, prompt)):
            if not prompt.parts and job.prepare is not None:
                prompt = await job.prepare(prompt.message_id)
            try:
                await session.prompt(prompt)
                break
            except SessionGone:
                raise (SessionGone if maybe_sent else Unasked) from None
            except (UpstreamUnreachable, UpstreamTimeout):
                if time.monotonic() > until:
                    raise
                logger.warning("prompt.uncertain", message=prompt.message_id)
                maybe_sent = True
                await asyncio.sleep(self._limits.soon)  # it may still be on its way
        if maybe_sent:
            turn.feed(Gap(session.ref.id))

    async def _arrived(self, job: _Job, session: AgentSession, prompt: Prompt) -> bool:
        """Whether OpenCode has the prompt already."""
        return await self._patiently(job, lambda: session.has(prompt.message_id))

    async def _pump(self, run: _Run) -> Outcome:
        """Feed the turn until it is over, and look for ourselves when nothing is heard."""
        turn, limits = run.turn, self._limits
        work_until = time.monotonic() + limits.deadline
        away_since: float | None = None
        await run.asked
        look, owing_since = turn.stale, time.monotonic()
        while turn.outcome is None:
            if not self._log.holds(run.job.head.id):
                raise TakenOver
            waiting = bool(turn.requests.open)
            self._rest(run.job, waiting)
            if waiting:
                await self._expire(run)
            before = time.monotonic()
            patience = limits.soon if turn.doubtful else limits.quiet
            if (deadline := turn.requests.next_deadline()) is not None:
                patience = min(patience, max(0.0, (deadline - self._clock()) / 1000))
            if not waiting:
                if before >= work_until:
                    return self._too_late()
                patience = min(patience, work_until - before)
            if not turn.owing:
                owing_since = before
            elif before - owing_since >= limits.soon:
                look = True
            if not look:
                events = await self._listen(run, patience)
                if events is not None:  # not under that timeout: what was heard must be said
                    await self._tell(run, events)
                look = events is None or turn.stale
            if look and turn.outcome is None:
                look, owing_since = False, time.monotonic()
                try:
                    await self._tell(run, await run.session.read(turn.message_id))
                    away_since = None
                    for interrupt, decision in turn.requests.decided():
                        await self._deliver(run, interrupt, decision)
                except UpstreamError:
                    away_since = away_since or time.monotonic()
                    if time.monotonic() - away_since > limits.unreachable:
                        raise
            if waiting:  # a person's time is not the agent's
                work_until += time.monotonic() - before
        return turn.outcome

    async def _listen(self, run: _Run, patience: float) -> Sequence[AgentEvent] | None:
        """What is heard next, or None after that time."""
        try:
            async with asyncio.timeout(patience) as run.listening:
                return await anext(run.events)
        except TimeoutError:
            return None
        finally:
            run.listening = None

    async def _tell(self, run: _Run, events: Sequence[AgentEvent]) -> None:
        """Say what follows from events; what was allowed for good is answered, not asked.

        Nothing is awaited in between: what can be answered has been said.
        """
        updates, allowed = list[Update](), list[PermissionAsk]()
        for event in events:
            for update in run.turn.feed(event):
                ask = update.interrupt if isinstance(update, InterruptOpened) else None
                if isinstance(ask, PermissionAsk) and covers(run.job.grants, ask):
                    run.turn.requests.allow(ask.request_id)
                    allowed.append(ask)
                else:
                    updates.append(update)
        self._log.append(run.job.head.id, updates)
        for ask in allowed:
            logger.info("permission.granted", task=run.job.head.id, permission=ask.permission)
            await self._deliver(run, ask, PermissionDecision("once"))

    async def _deliver(self, run: _Run, interrupt: Interrupt, decision: Decision) -> bool:
        """Tell the agent; if it cannot be reached, the next look at it tries again."""
        if (run.stopping or run.job.canceled.done()) and not _refuses(decision):
            return False
        try:
            wanted = await run.session.settle(interrupt, decision)
        except UpstreamError as exc:
            logger.warning("answer.delayed", task=run.job.head.id, problem=exc.type)
            run.hurry(self._limits.soon)
            return True
        if not wanted:  # what is heard, or found at the next look, tells how it was settled
            run.hurry(self._limits.soon)
            return False
        closed = InterruptClosed(interrupt.session, interrupt.request_id, "elsewhere")
        self._log.append(run.job.head.id, run.turn.feed(closed))
        return True

    async def _expire(self, run: _Run) -> None:
        """Nobody has decided in time: refuse, so that the run goes on or ends."""
        task_id, requests = run.job.head.id, run.turn.requests
        if not requests.expired(self._clock()):
            return
        refused = list[InterruptAnswered]()
        async with self.deciding(task_id):  # an answer that is being committed was in time
            for opened in requests.expired(self._clock()):
                ask = opened.interrupt
                refusal: Decision = QuestionDecision(None)
                if isinstance(ask, PermissionAsk):
                    refusal = PermissionDecision("reject", UNDECIDED)
                refused.append(InterruptAnswered(ask, refusal, EXPIRED, len(requests.open) - 1))
                requests.answer(refused[-1])
            self._log.append(task_id, refused)
        await self._log.flushed(task_id)
        for each in refused:
            await self._deliver(run, each.interrupt, each.decision)

    def _deadline(self) -> int:
        return self._clock() + int(self._limits.answer * 1000)

    async def _stop(self, run: _Run, pump: asyncio.Task[Outcome]) -> None:
        """Abort, then refuse what is pending: approving it later would run it after all."""
        run.stopping = True
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(self._limits.abort):
                await asyncio.wait({run.asked})  # the abort must not overtake its prompt
                if pump.done() and isinstance(pump.exception(), SessionGone):
                    await run.session.abort()  # to delete it has not stopped it
                    return
                # If it gave up: the session is free only when this run is over.
                over = asyncio.create_task(self._pump(run)) if pump.done() else pump
                try:
                    while not over.done():  # OpenCode may end only a sub-agent, and go on itself
                        await run.session.abort()
                        await run.session.reject_pending(run.turn.family)
                        await asyncio.wait({over}, timeout=ABORT_AGAIN)
                finally:
                    if over is not pump:
                        over.cancel()
                        await asyncio.gather(over, return_exceptions=True)

    async def _show_changes(self, job: _Job, session: AgentSession, changed: list[str]) -> None:
        """What all its turns changed, which OpenCode knows only a moment after their end."""
        files: dict[str, FileChange] = {}
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(self._limits.abort):
                for message_id in changed:
                    for pause in (0.1, 0.2, 0.4, 0.8, 1.6):
                        if found := await session.changes(message_id):
                            files |= {change.file: change for change in found}
                            break
                        await asyncio.sleep(pause)
        if files:
            self._log.append(job.head.id, [ChangesMade(tuple(files.values()))])

    def _too_late(self) -> Outcome:
        problem = Problem(
            Failure.DEADLINE_EXCEEDED,
            f"The agent did not finish within {self._limits.deadline:g} seconds of work and was "
            "stopped. OPENCODE_TIMEOUT_STREAM sets this limit.",
        )
        return _because(problem)

    def _end(self, job: _Job, outcome: Outcome) -> None:
        session = job.session.ref.id if job.session is not None else None
        end = Ended(
            outcome.state, outcome.message, outcome.problem, job.usage, session, job.session_title
        )
        self._log.append(job.head.id, [end])
        logger.info(
            "task.ended",
            task=job.head.id,
            state=outcome.state.value,
            problem=outcome.problem.type.value if outcome.problem else None,
        )


def _waits(job: _Job, why: str, **facts: str) -> None:
    logger.debug("task.waits", task=job.head.id, why=why, **facts)


def _place(job: _Job) -> asyncio.Future[Prompt | None]:
    """A place for one more prompt of a task, after those it has."""
    place: asyncio.Future[Prompt | None] = asyncio.get_running_loop().create_future()
    job.inbox.append(place)
    return place


async def _filled(place: asyncio.Future[Prompt | None]) -> Prompt | None:
    if not place.done():
        # Who stops to wait for it must not take it away from who fills it.
        await asyncio.wait({place})
    return place.result()


def _failed(exc: ServiceError) -> Outcome:
    if isinstance(exc, InvalidParams | ContentTypeNotSupported):  # it was right when it was sent
        reason = f"A file of this message is not to be had any more. {exc.message}"
        return _because(Problem(Failure.INPUT_UNAVAILABLE, reason))
    kind = Failure(exc.type) if exc.type in Failure.__members__ else Failure.INTERNAL
    problem = Problem(kind, exc.message, exc.facts.get("upstream_status"))
    return _because(problem)


def _because(problem: Problem) -> Outcome:
    return Outcome(TaskState.FAILED, problem.message, problem)


def _refuses(decision: Decision) -> bool:
    if isinstance(decision, PermissionDecision):
        return decision.reply == "reject"
    return decision.answers is None


def in_transit() -> UpstreamBusy:
    return UpstreamBusy(
        "The task is passing from one process of this service to another. Try again in a moment.",
        retry_after=2,
    )
