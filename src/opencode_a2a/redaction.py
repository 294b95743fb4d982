"""Removes secrets from what is logged: known values, values with a secret's name, and patterns.

Others write what is read here, and it may be large. So every pattern takes linear time, and no more
is read than will be shown. A text is cut after it is redacted, because half a secret would not be
recognised; and it is redacted before it is escaped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import orjson

PLACEHOLDER = "[redacted]"
ELLIPSIS = " …"
EVENT_FIELDS = (b"id:", b"data:", b"event:", b"retry:")
MAX_SECRET_LENGTH = 4096  # characters of a secret that is known by its looks only
MIN_SECRET_LENGTH = (
    6  # characters of a secret; a shorter one is part of many words, and soon guessed
)

MIN_KEY_LENGTH = 15  # characters of one that is known by its looks, unless it is part of a URL
MAX_DEPTH = 64  # levels of a value; what lies deeper is not shown

_SECRET_ENDS = tuple(
    f"{name}{plural}"
    for name in (
        *("token", "tokenvalue", "secret", "secretvalue", "password", "passwd", "pwd"),
        *("passphrase", "authorization", "cookie", "credential"),
        *("apikey", "accesskey", "secretkey", "privatekey"),
    )
    for plural in ("", "s")
)
_SECRET_NAMES = frozenset({"auth", "bearer", "key", "pass"})
_HARMLESS_ENDS = ("pagetoken",)  # A2A's name for the cursor of a list
_DIRECTORIES = ("PWD", "OLDPWD")  # of a shell

# A name and its value, as JSON, headers, forms, shells and configuration files write them. JSON in
# a string has a backslash before each quote, and JSON in that one more than one.
_NAME = (
    r"(?:(?<!page)(?<!page[_-])tokens?(?:[_-]?values?)?|secrets?(?:[_-]?values?)?|passw(?:or)?ds?"
    r"|passphrases?|(?:api|access|secret|private)[_-]?keys?|credentials?"
    r"|(?-i:[pP]wd|_PWD|[A-Z0-9]_KEY))"
)
_SEPARATOR = r"\\*[\"']?\s*[:=]\s*"
_QUOTED = (
    r"(?>\"(?:[^\"\\]|\\[\s\S])*+\"?|'[^']*+'?"
    r"|(?P<slashes>\\+)(?P<quote>[\"']).*?(?:(?<!\\)(?P=slashes)(?P=quote)|$))"
)
_COUNT = r"(?:-?\d[\d_,.]*+(?![\w-])|\{)"
_FLAGS = re.IGNORECASE | re.MULTILINE
_NAMED_VALUE = re.compile(
    rf"(?!tokens{_SEPARATOR}{_COUNT})({_NAME}{_SEPARATOR})"
    rf"(?:\[redacted\]|{_QUOTED}|\[\s*\\*[\"'][^\]]*\]?"
    r"|[^\s,;&}\])]+(?:(?<=bearer)\s+\S+|(?<=basic)\s+\S+)?)",
    _FLAGS,
)
# These have several words, in many forms: unless there are quotes, the rest of the line.
_HEADER_VALUE = re.compile(
    rf"((?:authorization|cookies?){_SEPARATOR})(?:{_QUOTED}(?=\s*(?:[,;)}}\]\\]|$))|[^\r\n]+)",
    _FLAGS,
)
_OPTION_VALUE = re.compile(
    rf"(?<![\w-])(--[\w-]{{0,40}}?(?:{_NAME}|authorization|cookies?)[ \t]+)(?!-)(?:{_QUOTED}|\S+)",
    _FLAGS,
)
_CURL_LOGIN = re.compile(
    r"(?<!\S)((?:-[a-z]{0,8}u\s*|--(?:proxy-)?user[=\s]\s*)[\"']?[^\s:\"']+:)[^\s\"']+",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_NAME_HINTS = (
    *("token", "secret", "passw", "passph", "pwd", "authoriz", "cookie", "key", "credential"),
)
# Each with what to write in its place, and something that every match of it holds.
_KEY_PATTERNS = (
    (
        re.compile(
            r"(?<![\w-])(?:"
            r"(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}"
            r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|xox[abeprs]-[A-Za-z0-9-]{10,}"
            r"|AIza[A-Za-z0-9_-]{30,}"
            r"|A(?:KIA|SIA)[A-Z0-9]{16}(?!\w)"
            r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
            r"|oca_[\w-]{40,}"  # our own
            r")"
        ),
        PLACEHOLDER,
        ("k-", "gh", "_pat_", "glpat-", "xox", "AIza", "AKIA", "ASIA", "eyJ", "oca_"),
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL),
        PLACEHOLDER,
        ("PRIVATE KEY",),
    ),
    (re.compile(r"(://[^/\s:@\"]*:)[^/\s@\"]+@"), rf"\1{PLACEHOLDER}@", ("://",)),
)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret, as far as the name shows."""
    return _is_secret_name(name[-64:])  # only the end counts; callers can send names of any length


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    if name in _DIRECTORIES:
        return False
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain in _SECRET_NAMES or (
        plain.endswith(_SECRET_ENDS) and not plain.endswith(_HARMLESS_ENDS)
    )


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables that are secrets by their names, such as keys of providers."""
    return [
        value
        for name, value in environment.items()
        if (is_secret_name(name) or name.upper().endswith("_KEY"))
        and not (name.upper().endswith("TOKENS") and value.isdigit())  # a limit, not a secret
    ]


class Redactor:
    def __init__(self, *secrets: str) -> None:
        self._forms: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._longest, self._shortest = MAX_SECRET_LENGTH, MIN_SECRET_LENGTH
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Let these values be hidden from now on, in each form in which they are written."""
        long_enough = [secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH]
        self._forms |= {form for secret in long_enough for form in _forms(secret)}
        if self._forms:
            longest_first = sorted(self._forms, key=len, reverse=True)
            self._known = re.compile("|".join(map(re.escape, longest_first)))
            self._longest = max(MAX_SECRET_LENGTH, len(longest_first[0]))
            self._shortest = len(longest_first[-1])

    def known(self, text: str) -> str:
        """A text of our own without known secrets and keys. Names of secrets stay."""
        if self._known is not None and len(text) >= self._shortest:
            text = self._known.sub(PLACEHOLDER, text)
        if len(text) < MIN_KEY_LENGTH and "://" not in text:  # as most values in the log
            return text
        for pattern, hidden, hints in _KEY_PATTERNS:
            if any(map(text.__contains__, hints)):  # much faster than the pattern
                text = pattern.sub(hidden, text)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """A value of our own, such as a list of texts, redacted like `known`."""
        if isinstance(value, str):
            return self.known(value)
        if value is None or isinstance(value, int | float):
            return value
        if depth == MAX_DEPTH:
            return ELLIPSIS
        if isinstance(value, Mapping):
            return {self.known(str(k)): self.value(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner, depth + 1) for inner in value]
        if isinstance(value, bytes):
            return self.known(value.decode(errors="backslashreplace"))
        return self.known(str(value))

    def text(self, text: str) -> str:
        """A text that others have written."""
        if len(text) < MIN_SECRET_LENGTH:
            return text
        text, lower = self.known(text), text.lower()
        if "bearer" in lower or "basic" in lower:
            text = _LOGIN.sub(rf"\1\2{PLACEHOLDER}", text)
        if any(map(lower.__contains__, _NAME_HINTS)):
            for pattern in (_HEADER_VALUE, _NAMED_VALUE, _OPTION_VALUE):
                text = pattern.sub(rf"\1{PLACEHOLDER}", text)
        if "curl" in lower:
            text = _CURL_LOGIN.sub(rf"\1{PLACEHOLDER}", text)
        return text

    def body(self, raw: bytes, limit: int = 0) -> str:
        """A body for the log: JSON, events that hold JSON, or text. A `limit` of 0 cuts nothing."""
        window = limit + self._longest if limit else sys.maxsize
        shown = _Output(limit or sys.maxsize)
        self._write(raw, window, shown=shown)
        whole = "".join(shown.pieces)
        if not limit or len(whole.encode()) <= limit:
            return whole
        return whole.encode()[:limit].decode(errors="ignore") + ELLIPSIS

    def _write(self, raw: bytes, window: int, shown: _Output) -> None:
        try:
            self._write_json(orjson.loads(raw), window, shown=shown)
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
            if shown.is_full:
                break
            if isinstance(line, bytes):
                shown.add(self._beginning(line.decode(errors="backslashreplace"), window))
            else:
                shown.add("data: ")
                self._write_json(line, window, shown=shown)
            shown.add("\n")
        if not events:
            shown.add(self._beginning(raw.decode(errors="backslashreplace"), window))

    def _write_json(self, value: Any, window: int, shown: _Output, depth: int = 0) -> None:
        """Write JSON in pieces, and stop when enough of it is shown."""
        match value:
            case str():
                shown.add(_dump(self._beginning(value, window)))
            case dict() | list() if value and depth == MAX_DEPTH:
                shown.add(_dump(ELLIPSIS))
            case dict():
                shown.add("{")
                for number, (name, inner) in enumerate(value.items()):
                    if shown.is_full:
                        break
                    shown.add(f"{',' if number else ''}{_dump(self.known(name))}:")
                    if is_secret_name(name) and _is_worth_hiding(name, inner):
                        shown.add(_dump(PLACEHOLDER))
                    else:
                        self._write_json(inner, window=window, shown=shown, depth=depth + 1)
                shown.add("}")
            case list():
                shown.add("[")
                for number, inner in enumerate(value):
                    if shown.is_full:
                        break
                    if number:
                        shown.add(",")
                    self._write_json(inner, window=window, shown=shown, depth=depth + 1)
                shown.add("]")
            case _:
                shown.add(_dump(value))

    def _beginning(self, text: str, window: int) -> str:
        """As much of a text as may be shown, without its end, which may be half a secret."""
        if len(text) <= window:
            return self.text(text)
        shown = self.text(text[:window])
        return shown[: max(0, len(shown) - self._longest)] + ELLIPSIS


class _Output:
    """The output for one body. It may exceed the limit a little: it is cut in the end."""

    def __init__(self, limit: int) -> None:
        self.pieces: list[str] = []
        self._left = limit

    @property
    def is_full(self) -> bool:
        return self._left < 0

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self._left -= len(piece)


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def _is_worth_hiding(name: str, value: Any) -> bool:
    """Whether a value can be a secret: a boolean or a number of tokens cannot."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    return not (name.lower().endswith(("token", "tokens")) and _is_count(value))


def _is_count(value: Any, depth: int = 0) -> bool:
    """A number, or several by name: OpenCode counts tokens of input, output and cache."""
    if isinstance(value, dict) and depth < 3:
        return all(_is_count(inner, depth + 1) for inner in value.values())
    return value is None or isinstance(value, int | float)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
    quoted = repr(f'"{secret}')[2:-1]  # as in the text of a KeyError, in either kind of quotes
    yield quoted
    yield quoted.replace("\\'", "'")
