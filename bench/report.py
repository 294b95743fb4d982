"""The results: a table on the terminal, a page with plots for the repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from .clock import machine, versions
from .figures import Figure, Result, shown
from .plot import svg

METHOD = """\
Written by `make bench`; do not edit. Each thing was measured beside what it is compared with, so
the ratios carry to other machines and the times do not.

CPU time is that of the service's process with all its threads, read from `/proc` around the work.
Figures are medians of repeated runs; the range of the runs stands behind them. The client runs on
the same machine and only counts what it gets. `bench/` has the code.

Where a target is missed, a note below the table says what the figure is made of.
"""


def table(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        lines += ["", result.title]
        for figure in result.figures:
            mark = {True: "ok", False: "MISSED", None: ""}[figure.met]
            value = shown(figure.value, figure.unit)
            lines.append(f"  {figure.what:<68} {value:>12}  {figure.target:<10} {mark}")
            lines += [f"      {line}" for line in wrap(figure.note, 90)]
    return "\n".join(lines)


def write(results: Sequence[Result], folder: Path, upstream: str) -> Path:
    """`performance.md` in this folder, its plots in a folder beside it."""
    page = [
        "# Performance",
        "",
        METHOD,
        f"- Machine: {machine()}",
        f"- Versions: {versions()}, {upstream}",
    ]
    plots = folder / "performance"
    plots.mkdir(parents=True, exist_ok=True)
    for result in results:
        page += ["", f"## {result.title}", "", f"{result.method} Measured {result.measured}.", ""]
        page += ["| | median | range | target | met |", "|---|--:|---|---|---|"]
        page += [_row(figure) for figure in result.figures]
        page += [f"\n*{figure.what}:* {figure.note}" for figure in result.figures if figure.note]
        for plot in result.plots:
            (plots / f"{plot.name}.svg").write_text(svg(plot))
            page += ["", f"![{plot.title}](performance/{plot.name}.svg)"]
    path = folder / "performance.md"
    path.write_text("\n".join(page) + "\n")
    return path


def _row(figure: Figure) -> str:
    seen = figure.seen
    span = f"{shown(min(seen), '')} – {shown(max(seen), '')}" if len(seen) > 1 else ""
    met = {True: "yes", False: "**no**", None: ""}[figure.met]
    value = shown(figure.value, figure.unit)
    return f"| {figure.what} | {value} | {span} | {figure.target} | {met} |"
