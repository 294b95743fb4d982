"""Where a watcher of many tasks is: the id of an event of its stream, as it is written and read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FORM = re.compile(r"\d{1,15}(;[^;=\s]{1,64}=\d{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """All ends of tasks before `at` were sent, and of some tasks all events up to a number."""

    at: int  # milliseconds since 1970
    tasks: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ";".join([str(self.at), *(f"{name}={seq}" for name, seq in self.tasks.items())])

    @classmethod
    def parse(cls, text: str) -> WatchCursor | None:
        """None if it is no id of such a stream."""
        if not _FORM.fullmatch(text):
            return None
        at, *tasks = text.split(";")
        pairs = (task.split("=") for task in tasks)
        return cls(int(at), {name: int(seq) for name, seq in pairs})
