"""What callers have used: each step of the agent counted once, and sums by day, caller and model.

The transaction that commits a step to the log also notes the step's id in OpenCode and adds its
figures to the sums. A step whose id is noted adds nothing, whoever reports it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    ColumnElement,
    Connection,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import URL, make_url

from ..domain.limits import NANODOLLARS, Spent, StepUsage, day_of, nanodollars
from ..domain.ports import UsageItem, UsageKey, UsageQuery
from ..domain.task import TaskHead
from ..domain.updates import LogEntry, Progress
from ..domain.values import Usage
from .database import Database, make_engine, sqlite_path
from .prepared import Prepared
from .tables import usage_days as days
from .tables import usage_steps as steps

FORGET_ROWS = 200  # that one transaction deletes
MAX_NAME = 255  # characters of an id or of a model's name
FIGURES = (
    *("steps", "input_tokens", "output_tokens", "reasoning_tokens"),
    *("cache_read_tokens", "cache_write_tokens", "cost"),
)
LARGEST = ("largest_step_tokens", "largest_step_cost")
_KEY = ("day", "owner", "model")

# One statement each: two processes that come to a new row at once do not make a commit fail.
_NOTE_STEP = Prepared(insert(steps), ("part_id", "at"), suffix=" ON CONFLICT DO NOTHING")
_MORE = [f"{name} = {days.name}.{name} + excluded.{name}" for name in FIGURES]
_LARGER = [
    f"{name} = CASE WHEN excluded.{name} > {days.name}.{name} THEN excluded.{name} "
    f"ELSE {days.name}.{name} END"
    for name in LARGEST
]
_ADD_TO_DAY = Prepared(
    insert(days),
    (*_KEY, *FIGURES, *LARGEST),
    suffix=f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {', '.join(_MORE + _LARGER)}",
)


# -- counting


def note_steps(db: Connection, head: TaskHead, progress: Iterable[LogEntry]) -> list[StepUsage]:
    """Note the steps that end in these entries; returns those that were not noted before."""
    counted = []
    for entry in progress:
        step = entry.update
        assert isinstance(step, Progress)
        if step.usage is None or step.part_id is None:
            continue
        if _NOTE_STEP.change(db, {"part_id": _storable(step.part_id), "at": entry.at}):
            model = step.answered_by.model if step.answered_by is not None else None
            name = _storable(f"{model.provider}/{model.model}") if model is not None else ""
            usage = step.usage
            counted.append(StepUsage(head.owner, head.id, model=name, at=entry.at, usage=usage))
    return counted


def add_to_sums(db: Connection, counted: Iterable[StepUsage]) -> None:
    """Add steps to the sums of their days."""
    sums: dict[tuple[str, str, str], Counter[str]] = {}
    for step in counted:
        figures = dict(zip(FIGURES, (1, *_figures(step.usage)), strict=True))
        row = sums.setdefault((day_of(step.at).isoformat(), step.owner, step.model), Counter())
        row.update(figures)
        tokens, cost = step.usage.total_tokens, figures["cost"]
        for name, size in zip(LARGEST, (tokens, cost), strict=True):
            row[name] = max(row[name], size)
    # In order: two processes that lock rows of each other would wait for ever.
    for key, row in sorted(sums.items()):
        _ADD_TO_DAY.change(db, {**dict(zip(_KEY, key, strict=True)), **row})


def _figures(usage: Usage) -> tuple[int, ...]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        nanodollars(usage.cost),
    )


def _storable(name: str) -> str:
    return name.replace("\0", "")[:MAX_NAME]  # PostgreSQL cannot store it


def forget(db: Connection, before: int) -> int:
    """Delete what was counted before the day of then, in steps: commits wait meanwhile."""
    db.execute(delete(days).where(days.c.day < day_of(before).isoformat()))
    stale = select(steps.c.part_id).where(steps.c.at < before).limit(FORGET_ROWS)
    return db.execute(delete(steps).where(steps.c.part_id.in_(stale))).rowcount


# -- reading


class SqlUsage:
    """Implements `domain.ports.UsageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def spent(self, day: date) -> dict[str, Spent]:
        return await self._database.read(spent, day)

    async def sums(self, query: UsageQuery) -> Sequence[UsageItem]:
        return await self._database.read(sums, query)


_TOKENS = sum(
    (days.c[name] for name in FIGURES[2:-1]), start=days.c.input_tokens
)  # everything that counts as a token


def spent(db: Connection, day: date) -> dict[str, Spent]:
    """What each caller has used on a day, and in its month until then."""
    statement = (
        select(
            *(days.c.owner, days.c.day, func.sum(_TOKENS), func.sum(days.c.cost)),
            *(func.max(days.c[name]) for name in LARGEST),
        )
        .where(days.c.day >= day.replace(day=1).isoformat(), days.c.day <= day.isoformat())
        .group_by(days.c.owner, days.c.day)
    )
    found: dict[str, Spent] = {}
    for owner, on, tokens, cost, *largest in db.execute(statement):
        sum_of = found.setdefault(owner, Spent(day))
        sum_of.add(date.fromisoformat(on), tokens=int(tokens), cost=int(cost))
        sum_of.note_largest(tokens=int(largest[0]), cost=int(largest[1]))
    return found


def sums(db: Connection, query: UsageQuery) -> list[UsageItem]:
    """The sums of the days from `first` to `last`, by what the query names."""
    columns = {"day": days.c.day, "principal": days.c.owner, "model": days.c.model}
    by = [columns[key] for key in columns if key in query.by]
    wanted: list[ColumnElement[bool]] = []
    if query.owner is not None:
        wanted.append(days.c.owner == query.owner)
    if query.first is not None:
        wanted.append(days.c.day >= query.first.isoformat())
    if query.last is not None:
        wanted.append(days.c.day <= query.last.isoformat())
    figures = [func.coalesce(func.sum(days.c[name]), 0).label(name) for name in FIGURES]
    statement = select(*by, *figures).where(*wanted).group_by(*by).order_by(*by)
    return [_row(row._mapping, query.by) for row in db.execute(statement) if row.steps]


def _row(row: Any, by: Collection[UsageKey]) -> UsageItem:
    tokens = {name: int(row[name]) for name in FIGURES if name.endswith("_tokens")}
    return UsageItem(
        steps=int(row["steps"]),
        **tokens,
        total_tokens=sum(tokens.values()),
        cost=int(row["cost"]) / NANODOLLARS,
        day=row["day"] if "day" in by else None,
        model=row["model"] if "model" in by else None,
        principal=row["owner"] if "principal" in by else None,
    )


def read_stored(url: str, query: UsageQuery) -> list[UsageItem] | None:
    """The sums in a database that is not opened for work; None where it has none yet."""
    path = sqlite_path(make_url(url))
    if path is not None:
        if not path.exists():
            return None
        options = {"mode": "ro", "uri": "true"}
        engine = create_engine(
            URL.create("sqlite", database=f"file:{quote(str(path))}", query=options)
        )
    else:
        engine = make_engine(url)
    try:
        with engine.connect() as db:
            if not inspect(db).has_table(days.name):
                return None
            return sums(db, query)
    finally:
        engine.dispose()
