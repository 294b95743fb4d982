"""Updates to bytes and back. The kind is the class name, the body its fields."""

from __future__ import annotations

from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from ..domain.task import Task, TaskHead
from ..domain.updates import LogEntry, Update

_readers: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in get_args(Update)
}


def encode(update: Update) -> tuple[str, bytes]:
    return type(update).__name__, orjson.dumps(update)


def decode(seq: int, at: int, kind: str, body: bytes) -> LogEntry:
    return LogEntry(seq, at, _readers[kind].validate_json(body))


def fold(task: Task) -> bytes:
    """A finished task in one piece: its compacted entries."""
    rows = []
    for entry in task.compacted():
        kind, body = encode(entry.update)
        rows.append((entry.seq, entry.at, kind, orjson.Fragment(body)))
    return orjson.dumps(rows)


def unfold(head: TaskHead, folded: bytes) -> Task:
    return Task.of(
        head,
        (
            LogEntry(seq, at, _readers[kind].validate_python(body, strict=False))
            for seq, at, kind, body in orjson.loads(folded)
        ),
    )
