"""What an agent can tell about itself beyond one conversation."""

from __future__ import annotations

from dataclasses import dataclass

from .task import TaskHead
from .values import Message


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """A message of a session, whoever sent it."""

    head: TaskHead
    message: Message
