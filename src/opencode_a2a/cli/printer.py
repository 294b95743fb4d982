"""What a call shows: the answer on the standard output, everything else on the standard error.

`PlainPrinter` writes text and nothing else. On a terminal with a cursor it is `RichPrinter`
(`rich_printer`) that shows an answer. Neither passes on control characters to a terminal: they
could move the cursor or change what was written before. Into a file or a pipe an answer goes at
its end and as it is, because an agent may begin a text again.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TextIO, assert_never

from ..outbound.client import PeerUpdate, Received, Reconnecting, Resumed
from ..outbound.transcript import Changes, Data, File, Note, Shown, Text, Todos, Tool

AGAIN = "(The agent begins this text again.)"
_JOINERS = "\u200c\u200d"  # of scripts and emoji


class Printer(ABC):
    details: bool  # whether it shows reasoning, tools, changes, usage
    live: bool  # whether the answer goes to a terminal

    def __init__(self, out: TextIO, *, output: str, now: Callable[[], float]) -> None:
        self.output = output  # answer, task or events
        self._out = out
        self._answers: dict[str, str] = {}  # by block, where it is not live
        self._now = now
        self._began: dict[str, float] = {}  # calls of tools, by their id

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

    @abstractmethod
    def say(self, text: str) -> None:
        """A line about the call itself."""

    @abstractmethod
    def question(self, text: str) -> None:
        """What a person is to answer; the terminal is theirs until something happens."""

    @abstractmethod
    def pause(self) -> None:
        """End the line that is being written, and whatever moves."""

    async def animate(self) -> None:
        """Show that the peer is at work, until it is cancelled."""
        return

    def end_answer(self) -> None:
        self.pause()
        for text in self._answers.values():
            self._out.write(text if text.endswith("\n") else f"{text}\n")
        self._answers.clear()
        self._out.flush()

    def print_json(self, value: Any, *, indent: int | None = None) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")
        self._out.flush()

    def usage(self, usage: dict[str, Any] | None) -> None:
        if not usage or not self.details or self.output != "answer":
            return
        given, made, cost = (
            value if isinstance(value := usage.get(name), int | float) else 0
            for name in ("input_tokens", "output_tokens", "cost")
        )
        if not given and not made:
            return
        facts = [f"{given:,.0f} tokens in", f"{made:,.0f} out"]
        if cost:
            facts.append(f"${cost:.4g}")
        self.say(", ".join(facts))

    # -- pieces

    @abstractmethod
    def _text(self, text: Text) -> None: ...

    @abstractmethod
    def _tool(self, tool: Tool) -> None: ...

    @abstractmethod
    def _changes(self, changes: Changes) -> None: ...

    @abstractmethod
    def _todos(self, todos: Todos) -> None: ...

    @abstractmethod
    def _data(self, text: str) -> None: ...

    def _show(self, shown: Shown) -> None:
        match shown:
            case Text(kind="reasoning"):
                if self.details:
                    self._text(shown)
            case Text():
                if self.live:
                    self._text(shown)
                else:
                    self._keep(shown)
            case Data(value=value):
                text = json.dumps(value, ensure_ascii=False, indent=2)
                if self.live:
                    self._data(text)
                else:
                    self._keep(Text("answer", "data", f"{text}\n"))
            case File():
                self.say(file_line(shown))
            case Tool() | Changes() | Note() | Todos():
                if self.details:
                    self._detail(shown)
            case _:
                assert_never(shown)

    def _detail(self, shown: Tool | Changes | Note | Todos) -> None:
        match shown:
            case Tool():
                self._tool(shown)
            case Changes():
                self._changes(shown)
            case Note(text=text):
                self.say(text)
            case Todos():
                self._todos(shown)
            case _:
                assert_never(shown)

    def _keep(self, text: Text) -> None:
        if text.replaces:
            self.say(AGAIN)
        before = "" if text.replaces else self._answers.get(text.block, "")
        self._answers[text.block] = before + text.text

    def _took(self, tool: Tool) -> str:
        """How long a tool has been at work: as the agent says, or else as it looked from here."""
        seconds = tool.seconds
        if seconds is None and (began := self._began.get(tool.call)) is not None:
            seconds = self._now() - began
        return "" if seconds is None else f" {seconds:.1f} s"


class PlainPrinter(Printer):
    """Text without any control codes, each thing in the order in which it happens."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        output: str = "answer",
        details: bool = False,
        live: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(out, output=output, now=now)
        self.details = details
        self.live = live
        self._err = err
        self._open: tuple[TextIO, str] | None = None  # the line not ended, and what writes it

    def say(self, text: str) -> None:
        self.pause()
        self._err.write(f"{printable(text)}\n")
        self._err.flush()

    def question(self, text: str) -> None:
        self.say(f"\n{text}")

    def pause(self) -> None:
        if self._open is not None:
            self._open[0].write("\n")
            self._open[0].flush()
            self._open = None

    def _text(self, text: Text) -> None:
        if text.replaces:
            self.say(AGAIN)
        stream = self._err if text.kind == "reasoning" else self._out
        self._write(stream, text.block, text.text)

    def _data(self, text: str) -> None:
        self._write(self._out, "data", f"{text}\n")

    def _write(self, stream: TextIO, block: str, text: str) -> None:
        if self._open != (stream, block):
            self.pause()
        stream.write(printable(text))
        stream.flush()
        self._open = None if text.endswith("\n") else (stream, block)

    def _tool(self, tool: Tool) -> None:
        """A line when the call begins, and one when it is over."""
        if tool.over:
            mark = "✗" if tool.status == "error" else "✓"
            self.say(f"{mark} {tool_line(tool)}{self._took(tool)}")
            if tool.error:
                self.say(f"  {tool.error}")
        elif tool.call not in self._began:
            self._began[tool.call] = self._now()
            self.say(f"● {tool_line(tool)}")

    def _changes(self, changes: Changes) -> None:
        self.say(changes.diff.rstrip("\n"))

    def _todos(self, todos: Todos) -> None:
        for what, done in todos.items:
            self.say(todo_line(what, done=done))


def printable(text: str) -> str:
    """A text in which only line breaks and tabs move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in "\n\t" or char in _JOINERS
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text.replace("\r\n", "\n")
    )


def tool_line(tool: Tool) -> str:
    title = " ".join(tool.title.split())
    return tool.name if title in ("", tool.name) else f"{tool.name}: {title}"


def todo_line(what: str, *, done: bool) -> str:
    return f"{'☑' if done else '☐'} {what}"


def file_line(file: File) -> str:
    name = file.name or "a file"
    where = f" {file.url}" if file.url else f", {file.size:,} bytes"
    return f"The agent sends {name} ({file.media_type or 'of unknown type'}{where})"
