"""A door in the agent's way: it waits there until the test lets it pass."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.e2e.seen import tool
from tests.features import no_output
from tests.running import Upstream


class Gate:
    """`str(gate)` in a prompt makes the agent run a command that ends when the gate opens."""

    def __init__(self, upstream: Upstream) -> None:
        name = f"gate-{uuid.uuid4()}"
        self._file = upstream.workspace / name
        self.command = f"timeout 30 sh -c 'until [ -e {name} ]; do sleep 0.02; done'"

    def __str__(self) -> str:
        call = {"command": self.command, "description": "Waits"}
        return f"[[tool:bash {json.dumps(call)}]]"

    def open(self) -> None:
        self._file.touch()

    @property
    def passed(self) -> tuple[str, dict[str, Any]]:
        """The tool call as an artifact, once the agent is through."""
        return tool(
            "bash",
            title=self.command,
            subtitle="Waits",
            input={"command": self.command, "description": "Waits"},
            output=no_output(),
        )
