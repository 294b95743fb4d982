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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from ..domain.events import AgentEvent
from ..domain.ports import AgentSession, TaskLog
from ..domain.task import TaskHead
from ..domain.turn import Outcome, Turn
from ..domain.updates import ChangesMade, Ended, Started, Update
from ..domain.values import Failure, Problem, Prompt, TaskState, Usage
from ..errors import ServiceError, UpstreamBusy, UpstreamError
from .sessions import Lanes, Sessions

logger = structlog.get_logger()

QUIET = 15.0  # seconds without an event before we look for ourselves
SOON = 1.0  # the same when something is in doubt
UNREACHABLE = 30.0  # seconds OpenCode may be away before its runs are given up

CANCELED = Outcome(TaskState.CANCELED, "Canceled by the caller.")
BROKEN = Problem(Failure.INTERNAL, "The service failed while it worked on this task.")


@dataclass(frozen=True, slots=True)
class TurnLimits:
    deadline: float = 1800.0  # seconds of work; time spent waiting for a person does not count
    running: int = 32  # 0 means no limit
    queued: int = 256
    abort: float = 10.0


@dataclass(slots=True)
class _Job:
    """A task being worked on, or waiting for its turn."""

    head: TaskHead
    title: str
    inbox: deque[asyncio.Future[Prompt | None]] = field(default_factory=deque)
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    work: asyncio.Task[None] | None = None
    usage: Usage = Usage()
    session: AgentSession | None = None
    session_title: str = ""


class Turns:
    def __init__(self, log: TaskLog, sessions: Sessions, limits: TurnLimits) -> None:
        self._log = log
        self._sessions = sessions
        self._limits = limits
        self._jobs: dict[str, _Job] = {}
        self._working = 0
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

    def admit(self) -> None:
        """Refuse new work when too much is waiting already."""
        if len(self._jobs) - self._working >= self._limits.queued:
            raise UpstreamBusy(
                "Too many tasks are waiting for OpenCode. Try again later, or raise "
                "OPENCODE_MAX_CONCURRENT_STREAMS.",
                retry_after=10,
            )

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
        if not job.cancel.is_set():
            job.cancel.set()
            if job.session is None:
                job.work.cancel()  # it only waits, so nothing upstream needs stopping
        await job.over.wait()

    # -- the life of a job

    async def _work(self, job: _Job) -> None:
        try:
            outcome = await self._queue(job)
        except asyncio.CancelledError:
            if not job.cancel.is_set():
                raise  # the service stops; the task is picked up by the next start
            outcome = CANCELED
        except ServiceError as exc:
            outcome = _failed(exc)
        except Exception:
            logger.exception("turn.broken", task=job.head.id)
            outcome = Outcome(TaskState.FAILED, BROKEN.message, BROKEN)
        finally:
            self._jobs.pop(job.head.id, None)
            job.closed = True
        self._end(job, outcome)
        await self._log.flushed(job.head.id)
        job.over.set()

    async def _queue(self, job: _Job) -> Outcome:
        session = await self._sessions.serving(job.head.owner, job.head.context_id, job.title)
        async with self._lanes(session.ref.id), self._slots or _no_limit():
            job.session, job.session_title = session, session.ref.title
            self._working += 1
            try:
                return await self._converse(job, session)
            finally:
                self._working -= 1

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
        return outcome

    async def _turn(
        self, job: _Job, session: AgentSession, prompt: Prompt
    ) -> tuple[Outcome, ChangesMade | None]:
        turn = Turn(session.ref.id, prompt.message_id)
        async with session.events() as events:
            await session.prompt(prompt)
            pump = asyncio.create_task(self._pump(job.head.id, session, turn, events))
            canceled = asyncio.create_task(job.cancel.wait())
            try:
                await asyncio.wait({pump, canceled}, return_when=asyncio.FIRST_COMPLETED)
                if not pump.done():
                    await self._stop(session, turn, pump)
                    outcome = turn.outcome or CANCELED
                    if outcome.state is not TaskState.COMPLETED:
                        outcome = CANCELED
                else:
                    outcome = pump.result()
                    if outcome.problem and outcome.problem.type is Failure.DEADLINE_EXCEEDED:
                        await self._stop(session, turn, None)
            finally:
                for task in (pump, canceled):
                    task.cancel()
                await asyncio.gather(pump, canceled, return_exceptions=True)
                job.usage += turn.usage
                job.session_title = turn.title or job.session_title
        return outcome, await self._changes(session, turn)

    async def _pump(
        self,
        task_id: str,
        session: AgentSession,
        turn: Turn,
        events: AsyncIterator[Sequence[AgentEvent]],
    ) -> Outcome:
        """Feed the turn until it is over, and look for ourselves when nothing is heard."""
        work_until = time.monotonic() + self._limits.deadline
        away_since: float | None = None
        while turn.outcome is None:
            before = time.monotonic()
            if before > work_until:
                return self._too_late()
            try:
                async with asyncio.timeout(SOON if turn.doubtful else QUIET):
                    self._tell(task_id, turn, await anext(events))
                look = turn.stale
            except TimeoutError:
                look = True
            if look and turn.outcome is None:
                try:
                    self._tell(task_id, turn, await session.read(turn.message_id))
                    away_since = None
                except UpstreamError:
                    away_since = away_since or time.monotonic()
                    if time.monotonic() - away_since > UNREACHABLE:
                        raise
            if turn.interrupts:  # a person's time is not the agent's
                work_until += time.monotonic() - before
        return turn.outcome

    def _tell(self, task_id: str, turn: Turn, events: Sequence[AgentEvent]) -> None:
        updates: list[Update] = []
        for event in events:
            updates += turn.feed(event)
        self._log.append(task_id, updates)

    async def _stop(
        self, session: AgentSession, turn: Turn, pump: asyncio.Task[Outcome] | None
    ) -> None:
        """Abort, then refuse what is pending: approving it later would run it after all."""
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(self._limits.abort):
                await session.abort()
                await session.reject_pending(turn.family)
                if pump is not None:
                    await asyncio.wait({pump})

    async def _changes(self, session: AgentSession, turn: Turn) -> ChangesMade | None:
        if not turn.files_changed:
            return None
        with suppress(UpstreamError):
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
