"""What each caller may still use, decided from memory: no request and no step asks the database.

`Limiter.count` is told of every step of the agent once, when the log has committed it. It is the
one place where a step's figures pass. What was used before this process started, or in other
processes on the same database, is read when the first budget is checked, and then every few
seconds. The database is right, and what is in memory is replaced by it: a step whose commit the
read has seen before `count` was told counts twice until the next read, and no longer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from ..domain.admission import CallerBounds
from ..domain.limits import (
    UNLIMITED,
    Limits,
    LimitUse,
    RequestRate,
    Spent,
    StepUsage,
    StreamTime,
    affordable_tasks,
    budgets,
    check_budget,
    day_of,
    first_name,
    is_among,
)
from ..domain.permissions import SHELL, matches
from ..domain.ports import UsageStore
from ..domain.values import Failure, ModelRef, PermissionRule, Problem, timestamp
from ..errors import (
    AuthorizationForbidden,
    BudgetExceeded,
    LimitExceeded,
    RateLimited,
    StoreUnavailable,
)

logger = structlog.get_logger()

REFRESH_SECONDS = 5.0  # between two looks at what other processes have counted
MOST_RATES = 4_096  # callers whose requests are counted, before those that are idle are dropped
RETRY_SECONDS = 10  # where a budget is kept for tasks that end at some time


class CallersTasks(Protocol):
    """The tasks that run or wait here, for the limiter. The scheduler has them."""

    def others_at_work(self, caller: str, task: str) -> int:
        """How many tasks of a caller are at work besides this one."""
        ...

    def stop_task(self, task: str, problem: Problem) -> None: ...

    def stop_tasks_of(self, caller: str, problem: Problem, spending: str | None) -> None:
        """Stop all. `spending`: the task that has spent just now, where one has."""
        ...

    def hand_out_slots(self) -> None:
        """Let those tasks run that may now."""
        ...


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Limiter:
    """The limits of all callers, and what they have used of them."""

    of: Callable[[str], Limits] = lambda _: UNLIMITED  # by principal, as they are now
    has_budgets: Callable[[], bool] = lambda: False  # whether anybody has one
    store: UsageStore | None = None
    clock: Callable[[], int] = _now_ms
    tasks: CallersTasks | None = None
    _spent: dict[str, Spent] = field(default_factory=dict)
    _is_read: bool = False  # what was used before and elsewhere
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _counted_meanwhile: list[StepUsage] = field(default_factory=list)  # since a read has begun
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _rates: dict[str, RequestRate] = field(default_factory=dict)
    _streams: dict[str, StreamTime] = field(default_factory=dict)
    _next_stream: int = 0

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Look at what other processes count. What is known at the start is read before that."""
        if self.has_budgets():
            with suppress(StoreUnavailable):  # logged; whoever needs it tries again
                await self._refresh()
        looking = asyncio.create_task(self._refresh_forever())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _refresh_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._look.wait()
            self._look.clear()
            self._forget_idle()
            if self.has_budgets():
                try:
                    await self._refresh()
                except StoreUnavailable:
                    continue  # logged where it happened
                except Exception:
                    logger.exception("limits.internal_error")

    def _forget_idle(self) -> None:
        """Forget callers about whom there is nothing to know any more."""
        now = self.clock()
        today = day_of(now)
        if not self.has_budgets() and not self._reading.locked():
            self._spent.clear()
            self._is_read = False  # the first budget has to be compared with what is stored
        self._streams = {
            name: time for name, time in self._streams.items() if time.opened or time.day == today
        }
        self._rates = {name: rate for name, rate in self._rates.items() if not rate.is_full(now)}

    def look_soon(self) -> None:
        """Compare what was used with limits that have changed, without waiting for the time."""
        self._look.set()

    async def _refresh(self) -> None:
        assert self.store is not None, "there are budgets only where usage is stored"
        async with self._reading:
            self._counted_meanwhile.clear()  # what was counted before is read
            self._spent = dict(await self.store.spent(day_of(self.clock())))
            for step in self._counted_meanwhile:
                self._spent_by(step.owner).add_step(step)
            self._is_read = True
        for principal in list(self._spent):
            self._stop_if_spent(principal)
        if self.tasks is not None:
            self.tasks.hand_out_slots()  # a budget may have renewed

    # -- tokens and money

    def count(self, steps: Sequence[StepUsage]) -> None:
        """Take note of steps that were committed for the first time."""
        if self._reading.locked():
            self._counted_meanwhile += steps
        for step in steps:
            self._spent_by(step.owner).add_step(step)
            self._stop_if_spent(step.owner, step.task)

    def _spent_by(self, principal: str) -> Spent:
        today = day_of(self.clock())
        spent = self._spent.get(principal) or Spent(today)
        self._spent[principal] = spent = spent.on(today)
        return spent

    def _stop_if_spent(self, principal: str, task: str | None = None) -> None:
        """Stop the caller's tasks if nothing is left, or this one if the rest is for the others."""
        if self.tasks is None:
            return
        if (problem := self.budget_problem(principal)) is not None:
            self.tasks.stop_tasks_of(principal, problem, task)
        elif task is not None and (problem := self.budget_problem(principal, task)) is not None:
            self.tasks.stop_task(task, problem)

    def _reached_budget(self, principal: str, task: str | None) -> LimitUse | None:
        limits = self.of(principal)
        if not limits.has_budget or not self._is_read:
            return None
        others = 0
        if task is not None and self.tasks is not None:
            others = self.tasks.others_at_work(principal, task)
        return check_budget(limits, self._spent_by(principal), others=others)

    def budget_problem(self, principal: str, task: str | None = None) -> Problem | None:
        """Why a task of this caller cannot go on, if it cannot.

        With a task, what the caller's other tasks may use for their steps is left to them.
        """
        reached = self._reached_budget(principal, task)
        if reached is None:
            return None
        return Problem(Failure.BUDGET_EXCEEDED, str(reached), renews_at=reached.renews_at)

    async def check_budget(self, principal: str, task: str | None = None) -> None:
        """Raise `BudgetExceeded` if the caller may not spend more, or this task of it."""
        if self.of(principal).has_budget:
            if not self._is_read:
                await self._refresh()
            if (reached := self._reached_budget(principal, task)) is not None:
                raise self._refused(BudgetExceeded, reached)

    def check_outside_tasks(self, principal: str) -> None:
        """Refuse what makes a model work outside of tasks to callers whose limits need a task."""
        if names := self.of(principal).of_tasks:
            raise AuthorizationForbidden(
                f"This caller has limits that hold for tasks only ({', '.join(names)}), and this "
                "method makes a model work without one. Send a message instead.",
                limits=names,
            )

    async def budgets(self, principal: str) -> list[LimitUse]:
        """Each budget of the caller, what it has used of it, and when it renews."""
        if not self.of(principal).has_budget:
            return []
        if not self._is_read:
            await self._refresh()
        return budgets(self.of(principal), self._spent_by(principal))

    # -- requests, tasks and streams

    def check_request(self, principal: str) -> None:
        """Count a request, or raise `RateLimited`."""
        per_minute = self.of(principal).requests_per_minute
        if not per_minute:
            return
        now = self.clock()
        if len(self._rates) >= MOST_RATES:
            self._rates = {
                name: rate for name, rate in self._rates.items() if not rate.is_full(now)
            }
        reached = self._rates.setdefault(principal, RequestRate()).take(per_minute, now)
        if reached is not None:
            raise self._refused(RateLimited, reached)

    def bounds(self, principal: str) -> CallerBounds:
        """How many tasks a caller may have, for the admission."""
        limits = self.of(principal)
        affordable = 0
        if limits.has_budget and self._is_read:
            affordable = affordable_tasks(limits, self._spent_by(principal))
        return CallerBounds(limits.running_tasks, limits.queued_tasks, affordable=affordable)

    def too_many_tasks(self, principal: str, *, present: int) -> LimitExceeded:
        limits = self.of(principal)
        name = "queued_tasks" if limits.queued_tasks else "running_tasks"
        queued = f"queued_tasks ({limits.queued_tasks or 'none, so A2A_MAX_QUEUED_TASKS holds'})"
        return LimitExceeded(
            f"This caller has {present} tasks that run or wait, as many as its limits "
            f"running_tasks ({limits.running_tasks or 'none'}) and {queued} allow. Try again when "
            "one has ended.",
            retry_after=10,
            limit=name,
            allowed=getattr(limits, name),
        )

    def check_stream(self, principal: str) -> None:
        """Raise `LimitExceeded` if the caller's streams were open for too long today."""
        minutes = self.of(principal).stream_minutes_per_day
        reached = self._time_of(principal).check(minutes, self.clock()) if minutes else None
        if reached is not None:
            raise self._refused(LimitExceeded, reached)

    def meter_for(self, principal: str) -> Callable[[], StreamMeter] | None:
        """What begins to count the time of a stream; None where it is not limited."""
        if not self.of(principal).stream_minutes_per_day:
            return None
        return lambda: StreamMeter(self, principal)

    def _time_of(self, principal: str) -> StreamTime:
        today = day_of(self.clock())
        found = self._streams.get(principal) or StreamTime(today)
        self._streams[principal] = found = found.on(today)
        return found

    def open_stream(self, principal: str) -> int:
        self._next_stream += 1
        self._time_of(principal).opened[self._next_stream] = self.clock()
        return self._next_stream

    def close_stream(self, principal: str, stream: int) -> None:
        self._time_of(principal).close(stream, self.clock())

    def seconds_left(self, principal: str) -> float:
        """For how long the open streams of a caller may stay open; none where it has no limit."""
        minutes = self.of(principal).stream_minutes_per_day
        if not minutes:
            return math.inf
        return self._time_of(principal).left(minutes, self.clock()) / 1000

    # -- what a request may choose

    def permission_rules(self, principal: str) -> tuple[PermissionRule, ...]:
        """What is denied to the sessions of this caller, beyond the rules for everybody."""
        return self.of(principal).permission_rules

    def check_shell(self, principal: str) -> None:
        """Refuse a shell to a caller whose rules deny something of its shell to the agent.

        Whatever the pattern: a shell runs the same in many spellings.
        """
        rules = self.of(principal).permission_rules
        if any(matches(rule.permission, name) for rule in rules for name in SHELL):
            raise AuthorizationForbidden(
                "The limit permission_rules of this caller denies commands to the agent. A "
                "command line that nobody watches could run them in other words, so this caller "
                "has no shell. Send a message instead.",
                limit="permission_rules",
            )

    def check_model(self, principal: str, model: ModelRef | None, *, field: str) -> None:
        if model is not None:
            name = f"{model.provider}/{model.model}"
            _check_name(name, self.of(principal).models, limit="models", field=field)

    def check_agent(self, principal: str, agent: str | None, *, field: str) -> None:
        if agent is not None:
            _check_name(agent, self.of(principal).agents, limit="agents", field=field)

    def agent_for(self, principal: str, default: str) -> str | None:
        """The agent for a request that names none; None: any will do.

        One that is allowed is named: left to itself, OpenCode may take another by default.
        """
        allowed = self.of(principal).agents
        if not allowed:
            return None
        if is_among(default, allowed):
            return default
        return first_name(allowed) or _nothing_chosen("agents", allowed)

    def model_for(self, principal: str, default: ModelRef | None) -> ModelRef | None:
        """The model for a request that names none; None: any will do."""
        allowed = self.of(principal).models
        if not allowed:
            return None
        if default is not None and is_among(f"{default.provider}/{default.model}", allowed):
            return default
        provider, _, model = (first_name(allowed) or _nothing_chosen("models", allowed)).partition(
            "/"
        )
        return ModelRef(provider, model)

    def _refused(self, kind: type[LimitExceeded | RateLimited], reached: LimitUse) -> Exception:
        facts: dict[str, object] = {"allowed": reached.allowed, "used": reached.used}
        seconds = None
        if reached.renews_at is not None:
            facts["renews_at"] = timestamp(reached.renews_at)
            seconds = max(1, math.ceil((reached.renews_at - self.clock()) / 1000))
        if not reached.is_reached:
            seconds = min(RETRY_SECONDS, seconds or RETRY_SECONDS)
        return kind(str(reached), retry_after=seconds, limit=reached.limit, **facts)


