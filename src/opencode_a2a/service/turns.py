"""Turns at work: one at a time per session, bounded in number, each to its end.

A turn subscribes, then prompts, feeds what arrives to the pure `Turn` and says
what follows in the log. It ends when the agent is done, when its caller cancels,
when its time is up, or when OpenCode cannot be reached any more; whatever
happens, the task ends too. Clients that come and go do not matter here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from ..domain.events import AgentEvent
from ..domain.ports import AgentSession, TaskLog
from ..domain.task import TaskHead
from ..domain.turn import Outcome, Turn
from ..domain.updates import ChangesMade, Ended, Started, Update
from ..domain.values import Failure, Problem, Prompt, TaskState, Usage
from ..errors import ServiceError, StoreUnavailable, UpstreamBusy, UpstreamError
from .sessions import Lanes, Sessions

logger = structlog.get_logger()

CANCELED = Outcome(TaskState.CANCELED, "Canceled by the caller.")
BROKEN = Problem(Failure.INTERNAL, "The service failed while it worked on this task.")


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How many turns, and how many seconds of what."""

    deadline: float = 1800.0  # work; time spent waiting for a person does not count
    running: int = 32  # 0 means no limit, and then nothing waits but for its own session
    queued: int = 256
    abort: float = 10.0  # what a goodbye may take
    record: float = 10.0  # until the end of a task is in the log, for who waits for it
    quiet: float = 15.0  # without an event before we look for ourselves
    soon: float = 1.0  # the same when something is in doubt
    unreachable: float = 30.0  # OpenCode may be away before its runs are given up


@dataclass(slots=True)
class _Job:
    """A task being worked on, or waiting for its turn."""

    head: TaskHead
    title: str
    inbox: deque[asyncio.Future[Prompt | None]] = field(default_factory=deque)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False  # nothing more is asked of the agent
    begun: bool = False
    work: asyncio.Task[None] | None = None
    usage: Usage = Usage()
    session: AgentSession | None = None
    session_title: str = ""


@dataclass(slots=True)
class _Run:
    """One prompt of a task, and what the agent says to it."""

    task_id: str
    session: AgentSession
    turn: Turn
    asked: asyncio.Task[None]
    events: AsyncIterator[Sequence[AgentEvent]]


