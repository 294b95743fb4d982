"""What a call shows: the answer on the standard output, everything else on the standard error.

On a terminal the answer appears as it is written, without control characters: they could move the
cursor or change what was written before. Into a file or a pipe it goes at its end and as it is,
because an agent may begin a text again.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO, assert_never

from ..outbound.client import PeerUpdate, Received, Reconnecting, Resumed
from ..outbound.transcript import Changes, Data, File, Note, Shown, Text, Todos, Tool

DIM, RED, GREEN, CYAN, BOLD = "2", "31", "32", "36", "1"
_JOINERS = "\u200c\u200d"  # of scripts and emoji


@dataclass(slots=True)
class Printer:
    out: TextIO
    err: TextIO
    output: str = "answer"  # or task, or events
    details: bool = False  # reasoning, tools, changes, usage
    live: bool = False  # the answer goes to a terminal
    colours: bool = False
    _open: tuple[TextIO, str] | None = None  # the line that is not ended, and what writes it
    _answers: dict[str, str] = field(default_factory=dict)  # by block, where it is not live
    _began: dict[str, float] = field(default_factory=dict)  # calls of tools, by their id

    @classmethod
    def of(cls, output: str) -> Printer:
        terminal = sys.stderr.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(
            sys.stdout,
            sys.stderr,
            output=output,
            details=terminal,
            live=sys.stdout.isatty(),
            colours=terminal and not plain,
        )

    # -- what happens

    def update(self, update: PeerUpdate) -> None:
        match update:
            case Received(event=event, shown=shown):
                if self.output == "events":
                    self.print_json(event)
                elif self.output == "answer":
                    for each in shown:
                        self._show(each)
            case Reconnecting(reason=reason):
                self.say(f"{reason} Connecting again …")
            case Resumed():
                self.say("Connected again; nothing is missing.")
            case _:
                assert_never(update)

    def say(self, text: str) -> None:
        """A line about the call itself."""
        self.end_line()
        self.err.write(self._style(printable(text), DIM) + "\n")
        self.err.flush()

    def question(self, text: str) -> None:
        self.end_line()
        self.err.write(f"\n{self._style(printable(text), BOLD)}\n")
        self.err.flush()

    def print_json(self, value: Any, *, indent: int | None = None) -> None:
        self.out.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")
        self.out.flush()

    def usage(self, usage: dict[str, Any] | None) -> None:
        if not usage or not self.details or self.output != "answer":
            return
        given, made, cost = (
            value if isinstance(value := usage.get(name), int | float) else 0
            for name in ("input_tokens", "output_tokens", "cost")
        )
        facts = [f"{given:,.0f} tokens in", f"{made:,.0f} out"]
        if cost:
            facts.append(f"${cost:.4g}")
        self.say(", ".join(facts))

    def end_answer(self) -> None:
        self.end_line()
        for text in self._answers.values():
            self.out.write(text if text.endswith("\n") else f"{text}\n")
        self._answers.clear()
        self.out.flush()

    def end_line(self) -> None:
        if self._open is not None:
            self._open[0].write("\n")
            self._open[0].flush()
            self._open = None

    # -- pieces

    def _show(self, shown: Shown) -> None:
        if isinstance(shown, Text):
            self._text(shown)
        elif isinstance(shown, Data):
            value = json.dumps(shown.value, ensure_ascii=False, indent=2)
            self._answer(f"{value}\n", "data")
        elif isinstance(shown, File):
            self._line(_file_line(shown))
        elif not self.details:
            return
        elif isinstance(shown, Tool):
            self._tool(shown)
        elif isinstance(shown, Changes):
            self._changes(shown.diff)
        elif isinstance(shown, Note):
            self._line(shown.text)
        elif isinstance(shown, Todos):
            for what, done in shown.items:
                self._line(f"{'☑' if done else '☐'} {what}")
        else:
            assert_never(shown)

    def _text(self, shown: Text) -> None:
        if shown.replaces:
            self.say("(The agent begins this text again.)")
        if shown.kind == "reasoning":
            if self.details:
                self._write(self.err, shown.block, self._style(printable(shown.text), DIM))
        else:
            if shown.replaces:
                self._answers.pop(shown.block, None)
            self._answer(shown.text, shown.block)

    def _answer(self, text: str, block: str) -> None:
        if self.live:
            self._write(self.out, block, printable(text))
        else:
            self._answers[block] = self._answers.get(block, "") + text

    def _write(self, stream: TextIO, block: str, text: str) -> None:
        if self._open is not None and self._open != (stream, block):
            self.end_line()
        stream.write(text)
        stream.flush()
        ended = re.sub(r"\x1b\[\d*m", "", text).endswith("\n")
        self._open = None if ended else (stream, block)

    def _line(self, text: str) -> None:
        self.end_line()
        self.err.write(self._style(printable(text), DIM) + "\n")
        self.err.flush()

    def _tool(self, tool: Tool) -> None:
        """One line: it is written when the call begins, and again when it is over."""
        now = time.monotonic()
        began = self._began.setdefault(tool.call, now)
        title = " ".join(tool.title.split())
        what = printable(tool.name if title in ("", tool.name) else f"{tool.name}: {title}")
        what = what[: max(_columns(self.err) - 14, 20)]
        own = (self.err, tool.call)
        if self._open is not None and self._open != own:
            self.end_line()
        again = "\r\x1b[K" if self._open == own and self.colours else ""
        if not again:
            self.end_line()
        if not tool.over:
            self.err.write(f"{again}{self._style('●', CYAN)} {what}")
            self._open = own
        else:
            mark = self._style("✗", RED) if tool.status == "error" else self._style("✓", GREEN)
            took = self._style(f"{now - began:.1f} s", DIM)
            self.err.write(f"{again}{mark} {what} {took}\n")
            self._open = None
            if tool.error:
                self._line(f"  {tool.error}")
        self.err.flush()

    def _changes(self, diff: str) -> None:
        self.end_line()
        for line in diff.splitlines():
            colour = {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1], DIM)
            self.err.write(self._style(printable(line), colour) + "\n")
        self.err.flush()

    def _style(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.colours and text else text


def printable(text: str) -> str:
    """A text in which only line breaks and tabs move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in "\n\t" or char in _JOINERS
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def _file_line(file: File) -> str:
    name = file.name or "a file"
    where = f" {file.url}" if file.url else f", {file.size:,} bytes"
    return f"The agent sends {name} ({file.media_type or 'of unknown type'}{where})"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
