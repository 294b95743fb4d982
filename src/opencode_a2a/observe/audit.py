"""The audit log: who has changed something, or tried to. One JSON object per line.

It goes to a file of its own that is only ever appended to, or to systemd's journal. A line says who
(principal, address), what (`act`), on what (task, context, session), and the outcome. It never has
a secret, nor what somebody wrote: an operator may keep these lines for years.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Protocol

import orjson
import structlog
from structlog.contextvars import get_contextvars

from . import metrics

logger = structlog.get_logger()

JOURNALD = "journald"
JOURNAL_SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "opencode-a2a-audit"
NOTICE = "5"  # the priority of its lines in the journal
LONGEST = 200  # characters of a value
# Of a request's parameters: only names of things, no content.
PARAMETERS = (
    "id",
    "taskId",
    "task_id",
    "contextId",
    "session_id",
    "request_id",
    "reply",
    "workspace_id",
    "peer",
)
_MADE_HERE = frozenset({"time", "act", "outcome", "request", "trace_id", "task"})  # no secrets
_CONTEXT = ("request", "trace_id", "task", "context", "session")  # of the ordinary log


class Output(Protocol):
    """Where lines go. OSError: one cannot be written."""

    def write(self, line: bytes) -> None: ...

    def reopen(self) -> None: ...

    def close(self) -> None: ...


class File(WatchedFileHandler):
    """A file that is appended to. One that was moved away, as by logrotate, is made anew."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags | os.O_NONBLOCK, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe could stop the service
            os.close(descriptor)
            raise OSError(errno.EINVAL, "It is not a regular file", self.baseFilename)
        return os.fdopen(descriptor, "a", encoding="utf-8")

    def reopen(self) -> None:
        self.reopenIfNeeded()

    def write(self, line: bytes) -> None:
        self.emit(logging.makeLogRecord({"msg": line.decode()}))

    def handleError(self, record: logging.LogRecord) -> None:
        raise

    def close(self) -> None:
        with suppress(OSError):  # it was told of when the line could not be written
            super().close()


class Journal:
    """Systemd's journal, by its own protocol. It is never waited for: its queue may be full."""

    def __init__(self, address: str = JOURNAL_SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = address
        try:
            self.reopen()
        except OSError:
            self.close()
            raise

    def reopen(self) -> None:
        self._socket.connect(self._address)

    def write(self, line: bytes) -> None:
        fields = {"PRIORITY": NOTICE, "SYSLOG_IDENTIFIER": IDENTIFIER}
        head = "".join(f"{name}={value}\n" for name, value in fields.items()).encode()
        message = b"MESSAGE\n" + struct.pack("<Q", len(line)) + line + b"\n"
        try:
            self._socket.send(head + message)
        except (ConnectionError, FileNotFoundError):  # the journal was restarted
            self.reopen()
            self._socket.send(head + message)

    def close(self) -> None:
        self._socket.close()


def open_output(target: str) -> Output:
    """OSError: it cannot be used."""
    return Journal() if target == JOURNALD else File(Path(target))


@dataclass(slots=True)
class AuditLog:
    output: Output
    redact: Callable[[Any], Any]  # takes secrets out of a value
    _failed: bool = False  # the last line could not be written

    def write(self, record: Mapping[str, Any]) -> None:
        shown = {
            name: value if name in _MADE_HERE else self.redact(value)
            for name, value in record.items()
        }
        try:
            self.output.write(orjson.dumps(shown))
        except (OSError, TypeError) as exc:  # TypeError: a value that JSON cannot hold
            metrics.AUDIT_ERRORS.inc()
            if not self._failed:
                logger.error("audit.not_written", reason=str(exc), setting="A2A_AUDIT_LOG")
            self._failed = True
        else:
            self._failed = False


@dataclass(frozen=True, slots=True)
class Actor:
    principal: str | None
    address: str | None = None
    is_operator: bool = False


OPERATOR = Actor(None, is_operator=True)  # whoever can send signals, or use the database


@dataclass(slots=True)
class _Act:
    """What a request does."""

    name: str
    facts: dict[str, Any]
    is_written: bool = False

    def write(self, outcome: str) -> None:
        if not self.is_written:
            self.is_written = True
            record(self.name, outcome=outcome, **self.facts)


class _Process:
    """The audit log of this process, if it keeps one."""

    log: AuditLog | None = None


process = _Process()
actor: ContextVar[Actor | None] = ContextVar("actor", default=None)
_act: ContextVar[_Act | None] = ContextVar("act", default=None)


def record(act: str, *, outcome: str, by: Actor | None = None, **facts: Any) -> None:
    """Write what was done; `by` whom, if not by the caller of the current request."""
    if process.log is None:
        return
    known = get_contextvars()
    who = by or actor.get() or Actor(known.get("principal"))
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "act": act,
        "outcome": outcome,
        "principal": who.principal,
        "address": who.address,
        **({"operator": True} if who.is_operator else {}),
        **{name: known[name] for name in _CONTEXT if name in known},
        **{name: _short(value) for name, value in facts.items() if value is not None},
    }
    process.log.write(line)


def _short(value: Any) -> Any:
    return value[:LONGEST] if isinstance(value, str) else value


@contextmanager
def acting(act: str, params: Any) -> Iterator[None]:
    """Write what a request does, and how it ended: `ok`, or the type of the error."""
    if process.log is None:
        yield
        return
    given = params if isinstance(params, dict) else {}
    facts = {name: given[name] for name in PARAMETERS if isinstance(given.get(name), str)}
    doing, outcome = _Act(act, facts), "canceled"
    token = _act.set(doing)
    try:
        yield
        outcome = "ok"
    except Exception as exc:
        outcome = getattr(exc, "type", "INTERNAL_ERROR")
        raise
    finally:
        _act.reset(token)
        doing.write(outcome)


def done() -> None:
    """Write now that the current request has done what it asked for; its answer may take hours."""
    if (doing := _act.get()) is not None:
        doing.write("ok")


def note(**facts: Any) -> None:
    """Add to the line of the request that is being answered."""
    if (doing := _act.get()) is not None:
        doing.facts |= facts
