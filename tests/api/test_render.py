"""What a client gets to see, where that needs no service."""

from __future__ import annotations

from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import Ended, LogEntry
from opencode_a2a.domain.values import TaskState, Usage
from opencode_a2a.inbound.dialect import V1
from opencode_a2a.inbound.render import Renderer


def test_noise_that_an_earlier_version_stored_is_not_shown() -> None:
    ended = Ended(TaskState.CANCELED, usage=Usage(1, 2, cost=0.1 + 0.2, unreported_steps=1))
    task = Task.of(TaskHead("t", "c", "alice", 1), [LogEntry(1, 1, ended)])
    assert Renderer(V1).task(task)["metadata"]["shared"]["usage"] == {
        "input_tokens": 1,
        "output_tokens": 2,
        "total_tokens": 3,
        "cost": 0.3,
        "unreported_steps": 1,
    }
