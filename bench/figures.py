"""What a measure reports: figures with their targets, and points to plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    unit: str
    limit: float | None = None  # the target: at most this, or
    at_least: bool = False  # at least this
    seen: Sequence[float] = ()  # the single runs behind a median
    note: str = ""  # what bounds it, or how to read it

    @property
    def met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def target(self) -> str:
        if self.limit is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {shown(self.limit, self.unit)}"


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]  # by their legend


@dataclass(slots=True)
class Result:
    title: str
    method: str
    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    measured: str = ""  # when, and for how long

    def add(
        self,
        what: str,
        value: float | Sequence[float],
        unit: str,
        limit: float | None = None,
        *,
        at_least: bool = False,
        note: str = "",
    ) -> float:
        """A figure, or the median of several runs; the value it shows."""
        seen = [value] if isinstance(value, int | float) else list(value)
        self.figures.append(Figure(what, median(seen), unit, limit, at_least, tuple(seen), note))
        return self.figures[-1].value


def spread(values: Sequence[float]) -> float:
    """How far apart they are: the largest as a multiple of the smallest."""
    return max(values) / max(min(values), 1e-12)


def shown(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    number = f"{value:,.{digits}f}".replace(",", " ")
    return f"{number}{unit}" if unit in ("×", "%") else f"{number} {unit}".strip()
