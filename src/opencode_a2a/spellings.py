"""Other spellings of our settings, which people know from similar programs.

A word may be in any case, with `-` or `_`; a list may have commas; a database URL may name the
driver of another program. Each adapted value leaves a note, which is logged at the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_args

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_notes: ContextVar[list[tuple[str, str]] | None] = ContextVar("notes", default=None)

# Settings of similar programs that have no meaning here. They are reported as unknown, but not as
# misspelt names of our own.
FOREIGN_SETTINGS = frozenset(
    f"A2A_{name}"
    for name in (
        "ALLOWED_ORIGINS",
        "CLIENT_CACHE_MAXSIZE",
        "CLIENT_CACHE_TTL_SECONDS",
        "CLIENT_POLLING_FALLBACK_BACKOFF_MULTIPLIER",
        "CLIENT_POLLING_FALLBACK_ENABLED",
        "CLIENT_POLLING_FALLBACK_INITIAL_INTERVAL_SECONDS",
        "CLIENT_POLLING_FALLBACK_MAX_INTERVAL_SECONDS",
        "CLIENT_POLLING_FALLBACK_TIMEOUT_SECONDS",
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
def collect_notes() -> Iterator[list[tuple[str, str]]]:
    """Collects, for the settings that are read inside, which field was adapted and how."""
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


class Spellings:
    """For an annotation: the word may be spelled differently, or be one of these synonyms."""

    def __init__(self, **synonyms: str) -> None:
        self._synonyms = synonyms

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        words = {_normalized(word): word for word in _literal_words(source)}
        meanings = self._synonyms | words

        def read(value: Any, info: ValidationInfo) -> Any:
            if not isinstance(value, str) or value in words.values():
                return value
            word = meanings.get(_normalized(value))
            if word is None:
                return value
            _note(info.field_name, f"{value!r} is taken as {word!r}")
            return word

        return core_schema.with_info_before_validator_function(read, handler(source))


def _normalized(word: str) -> str:
    return word.strip().lower().replace("-", "_")


def _literal_words(source: Any) -> Iterator[str]:
    """The words of a Literal, or of a union of them."""
    for inner in get_args(source):
        if isinstance(inner, str):
            yield inner
        else:
            yield from _literal_words(inner)


def parse_list(value: Any) -> Any:
    """A list as text is JSON, or words with commas between them."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{", '"')):
        return parse_json(value)
    return [word.strip() for word in value.split(",") if word.strip()]


def parse_json(value: Any) -> Any:
    """A list of objects as text is JSON; a TOML file has lists of its own."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as exc:
        raise ValueError(f"must be JSON; at character {exc.pos}: {exc.msg}") from None


def parse_url(value: str) -> URL:
    """A database URL in its parts. SQLAlchemy's own errors may quote a password."""
    from sqlalchemy.engine import make_url  # large, and `call` does not need it
    from sqlalchemy.exc import ArgumentError

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
    driver = _DRIVERS.get(scheme.lower(), scheme.lower())
    if not separator or driver == scheme:
        return value
    _note(info.field_name, f"{scheme} is taken as {driver}")
    url = parse_url(f"{driver}://{rest}")
    if driver == _POSTGRESQL and "ssl" in url.query:  # as asyncpg calls it
        given = url.query["ssl"]
        value = given if isinstance(given, str) else given[-1]
        mode = "require" if value.lower() in ("true", "1") else value
        url = url.difference_update_query(["ssl"]).update_query_dict({"sslmode": mode})
    return url.render_as_string(hide_password=False)
