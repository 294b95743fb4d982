"""A line plot as a small SVG file, written by hand; readable on light and dark pages."""

from __future__ import annotations

import math
from html import escape

from .figures import Plot, shown

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 44
COLOURS = ("#2a78d6", "#d1495b", "#3a9d5d", "#8a6fd1")
GREY = "#888888"


def svg(plot: Plot) -> str:
    points = [point for line in plot.lines.values() for point in line]
    across = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, from_zero=False)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, from_zero=True)
    body = [
        f'<text x="{LEFT}" y="18" font-size="14">{escape(plot.title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(plot.x)}</text>",
    ]
    for value in up.marks():
        y = up.at(value)
        body.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" opacity=".3"/>')
        body.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        )
    for value in across.marks():
        x = across.at(value)
        body.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{_short(value)}</text>"
        )
    for i, (name, line) in enumerate(plot.lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in line)
        body.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [
            f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3" fill="{colour}">'
            f"<title>{escape(name)}, {_short(x)}: {shown(y, plot.y)}</title></circle>"
            for x, y in line
        ]
        body.append(
            f'<text x="{LEFT + i * 170}" y="38" fill="{colour}">● {escape(name)}'
            f"{f' ({escape(plot.y)})' if i == 0 else ''}</text>"
        )
    inside = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">\n{inside}\n</svg>\n'
    )


class _Axis:
    """Values to places; logarithmic where they span more than a factor of twenty."""

    def __init__(self, values: list[float], begin: float, end: float, *, from_zero: bool) -> None:
        low, high = min(values), max(values)
        self.log = low > 0 and high / low > 20
        if self.log:
            low, high = math.log10(low), math.log10(high)
            if from_zero:
                low, high = math.floor(low), math.ceil(high)
        else:
            low, high = (0.0 if from_zero else low), high * (1.15 if from_zero else 1.0)
        self._low, self._span = low, (high - low) or 1.0
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return self._begin + (place - self._low) / self._span * (self._end - self._begin)

    def marks(self) -> list[float]:
        high = self._low + self._span
        if self.log:
            return [10.0**e for e in range(math.ceil(self._low), math.floor(high) + 1)]
        step = 10 ** math.floor(math.log10(self._span))
        step = step / 5 if self._span / step < 2 else step / 2 if self._span / step < 5 else step
        first = math.ceil(self._low / step)
        return [step * i for i in range(first, math.floor(high / step) + 1)]


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:.3g}"
