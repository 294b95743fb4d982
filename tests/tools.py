"""What OpenCode 2 calls the tools of OpenCode 1.x, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {"bash": "shell", "task": "subagent"}
ARGUMENTS = {"filePath": "path", "subagent_type": "agent"}


def renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a tool of 1.x, as its namesake takes them."""
    return {ARGUMENTS.get(name, name): value for name, value in arguments.items()}
