"""The command `usage`: what the tasks of all callers have used, read from the task store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from ..config import ConfigError, load, secrets_directory
from ..domain.ports import UsageItem, UsageKey, UsageQuery, UsageSum
from ..domain.values import COST_DIGITS
from .failure import CommandError
from .output import print_result

if TYPE_CHECKING:
    import argparse

KEYS: tuple[UsageKey, ...] = ("day", "principal", "model")


def run_usage(arguments: argparse.Namespace) -> int:
    query = _query(arguments)
    try:
        settings = load(arguments.config, secrets_directory(arguments.secrets))
    except ConfigError as exc:
        raise CommandError("\nopencode-a2a: ".join(exc.problems), 2) from None
    if settings.state.backend == "memory":
        raise CommandError(
            "A2A_TASK_STORE_BACKEND is memory, so what callers have used is kept in the running "
            "service only: ask it with the method opencode.usage.get."
        )
    from sqlalchemy.exc import SQLAlchemyError  # slow to load

    from ..store.usage import read_stored

    root = arguments.directory or settings.upstream.workspace_root
    try:
        rows = read_stored(settings.state.url(root.resolve()), query)
    except SQLAlchemyError as exc:
        reason = str(getattr(exc, "orig", exc)).strip().splitlines()
        raise CommandError(
            f"the task store cannot be read: {reason[0] if reason else exc}"
        ) from None
    if rows is None:
        raise CommandError(
            f"nothing is stored for {root} yet. Give this command the settings of the service, and "
            "run it as its user."
        )
    print_result("\n".join(_lines(rows, query, arguments)))
    return 0


def _query(arguments: argparse.Namespace) -> UsageQuery:
    last = _day(arguments.to, "--to") or datetime.now(UTC).date()
    first = _day(getattr(arguments, "from"), "--from") or last.replace(day=1)
    by = (arguments.by or "day,principal,model").split(",")
    unknown = [key for key in by if key not in KEYS]
    if unknown:
        raise CommandError(f"--by: {unknown[0]!r} is none of {', '.join(KEYS)}", 2)
    chosen = frozenset(key for key in KEYS if key in by)
    return UsageQuery(owner=arguments.principal, first=first, last=last, by=chosen)


def _day(given: str | None, option: str) -> date | None:
    try:
        return date.fromisoformat(given) if given is not None else None
    except ValueError:
        raise CommandError(
            f"{option}: must be a day such as 2026-01-31, not {given!r}", 2
        ) from None


def _lines(
    rows: Sequence[UsageItem], query: UsageQuery, arguments: argparse.Namespace
) -> Sequence[str]:
    names = [*(key for key in KEYS if key in query.by), *(each.name for each in fields(UsageSum))]
    found = [{name: getattr(row, name) for name in names} for row in rows]
    if arguments.json:
        return json.dumps(found, indent=2, ensure_ascii=False).splitlines()
    if arguments.csv:
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        # Fixed decimals: spreadsheets take 1e-06 for a text.
        writer.writerows({**each, "cost": f"{each['cost']:.{COST_DIGITS}f}"} for each in found)
        return out.getvalue().splitlines()
    return _table(names, found)


def _table(names: Sequence[str], found: Sequence[dict[str, Any]]) -> list[str]:
    head = [name.removesuffix("_tokens").replace("_", " ").upper() for name in names]
    rows = [head, *([_cell(each[name]) for name in names] for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    keys = sum(name in KEYS for name in names)
    return [
        "  ".join(
            cell.ljust(width) if column < keys else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cell(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value) or "-"
