"""Updates to bytes and back. The kind is the class name, the body its fields."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from ..domain.task import Task, TaskHead
from ..domain.updates import LogEntry, Update
from ..errors import Internal

Encoded = tuple[str, bytes]  # the kind and the body of an update, as they are stored

# What damaged entries raise; not a lack of memory, for instance, which says nothing about them.
_DOES_NOT_FIT = (AssertionError, AttributeError, LookupError, TypeError, ValueError)

_END_KINDS = ("Started", "Progress", "Ended")  # of a folded task, what a summary needs

_kinds: dict[str, type[Update]] = {kind.__name__: kind for kind in get_args(Update)}


@cache
def _reader(kind: str) -> TypeAdapter[Update]:
    """Made when first needed, because it is slow to make and a start does not need it."""
    return TypeAdapter(_kinds[kind])


class Unreadable(Internal):
    """What is stored of a task was damaged."""

    def __init__(self) -> None:
        super().__init__("What is stored of this task cannot be read.")


def encode(update: Update) -> Encoded:
    try:
        return type(update).__name__, orjson.dumps(update)
    except TypeError as exc:
        raise Internal(
            "This content cannot be stored: it is nested too deeply, or is not valid JSON."
        ) from exc


def decode(seq: int, at: int, kind: str, body: bytes) -> LogEntry:
    try:
        return _entry(seq=seq, at=at, kind=kind, body=orjson.loads(body))
    except (KeyError, ValueError) as exc:
        raise Unreadable from exc


def fold(task: Task) -> bytes:
    """A finished task in one piece: its compacted entries."""
    rows = []
    for entry in task.compacted():
        kind, body = encode(entry.update)
        rows.append((entry.seq, entry.at, kind, orjson.Fragment(body)))
    return orjson.dumps(rows)


def task_of(head: TaskHead, entries: Iterable[LogEntry]) -> Task:
    """The task that these entries make, if they fit each other."""
    try:
        return Task.of(head, entries)
    except _DOES_NOT_FIT as exc:
        raise Unreadable from exc


def unfold(head: TaskHead, folded: bytes) -> Task:
    try:
        return Task.of(head, [_entry(*row) for row in orjson.loads(folded)])
    except _DOES_NOT_FIT as exc:
        raise Unreadable from exc


def unfold_end(head: TaskHead, folded: bytes) -> Task:
    """A finished task without its output and history."""
    try:
        rows = [row for row in orjson.loads(folded) if row[2] in _END_KINDS]
        return Task.of(head, [_entry(*row) for row in rows])
    except _DOES_NOT_FIT as exc:
        raise Unreadable from exc


def _entry(seq: int, at: int, kind: str, body: Any) -> LogEntry:
    # Not `validate_json`: it reads less depth than was written.
    return LogEntry(seq, at, _reader(kind).validate_python(body))
