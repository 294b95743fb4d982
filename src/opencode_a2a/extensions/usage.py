"""What a caller has used, and what is left of its budgets."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from ..contract.declare import Extension
from ..contract.params import Params, Result
from ..domain.limits import day_of
from ..domain.ports import UsageItem, UsageQuery, UsageSum
from ..domain.scopes import Scope
from ..domain.values import COST_DIGITS, Caller
from ..errors import AuthorizationForbidden, InvalidParams
from .services import Services
from .shapes import Moment, Name

USAGE = Extension(
    "opencode-usage-v1",
    title="OpenCode Usage v1",
    description="What a caller's tasks have used, in tokens and dollars, and its budgets.",
    scope="opencode",
)
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="A day in UTC")]
By = Literal["day", "model", "principal"]


class UsageParams(Params):
    first: Day | None = Field(
        default=None, alias="from", description="The first day; the first of the last day's month"
    )
    last: Day | None = Field(default=None, alias="to", description="The last day; today")
    by: list[By] = Field(
        default=["day"], max_length=3, description="What to sum by; nothing: one sum"
    )
    principal: Name | None = Field(
        default=None,
        description="Only this caller's; another than oneself needs the scope admin, and with it "
        "everybody's are summed where none is named",
    )


class Budget(Result):
    limit: str = Field(description="Its name in the settings, such as tokens_per_day")
    allowed: float
    used: float
    renews_at: Moment


class UsageResult(Result):
    first_day: str
    last_day: str
    items: list[UsageItem]
    total: UsageSum
    budgets: list[Budget] = Field(description="Of the caller itself, as of now")


@USAGE.method("opencode.usage.get", scope=Scope.TASKS_READ, effect="read")
async def get_usage(services: Services, caller: Caller, params: UsageParams) -> UsageResult:
    """What tasks have used: those of the caller or, with the scope admin, of everybody.

    Steps are counted when they are reported, each once. What called peers have used is theirs, and
    not in here; it is in the usage of the task.
    """
    is_admin = Scope.ADMIN in caller.scopes
    if params.principal not in (None, caller.principal) and not is_admin:
        raise AuthorizationForbidden(
            "This credential sees the usage of its own caller only. To see that of others needs "
            "the scope admin.",
            required_scope=Scope.ADMIN,
        )
    last = _day(params.last, "to") or day_of(services.limiter.clock())
    first = _day(params.first, "from") or last.replace(day=1)
    query = UsageQuery(
        owner=params.principal or (None if is_admin else caller.principal),
        first=first,
        last=last,
        by=frozenset(params.by),
    )
    items = await services.usage.sums(query)
    names = [each.name for each in fields(UsageSum)]
    total = UsageSum(**{name: sum(getattr(item, name) for item in items) for name in names})
    return UsageResult(
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        items=list(items),
        total=replace(total, cost=round(total.cost, COST_DIGITS)),
        budgets=[
            Budget(limit=each.limit, allowed=each.allowed, used=each.used, renews_at=each.renews_at)
            for each in await services.limiter.budgets(caller.principal)
            if each.renews_at is not None
        ],
    )


def _day(given: str | None, field: str) -> date | None:
    try:
        return date.fromisoformat(given) if given is not None else None
    except ValueError:
        raise InvalidParams.at(field, "is not a day of the calendar") from None
