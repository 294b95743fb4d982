"""Which arguments a caller may give to one of OpenCode's commands.

OpenCode fills the arguments into the command's template and then acts on the whole text: it runs
what stands in !`…` and reads what follows an @. It asks nobody, whatever the permissions say.

The rule: arguments are text for the model. They must not change what a command runs or reads. Two
checks follow from it, and arguments must pass both. The second suffices if `expand` is right; the
first does not depend on it, and limits what a mistake there could do.

1. Characters. No `$` (OpenCode substitutes it), no backtick, no control characters, no @ that could
   start a file name. If the template holds a backtick, only letters, digits, spaces and a few marks
   that no shell acts on: a `!` would turn the template's own code span into a shell command. If a
   placeholder stands in one word with an @, or with a backtick where a `!` or an @ stands anywhere,
   no `/`, `\\` or `~` and no dot at the beginning of a word: should the comparison err, the
   arguments could still name no path, only an entry of the directory that the template names.
2. Comparison. `expand` does what OpenCode 1.18 does with template and arguments. The words in which
   a shell command stands or a file name could begin must be the same, in the same order, with and
   without arguments. A word ends at a space; the spaces within a shell command do not end it.

The comparison holds whatever the shell commands print. OpenCode puts the output where the command
stood, and no file name holds a space, so every name lies within one of the words compared.

A template that OpenCode does not show (a prompt of an MCP server) takes no arguments.

Who can change a template decides what the command runs. OpenCode reads templates when it loads a
directory; if it loads it anew between our look at the template and the call, the arguments meet a
template that nobody compared them with. Then only the first sentence of the first check protects.
What the arguments could still do, the author of the new template can do without them.
"""

from __future__ import annotations

import re
import unicodedata

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
_SHELL = r"!`[^`]+`"
_HAS_SHELL = re.compile(_SHELL)
_WORD = re.compile(rf"(?:{_SHELL}|[^{_SPACE}])+")

MENTION_REFUSED = "must not refer to files with @: OpenCode would read any; send them as parts"
_MENTION = re.compile(r"(?<![A-Za-z0-9_])@")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_TAME_MARKS = "_.,:=+/#~^%-"
_PATH_MARK = re.compile(r"[/\\~]|(?<![\w.])\.")  # dots only where they begin a word


def expand(template: str, arguments: str) -> str:
    """The template with its arguments filled in, before OpenCode runs anything."""
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

    text = _replace_all(_PLACEHOLDER.sub(word, template), _ALL_ARGUMENTS, new=arguments)
    takes_none = not positions and _ALL_ARGUMENTS not in template
    if takes_none and arguments.strip(_SPACE):
        text = f"{text}\n\n{arguments}"
    return text


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


def mentions_file(text: str) -> bool:
    """Whether an @ stands where a file name could begin, whatever follows it."""
    return _MENTION.search(text) is not None


def refusal(template: str | None, arguments: str) -> str | None:
    """Why these arguments are refused, and what to do instead; None if they are allowed."""
    if not arguments:
        return None
    if template is None:
        return (
            "must be empty: OpenCode does not show what this command does with them (it is a "
            "prompt of an MCP server); send the text as an ordinary message"
        )
    if (refused := forbidden_characters(template, arguments)) is not None:
        return refused
    if changes_actions(template, arguments):
        return (
            "would change what this command runs or reads: its template puts them into a shell "
            "command or next to a file name; leave them out, send files as parts, or send the "
            "text as an ordinary message"
        )
    return None


def forbidden_characters(template: str, arguments: str) -> str | None:
    """Why arguments with these characters are refused, whatever the comparison finds."""
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
    if _fills_names(template) and _PATH_MARK.search(arguments):
        return (
            "must not hold / \\ ~ or words that begin with a dot because the template of this "
            "command puts them next to an @ or a backtick; leave them out, send files as parts, "
            "or send the text as an ordinary message"
        )
    return None


def _is_tame(text: str) -> bool:
    return all(
        char == " " or char in _TAME_MARKS or unicodedata.category(char)[0] in "LMN"
        for char in text
    )


def _fills_names(template: str) -> bool:
    """Whether a placeholder stands in one word with an @ or a backtick, and a file may be read."""
    return ("@" in template or "!" in template) and any(
        ("@" in word or "`" in word) and (_PLACEHOLDER.search(word) or _ALL_ARGUMENTS in word)
        for word in _WORD.findall(template)
    )


def changes_actions(template: str, arguments: str) -> bool:
    """Whether OpenCode could run or read anything that it does not without arguments."""
    return _acting_words(expand(template, "")) != _acting_words(expand(template, arguments))


def _acting_words(text: str) -> list[str]:
    """The words in which a shell command stands or a file name could begin."""
    return [word for word in _WORD.findall(text) if _HAS_SHELL.search(word) or mentions_file(word)]
