"""The log of this process: one line per event, without secrets, and never a raw control character.

`console` is for people: coloured on a terminal, `key=value` elsewhere. `json` is for machines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.types import Processor

from .redaction import Redactor

EventDict = MutableMapping[str, Any]
FIRST = ("timestamp", "level", "event")  # in every line, in this order
OURS = ("timestamp", "level")  # nobody else has a say in these

redactor = Redactor()  # of this process: every value of every line goes through it


def configure(
    level: str, form: str = "console", stream: TextIO | None = None, *, colours: bool | None = None
) -> None:
    stream = stream or sys.stderr
    if colours is None:
        colours = stream.isatty()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(stream),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            *_written(form, colours),
        ],
    )
    if not any(isinstance(handler, _FromLibraries) for handler in logging.root.handlers):
        logging.root.addHandler(_FromLibraries())


def _written(form: str, colours: bool) -> list[Processor]:
    if form == "json":
        # Which writes ASCII only, so there is nothing left to escape.
        return [_in_order, structlog.processors.JSONRenderer()]
    if colours:
        plain = structlog.dev.plain_traceback
        terminal = structlog.dev.ConsoleRenderer(colors=True, exception_formatter=plain)
        return [_on_a_terminal, terminal]
    logfmt = structlog.processors.LogfmtRenderer(key_order=list(FIRST), bool_as_flag=False)
    return [logfmt, _printable]


def _without_secrets(_: Any, __: str, event: EventDict) -> EventDict:
    """Value by value, before any is escaped or quoted.

    In a whole line a secret may be written in another way, and what looks like one may go beyond
    the end of its value.
    """
    return {name: value if name in OURS else redactor.value(value) for name, value in event.items()}


def _in_order(_: Any, __: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in FIRST if name in event} | dict(event)


def _on_a_terminal(_: Any, __: str, event: EventDict) -> EventDict:
    """Everything is printable before it is coloured.

    A traceback keeps its lines, indented: none of them can pass for a line of the log.
    """
    shown = {
        name: value if value is None or isinstance(value, int | float) else escaped(str(value))
        for name, value in event.items()
    }
    if isinstance(trace := event.get("exception"), str):
        shown["exception"] = "\n".join(f"    {escaped(line)}" for line in trace.split("\n"))
    return shown


def _printable(_: Any, __: str, line: Any) -> str:
    """The whole line, which is less work than each of its values."""
    return escaped(line)


def escaped(text: str) -> str:
    """A text in which nothing moves the cursor, ends a line, changes direction or is invisible."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


class _FromLibraries(logging.Handler):
    """What a library has to say goes the same way."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = min(record.levelno // 10 * 10, logging.CRITICAL)  # a library may have its own
            facts = {"message": _message(record), "exc_info": record.exc_info}
            structlog.get_logger().log(level, record.name, **facts)
        except Exception:  # as any handler does: what the library was doing goes on
            self.handleError(record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit; handleError would print them, secrets and all
        return f"{record.msg} (with arguments that do not fit)"
