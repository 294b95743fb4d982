"""Markdown that is still being written.

A block is rendered once and for all when the next one begins; only the last one is rendered again
as it grows. What may still grow is bounded, so a chunk costs the same however long the answer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax

from .printer import printable

MAX_LINES = 24  # of a code block, a table or a paragraph; a longer one is rendered in parts
MAX_CHARS = 16_000  # of any block
MAX_HEAD = 500  # characters that are repeated in every part

# HTML is shown as it is written: rich would leave it out.
PARSER = MarkdownIt().enable(["strikethrough", "table"]).disable(["html_inline", "html_block"])


@dataclass(frozen=True, slots=True)
class Piece:
    source: str
    continues: bool = False  # the block of the piece before it


class GrowingMarkdown:
    """Takes text in chunks of any size, and gives the blocks that have become complete."""

    def __init__(self) -> None:
        self._source = ""  # the last block, and the line that is being written
        self._continues = False

    @property
    def rest(self) -> Piece:
        """What is not complete yet."""
        return Piece(self._source, self._continues)

    def feed(self, text: str) -> Iterator[Piece]:
        self._source += text
        if "\n" in text:  # blocks begin and end with lines
            yield from self._complete_blocks()
        while len(self._source) > MAX_CHARS:
            yield self._cut(_last_break(self._source[:MAX_CHARS]), divides=True)

    def _complete_blocks(self) -> Iterator[Piece]:
        """Every block that another one follows; every item of a list that another one follows."""
        whole = self._source[: self._source.rfind("\n") + 1]
        tokens = PARSER.parse(whole)
        blocks = _blocks(tokens)
        if not blocks:
            return
        begins = {_line(block): False for block in blocks}  # whether it divides a block
        for token in tokens:
            if token.type == "list_item_open" and token.level == 1:
                begins.setdefault(_line(token), True)
        offsets, begin = _offsets(whole), 0
        for line in sorted(begins)[1:]:
            yield self._cut(offsets[line] - begin, divides=begins[line])
            begin = offsets[line]
        is_long = len(offsets) - _line(blocks[-1]) > MAX_LINES
        if is_long and blocks[-1].type in ("fence", "table_open", "paragraph_open"):
            yield self._cut(len(whole) - begin, divides=not _is_closed(blocks[-1]))

    def _cut(self, at: int, *, divides: bool) -> Piece:
        """So much of what there is; `divides` says that it is not the end of a block."""
        piece = Piece(self._source[:at], self._continues)
        head = _head(piece.source) if divides else ""
        self._source = head + self._source[at:]
        self._continues = divides
        return piece


def _blocks(tokens: list[Token]) -> list[Token]:
    return [token for token in tokens if token.level == 0 and token.nesting > -1 and token.map]


def _line(token: Token) -> int:
    assert token.map is not None
    return token.map[0]


def _offsets(text: str) -> list[int]:
    """Where each line begins."""
    return [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]


def _last_break(text: str) -> int:
    """Where to cut a text: at least half of it goes, which is more than is repeated."""
    half = len(text) // 2
    return text.rfind("\n", half) + 1 or text.rfind(" ", half) + 1 or len(text)


def _head(source: str) -> str:
    """With what the rest of a divided block has to begin, to be the same kind of block."""
    blocks = _blocks(PARSER.parse(source))
    if not blocks or blocks[-1].type not in ("fence", "table_open") or _is_closed(blocks[-1]):
        return ""
    lines = source.splitlines(keepends=True)[_line(blocks[-1]) :]
    head = "".join(lines[:2]) if blocks[-1].type == "table_open" else lines[0]
    return head if len(head) < MAX_HEAD and head.endswith("\n") else ""


def _is_closed(block: Token) -> bool:
    """Whether a code block has its last line."""
    if block.type != "fence" or block.map is None:
        return False
    begin, end = block.map
    inside = block.content.count("\n") + (block.content[-1:] not in ("", "\n"))
    return end - begin == inside + 2


class _Code(CodeBlock):
    """In the colours of the terminal, and without lines around it that a part would repeat."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        yield Syntax(
            code,
            self.lexer_name,
            theme="ansi_dark",
            background_color="default",
            word_wrap=True,
            padding=(0, 2),
        )


class _Heading(Heading):
    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class SafeMarkdown(Markdown):
    """Shows line breaks as they are written, HTML as text, and links with their address.

    Characters that would control the terminal are shown as escapes, also those that Markdown
    writes as entities.
    """

    elements = Markdown.elements | {"fence": _Code, "code_block": _Code, "heading_open": _Heading}

    def __init__(self, source: str, style: str = "none") -> None:
        super().__init__("", style=style, hyperlinks=False)
        self.parsed = PARSER.parse(source)
        _clean(self.parsed)


def _clean(tokens: list[Token]) -> None:
    for token in tokens:
        token.content = printable(token.content)
        if token.type == "softbreak":
            token.type = "hardbreak"
        _clean(token.children or [])
