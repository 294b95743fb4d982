"""What a call shows of what an agent says: strings in, and what is on the screen."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from opencode_a2a.cli.markdown import MAX_CHARS, MAX_LINES, GrowingMarkdown
from opencode_a2a.cli.printer import PlainPrinter, Printer
from opencode_a2a.cli.rich_printer import RichPrinter
from opencode_a2a.outbound.client import Received
from opencode_a2a.outbound.transcript import Changes, Note, Shown, Text, Todos, Tool

DOCUMENT = """\
# Title

Two lines
of a paragraph.

- one
- two
  - inside

  more of two
- three

1. first
2. second

| file | lines |
|------|------:|
| a.py |    12 |

```python
x = 1

y = 2
```
> quoted

The <div> is at the end.
"""


class Terminal:
    """As much of a terminal as is needed to know what a person sees."""

    def __init__(self, *, live: bool = True) -> None:
        self.written = StringIO()
        self.seconds = 0.0
        console = Console(
            file=self.written, force_terminal=True, width=40, height=12, _environ={"TERM": "xterm"}
        )
        self.out = StringIO()
        self.printer = RichPrinter(console, self.out, live=live, now=lambda: self.seconds)

    def show(self, *shown: Shown, after: float = 1.0) -> None:
        self.seconds += after
        self.printer.update(Received({}, shown))

    @property
    def screen(self) -> list[str]:
        lines, row = [""], 0
        words = r"\x1b\[[?\d;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+"
        for word in re.findall(words, self.written.getvalue()):
            if word == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif word == "\x1b[2K":
                lines[row] = ""
            elif up := re.fullmatch(r"\x1b\[(\d+)A", word):
                row = max(row - int(up[1]), 0)
            elif word[0] not in "\x1b\r":
                lines[row] += word
        return "\n".join(lines).rstrip("\n").split("\n")


def pieces(text: str, size: int) -> list[str]:
    growing, found = GrowingMarkdown(), []
    for at in range(0, len(text), size):
        found += list(growing.feed(text[at : at + size]))
    return [piece.source for piece in [*found, growing.rest]]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_markdown_is_divided_into_the_same_blocks_however_it_arrives(size: int) -> None:
    found = pieces(DOCUMENT, size)
    assert "".join(found) == DOCUMENT
    assert [piece.split("\n")[0] for piece in found] == [
        *("# Title", "Two lines", "- one", "- two", "- three", "1. first", "2. second"),
        *("| file | lines |", "```python", "> quoted", "The <div> is at the end."),
    ]


@pytest.mark.parametrize(
    ("head", "line", "tail"),
    [
        ("```python\n", "x = 1\n", "```\n"),
        ("| a | b |\n|---|---|\n", "| 1 | 2 |\n", ""),
        ("", "a line of a paragraph\n", ""),
        ("", "words ", "\n"),
        ("```js\n", "minified;", "\n```\n"),
    ],
)
def test_what_is_rendered_again_does_not_grow_with_the_answer(
    head: str, line: str, tail: str
) -> None:
    growing, found, largest = GrowingMarkdown(), list[str](), 0
    for chunk in [head, *[line] * 5_000, tail, "\nThe end.\n"]:
        found += [piece.source for piece in growing.feed(chunk)]
        largest = max(largest, len(growing.rest.source))
    assert largest <= MAX_CHARS
    if line.endswith("\n"):
        assert largest <= (MAX_LINES + 4) * len(line) + len(head)
    assert growing.rest.source.strip() == "The end."
    assert all(piece.startswith(head) for piece in found)
    assert "".join(piece.removeprefix(head) for piece in found).count(line) == 5_000


def test_a_person_sees_the_answer_grow_and_each_block_once() -> None:
    terminal = Terminal()
    for at in range(0, len(DOCUMENT), 3):
        terminal.show(Text("answer", "a", DOCUMENT[at : at + 3].replace("\n", "\r\n")))
    growing = terminal.screen
    terminal.printer.end_answer()
    assert terminal.screen == [
        *("Title", "", "Two lines", "of a paragraph.", ""),
        *(" • one", " • two", "    • inside", "   more of two", " • three", ""),
        *(" 1 first", " 2 second", ""),
        *(" file  lines", " ───────────", " a.py     12", ""),
        *("  x = 1", "", "  y = 2", "", "▌ quoted", "", "The <div> is at the end."),
    ]
    assert growing == terminal.screen
    assert terminal.out.getvalue() == ""


def test_tools_spin_while_they_run_and_say_how_long_they_took() -> None:
    terminal = Terminal()
    terminal.show(Text("reasoning", "r", "Hm."))
    terminal.show(
        Tool("c", "bash", "running", "npm test"), Todos((("Look", True), ("Mend", False)))
    )
    terminal.show(Note("Still at it."), after=2.5)
    assert terminal.screen == [
        *("Hm.", "", "Still at it.", ""),
        *("⠴ bash: npm test 2.5 s", "☑ Look", "☐ Mend"),
    ]
    terminal.show(Tool("c", "bash", "completed", "npm test"))
    terminal.show(Tool("d", "edit", "error", "a.py", "It is gone.", seconds=0.25))
    terminal.show(Tool("e", "read", "completed", "b.py"))
    terminal.show(Changes("@@ -1 +1 @@\n-old\n+new\n"))
    terminal.printer.end_answer()
    assert terminal.screen[4:] == [
        *("✓ bash: npm test 3.5 s", "✗ edit: a.py 0.2 s", "  It is gone.", "✓ read: b.py", ""),
        *("@@ -1 +1 @@", "-old", "+new", "", "☑ Look", "☐ Mend"),
    ]
    written = terminal.written.getvalue()
    assert "\x1b[2mHm." in written
    assert {"\x1b[31m-old\x1b[0m", "\x1b[32m+new\x1b[0m"} <= set(written.split("\n"))


def test_an_answer_for_a_file_is_not_on_the_terminal() -> None:
    terminal = Terminal(live=False)
    terminal.show(Tool("c", "bash", "completed", "ls", seconds=1), Text("answer", "a", "**Do"))
    terminal.show(Text("answer", "a", "ne.**"))
    terminal.printer.end_answer()
    assert terminal.screen == ["✓ bash: ls 1.0 s"]
    assert terminal.out.getvalue() == "**Done.**\n"


def test_what_is_longer_than_the_screen_is_drawn_from_its_end() -> None:
    terminal = Terminal()
    terminal.show(Text("answer", "a", "- item\n" + "".join(f"  - {n}\n" for n in range(30))))
    assert len(terminal.screen) == 11
    assert terminal.screen[-1] == "    • 29"
    terminal.printer.end_answer()
    assert len(terminal.screen) == 31


ATTACK = "a\x1b[2J\x9b2J\u202e&#27;&#155;&#8238; <b>`\x1b]0;x\x07`\n\n    \x1bc\n\n[\x1b](http://x\x1b)\r"


def test_a_terminal_is_never_told_what_to_do_by_an_agent() -> None:
    everything: list[Shown] = [
        *(Text("answer", "a", ATTACK), Text("reasoning", "r", ATTACK)),
        *(Tool("c", ATTACK, "running", ATTACK), Tool("c", ATTACK, "error", ATTACK, ATTACK)),
        *(Changes(ATTACK), Note(ATTACK), Todos(((ATTACK, True),))),
    ]
    terminal, out = Terminal(), StringIO()
    plain = PlainPrinter(out, out, details=True, live=True)
    printers: list[Printer] = [terminal.printer, plain]
    for printer in printers:
        for each in everything:
            printer.update(Received({}, [each]))
        printer.say(ATTACK)
        printer.question(ATTACK)
        printer.end_answer()
    ours = r"\x1b\[[\d;]*[mAK]|\x1b\[\?25[lh]|\r(?=\x1b\[)"
    shown = re.sub(ours, "", terminal.written.getvalue())
    for text in (shown, out.getvalue()):
        assert not {char for char in text if not char.isprintable()} - {"\n"}
        assert "a\\x1b[2J\\x9b2J\\u202e" in text


def test_without_a_terminal_an_answer_is_written_at_its_end_and_as_it_is() -> None:
    events = [
        Received({}, [Text("answer", "a", "Helo")]),
        Received({}, [Text("answer", "a", "Hello\x1b[2J", replaces=True), Note("hm\x1b]0;x")]),
    ]
    for live in (False, True):
        out, err = StringIO(), StringIO()
        printer = PlainPrinter(out, err, live=live, details=True)
        for event in events:
            printer.update(event)
        printer.end_answer()
        shown = "Helo\nHello\\x1b[2J\n" if live else "Hello\x1b[2J\n"
        assert (out.getvalue(), "\x1b" in err.getvalue()) == (shown, False)
