"""The service with nothing in it that counts, traces or notes what it does.

python -m bench.unobserved serve     what being observable is compared with
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import prometheus_client

from opencode_a2a import cli


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of whatever observes."""


def load_unobserved() -> None:
    from opencode_a2a.inbound import endpoints
    from opencode_a2a.observe import audit, tasks
    from opencode_a2a.opencode import http
    from opencode_a2a.web import trace

    counted: Any = prometheus_client
    counted.Counter.inc = counted.Histogram.observe = _nothing
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (tasks.TaskObserver, "of", _nothing),  # a task then tells nobody of its commits
        (http, "_observe", _nothing),
        (trace._Request, "answered", _nothing),
        (trace, "note_operation", _nothing),
        (endpoints, "note_operation", _nothing),
        (endpoints, "_audited", lambda *_, **__: nullcontext()),
        (audit, "Actor", _nothing),
    )
    for where, name, stand_in in replaced:
        assert hasattr(where, name), f"{where} has no {name} any more"
        setattr(where, name, stand_in)


if __name__ == "__main__":
    load_unobserved()
    cli.main()
