"""How long a chain of agents may be that call each other, and how the next one is told.

An agent that works for a task can call another agent, whose agent can call a third, or the first
one again. Each call says in `A2A-Call-Depth` how many there have been, so that a loop ends. The
trace id in `traceparent` (W3C Trace Context) is the same for all of them, in all logs.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from ..domain.values import CallPath
from ..errors import CallTooDeep, InvalidParams
from ..observe.tracing import SpanRef

DEPTH_HEADER = "A2A-Call-Depth"
TRACE_HEADER = "traceparent"


def read_path(depth: str | None, ref: SpanRef) -> CallPath:
    """The call path of a request; `depth` is the header field, which callers leave out."""
    path = CallPath(0, ref.trace, span=ref.span, sampled=ref.sampled)
    if depth is None:
        return path
    if not (depth.isascii() and depth.isdecimal() and len(depth) <= 2):
        raise InvalidParams.at(DEPTH_HEADER, "must be one whole number from 0 to 99")
    return replace(path, depth=int(depth))


def check_depth(path: CallPath, limit: int) -> None:
    if path.depth > limit:
        raise CallTooDeep(depth=path.depth, limit=limit)


def call_headers(path: CallPath, limit: int, *, span: str = "") -> dict[str, str]:
    """The header fields of a call that is made for a task; `CallTooDeep` if it may not be made.

    `path` is that of the task: `Runner.path` while it runs, `Task.path` otherwise. `span` is that
    of the call, where it is recorded; otherwise the call hangs below the caller's own span.
    """
    onward = replace(path, depth=path.depth + 1)
    check_depth(onward, limit)
    ref = SpanRef(path.trace or uuid.uuid4().hex, span or path.span, sampled=path.sampled)
    return {DEPTH_HEADER: str(onward.depth), TRACE_HEADER: ref.header}
