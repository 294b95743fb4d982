"""What a new session is told of a conversation that began in another one.

The session of a context is in one OpenCode. If that one does not come back, the context goes on in
a new session elsewhere, which knows nothing. What was said is in the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from .events import BlockKind
from .task import Task
from .values import Text

MAX_CHARACTERS = 40_000  # the newest ones; the beginning is left out
BEFORE = (
    "[This conversation began in another session, which is not available any more. What was said "
    "there follows; files may have changed since, and what tools have returned is left out.]\n\n"
)
LEFT_OUT = "[… the beginning is left out …]\n"
AFTER = "\n\n[This is the end of what was said before. Go on with the next message.]"


def retell(tasks: Sequence[Task]) -> str | None:
    """The conversation of these tasks, oldest first; None where nothing was said."""
    said: list[str] = []
    for task in tasks:
        for message in task.messages:
            said += [f"User: {part.text}" for part in message.parts if isinstance(part, Text)]
        blocks = [each for each in task.visible_blocks() if each.kind is BlockKind.TEXT]
        said += [f"Assistant: {block.text}" for block in blocks if block.text.strip()]
    if not said:
        return None
    whole = "\n\n".join(said)
    if len(whole) > MAX_CHARACTERS:
        whole = LEFT_OUT + whole[-MAX_CHARACTERS:]
    return f"{BEFORE}{whole}{AFTER}"
