"""Updates to bytes and back. The kind is the class name, the body its fields."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from ..domain.task import Task, TaskHead
from ..domain.updates import LogEntry, Update
from ..errors import Internal

_kinds: dict[str, type[Update]] = {kind.__name__: kind for kind in get_args(Update)}


@cache
def _reader(kind: str) -> TypeAdapter[Update]:
    """Made when first needed: a service that starts has nothing to read yet."""
    return TypeAdapter(_kinds[kind])


def encode(update: Update) -> tuple[str, bytes]:
    try:
        return type(update).__name__, orjson.dumps(update)
    except TypeError as exc:
        raise Internal("What was said cannot be stored: it is too deep, or no JSON.") from exc


def decode(seq: int, at: int, kind: str, body: bytes) -> LogEntry:
    return _entry(seq, at, kind, orjson.loads(body))


def fold(task: Task) -> bytes:
    """A finished task in one piece: its compacted entries."""
    rows = []
    for entry in task.compacted():
        kind, body = encode(entry.update)
        rows.append((entry.seq, entry.at, kind, orjson.Fragment(body)))
    return orjson.dumps(rows)


def unfold(head: TaskHead, folded: bytes) -> Task:
    return Task.of(head, (_entry(*row) for row in orjson.loads(folded)))


def _entry(seq: int, at: int, kind: str, body: Any) -> LogEntry:
    # Not `validate_json`: it reads less depth than was written.
    return LogEntry(seq, at, _reader(kind).validate_python(body))
