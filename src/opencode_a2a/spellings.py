"""Other spellings of our settings: people bring their configuration along from elsewhere.

A word is understood in any case and with `-` or `_`, a list also with commas, a database URL also
with the driver of another program. What was taken for something else is noted, so that the log of
the start can say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_notes: ContextVar[list[tuple[str, str]] | None] = ContextVar("notes", default=None)

# Settings that the documentation of similar programs names and that have no meaning here. They
# are reported as unknown; they are no misspelt names of ours.
ELSEWHERE = frozenset(
    f"A2A_{name}"
    for name in (
        "ALLOWED_HOSTS",
        "ALLOWED_ORIGINS",
        "CLIENT_BASIC_AUTH",
        "CLIENT_BEARER_TOKEN",
        "CLIENT_CACHE_MAXSIZE",
        "CLIENT_CACHE_TTL_SECONDS",
        "CLIENT_CARD_FETCH_TIMEOUT_SECONDS",
        "CLIENT_POLLING_FALLBACK_BACKOFF_MULTIPLIER",
        "CLIENT_POLLING_FALLBACK_ENABLED",
        "CLIENT_POLLING_FALLBACK_INITIAL_INTERVAL_SECONDS",
        "CLIENT_POLLING_FALLBACK_MAX_INTERVAL_SECONDS",
        "CLIENT_POLLING_FALLBACK_TIMEOUT_SECONDS",
        "CLIENT_SUPPORTED_TRANSPORTS",
        "CLIENT_TIMEOUT_SECONDS",
        "CLIENT_USE_CLIENT_PREFERENCE",
        "DOCUMENTATION_URL",
        "EXPOSE_WORKSPACE_ROOT_IN_CARD",
        "HTTP_GZIP_MINIMUM_SIZE",
        "METRICS_ENABLED",
        "PROJECT",
        "PROTOCOL_VERSION",
        "RATE_LIMIT_ENABLED",
        "RATE_LIMIT_MAX_REQUESTS",
        "RATE_LIMIT_WINDOW_SECONDS",
        "STREAM_IDLE_TIMEOUT_SECONDS",
        "STREAM_MAX_BYTES",
        "STREAM_MAX_DURATION_SECONDS",
        "VERSION",
    )
)
_POSTGRESQL = "postgresql+psycopg"
_DRIVERS = {
    "sqlite+aiosqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": _POSTGRESQL,
    "postgresql": _POSTGRESQL,
    "postgresql+asyncpg": _POSTGRESQL,
    "postgresql+psycopg2": _POSTGRESQL,
    "postgresql+psycopg_async": _POSTGRESQL,
}


@contextmanager
def noted() -> Iterator[list[tuple[str, str]]]:
    """What the settings that are read inside were taken for: their fields, each with a note."""
    notes: list[tuple[str, str]] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def _note(field: str | None, note: str) -> None:
    notes = _notes.get()
    if notes is not None and field is not None:
        notes.append((field, note))


class Spelled:
    """Marks a word that may be spelled differently, or be one of `others`, which mean the same."""

    def __init__(self, **others: str) -> None:
        self._others = others

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        ours = {_folded(word): word for word in _words(source)}
        meant = self._others | ours

        def read(value: Any, info: ValidationInfo) -> Any:
            if not isinstance(value, str) or value in ours.values():
                return value
            word = meant.get(_folded(value))
            if word is None:
                return value
            _note(info.field_name, f"{value!r} is taken as {word!r}")
            return word

        return core_schema.with_info_before_validator_function(read, handler(source))


def _folded(word: str) -> str:
    return word.strip().lower().replace("-", "_")


def _words(source: Any) -> Iterator[str]:
    """The words of a Literal, or of a union of them."""
    for inner in get_args(source):
        if isinstance(inner, str):
            yield inner
        else:
            yield from _words(inner)


def listed(value: Any) -> Any:
    """A list as text is JSON, or words with commas between them."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{", '"')):
        return from_json(value)
    return [word.strip() for word in value.split(",") if word.strip()]


def from_json(value: Any) -> Any:
    """A list of objects as text is JSON; a TOML file has lists of its own."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as exc:
        raise ValueError(f"must be JSON; at character {exc.pos}: {exc.msg}") from None


def parsed_url(value: str) -> URL:
    """A database URL in its parts. What SQLAlchemy says about a wrong one may quote a password."""
    try:
        return make_url(value)
    except ArgumentError:
        raise ValueError("must be a URL such as sqlite:////var/lib/a2a/tasks.db") from None
    except ValueError:
        advice = "the port must be a number; percent-encode @ : / in the password"
        raise ValueError(advice) from None


def database_url(value: str, info: ValidationInfo) -> str:
    """A URL for the driver that we use, whichever it names."""
    scheme, separator, rest = value.partition("://")
    ours = _DRIVERS.get(scheme.lower(), scheme.lower())
    if not separator or ours == scheme:
        return value
    _note(info.field_name, f"{scheme} is taken as {ours}")
    url = parsed_url(f"{ours}://{rest}")
    if ours == _POSTGRESQL and "ssl" in url.query:  # as asyncpg calls it
        given = url.query["ssl"]
        said = given if isinstance(given, str) else given[-1]
        mode = "require" if said.lower() in ("true", "1") else said
        url = url.difference_update_query(["ssl"]).update_query_dict({"sslmode": mode})
    return url.render_as_string(hide_password=False)