class StreamMeter:
    """Counts the time of one stream, and says when it must end."""

    def __init__(self, limiter: Limiter, principal: str) -> None:
        self._limiter = limiter
        self._principal = principal
        self._loop = asyncio.get_running_loop()
        self.used_up: asyncio.Future[None] = self._loop.create_future()
        self._stream = limiter.open_stream(principal)
        self._timer = self._loop.call_soon(self._check)

    def _check(self) -> None:
        left = self._limiter.seconds_left(self._principal)
        if left <= 0:
            if not self.used_up.done():
                self.used_up.set_result(None)
            return
        # Not later: more streams may be opened meanwhile, or the limit may be changed.
        self._timer = self._loop.call_later(min(left, REFRESH_SECONDS), self._check)

    def stop(self) -> None:
        self._timer.cancel()
        self._limiter.close_stream(self._principal, self._stream)


def _check_name(name: str, allowed: Sequence[str], *, limit: str, field: str) -> None:
    if not is_among(name, allowed):
        raise AuthorizationForbidden(
            f"{field}: {name} is not among the {limit} that this caller may use: "
            f"{', '.join(allowed)}.",
            limit=limit,
            field=field,
            allowed=list(allowed),
        )


def _nothing_chosen(limit: str, allowed: Sequence[str]) -> str:
    field = "metadata.shared.model" if limit == "models" else "metadata.opencode.agent"
    raise AuthorizationForbidden(
        f"What answers by default is not among the {limit} that this caller may use. Name one in "
        f"{field}: {', '.join(allowed)}.",
        limit=limit,
        field=field,
        allowed=list(allowed),
    )
