"""The pages a newcomer follows: their commands, and the results they show.

A result may leave out anything with `…`. Where a word of it has been shortened (`"6227e5ae-…"`),
the word stands for what really came: a later command on the page may use it, and a later result
that shows it must have the same. So a page reads like what a terminal has shown, and can still be
run.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.running import ROOT

PAGES = ("README.md", "docs/first-hour.md", "docs/guide.md")

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.M)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# The beginning of a random id is an example; that of `ses_…` and the like says which kind it is.
RANDOM = re.compile(r"[0-9a-f]{4,}-?$")
LEFT_OUT = '"…":"…"'


@dataclass(frozen=True, slots=True)
class Block:
    """What a page has between fences."""

    page: str
    line: int
    language: str
    text: str
    is_result: bool  # it follows another block directly, and shows what came of that

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell, a program in Python or a file of settings, and the shown result."""

    where: str
    text: str
    language: str = "console"
    shown: str = ""


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        follows = text[: found.start()].rstrip().endswith("```")
        yield Block(page, line, found["language"], textwrap.dedent(found["text"]), follows)


def commands(page: str) -> list[Command]:
    """Everything on a page that can be run, in its order."""
    made: list[Command] = []
    for block in blocks(page):
        match block.language:
            case "console":
                made += _typed(block)
            case "python" | "toml":
                made.append(Command(block.where, block.text, block.language))
            case "json" if block.is_result:
                made[-1] = replace(made[-1], shown=made[-1].shown + block.text)
            case "text" | "json" | "js":  # a screen, an example, what a browser runs
                pass
            case other:
                raise AssertionError(f"{block.where}: nobody knows how to run {other!r}")
    return made


def _typed(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines(keepends=True)
    assert lines[0].startswith("$ "), f"{block.where}: no command; output alone is ```text"
    while lines:
        typed = lines.pop(0).removeprefix("$ ")
        while not _complete(typed):
            assert lines, f"{block.where}: the command does not end: {typed}"
            typed += lines.pop(0)
        shown = ""
        while lines and not lines[0].startswith("$ "):
            shown += lines.pop(0)
        yield Command(block.where, typed.strip(), shown=shown)


def _complete(typed: str) -> bool:
    try:
        shlex.split(typed, comments=True)
    except ValueError:  # a quote is open
        return False
    return not typed.endswith("\\\n")


def difference(shown: str, came: str, known: dict[str, str]) -> str | None:
    """Which piece of the shown result did not come; None if all did.

    What shortened words stand for is added to `known`. White space does not count: a page breaks
    long lines.
    """
    names = dict[str, str]()  # of groups, for the shortened words: those with spaces are text

    def marked(found: re.Match[str]) -> str:
        if "…" not in found[1] or found[1] == "…" or re.search(r"\s", found[1]):
            return found[0]
        names[f"word{len(names)}"] = found[1]
        return f"\0{len(names) - 1}\0"

    wanted = re.sub(r"\s", "", STRING.sub(marked, shown)).replace(LEFT_OUT, "…")
    text = re.sub(r"\s", "", came)
    learned = dict(known)
    first, *others = wanted.split("…")
    patterns = [f"^{_pattern(first, names, known)}", *(_pattern(o, names, known) for o in others)]
    patterns[-1] += "$"
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        if found is None:
            return pattern
        at = found.end()
        for group, value in found.groupdict().items():
            if learned.setdefault(names[group], value) != value:
                return f"{names[group]}: {learned[names[group]]} and {value}"
    known |= learned
    return None


def _pattern(piece: str, names: dict[str, str], known: dict[str, str]) -> str:
    """A regular expression for a piece of a result in which nothing is left out."""
    made = ""
    for literal, number in re.findall(r"([^\0]*)(?:\0(\d+)\0)?", piece):
        made += re.escape(literal)
        if number:
            word = names[group := f"word{number}"]
            parts = '[^"]*'.join(re.escape(RANDOM.sub("", part)) for part in word.split("…"))
            value = re.escape(known[word]) if word in known else f"(?P<{group}>{parts})"
            made += f'"{value}"'
    return made


def with_known(command: str, known: dict[str, str]) -> str:
    """A command with what its shortened words stand for."""
    for word in sorted(known, key=len, reverse=True):
        command = command.replace(word, known[word])
    return command
