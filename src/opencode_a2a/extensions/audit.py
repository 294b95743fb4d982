"""Logs what callers do to the host, before and after, and what admins do with others' tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from ..domain.values import Caller
from ..errors import UpstreamTimeout
from ..observe import audit as audit_log

logger = structlog.get_logger()


@contextmanager
def audited(event: str, **facts: Any) -> Iterator[None]:
    audit = logger.bind(**facts)
    audit_log.note(**facts)
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


def acted_as_admin(caller: Caller, *, action: str, target: str | None, owner: str) -> None:
    """An admin may use what belongs to another; `owner` is `*` for what belongs to everybody.

    What comes of it is not known yet: a change has a line of its own.
    """
    logger.warning(
        "audit.admin", principal=caller.principal, action=action, target=target, owner=owner
    )
    audit_log.record("admin", outcome="allowed", action=action, target=target, owner=owner)
