"""The log of this process: one line per event, without secrets, and never a raw control character.

`console` is for people: coloured on a terminal, `key=value` elsewhere. `json` is for machines, and
says with every line whose work it is about: request, trace, principal, task, context, session.
Systemd's journal knows the time itself, and reads the level from a prefix such as `<4>`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.types import Processor

from .redaction import Redactor
from .systemd import is_journal

EventDict = MutableMapping[str, Any]
LEADING_FIELDS = ("timestamp", "level", "event")  # of every line, in this order
# The service makes these itself.
UNREDACTED_FIELDS = frozenset({"timestamp", "level", "request", "trace_id", "span_id", "task"})
CONSOLE_CONTEXT = ("request", "trace_id")  # what a line for people says of its context
PRIORITIES = {  # of syslog, by the methods of a logger
    "debug": 7,
    "info": 6,
    "warning": 4,
    "error": 3,
    "exception": 3,
    "critical": 2,
}

_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True)
_LOGFMT = structlog.processors.LogfmtRenderer(
    key_order=LEADING_FIELDS, drop_missing=True, bool_as_flag=False
)

redactor = Redactor()  # of this process: every value of every line goes through it


def configure(
    level: str, form: str = "console", stream: TextIO | None = None, *, colours: bool | None = None
) -> None:
    stream = stream or sys.stderr
    if colours is None:
        colours = stream.isatty()
    journal = is_journal(stream, os.environ)
    stamps = [] if journal and form == "console" else [_STAMP]
    writer = structlog.WriteLogger(cast(TextIO, _Output(stream)))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: writer,  # the same for every line
        processors=[
            merge_contextvars if form == "json" else _add_request,
            structlog.processors.add_log_level,
            *stamps,
            structlog.processors.format_exc_info,
            _redact,
            *_renderers(form, colours),
            *([_add_priority] if journal else []),
        ],
    )
    # Hot paths ask this logger whether a debug line is wanted: the answer takes next to nothing.
    logging.getLogger("opencode_a2a").setLevel(level.upper())
    if not any(isinstance(handler, _LibraryHandler) for handler in logging.root.handlers):
        logging.root.addHandler(_LibraryHandler())


class _Output:
    """Writes lines. A full disk, or a reader that has left, must not stop the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _renderers(form: str, colours: bool) -> list[Processor]:
    if form == "json":
        return [_order_fields, structlog.processors.JSONRenderer(_json)]
    if colours:
        plain = structlog.dev.plain_traceback
        terminal = structlog.dev.ConsoleRenderer(colors=True, exception_formatter=plain)
        return [_escape_values, terminal]
    return [_LOGFMT, lambda _, __, line: escaped(cast(str, line))]


def _json(event: EventDict, default: Callable[[Any], Any]) -> str:
    """Nothing is left to escape: all of it can be printed, and is ASCII."""
    with suppress(TypeError):  # half a character, or a number beyond 64 bits
        line = orjson.dumps(event, default=default).decode()
        if line.isascii() and line.isprintable():
            return line
    return json.dumps(event, default=default, separators=(",", ":"))


def _add_request(_: Any, __: str, event: EventDict) -> EventDict:
    context = get_contextvars()
    for name in CONSOLE_CONTEXT:
        if name in context:
            event.setdefault(name, context[name])
    return event


def _redact(_: Any, __: str, event: EventDict) -> EventDict:
    """Redact each value before it is escaped or quoted.

    In a whole line, escapes may hide a secret, and a pattern may match beyond the end of a value.
    """
    return {
        name: value if name in UNREDACTED_FIELDS else redactor.value(value)
        for name, value in event.items()
    }


def _order_fields(_: Any, __: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in LEADING_FIELDS if name in event} | dict(event)


def _escape_values(_: Any, __: str, event: EventDict) -> EventDict:
    """Escape each value before it is coloured.

    A traceback keeps its lines, indented: none of them looks like a line of the log.
    """
    shown = {
        name: value if value is None or isinstance(value, int | float) else escaped(str(value))
        for name, value in event.items()
    }
    if isinstance(trace := event.get("exception"), str):
        shown["exception"] = "\n".join(f"    {escaped(line)}" for line in trace.split("\n"))
    return shown


def escaped(text: str) -> str:
    """A text in which nothing moves the cursor, ends a line, changes direction or is invisible."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def error_lines(text: str, stream: TextIO) -> str:
    """Lines that are no events, such as why the program ends, as the stream's reader wants them."""
    prefix = f"<{PRIORITIES['error']}>" if is_journal(stream, os.environ) else ""
    return "\n".join(f"{prefix}{escaped(line)}" for line in text.split("\n"))


def _add_priority(_: Any, method: str, line: Any) -> str:
    return f"<{PRIORITIES.get(method, 6)}>{line}"


class _LibraryHandler(logging.Handler):
    """Writes the records of libraries to the same log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = min(record.levelno // 10 * 10, logging.CRITICAL)  # a library may have its own
            facts = {"message": _message(record), "exc_info": record.exc_info}
            structlog.get_logger().log(level, record.name, **facts)
        except Exception:  # like any handler: the library must go on
            self.handleError(record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit; handleError would print them, secrets and all
        return f"{record.msg} (with arguments that do not fit)"
