"""Which arguments a caller may give to one of OpenCode's commands.

OpenCode fills the arguments into the command's template and then acts on the whole text, whatever
the permissions say: it runs what stands in !`…` and reads the file that follows an @. Arguments are
text for the model, and must change neither. Two rules see to that:

1. They hold none of the characters that begin such a thing: no `$` (OpenCode substitutes what it
   marks), no backtick, no @ where a file name could begin, and no `!` where the template has a
   backtick.
2. The template puts them into no word that holds a shell command or an @. A word ends at a space;
   a shell command may hold spaces. What a command prints takes its place in the same word, so it
   cannot turn the arguments of another word into a file name.

Where OpenCode does not show the template, nobody knows, and the command takes no arguments.
"""

from __future__ import annotations

import re

_PLACEHOLDER = re.compile(r"\$(?:[0-9]|ARGUMENTS)")
_WORD = re.compile(r"(?:!`[^`]+`|[^ \t\r\n])+")
_MENTION = re.compile(r"(?<![A-Za-z0-9_])@")
MENTION_REFUSED = "must not refer to files with @: OpenCode would read any; send them as parts"


def mentions_file(text: str) -> bool:
    """Whether an @ stands where a file name could begin, whatever follows it."""
    return _MENTION.search(text) is not None


def refusal(template: str | None, arguments: str) -> str | None:
    """Why these arguments are refused, and what to do instead; None if they are allowed."""
    if not arguments:
        return None
    if template is None:
        return (
            "must be empty: OpenCode does not show what this command does with them; send the "
            "text as an ordinary message"
        )
    if any(_acts_on_arguments(word) for word in _WORD.findall(template)):
        return (
            "must be empty: the template of this command puts them into a shell command or a file "
            "name; send files as parts, or the text as an ordinary message"
        )
    for mark in "$`!" if "`" in template else "$`":
        if mark in arguments:
            return (
                f"must not hold {mark}: OpenCode could run or substitute what follows; leave it "
                "out, or send the text as an ordinary message"
            )
    return MENTION_REFUSED if mentions_file(arguments) else None


def _acts_on_arguments(word: str) -> bool:
    runs_or_reads = "@" in word or ("!" in word and "`" in word)
    return runs_or_reads and _PLACEHOLDER.search(word) is not None
