"""The bottom of a terminal: one line per task at work. What is logged scrolls by above it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO
from unicodedata import combining, east_asian_width

from ..domain.admission import Phase

if TYPE_CHECKING:
    from ..service.scheduler import TaskAtWork

PHASES = {
    Phase.PRESENT: "queued",
    Phase.WAITING: "waits for a slot",
    Phase.RUNNING: "working",
    Phase.RESTING: "waits for a person",
}
ERASE = "\x1b[{}A\x1b[J"  # up so many lines, and clear everything below


class Terminal:
    """Wraps the stream of the log, so that both write in turns."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []

    def write(self, text: str) -> int:
        self._put(self._erase + text + "".join(self._lines))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines instead of the ones before; none if the terminal has gone."""
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except OSError:
            self._lines = []
            return
        columns, rows = columns or 80, rows or 24  # a terminal that does not know its size says 0
        shown, rest = lines[: max(rows // 2, 1)], lines[max(rows // 2, 1) :]
        if rest:
            shown = [*shown, f"  … and {len(rest)} more"]
        fitting = [f"{_cut(line, columns - 1)}\n" for line in shown]
        if fitting != self._lines:
            erase = self._erase
            self._lines = fitting
            self._put(erase + "".join(fitting))
            self.flush()

    def _put(self, text: str) -> None:
        with suppress(OSError):  # the terminal has gone: nobody reads this any more
            self._stream.write(text)

    @property
    def _erase(self) -> str:
        return ERASE.format(len(self._lines)) if self._lines else ""


def has_cursor(stream: TextIO) -> bool:
    """Whether lines on this stream can be written again."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def task_line(task: TaskAtWork, now_ms: int) -> str:
    """`  1f3a9c2b  working   12 s  Fix the tests`"""
    seconds = max(now_ms - task.since_ms, 0) // 1000
    since = f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
    return f"  {task.id[:8]}  {PHASES[task.phase]:<18}  {since:>7}  {task.title}"


def _cut(text: str, columns: int) -> str:
    """The beginning of a text that fits; wide characters take two columns."""
    used = 0
    for position, char in enumerate(text):
        used += 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1
        if used > columns:
            return text[: max(position - 1, 0)] + "…"
    return text
