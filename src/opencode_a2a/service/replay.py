"""A task as it was at some time, and what has followed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..domain.ports import Cursor, TaskLog
from ..domain.task import Task


@dataclass(frozen=True, slots=True)
class Replay:
    """A task as it was after some entry of its log, and a cursor to all later entries.

    `gap` says why it does not begin after the entry that the client has named: the log has been
    compacted since (`compacted`), or has no such entry (`unknown`).
    """

    snapshot: Task
    cursor: Cursor
    gap: Literal["compacted", "unknown"] | None = None


def replay(log: TaskLog, task: Task) -> Replay:
    """The task as it was when it was read, and all later entries."""
    return Replay(task, log.follow(task.head.id, task.last_seq))


async def replay_from(log: TaskLog, task: Task, seq: int) -> Replay:
    """The task as it was after an entry that a client has seen, and all later entries."""
    if seq > task.last_seq:
        return replace(replay(log, task), gap="unknown")
    snapshot = task if seq == task.last_seq else await log.as_of(task.head.id, seq)
    if snapshot is None:
        return replace(replay(log, task), gap="compacted")
    return Replay(snapshot, log.follow(task.head.id, seq))