class Turns:
    def __init__(self, log: TaskLog, sessions: Sessions, limits: TurnLimits) -> None:
        self._log = log
        self._sessions = sessions
        self._limits = limits
        self._jobs: dict[str, _Job] = {}
        self._arriving = 0
        self._lanes: Lanes[str] = Lanes()
        self._slots = asyncio.Semaphore(limits.running) if limits.running else None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, log: TaskLog, sessions: Sessions, limits: TurnLimits
    ) -> AsyncIterator[Turns]:
        self = cls(log, sessions, limits)
        try:
            yield self
        finally:
            work = [job.work for job in self._jobs.values() if job.work is not None]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Keep a place for a task in the making, or refuse it: too much is waiting already."""
        limits = self._limits
        if limits.running and (len(self._jobs) + self._arriving >= limits.running + limits.queued):
            raise UpstreamBusy(
                "Too many tasks are waiting for OpenCode. Try again later, or raise "
                "OPENCODE_MAX_CONCURRENT_STREAMS.",
                retry_after=10,
            )
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    def start(self, head: TaskHead, title: str, prompt: Prompt) -> None:
        """Work on a new task as soon as its session and a slot are free."""
        job = self._jobs[head.id] = _Job(head, title)
        ready: asyncio.Future[Prompt | None] = asyncio.get_running_loop().create_future()
        ready.set_result(prompt)
        job.inbox.append(ready)
        job.work = asyncio.create_task(self._work(job))

    def steer(self, task_id: str) -> asyncio.Future[Prompt | None] | None:
        """A place for one more prompt of a running task, or None when it is too late.

        The place keeps the task open: fill it once the prompt is committed, or with None.
        """
        job = self._jobs.get(task_id)
        if job is None or job.closed:
            return None
        place: asyncio.Future[Prompt | None] = asyncio.get_running_loop().create_future()
        job.inbox.append(place)
        return place

    async def cancel(self, task_id: str) -> None:
        """Ask a task to stop, and wait (a bounded time) until it has."""
        job = self._jobs.get(task_id)
        if job is None or job.work is None:
            return
        if not job.closed and not job.cancel.is_set():
            job.cancel.set()
            if job.begun and job.session is None:
                job.work.cancel()  # it only waits, so nothing upstream needs stopping
        try:
            async with asyncio.timeout(2 * self._limits.abort + self._limits.record):
                await job.over.wait()
        except TimeoutError:
            raise StoreUnavailable(
                "The task is being stopped, but this cannot be recorded right now.", retry_after=5
            ) from None

    # -- the life of a job

    async def _work(self, job: _Job) -> None:
        job.begun = True
        try:
            outcome = await self._outcome(job)
            job.closed = True
            self._end(job, outcome)
            await self._log.flushed(job.head.id)
            job.over.set()
        finally:
            del self._jobs[job.head.id]

    async def _outcome(self, job: _Job) -> Outcome:
        try:
            return await self._queue(job)
        except asyncio.CancelledError:
            if not job.cancel.is_set():
                raise  # the service stops; the task is picked up by the next start
            return CANCELED
        except ServiceError as exc:
            return CANCELED if job.cancel.is_set() else _failed(exc)
        except Exception:
            logger.exception("turn.broken", task=job.head.id)
            return Outcome(TaskState.FAILED, BROKEN.message, BROKEN)

    async def _queue(self, job: _Job) -> Outcome:
        if job.cancel.is_set():
            return CANCELED
        session = await self._sessions.serving(job.head.owner, job.head.context_id, job.title)
        async with self._lanes(session.ref.id), self._slots or _no_limit():
            job.session, job.session_title = session, session.ref.title
            return await self._converse(job, session)

    async def _converse(self, job: _Job, session: AgentSession) -> Outcome:
        """The task's prompts one after the other; more may arrive while one is answered."""
        outcome = CANCELED
        self._log.append(job.head.id, [Started(session.ref.id, session.ref.title)])
        while job.inbox and not job.cancel.is_set():
            prompt = await job.inbox.popleft()
            if prompt is None:
                continue  # its place was given up
            outcome, changes = await self._turn(job, session, prompt)
            if changes:
                self._log.append(job.head.id, [changes])
        job.closed = True
        return CANCELED if job.inbox else outcome

    async def _turn(
        self, job: _Job, session: AgentSession, prompt: Prompt
    ) -> tuple[Outcome, ChangesMade | None]:
        turn = Turn(session.ref.id, prompt.message_id)
        async with session.events() as events:
            asked = asyncio.create_task(session.prompt(prompt))
            run = _Run(job.head.id, session, turn, asked, events)
            pump = asyncio.create_task(self._pump(run))
            canceled = asyncio.create_task(job.cancel.wait())
            try:
                await asyncio.wait({pump, canceled}, return_when=asyncio.FIRST_COMPLETED)
                ended = pump.done()
                if turn.outcome is None:
                    await self._stop(run, pump)
                if ended:
                    outcome = pump.result()
                elif turn.outcome and turn.outcome.state is TaskState.COMPLETED:
                    outcome = turn.outcome  # the cancel came too late
                else:
                    outcome = CANCELED
            finally:
                for task in (asked, pump, canceled):
                    task.cancel()
                await asyncio.gather(asked, pump, canceled, return_exceptions=True)
                job.usage += turn.usage
                job.session_title = turn.title or job.session_title
        return outcome, await self._changes(session, turn)

    async def _pump(self, run: _Run) -> Outcome:
        """Feed the turn until it is over, and look for ourselves when nothing is heard."""
        turn, limits = run.turn, self._limits
        work_until = time.monotonic() + limits.deadline
        away_since: float | None = None
        await run.asked
        while turn.outcome is None:
            before, waiting = time.monotonic(), bool(turn.interrupts)
            patience = limits.soon if turn.doubtful else limits.quiet
            if not waiting:
                if before >= work_until:
                    return self._too_late()
                patience = min(patience, work_until - before)
            try:
                async with asyncio.timeout(patience):
                    self._tell(run, await anext(run.events))
                look = turn.stale
            except TimeoutError:
                look = True
            if look and turn.outcome is None:
                try:
                    self._tell(run, await run.session.read(turn.message_id))
                    away_since = None
                except UpstreamError:
                    away_since = away_since or time.monotonic()
                    if time.monotonic() - away_since > limits.unreachable:
                        raise
            if waiting:  # a person's time is not the agent's
                work_until += time.monotonic() - before
        return turn.outcome

    def _tell(self, run: _Run, events: Sequence[AgentEvent]) -> None:
        updates: list[Update] = []
        for event in events:
            updates += run.turn.feed(event)
        self._log.append(run.task_id, updates)

    async def _stop(self, run: _Run, pump: asyncio.Task[Outcome]) -> None:
        """Abort, then refuse what is pending: approving it later would run it after all."""
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(self._limits.abort):
                await asyncio.wait({run.asked})  # the abort must not overtake its prompt
                await run.session.abort()
                await run.session.reject_pending(run.turn.family)
                if pump.done():  # it gave up, but the session is free only when this run is over
                    await self._pump(run)
                else:
                    await asyncio.wait({pump})

    async def _changes(self, session: AgentSession, turn: Turn) -> ChangesMade | None:
        if not turn.files_changed:
            return None
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(self._limits.abort):
                files = await session.changes(turn.message_id)
            return ChangesMade(files) if files else None
        return None

    def _too_late(self) -> Outcome:
        problem = Problem(
            Failure.DEADLINE_EXCEEDED,
            f"The agent did not finish within {self._limits.deadline:g} seconds of work and was "
            "stopped. OPENCODE_TIMEOUT_STREAM sets this limit.",
        )
        return Outcome(TaskState.FAILED, problem.message, problem)

    def _end(self, job: _Job, outcome: Outcome) -> None:
        usage = job.usage if job.usage != Usage() else None
        session = job.session.ref.id if job.session is not None else None
        end = Ended(
            outcome.state, outcome.message, outcome.problem, usage, session, job.session_title
        )
        self._log.append(job.head.id, [end])
        logger.info(
            "task.ended",
            task=job.head.id,
            state=outcome.state.value,
            problem=outcome.problem.type.value if outcome.problem else None,
        )


def _failed(exc: ServiceError) -> Outcome:
    kind = Failure(exc.type) if exc.type in Failure.__members__ else Failure.INTERNAL
    problem = Problem(kind, exc.message, exc.facts.get("upstream_status"))
    return Outcome(TaskState.FAILED, exc.message, problem)


@asynccontextmanager
async def _no_limit() -> AsyncIterator[None]:
    yield
