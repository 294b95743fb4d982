"""An answer on a terminal with a cursor.

What is complete is written once and scrolls by. Below it is what still changes and is drawn again:
the last block of the text, running tools, the to-do list.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.text import Text as Styled

from ..outbound.client import PeerUpdate
from ..outbound.transcript import Changes, Text, Todos, Tool
from .markdown import GrowingMarkdown, Piece, SafeMarkdown
from .printer import AGAIN, Printer, printable, todo_line, tool_line

DRAW_SECONDS = 0.08  # between two drawings
MAX_TODOS = 8  # of an unfinished list
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}

Lines: TypeAlias = list[list[Segment]]


@dataclass(slots=True)
class _OpenText:
    block: str
    style: str
    markdown: GrowingMarkdown = field(default_factory=GrowingMarkdown)


class RichPrinter(Printer):
    details = True

    def __init__(
        self,
        console: Console,
        out: TextIO,
        *,
        live: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(out, output="answer", now=now)
        self.live = live
        self._console = console
        self._drawing: Live | None = None
        self._drawn_at = 0.0
        self._working = False  # whether the terminal is ours to draw on
        self._changed = False  # since it was drawn
        self._news_at = 0.0
        self._last = ""  # the kind of what was written last
        self._open_text: _OpenText | None = None
        self._running: dict[str, Tool] = {}
        self._todo_list: Todos | None = None

    @classmethod
    def open(cls) -> RichPrinter:
        """Everything goes to the standard output if that is a terminal, too."""
        live = sys.stdout.isatty()
        console = Console(
            file=sys.stdout if live else sys.stderr,
            force_terminal=True,
            no_color=bool(os.environ.get("NO_COLOR")),
            legacy_windows=False,
        )
        return cls(console, sys.stdout, live=live)

    def update(self, update: PeerUpdate) -> None:
        self._working, self._changed, self._news_at = True, True, self._now()
        super().update(update)
        self._draw()

    def say(self, text: str) -> None:
        self._end_text()
        self._write(Styled(printable(text), "dim"), kind="line")

    def question(self, text: str) -> None:
        self.pause()
        self._write(Styled(printable(text), "bold"), kind="question")

    def pause(self) -> None:
        self._end_text()
        self._working = False
        self._draw()

    async def animate(self) -> None:
        self._working, self._news_at = True, self._now()
        while True:
            self._draw()
            await asyncio.sleep(DRAW_SECONDS)

    def end_answer(self) -> None:
        self._end_text()
        for tool in self._running.values():  # of which nobody told the end
            self._write(self._tool_line(tool, Styled("●")), kind="tool")
        self._running.clear()
        if self._todo_list is not None:
            self._write(_todo_lines(self._todo_list.items), kind="todos")
            self._todo_list = None
        super().end_answer()

    # -- pieces

    def _text(self, text: Text) -> None:
        if text.replaces:
            self._open_text = None
            self.say(AGAIN)
        if self._open_text is None or self._open_text.block != text.block:
            self._end_text()
            style = "dim" if text.kind == "reasoning" else "none"
            self._open_text = _OpenText(text.block, style)
        for piece in self._open_text.markdown.feed(printable(text.text)):
            self._write_piece(piece, self._open_text.style)

    def _end_text(self) -> None:
        if self._open_text is not None:
            ended, self._open_text = self._open_text, None
            self._write_piece(ended.markdown.rest, ended.style)

    def _write_piece(self, piece: Piece, style: str) -> None:
        markdown = SafeMarkdown(piece.source, style)
        self._write(markdown, kind="text", continues=piece.continues)

    def _data(self, text: str) -> None:
        self._end_text()
        self._write_piece(Piece(f"```json\n{text}\n```"), "none")

    def _tool(self, tool: Tool) -> None:
        if not tool.over:
            self._began.setdefault(tool.call, self._now())
            if tool.call not in self._running:
                self._end_text()
            self._running[tool.call] = tool
            return
        self._running.pop(tool.call, None)
        self._end_text()
        failed = tool.status == "error"
        mark = Styled("✗", "red") if failed else Styled("✓", "green")
        lines = [self._tool_line(tool, mark)]
        if tool.error:
            lines.append(Styled(f"  {printable(tool.error)}", "dim"))
        self._write(Group(*lines), kind="tool")

    def _tool_line(self, tool: Tool, mark: Styled) -> Styled:
        took = self._took(tool)
        short = Styled(printable(tool_line(tool)))
        short.truncate(max(self._console.width - len(took) - 3, 20), overflow="ellipsis")
        return Styled.assemble(mark, " ", short, (took, "dim"), no_wrap=True)

    def _changes(self, changes: Changes) -> None:
        self._end_text()
        lines = printable(changes.diff).rstrip("\n").split("\n")
        styled = [Styled(line, DIFF_STYLES.get(line[:1], "dim")) for line in lines]
        self._write(Group(*styled), kind="changes")

    def _todos(self, todos: Todos) -> None:
        self._todo_list = todos

    # -- writing and drawing

    def _write(self, what: RenderableType, *, kind: str, continues: bool = False) -> None:
        """Write something for good, above what is drawn."""
        lines = self._lines(what, kind=kind, continues=continues)
        if lines:
            self._console.print(SegmentLines(lines, new_lines=True))
            self._last = kind

    def _lines(self, what: RenderableType, *, kind: str, continues: bool = False) -> Lines:
        """As it is on the screen, with an empty line before it where something else ended."""
        lines = _trimmed(self._console.render_lines(what, pad=False))
        together = continues or (kind == self._last and kind in ("line", "tool"))
        return [[], *lines] if lines and self._last and not together else lines

    def _draw(self) -> None:
        """Draw what still changes, unless that was just done."""
        if not self._working:
            if self._drawing is not None:
                self._drawing.stop()
                self._drawing = None
            return
        if self._drawing is None:
            self._drawing = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
                get_renderable=self._changing,
            )
            self._drawing.start()
        elif self._now() - self._drawn_at < DRAW_SECONDS or not (self._changed or self._spins):
            return
        self._drawing.refresh()
        self._drawn_at, self._changed = self._now(), False

    @property
    def _spins(self) -> bool:
        return bool(self._running) or self._open_text is None

    def _changing(self) -> RenderableType:
        if not self._working:
            return ""
        spinner = Styled(SPINNER[int(self._now() * 10) % len(SPINNER)], "cyan")
        below: list[Styled] = [self._tool_line(tool, spinner) for tool in self._running.values()]
        if self._spins and not below:
            waited = f" {self._now() - self._news_at:.0f} s"
            below.append(Styled.assemble(spinner, (waited, "dim")))
        if self._todo_list is not None:
            below.append(_todo_lines(self._todo_list.items, most=MAX_TODOS))
        lines: Lines = []
        if self._open_text is not None:
            rest = self._open_text.markdown.rest
            markdown = SafeMarkdown(rest.source, self._open_text.style)
            lines = self._lines(markdown, kind="text", continues=rest.continues)
        lines += self._lines(Group(*below), kind="tool") if below else []
        return SegmentLines(lines[-max(self._console.height - 1, 1) :], new_lines=True)


def _trimmed(lines: Lines) -> Lines:
    """Without blanks at the ends of lines, and without empty lines around them."""
    trimmed = [_without_blanks(line) for line in lines]
    filled = [number for number, line in enumerate(trimmed) if line]
    return trimmed[filled[0] : filled[-1] + 1] if filled else []


def _without_blanks(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def _todo_lines(items: Sequence[tuple[str, bool]], most: int | None = None) -> Styled:
    """The list; with `most` only so much of it, from the last that is done."""
    if most is not None and len(items) > most:
        done = sum(1 for _, is_done in items if is_done)
        first = min(max(done - 1, 0), len(items) - most)
        items = items[first : first + most]
    done_style = {True: "dim", False: "none"}
    lines = [
        Styled(printable(todo_line(what, done=done)), done_style[done]) for what, done in items
    ]
    return Styled("\n").join(lines)
