"""Which arguments a caller may give to one of OpenCode's commands.

OpenCode fills the arguments into the command's template and then acts on the whole text: it runs
what stands in !`…` and reads what follows an @. It asks nobody, whatever the permissions say.

The rule: arguments are text for the model. They must not change what a command runs or reads. Two
checks follow from it, and arguments must pass both, so that a mistake in one is not yet a hole.

1. Characters. No `$` (OpenCode substitutes it), no backtick, no control characters, no @ that could
   start a file name. If the template holds a backtick, only letters, digits, spaces and a few marks
   that no shell acts on: a `!` would turn the template's own code span into a shell command.
2. Comparison. `expand` does what OpenCode 1.18 does with template and arguments. The shell commands
   and file names in the result must be those of the same template without arguments.

A template that OpenCode does not show (a prompt of an MCP server) takes no arguments.

Who can change a template decides what the command runs. OpenCode reads templates when it loads a
directory; if it loads it anew between our look at the template and the call, the arguments meet a
template that nobody compared them with. Then only the first sentence of the first check protects.
What the arguments could still do, the author of the new template can do without them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# JavaScript's classes, which are not Python's: \d and \w are ASCII, \s and trim() know these.
_SPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_PLACEHOLDER = re.compile(r"\$([0-9]+)")
_ALL_ARGUMENTS = "$ARGUMENTS"
_ARGUMENT = re.compile(
    rf"\[[Ii][Mm][Aa][Gg][Ee][{_SPACE}]+[0-9]+\]|\"[^\"]*\"|'[^']*'|[^{_SPACE}\"']+"
)
_OUTER_QUOTES = re.compile(r"\A[\"']|[\"']\Z")
_REPLACEMENT_PATTERN = re.compile(r"\$([$&`'])")
_SHELL = re.compile(r"!`([^`]+)`")
_IN_NAME = rf"[^{_SPACE}`,.]"  # dots only singly between these, and at the beginning
_FILE = re.compile(rf"(?<![A-Za-z0-9_`])@(\.?{_IN_NAME}*(?:\.{_IN_NAME}+)*)")

MENTION_REFUSED = "must not refer to files with @: OpenCode would read any; send them as parts"
_MENTION = re.compile(r"(?<![A-Za-z0-9_])@")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_TAME_MARKS = "_.,:=+/#~^%-"

# What a shell command prints is unknown. These stand for it: they begin a file name where the text
# before allows one, and the text after continues it.
_UNKNOWN_OUTPUTS = ("@", "@x")


@dataclass(frozen=True, slots=True)
class Expansion:
    """A template with its arguments filled in, before OpenCode runs anything."""

    text: str

    @property
    def shell(self) -> tuple[str, ...]:
        """The shell commands that OpenCode runs."""
        return tuple(_SHELL.findall(self.text))

    def prompt(self, outputs: Sequence[str]) -> str:
        """The text for the model; `outputs` are what the shell commands print, in order."""
        remaining = iter(outputs)
        return _SHELL.sub(lambda _: next(remaining), self.text).strip(_SPACE)

    def files(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """The files, directories or agents that the text refers to."""
        return file_references(self.prompt(outputs))


def expand(template: str, arguments: str) -> Expansion:
    words = [_OUTER_QUOTES.sub("", word) for word in _ARGUMENT.findall(arguments)]
    positions = [float(digits) for digits in _PLACEHOLDER.findall(template)]  # any number of digits
    last = max(positions, default=0.0)

    def word(placeholder: re.Match[str]) -> str:
        position = float(placeholder[1])
        if position > len(words):
            return ""
        index = int(position) - 1  # -1 for $0
        if position == last:
            return " ".join(words[index:])  # the last placeholder takes the rest
        return words[index] if index >= 0 else "undefined"

    text = _replace_all(_PLACEHOLDER.sub(word, template), _ALL_ARGUMENTS, arguments)
    takes_none = not positions and _ALL_ARGUMENTS not in template
    if takes_none and arguments.strip(_SPACE):
        text = f"{text}\n\n{arguments}"
    return Expansion(text)


def _replace_all(text: str, old: str, new: str) -> str:
    """JavaScript's `replaceAll`, which understands $$, $&, $` and $' in `new`."""

    def replacement(found: re.Match[str]) -> str:
        values = {
            "$": "$",
            "&": old,
            "`": text[: found.start()],
            "'": text[found.end() :],
        }
        return _REPLACEMENT_PATTERN.sub(lambda pattern: values[pattern[1]], new)

    return re.sub(re.escape(old), replacement, text)


def file_references(text: str) -> tuple[str, ...]:
    """What OpenCode takes for names of files, directories or agents in a prompt it expands."""
    return tuple(name for name in _FILE.findall(text) if name)


def mentions_file(text: str) -> bool:
    """Whether an @ stands where a file name could begin, whatever follows it."""
    return _MENTION.search(text) is not None


def refusal(template: str | None, arguments: str) -> str | None:
    """Why these arguments must not reach the command, and what to do; None if they may."""
    if not arguments:
        return None
    if template is None:
        return (
            "must be empty: OpenCode does not show what this command does with them (it is a "
            "prompt of an MCP server); send the text as an ordinary message"
        )
    if "`" in arguments or "$" in arguments:
        return (
            "must not hold backticks or dollar signs: OpenCode would run or substitute what they "
            "mark; leave them out, or send the text as an ordinary message"
        )
    if _CONTROL.search(arguments):
        return "must not hold control characters other than tabs and line breaks; leave them out"
    if mentions_file(arguments):
        return MENTION_REFUSED
    if "`" in template and not _is_tame(arguments):
        return (
            f"may hold only letters, digits, spaces and {' '.join(_TAME_MARKS)} because the "
            "template of this command holds backticks; send any other text as an ordinary message"
        )
    if changes_actions(template, arguments):
        return (
            "would change what this command runs or reads: its template puts them into a shell "
            "command or next to a file name; leave them out, send files as parts, or send the "
            "text as an ordinary message"
        )
    return None


def _is_tame(text: str) -> bool:
    return all(
        char == " " or char in _TAME_MARKS or unicodedata.category(char)[0] in "LMN"
        for char in text
    )


def changes_actions(template: str, arguments: str) -> bool:
    """Whether OpenCode would run or read anything else than without arguments."""
    alone, filled = expand(template, ""), expand(template, arguments)
    if alone.shell != filled.shell:
        return True
    return any(
        alone.files([output] * len(alone.shell)) != filled.files([output] * len(filled.shell))
        for output in _UNKNOWN_OUTPUTS
    )
