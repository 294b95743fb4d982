"""Logs what callers do to the host: once before it begins, and once with its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from ..errors import UpstreamTimeout

logger = structlog.get_logger()


@contextmanager
def audited(event: str, **facts: Any) -> Iterator[None]:
    audit = logger.bind(**facts)
    audit.warning(event, outcome="started")
    outcome = "failed"
    try:
        yield
        outcome = "ended"
    except UpstreamTimeout:
        outcome = "timed out"
        raise
    finally:
        audit.warning(event, outcome=outcome)
