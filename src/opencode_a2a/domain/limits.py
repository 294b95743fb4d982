"""How much a caller may use, and when it may go on after it has used that up.

Pure rules: limits, what was used and the time go in; None (allowed) or the limit that is reached
comes out. What a limit of 0 names is not limited. Days and months are those of UTC. Tokens are all
that a step reports: input, output, reasoning, and both kinds of cached ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from .permissions import matches
from .values import COST_DIGITS, PermissionRule, Usage, timestamp

NANODOLLARS = 10**COST_DIGITS  # in a dollar: costs are added as whole numbers
MINUTE_MS = 60_000
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller may use. The names are those of the settings."""

    requests_per_minute: int = 0
    running_tasks: int = 0
    queued_tasks: int = 0  # only with `running_tasks`, or where the service has a limit of its own
    stream_minutes_per_day: float = 0
    body_bytes: int = 0
    tokens_per_day: int = 0
    tokens_per_month: int = 0
    cost_per_day: float = 0
    cost_per_month: float = 0
    models: tuple[str, ...] = ()  # provider/model, where `*` stands for anything; none means all
    agents: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()  # in and below these
    permission_rules: tuple[PermissionRule, ...] = ()  # each of them denies

    @property
    def has_budget(self) -> bool:
        return bool(
            self.tokens_per_day or self.tokens_per_month or self.cost_per_day or self.cost_per_month
        )

    @property
    def of_tasks(self) -> list[str]:
        """The names of those limits that hold only for what a task does."""
        budgets = ("tokens_per_day", "tokens_per_month", "cost_per_day", "cost_per_month")
        names = (*budgets, "running_tasks", "queued_tasks", "models", "agents")
        return [name for name in names if getattr(self, name)]

    @property
    def narrows(self) -> bool:
        """Whether a request of this caller cannot simply get what is the default."""
        return bool(self.models or self.agents or self.directories)


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit, and what was used of it."""

    limit: str  # its name in the settings
    allowed: float
    used: float
    renews_at: int | None = None  # milliseconds since 1970; None: when something of the caller ends
    largest_step: float = 0.0  # of this month, where the limit is a budget

    @property
    def is_reached(self) -> bool:
        return self.used >= self.allowed

    def __str__(self) -> str:
        """Why nothing more is allowed: it is used up, or kept for the caller's other tasks."""
        used, allowed = (f"{each:.12g}" for each in (self.used, self.allowed))
        when = f" It renews at {timestamp(self.renews_at)}." if self.renews_at is not None else ""
        if self.is_reached:
            return f"The limit {self.limit} of this caller is reached ({used} of {allowed}).{when}"
        return (
            f"What is left of the limit {self.limit} of this caller ({used} of {allowed} are used) "
            f"is kept for the steps that its other tasks are in.{when}"
        )


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What one step of the agent, or of a sub-agent, has used, counted for the first time."""

    owner: str
    task: str
    model: str  # provider/model; "" where OpenCode does not say
    at: int
    usage: Usage


def nanodollars(cost: float) -> int:
    nanos: int = round(cost * NANODOLLARS)
    return nanos


def day_of(at: int) -> date:
    return datetime.fromtimestamp(at / 1000, UTC).date()


@dataclass(slots=True)
class Spent:
    """What a caller has used on a day and in the month of that day."""

    day: date
    tokens_today: int = 0
    cost_today: int = 0  # in nanodollars
    tokens_this_month: int = 0
    cost_this_month: int = 0
    largest_step_tokens: int = 0  # what one step may use: as much as the largest one did
    largest_step_cost: int = 0

    def on(self, day: date) -> Spent:
        """The same as of another day, which may be in the next month."""
        if day <= self.day:  # a clock that was set back does not renew a budget
            return self
        same_month = _month(day) == _month(self.day)
        return Spent(
            day,
            tokens_this_month=self.tokens_this_month if same_month else 0,
            cost_this_month=self.cost_this_month if same_month else 0,
            largest_step_tokens=self.largest_step_tokens,
            largest_step_cost=self.largest_step_cost,
        )

    def add(self, day: date, *, tokens: int, cost: int) -> None:
        """Add what was used on a day. That of another month does not count here."""
        if _month(day) == _month(self.day):
            self.tokens_this_month += tokens
            self.cost_this_month += cost
        if day == self.day:
            self.tokens_today += tokens
            self.cost_today += cost

    def add_step(self, step: StepUsage) -> None:
        tokens, cost = step.usage.total_tokens, nanodollars(step.usage.cost)
        self.add(day_of(step.at), tokens=tokens, cost=cost)
        self.note_largest(tokens=tokens, cost=cost)

    def note_largest(self, *, tokens: int, cost: int) -> None:
        self.largest_step_tokens = max(self.largest_step_tokens, tokens)
        self.largest_step_cost = max(self.largest_step_cost, cost)


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month


def budgets(limits: Limits, spent: Spent) -> list[LimitUse]:
    """The budgets that a caller has, those first that renew last."""
    tomorrow = _start_of(spent.day + timedelta(days=1))
    next_month = _start_of((spent.day.replace(day=1) + timedelta(days=32)).replace(day=1))
    cost_today, cost_this_month, step_cost = (
        each / NANODOLLARS
        for each in (spent.cost_today, spent.cost_this_month, spent.largest_step_cost)
    )
    step_tokens = spent.largest_step_tokens
    found = (
        ("tokens_per_month", limits.tokens_per_month, spent.tokens_this_month, next_month),
        ("cost_per_month", limits.cost_per_month, cost_this_month, next_month),
        ("tokens_per_day", limits.tokens_per_day, spent.tokens_today, tomorrow),
        ("cost_per_day", limits.cost_per_day, cost_today, tomorrow),
    )
    return [
        LimitUse(
            name,
            allowed=allowed,
            used=used,
            renews_at=renews_at,
            largest_step=step_cost if name.startswith("cost") else step_tokens,
        )
        for name, allowed, used, renews_at in found
        if allowed
    ]


# What a step uses is known at its end, so a caller with several tasks at work could exceed a budget
# by a step of each. Therefore a task begins another step only if the budget covers one step of each
# other task too, as large as the largest one of this month. So more than the budget is used only by
# a task that is alone at work, in one step.


def check_budget(limits: Limits, spent: Spent, *, others: int = 0) -> LimitUse | None:
    """The budget that keeps a task from another step, if one does, beside others at work."""
    return next(
        (
            each
            for each in budgets(limits, spent)
            if each.allowed - each.used <= others * each.largest_step
        ),
        None,
    )


def affordable_tasks(limits: Limits, spent: Spent) -> int:
    """How many tasks of a caller may be at work by its budgets, at least 1; 0 means any number."""
    steps = (
        max(1, math.ceil((each.allowed - each.used) / each.largest_step))
        for each in budgets(limits, spent)
        if each.largest_step
    )
    return min(steps, default=0)


def _start_of(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)


@dataclass(slots=True)
class RequestRate:
    """So many requests per minute, of which all may come at once.

    `_full_at` is when the whole minute's worth is there again, as if each request took its share.
    """

    _full_at: float = 0.0

    def take(self, per_minute: int, now: int) -> LimitUse | None:
        share = MINUTE_MS / per_minute
        self._full_at = min(self._full_at, now + MINUTE_MS)  # the clock may have been set back
        full_at = max(self._full_at, now) + share
        if full_at - now > MINUTE_MS + 0.001:  # a rounding error is no request
            renews_at = int(full_at - MINUTE_MS) + 1
            return LimitUse(
                "requests_per_minute", allowed=per_minute, used=per_minute, renews_at=renews_at
            )
        self._full_at = full_at
        return None

    def is_full(self, now: int) -> bool:
        """Whether it says no more than a new one would."""
        return self._full_at <= now


@dataclass(slots=True)
class StreamTime:
    """How long the streams of a caller have been open on a day, in milliseconds."""

    day: date
    closed: float = 0.0
    opened: dict[int, int] = field(default_factory=dict)  # streams that are open: since when

    def on(self, day: date) -> StreamTime:
        if day <= self.day:
            return self
        midnight = _start_of(day)
        return StreamTime(day, opened={key: max(at, midnight) for key, at in self.opened.items()})

    def used(self, now: int) -> float:
        return self.closed + sum(_elapsed(since, now) for since in self.opened.values())

    def close(self, stream: int, now: int) -> None:
        self.closed += _elapsed(self.opened.pop(stream), now)

    def left(self, minutes: float, now: int) -> float:
        """For how long the streams that are open now can stay open together."""
        return (minutes * MINUTE_MS - self.used(now)) / max(1, len(self.opened))

    def check(self, minutes: float, now: int) -> LimitUse | None:
        if not minutes or self.used(now) < minutes * MINUTE_MS:
            return None
        return LimitUse(
            "stream_minutes_per_day",
            allowed=minutes,
            used=round(self.used(now) / MINUTE_MS, 1),
            renews_at=_start_of(self.day + timedelta(days=1)),
        )


def _elapsed(since: int, now: int) -> int:
    return max(0, now - since)  # the clock may have been set back


def is_among(name: str, allowed: Sequence[str]) -> bool:
    """Whether a list of names or patterns allows a name. An empty list allows all."""
    return not allowed or any(matches(pattern, name) for pattern in allowed)


def first_name(allowed: Sequence[str]) -> str | None:
    """What to take where a request names nothing and the default is not allowed."""
    return next((name for name in allowed if not set(name) & set("*?")), None)
