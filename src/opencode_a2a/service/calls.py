"""How long a chain of agents may be that call each other, and how the next one is told.

An agent that works for a task can call another agent, whose agent can call a third, or the first
one again. Each call says in `A2A-Call-Depth` how many there have been, so that a loop ends. The
trace id in `traceparent` (W3C Trace Context) is the same for all of them, in all logs.
"""

from __future__ import annotations

import secrets
import uuid

from ..domain.values import CallPath
from ..errors import CallTooDeep, InvalidParams

DEPTH_HEADER = "A2A-Call-Depth"
TRACE_HEADER = "traceparent"


def read_path(depth: str | None, trace: str) -> CallPath:
    """The call path of a request; `depth` is the header field, which callers leave out."""
    if depth is None:
        return CallPath(0, trace)
    if not (depth.isascii() and depth.isdecimal() and len(depth) <= 2):
        raise InvalidParams.at(DEPTH_HEADER, "must be one whole number from 0 to 99")
    return CallPath(int(depth), trace)


def check_depth(path: CallPath, limit: int) -> None:
    if path.depth > limit:
        raise CallTooDeep(depth=path.depth, limit=limit)


def call_headers(path: CallPath, limit: int) -> dict[str, str]:
    """The header fields of a call that is made for a task; `CallTooDeep` if it may not be made.

    `path` is that of the task: `Runner.path` while it runs, `Task.path` otherwise.
    """
    onward = CallPath(path.depth + 1, path.trace or uuid.uuid4().hex)
    check_depth(onward, limit)
    # "00": a version, and at the end that nobody here records spans.
    return {
        DEPTH_HEADER: str(onward.depth),
        TRACE_HEADER: f"00-{onward.trace}-{secrets.token_hex(8)}-00",
    }
