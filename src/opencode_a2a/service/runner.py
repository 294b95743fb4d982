"""Performs the effects of one task's `Run`, and feeds back the results. There is no rule in here.

Effects are performed one at a time. While one is, others may feed the run too (a cancel, an
answer, one more message): `post` does that, and leaves the effect where it only waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

import structlog
from structlog.contextvars import bind_contextvars

from ..domain.catalog import Location
from ..domain.effects import (
    Abort,
    Aborted,
    AwaitOlderTasks,
    AwaitSlot,
    BudgetSpent,
    CancelRequested,
    ChangesRead,
    Deliver,
    Delivered,
    DiscardSession,
    Effect,
    EffectFailed,
    ExpireRequests,
    FindPrompt,
    Finish,
    Flush,
    Flushed,
    Happened,
    Heard,
    LeaseLost,
    Listen,
    NothingHeard,
    OlderTasksChecked,
    OpenSession,
    PromptSearched,
    PromptSent,
    PromptStored,
    ReadChanges,
    Reconcile,
    RenewSession,
    RequestAnswered,
    RequestsExpired,
    SendPrompt,
    ServiceBroken,
    SessionDiscarded,
    SessionMissing,
    SessionOpened,
    SlotGranted,
    StoreContinuation,
    StoredRead,
    Subscribe,
    Subscribed,
    Wait,
)
from ..domain.events import AgentEvent
from ..domain.permissions import AllowRule
from ..domain.phrases import CONTINUE_PROMPT
from ..domain.ports import AgentSession, InterruptStore, SessionGone, TaskLog
from ..domain.run import Run
from ..domain.task import TaskHead
from ..domain.updates import Continued, Ended, InterruptAnswered, Update
from ..domain.values import (
    CallPath,
    Failure,
    FileChange,
    PermissionAsk,
    Problem,
    Prompt,
)
from ..errors import (
    ContentTypeNotSupported,
    InvalidParams,
    ServiceError,
    StoreError,
    StoreUnavailable,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from ..locks import KeyedLock
from ..observe import metrics, tracing
from ..observe.tasks import ref_of, task_span, turn_span
from ..observe.tracing import SpanRef
from .calling_session import CallingSession
from .limits import Limiter
from .peer_calls import PeerCalls
from .retelling import Retelling
from .sessions import Sessions

logger = structlog.get_logger()

Prepare = Callable[[str], Awaitable[Prompt]]
CHANGES_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds; OpenCode knows changes a moment after the end
BACKGROUND_SECONDS = 1.0  # that deliveries may take after the end of their task
FLUSH_SECONDS = 8.0  # that a decision, or the answer to one, waits for what is not stored yet
BROKEN = Problem(Failure.INTERNAL, "The service failed while it worked on this task.")
NOT_ANSWERED = Problem(Failure.UPSTREAM_TIMEOUT, "OpenCode has not answered in time.")
_FAILURES = (SessionGone, ServiceError)  # of an effect; anything else is a fault of the service
_UNREACHABLE = (UpstreamUnreachable, UpstreamTimeout, StoreError)
# What is left when anything happens, and what only when the task is canceled. The others go on:
# an abort must not overtake its prompt.
_INTERRUPTIBLE = (Wait, Listen, Reconcile)
_CANCELABLE = (
    *_INTERRUPTIBLE,
    AwaitOlderTasks,
    OpenSession,
    AwaitSlot,
    Subscribe,
    FindPrompt,
)
_IN_BACKGROUND = (Deliver, ExpireRequests)
_LEASED = (SendPrompt, Deliver, Abort)  # the agent does these, whoever asks


class Slots(Protocol):
    """What a runner needs to know of other tasks."""

    async def older_tasks_ended(self, runner: Runner) -> bool:
        """Whether no older task of the context is left; waits a while if one is."""
        ...

    async def slot(self, runner: Runner, *, between_prompts: bool) -> None:
        """Wait for a slot."""
        ...

    def rest(self, runner: Runner, *, resting: bool) -> None:
        """A task that waits for a person needs no slot."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What all runners work with."""

    log: TaskLog
    sessions: Sessions
    interrupts: InterruptStore
    deciding: KeyedLock[str]  # by task: while an answer is stored, nothing expires
    slots: Slots
    clock: Callable[[], int]
    changes_seconds: float
    limiter: Limiter
    peer_calls: PeerCalls | None = None  # None where the agent cannot call peers
    retelling: Retelling | None = None  # None where sessions stay where they are


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class Runner:
    """A task at work, or waiting for its turn. Implements `domain.admission.Entrant`."""

    tools: Tools
    head: TaskHead
    title: str
    run: Run
    order: tuple[bool, int, str]
    path: CallPath = CallPath()  # the deepest of its messages, for the calls that the agent makes
    origin: CallPath = CallPath()  # of its first message: the trace that all of it belongs to
    prepare: Prepare | None = None  # makes the parts of a prompt that an earlier process had
    granted: asyncio.Future[None] = field(default_factory=_future)  # a slot
    over: asyncio.Future[None] = field(default_factory=_future)
    work: asyncio.Task[None] | None = None
    entered: bool = False
    next_key: int = 0  # of the next message
    caller: str = field(init=False)
    context: str = field(init=False)
    _clock_offset: float = field(init=False)
    _session: AgentSession | None = None
    _subscription: ExitStack | None = None
    _events: AsyncIterator[Sequence[AgentEvent]] | None = None
    _effect: Effect | None = None
    _timeout: asyncio.Timeout | None = None
    _resting: bool = False  # as the slots were told
    _waiters: dict[str, asyncio.Future[bool]] = field(default_factory=dict)  # for deliveries
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.caller, self.context = self.head.owner, self.head.context_id
        # From here on time passes steadily, also when the clock of the machine is set.
        self._clock_offset = self.tools.clock() / 1000 - time.monotonic()

    def _now(self) -> float:
        return self._clock_offset + time.monotonic()

    # -- what others do

    def post(self, happened: Happened) -> None:
        """Tell the run what has happened outside of it."""
        if self.over.done():
            return
        self._feed(happened)
        if self._timeout is None or self._timeout.expired():
            return
        canceled = isinstance(happened, CancelRequested | BudgetSpent)
        if isinstance(self._effect, _CANCELABLE if canceled else _INTERRUPTIBLE):
            self._leave_at(0.0)
        elif (until := self.run.give_up_at) is not None:
            self._leave_at(until - self._now())

    def _leave_at(self, seconds: float) -> None:
        assert self._timeout is not None
        by = asyncio.get_running_loop().time() + seconds
        self._timeout.reschedule(min(by, self._timeout.when() or by))

    def deliver(self, answer: InterruptAnswered) -> asyncio.Future[bool]:
        """Deliver a decision to the agent. The result: whether the agent still waited for it."""
        delivered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.post(RequestAnswered(answer))
        self._waiters[answer.interrupt.request_id] = delivered
        self._resolve_dropped()
        return delivered

    def _resolve_dropped(self) -> None:
        """The agent does not wait any more for what will not be delivered."""
        for request_id in [each for each in self._waiters if not self.run.will_deliver(each)]:
            _resolve(self._waiters.pop(request_id), wanted=False)

    # -- the work

    def enter_context(self) -> None:
        """Let the log and traces know whose work follows, in the asyncio task that does it."""
        head = self.head
        about = {"task": head.id, "context": head.context_id, "principal": head.owner}
        if self.origin.trace:
            about["trace_id"] = self.origin.trace
        if (ref := self._begun_by()) is not None:
            span = task_span(ref, head.id)
            tracing.current.set(span)
            about["span_id"] = span.span
        bind_contextvars(**about)

    def _enter_turn(self, message_id: str) -> None:
        if (ref := self._begun_by()) is not None:
            tracing.current.set(turn_span(ref, message_id))

    def _begun_by(self) -> SpanRef | None:
        """The request that began the task, if its trace is recorded."""
        if tracing.process.tracer is None or not self.origin.sampled:
            return None
        return ref_of(self.origin)

    async def until_finished(self) -> None:
        """Perform effects until none is left, and store the last updates."""
        self.entered = True
        seconds = BACKGROUND_SECONDS
        try:
            await self._store_end(await self._perform_all())
        except asyncio.CancelledError:
            seconds = 0.0
            raise
        finally:
            self._leave()
            await self._end_background(seconds)

    async def _end_background(self, seconds: float) -> None:
        """Wait so long for what is still being delivered."""
        try:
            if self._background:
                await asyncio.wait(self._background, timeout=seconds)
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)

    def _leave(self) -> None:
        """Nothing more is heard, and nothing more is delivered that somebody waits for."""
        self._unsubscribe()
        for waiter in self._waiters.values():
            _resolve(waiter, wanted=False)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    async def _store_end(self, finish: Finish) -> None:
        self._leave()
        if finish.updates:
            try:
                self._append(finish.updates)
            except Exception:  # what closes the blocks cannot be stored; the end can
                logger.exception("task.internal_error", task=self.head.id)
                self._append(finish.updates[-1:])
            await self.tools.log.flushed(self.head.id)

    async def _perform_all(self) -> Finish:
        known: Effect | None = None  # the next effect, where it was asked for already
        while True:
            try:
                effect, known = known or self._next(), None
                if isinstance(effect, Finish):
                    return effect
                if isinstance(effect, _IN_BACKGROUND):
                    self._begin(effect)
                elif isinstance(effect, Listen):
                    known = await self._listen(effect)
                elif (happened := await self._perform(effect)) is not None:
                    self._feed(happened)
            except Exception:
                logger.exception("task.internal_error", task=self.head.id)
                with suppress(Exception):  # it may be the updates that are broken
                    self._feed(ServiceBroken(BROKEN))

    def _next(self) -> Effect:
        if self.run.working and not self.tools.log.is_mine(self.head.id):
            self._feed(LeaseLost())
        return self.run.next(self._now())

    def _feed(self, happened: Happened) -> None:
        run = self.run
        self._append(run.feed(happened, self._now()))
        if run.working:
            if (resting := bool(run.open_requests)) is not self._resting:
                self._resting = resting
                self.tools.slots.rest(self, resting=resting)
        else:
            self._unsubscribe()
        if self._waiters:
            self._resolve_dropped()

    def _append(self, updates: Sequence[Update]) -> None:
        if not updates:
            return
        self.tools.log.append(self.head.id, updates)
        if isinstance(end := updates[-1], Ended):
            problem = end.problem.type.value if end.problem else None
            logger.info("task.ended", task=self.head.id, state=end.state.value, problem=problem)

    def _begin(self, effect: Deliver | ExpireRequests) -> None:
        """Perform an effect while the run goes on."""

        async def perform() -> None:
            try:
                happened = await self._do(effect)
            except _FAILURES as exc:
                happened = self._failure(effect, exc)
            except Exception:
                logger.exception("task.internal_error", task=self.head.id)
                happened = ServiceBroken(BROKEN)
            if happened is not None:
                self.post(happened)

        task = asyncio.create_task(perform())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _time_out(self, effect: Effect, until: float | None) -> asyncio.Timeout:
        seconds = None if until is None else max(0.0, until - self._now())
        self._effect, self._timeout = effect, asyncio.timeout(seconds)
        return self._timeout

    async def _listen(self, effect: Listen) -> Effect | None:
        """Feed what is heard, until there is more to do than to listen: returns that, if known.

        Most events put off the time to listen until. The timer stays as it is then, which is
        cheaper; when it is over too early, the run tells how long to listen on.
        """
        assert self._events is not None
        until = effect.until
        timeout = self._time_out(effect, until)
        try:
            async with timeout:
                while True:
                    self._feed(Heard(await anext(self._events)))
                    following = self._next()
                    if not isinstance(following, Listen):
                        return following
                    effect = following
                    if effect.until < until:
                        until = effect.until
                        self._leave_at(until - self._now())
        except TimeoutError:
            if not timeout.expired():
                raise  # not ours
            if self._now() >= effect.until:
                self._feed(NothingHeard())
            return None
        finally:
            self._timeout = None

    async def _perform(self, effect: Effect) -> Happened | None:
        """What came of an effect, failures included; None when it was left."""
        until = effect.until if isinstance(effect, Wait) else self.run.give_up_at
        timeout = self._time_out(effect, until)
        try:
            async with timeout:
                return await self._do(effect)
        except _FAILURES as exc:
            return self._failure(effect, exc)
        except TimeoutError:
            if not timeout.expired():
                raise  # not ours
            if isinstance(effect, _CANCELABLE):
                return None
            return EffectFailed(effect, NOT_ANSWERED, unreachable=True)
        finally:
            self._timeout = None

    def _failure(self, effect: Effect, exc: SessionGone | ServiceError) -> Happened:
        if isinstance(exc, SessionGone):
            return SessionMissing(effect)
        self._log_failure(effect, exc)
        return EffectFailed(effect, _problem(exc), unreachable=isinstance(exc, _UNREACHABLE))

    async def _do(self, effect: Effect) -> Happened | None:
        log, task_id, session = self.tools.log, self.head.id, self._session
        match effect:
            case Wait():
                await _future()
                return None
            case AwaitOlderTasks():
                return OlderTasksChecked(left=not await self.tools.slots.older_tasks_ended(self))
            case AwaitSlot(between_prompts):
                await self.tools.slots.slot(self, between_prompts=between_prompts)
                return SlotGranted()
            case OpenSession():
                # Who has it now may have made a session already.
                held = await log.confirm_lease(task_id)
                return await self._open_session(effect) if held else LeaseLost()
            case RenewSession():
                return await self._renew_session()
            case DiscardSession():
                await self.tools.sessions.forget(self.head.owner, self.head.context_id)
                return SessionDiscarded()
            case Flush(updates):
                self._append(updates)
                await log.flushed(task_id)
                return Flushed()
            case StoreContinuation(key, selection):
                prompt = Prompt(self.tools.sessions.new_message_id(), (CONTINUE_PROMPT,), selection)
                # Stored in the order in which prompts are sent, so nothing is awaited before.
                await log.write(task_id, [Continued(prompt.message_id, selection)])
                logger.info("task.continued", task=task_id, message=prompt.message_id)
                return PromptStored(key, prompt)
            case ExpireRequests():
                async with self.tools.deciding(task_id):
                    self.post(RequestsExpired())
                return None
            case Finish() | Listen():
                raise AssertionError("this is not performed here")
            case _:
                assert session is not None
                return await self._do_in_session(effect, session)

    async def _do_in_session(
        self,
        effect: Subscribe | FindPrompt | SendPrompt | Reconcile | Deliver | Abort | ReadChanges,
        session: AgentSession,
    ) -> Happened | None:
        if isinstance(effect, _LEASED) and not await self.tools.log.confirm_lease(self.head.id):
            return LeaseLost()
        match effect:
            case Subscribe():
                self._unsubscribe()
                subscription = await session.events()
                self._subscription = ExitStack()
                self._events = self._subscription.enter_context(subscription)
                return Subscribed()
            case FindPrompt(message_id):
                self._enter_turn(message_id)
                return PromptSearched(await session.has(message_id))
            case SendPrompt(prompt, replaces):
                if (spent := self.tools.limiter.budget_problem(self.head.owner)) is not None:
                    return BudgetSpent(spent)
                self._enter_turn(prompt.message_id)
                if not prompt.parts and self.prepare is not None:
                    prompt = await self.prepare(prompt.message_id)
                prompt = await self._with_earlier(prompt, session)
                await session.prompt(prompt, replaces=replaces)
                return PromptSent()
            case Reconcile(message_id):
                metrics.RECONCILES.inc()
                self._enter_turn(message_id)
                return StoredRead(await session.read(message_id))
            case Deliver():
                return await self._deliver(effect, session)
            case Abort(sub_agents):
                await session.abort(sub_agents)
                return Aborted()
            case ReadChanges(message_ids):
                return ChangesRead(await self._changes(session, message_ids))
            case _:
                assert_never(effect)

    async def _with_earlier(self, prompt: Prompt, session: AgentSession) -> Prompt:
        """A prompt and, before it, what was said in the context, if the session was not there."""
        if (retelling := self.tools.retelling) is None or self.run.fresh:
            return prompt
        said = await retelling.before(self.head, session, prompt.message_id)
        return prompt if said is None else replace(prompt, parts=(said, *prompt.parts))

    async def _open_session(self, effect: OpenSession) -> SessionOpened:
        owner, context_id = self.head.owner, self.head.context_id
        session = await self.tools.sessions.serving(
            owner,
            context_id,
            title=self.title,
            location=Location(effect.directory) if effect.directory is not None else None,
            isolation=effect.isolation,
            fresh=self.run.fresh,
        )
        self._session = self._with_peers(session)
        rules: Sequence[AllowRule] = ()
        if not self.run.fresh:
            with suppress(StoreUnavailable):  # to ask once too often does no harm
                rules = await self.tools.interrupts.allow_rules(owner, context_id)
        ref = self._session.ref
        bind_contextvars(session=ref.id)
        return SessionOpened(ref.id, ref.title, rules=rules, worktree=ref.worktree)

    async def _renew_session(self) -> SessionOpened:
        assert self._session is not None
        gone = self._session.ref
        session = await self.tools.sessions.renewed(
            self.head.owner, self.head.context_id, title=self.title, gone=gone
        )
        self._session = self._with_peers(session)
        ref = self._session.ref
        bind_contextvars(session=ref.id)
        logger.warning("session.renewed", task=self.head.id, gone=gone.id, session=ref.id)
        return SessionOpened(ref.id, ref.title, worktree=ref.worktree)

    def _with_peers(self, session: AgentSession) -> AgentSession:
        if (calls := self.tools.peer_calls) is None:
            return session
        denied = self.tools.limiter.permission_rules(self.head.owner)
        return CallingSession(
            session,
            calls,
            head=self.head,
            path=lambda: self.path,
            origin=self.origin,
            denied=denied,
        )

    async def _deliver(self, effect: Deliver, session: AgentSession) -> Delivered:
        interrupt, wanted = effect.interrupt, True
        waiter = self._waiters.pop(interrupt.request_id, None)
        if effect.by_rule and isinstance(interrupt, PermissionAsk):
            logger.info("permission.granted", task=self.head.id, permission=interrupt.permission)
        try:
            if effect.unstored:
                # Who decides meanwhile waits for this delivery, and keeps others from deciding.
                await self.tools.log.flushed(self.head.id, within=FLUSH_SECONDS)
            wanted = await session.settle(interrupt, effect.decision)
        finally:  # an agent that cannot be reached gets it later
            if waiter is not None:
                _resolve(waiter, wanted=wanted)
        return Delivered(interrupt, wanted)

    async def _changes(
        self, session: AgentSession, message_ids: Sequence[str]
    ) -> tuple[FileChange, ...]:
        files: dict[str, FileChange] = {}
        try:
            async with asyncio.timeout(self.tools.changes_seconds):
                if (worktree := session.ref.worktree) is not None:
                    return await self.tools.sessions.changes(worktree)
                for message_id in message_ids:
                    for pause in CHANGES_PAUSES:
                        if found := await session.changes(message_id):
                            files |= {change.file: change for change in found}
                            break
                        await asyncio.sleep(pause)
        except (ServiceError, TimeoutError):
            pass  # what was found is shown
        return tuple(files.values())

    def _log_failure(self, effect: Effect, exc: ServiceError) -> None:
        match effect:
            case SendPrompt(prompt) if isinstance(exc, _UNREACHABLE):
                logger.warning("prompt.uncertain", message=prompt.message_id)
            case Deliver():
                logger.warning("answer.delayed", task=self.head.id, problem=exc.type)
            case _:
                log_wait(self.head, "to try again", problem=exc.type)


def _resolve(waiter: asyncio.Future[bool], *, wanted: bool) -> None:
    if not waiter.done():
        waiter.set_result(wanted)


def log_wait(head: TaskHead, why: str, **facts: str) -> None:
    logger.debug("task.waits", task=head.id, why=why, **facts)


def _problem(exc: ServiceError) -> Problem:
    if isinstance(exc, InvalidParams | ContentTypeNotSupported):  # it was right when it was sent
        reason = f"A file of this message is not to be had any more. {exc.message}"
        return Problem(Failure.INPUT_UNAVAILABLE, reason)
    kind = Failure(exc.type) if exc.type in Failure.__members__ else Failure.INTERNAL
    return Problem(kind, exc.message, exc.facts.get("upstream_status"))
