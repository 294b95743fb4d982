"""Takes out of a text what must not be in the log: by its value, by its name, by its looks.

What is read here is written by others and may be large. So no pattern takes longer than the text is
long, nothing is looked at beyond what will be shown, and what is shown is cut last: a secret that
a cut goes through is not recognised.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import orjson

HIDDEN = "[redacted]"
CUT = " …"
EVENT_FIELDS = (b"id:", b"data:", b"event:", b"retry:")
LONGEST = 4096  # characters of a secret that is known by its looks only
SHORTEST = 6  # characters of a secret; a shorter one is part of many words, and soon guessed

_NAME_ENDS = (
    *("token", "secret", "password", "passwd", "passphrase", "authorization", "cookie"),
    *("apikey", "accesskey", "secretkey", "privatekey", "credential", "credentials"),
)
_NAMES = frozenset({"auth", "bearer", "key", "pass"})
_NO_SECRETS = ("pagetoken",)  # A2A's name for the place where a list goes on

# A name and its value, as JSON, headers, forms, shells and configuration files write them.
_NAMED = re.compile(
    r"((?:(?<!page)token|secret|passw(?:or)?d|passphrase|authorization|cookie"
    r"|(?:api|access|secret|private)[_-]?key|credentials?)[\"']?\s*[:=]\s*)"
    r"(\[redacted\]|\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|[^\s,;&}\])]+(?:(?<=bearer)\s+\S+|(?<=basic)\s+\S+)?)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_NAME_HINTS = ("token", "secret", "passw", "passph", "authoriz", "cookie", "key", "credential")
# Each with what to write in its place, and something that every match of it holds.
_LOOKS = (
    (
        re.compile(
            r"(?<![\w-])(?:"
            r"(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}"
            r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|xox[abeprs]-[A-Za-z0-9-]{10,}"
            r"|AIza[A-Za-z0-9_-]{30,}"
            r"|A(?:KIA|SIA)[A-Z0-9]{16}(?!\w)"
            r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
            r")"
        ),
        HIDDEN,
        ("k-", "gh", "_pat_", "glpat-", "xox", "AIza", "AKIA", "ASIA", "eyJ"),
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL),
        HIDDEN,
        ("PRIVATE KEY",),
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), rf"\1{HIDDEN}@", ("://",)),
)


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is a secret, as far as a name can tell."""
    return _is_secret_name(name[-64:])  # its end tells; anybody can make up long ones


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain in _NAMES or (plain.endswith(_NAME_ENDS) and not plain.endswith(_NO_SECRETS))


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables that are secrets by their names, such as keys of providers."""
    return [
        value
        for name, value in environment.items()
        if is_secret_name(name) or name.upper().endswith("_KEY")
    ]


class Redactor:
    def __init__(self, *secrets: str) -> None:
        self._forms: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._longest = LONGEST
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Let these values be hidden from now on, in each form in which they are written."""
        long_enough = [secret for secret in secrets if len(secret) >= SHORTEST]
        self._forms |= {form for secret in long_enough for form in _forms(secret)}
        if self._forms:
            longest_first = sorted(self._forms, key=len, reverse=True)
            self._known = re.compile("|".join(map(re.escape, longest_first)))
            self._longest = max(LONGEST, len(longest_first[0]))

    def known(self, text: str) -> str:
        """A text of our own without secrets; what it says about them by name is left in it."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern, hidden, hints in _LOOKS:
            if any(hint in text for hint in hints):  # which is much faster than to search
                text = pattern.sub(hidden, text)
        return text

    def text(self, text: str) -> str:
        """A text of anybody's."""
        if len(text) < SHORTEST:
            return text
        text, lower = self.known(text), text.lower()
        if "bearer" in lower or "basic" in lower:
            text = _LOGIN.sub(rf"\1\2{HIDDEN}", text)
        if any(hint in lower for hint in _NAME_HINTS):
            text = _NAMED.sub(rf"\1{HIDDEN}", text)
        return text

    def body(self, raw: bytes, limit: int = 0) -> str:
        """A body for the log: JSON, events that hold JSON, or text. A `limit` of 0 cuts nothing."""
        window = limit + self._longest if limit else sys.maxsize
        try:
            whole = "".join(_up_to(limit or sys.maxsize, self._pieces(raw, window)))
        except RecursionError:  # JSON that is nested very deeply
            whole = self._beginning(raw.decode(errors="backslashreplace"), window)
        if not limit or len(whole.encode()) <= limit:
            return whole
        return whole.encode()[:limit].decode(errors="ignore") + CUT

    def _pieces(self, raw: bytes, window: int) -> Iterator[str]:
        try:
            yield from self._json(orjson.loads(raw), window)
            return
        except orjson.JSONDecodeError:
            pass
        try:
            events = [
                orjson.loads(line[6:]) if line.startswith(b"data: ") else line
                for line in raw.rstrip(b"\n").split(b"\n")
                if raw.startswith(EVENT_FIELDS)
            ]
        except orjson.JSONDecodeError:
            events = []
        for line in events:
            if isinstance(line, bytes):
                yield self._beginning(line.decode(errors="backslashreplace"), window)
            else:
                yield "data: "
                yield from self._json(line, window)
            yield "\n"
        if not events:
            yield self._beginning(raw.decode(errors="backslashreplace"), window)

    def _json(self, value: Any, window: int) -> Iterator[str]:
        """JSON in pieces, so that nobody looks at more of it than is shown."""
        match value:
            case str():
                yield _dumped(self._beginning(value, window))
            case dict():
                opening = "{"
                for name, inner in value.items():
                    yield f"{opening}{_dumped(self.known(name))}:"
                    if is_secret_name(name) and _says_something(inner):
                        yield _dumped(HIDDEN)
                    else:
                        yield from self._json(inner, window)
                    opening = ","
                yield "}" if value else "{}"
            case list():
                opening = "["
                for inner in value:
                    yield opening
                    yield from self._json(inner, window)
                    opening = ","
                yield "]" if value else "[]"
            case _:
                yield _dumped(value)

    def _beginning(self, text: str, window: int) -> str:
        """As much of a text as may be shown, without the end of it, which may be half a secret."""
        if len(text) <= window:
            return self.text(text)
        shown = self.text(text[:window])
        return shown[: max(0, len(shown) - self._longest)] + CUT


def _up_to(limit: int, pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        yield piece
        limit -= len(piece)
        if limit < 0:
            return


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()


def _says_something(value: Any) -> bool:
    """Whether there is anything to hide: a number is a count, and nothing is nothing."""
    return not isinstance(value, int | float | None) and value not in ("", [], {})


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
