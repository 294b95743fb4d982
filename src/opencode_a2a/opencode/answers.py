"""Reads what OpenCode answers, of whichever version, and says what failed in our words."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import AliasPath, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..domain.values import (
    COST_DIGITS,
    Attachment,
    Failure,
    FileChange,
    Part,
    Problem,
    Text,
    Usage,
    file_at,
)
from ..errors import UpstreamPayloadError

T = TypeVar("T")
Body: TypeAlias = Mapping[str, Any]

MOST_TOKENS, MOST_DOLLARS = 10**9, 10_000.0  # that one step can use
FILE_LIMIT = 12 << 20  # characters of a data URL: as much as may be sent in one part


class Wire(BaseModel):
    """Something OpenCode sends. Built when first used, and not while the service starts."""

    model_config = ConfigDict(defer_build=True)


def deep(*path: str, default: Any = None) -> Any:
    """A field that lies further down in what OpenCode sends; the default where it is missing."""
    return Field(default=default, validation_alias=AliasPath(*path))


def text_in(found: Mapping[str, Any], key: str) -> str | None:
    """What is there, if it is a text."""
    return value if isinstance(value := found.get(key), str) else None


class Tokens(Wire):
    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache_read: int = deep("cache", "read", default=0)
    cache_write: int = deep("cache", "write", default=0)


@contextmanager
def understood() -> Iterator[None]:
    """Say it in our words where OpenCode's answer is not what it should be."""
    try:
        yield
    except (ValidationError, KeyError, TypeError, AttributeError) as exc:
        errors = exc.errors()[:5] if isinstance(exc, ValidationError) else ()
        raise UpstreamPayloadError(
            "OpenCode sent an answer in a shape this version does not know.",
            fields=[".".join(map(str, error["loc"])) for error in errors],
        ) from exc


def read(shape: type[T], answer: Any) -> T:
    """An answer of OpenCode's, parsed as this shape."""
    with understood():
        found: T = reader(cast(Hashable, shape)).validate_python(answer)
        return found


def item(shape: type[T], answer: Any, renamed: Callable[[Body], Body]) -> T:
    """The same, where `renamed` has what this shape calls otherwise than OpenCode."""
    with understood():
        return read(shape, {**answer, **renamed(answer)})


def items(shape: type[T], answers: Any, renamed: Callable[[Body], Body]) -> list[T]:
    with understood():
        return [item(shape, answer, renamed) for answer in answers]


@cache
def reader(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


class DiffInfo(Wire):
    file: str
    patch: str = ""
    additions: int = 0
    deletions: int = 0
    status: str = "modified"


def file_change(info: DiffInfo) -> FileChange:
    return FileChange(
        file=info.file,
        additions=info.additions,
        deletions=info.deletions,
        status=info.status,
        patch=info.patch,
    )


def data_url(file: Attachment) -> str:
    return f"data:{file.media_type};base64,{file.content}"


def file_part(url: str, *, media_type: str, name: str | None) -> Part:
    """A file that the agent hands over."""
    if len(url) > FILE_LIMIT:
        return Text(f"{name or media_type or 'A file'} is too large to be handed over.")
    return file_at(url, media_type=media_type or None, filename=name)


def usage(tokens: Tokens | None, cost: float) -> Usage:
    """What a step has used, as its provider says; figures that cannot be are cut off.

    Sums are stored as whole numbers of 64 bits, and a negative figure would enlarge a budget.
    """
    t = tokens or Tokens()
    return Usage(
        input_tokens=_tokens(t.input),
        output_tokens=_tokens(t.output),
        reasoning_tokens=_tokens(t.reasoning),
        cache_read_tokens=_tokens(t.cache_read),
        cache_write_tokens=_tokens(t.cache_write),
        cost=round(min(max(0.0, cost), MOST_DOLLARS), COST_DIGITS),
    )


def _tokens(reported: int) -> int:
    return min(max(0, reported), MOST_TOKENS)


_SENTENCES = {
    Failure.PROVIDER_AUTH: "The model provider refused OpenCode's credentials. Log in on the "
    "OpenCode host with `opencode auth login`, or correct the provider's key.",
    Failure.PROVIDER_QUOTA: "The model provider refused the request for quota or rate reasons.",
    Failure.CONTEXT_OVERFLOW: "The conversation no longer fits the model's context. "
    "Start a new context, or send less.",
    Failure.OUTPUT_LIMIT: "The model reached its output limit before it finished.",
    Failure.PROVIDER_ERROR: "The model could not answer.",
}
FILTERED = "The provider's content filter blocked the answer."


def problem(
    kind: Failure, reason: str, *, status: int | None = None, sentence: str | None = None
) -> Problem:
    """What failed, in our words, without headers, bodies and addresses of the provider."""
    said, sentence = scrub(reason), sentence or _SENTENCES[kind]
    return Problem(
        kind, f"{sentence} It said: {said}" if said else sentence, upstream_status=status
    )


_ADDRESS = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]*://\S+                              # a URL
    | (?<!\w)/(?:[\w.-]+/)+[\w.-]*                         # a path,
    | (?:\b[a-z]:[\\/]|\\\\)\S*(?:[ ]\S*\\\S*)*           # also on Windows, with spaces
    | (?<=ENOTFOUND[ ])\S+ | (?<=EAI_AGAIN[ ])\S+          # a host, says Node
    | \[?(?<![\w:])(?=[0-9a-f:]*::|(?:[0-9a-f]+:){7})[0-9a-f:.]+\]?(?::\d+)?  # IPv6
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b               # IPv4
    | (?:[\w.+-]+@)?\b(?:[\w-]+\.)+[a-z]{2,}(?::\d+)?\b  # dotted names; a file's goes with them
    | \b[a-z][\w-]*:\d{2,5}\b                            # host:port
    """,
    re.IGNORECASE | re.VERBOSE,
)
_KEYED_SECRET = (
    re.compile(  # a value after a word for secrets: any after a colon, else if it looks like one
        r"""
    ((?<![\w-]) (?:[\w-]*(?:key|token|passw(?:or)?d|secret|credential|authorization)|bearer|basic)
    ["']? (?:\s+(?:is|was|provided|given|used))* )
    (?: (\s*[:=]\s*)(?:(?:bearer|basic)\s+)?\S+ | (\s+)(?:["'`]|(?=\S*\d))\S+ )
    """,
        re.IGNORECASE | re.VERBOSE,
    )
)
_SECRET = re.compile(r"\b(?:sk|pk|key|ghp|xox\w)[-_]\S+|[A-Za-z0-9_\-+/=*]{24,}", re.IGNORECASE)
_SQL = re.compile(  # capitals, or what no sentence has: people, too, select something from a list
    r"""
    Failed[ ]query | \bSELECT\s.+\sFROM\s | \bUPDATE\s.+\sSET\s
    | (?i: \binsert\s+into\s | \bdelete\s+from\s | \bupdate\s+\S+\s+set\s
         | \bselect\s.+\sfrom\s+(?: ["'`] | \S+\s+(?:where|order|limit|join)\b ))
    """,
    re.DOTALL | re.VERBOSE,
)


def scrub(message: str) -> str:
    """The first line of a provider's message, without addresses, paths or anything like a key.

    Nothing is kept of a database error.
    """
    message = message.strip()[:1_000]
    if _SQL.search(message):
        return ""
    line = _ADDRESS.sub("[…]", message.partition("\n")[0])
    return _SECRET.sub("[…]", _KEYED_SECRET.sub(r"\1\2\3[…]", line))[:300]
