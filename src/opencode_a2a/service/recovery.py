"""After a restart: no task is left working that nobody works on."""

from __future__ import annotations

import structlog

from ..domain.ports import TaskLog
from ..domain.updates import Ended
from ..domain.values import Failure, Problem, TaskState

logger = structlog.get_logger()

INTERRUPTED = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "The service was restarted while it worked on this task. The conversation is intact: send "
    "the request again in the same context.",
)


async def close_orphans(log: TaskLog) -> None:
    """End what an earlier process left unfinished, with the reason."""
    orphans = await log.unfinished()
    for head in orphans:
        task = await log.adopt(head)
        session = task.session
        log.append(
            head.id,
            [
                Ended(
                    TaskState.FAILED,
                    INTERRUPTED.message,
                    INTERRUPTED,
                    task.usage,
                    session.id if session else None,
                    session.title if session else "",
                )
            ],
        )
    for head in orphans:
        await log.flushed(head.id)
    if orphans:
        logger.warning("tasks.interrupted", count=len(orphans))
