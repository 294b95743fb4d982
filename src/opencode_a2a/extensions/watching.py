"""All of a caller's tasks on one stream."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ..contract import a2a
from ..contract.declare import Extension
from ..contract.dispatch import require_scope
from ..contract.params import Params, Result
from ..domain.scopes import Scope
from ..domain.values import Caller
from ..domain.watching import WatchCursor
from ..errors import InvalidParams, LimitExceeded, TaskNotFound
from ..service.watching import Watch
from .audit import acted_as_admin
from .services import Services
from .shapes import Name

MOST_FOLLOWED = 16
EVERYBODY = "*"  # instead of a principal

TASK_WATCH = Extension(
    "opencode-task-watch-v1",
    title="OpenCode Task Watch v1",
    description="One resumable stream with the state of all of a caller's tasks and, on request, "
    "every event of some of them.",
    scope="opencode",
    extended={
        "events": {
            "summary": "a Task without artifacts and history, as it is now; it replaces an earlier "
            "one of the same id",
            "event": "what SubscribeToTask sends, for a followed task; the first is the task",
            "ready": "everything that had changed before the stream began has been sent",
        },
        "resume": "Last-Event-ID, or the parameter after: summaries of all tasks that may have "
        "changed since, and every later event of the followed tasks",
    },
)

TaskId = Annotated[str, Field(min_length=1, max_length=64)]
ContextId = Annotated[str, Field(min_length=1, max_length=255)]


class Follow(Params):
    """Tasks whose events are sent, too."""

    tasks: list[TaskId] = Field(default=[], max_length=MOST_FOLLOWED, description="These")
    contexts: list[ContextId] = Field(
        default=[],
        max_length=MOST_FOLLOWED,
        description="Those of these contexts that have not ended, or begin or end later",
    )


class WatchParams(Params):
    follow: Follow = Follow()
    since: str | None = Field(
        default=None,
        max_length=64,
        description="A timestamp: begin with the tasks that have ended since then, besides those "
        "that have not ended",
    )
    after: str | None = Field(
        default=None,
        max_length=4096,
        description="The id of the last event that the client has; the header Last-Event-ID says "
        "the same",
    )
    principal: Name | None = Field(
        default=None,
        description="Whose tasks, for callers with the scope `admin`; `*` means everybody's. "
        "Without it, the caller's own.",
    )


class WatchEvent(Result):
    """Exactly one of these."""

    summary: a2a.Task | None = Field(
        default=None, description="A task as it is now, without artifacts and history"
    )
    event: a2a.StreamEvent | None = Field(default=None, description="Of a followed task")
    ready: Literal[True] | None = Field(
        default=None, description="All that had changed before the stream began was sent"
    )


@TASK_WATCH.stream(
    "opencode.tasks.watch",
    event=WatchEvent,
    scope=Scope.TASKS_READ,
    or_scope=Scope.ADMIN,
    errors=(TaskNotFound, LimitExceeded),
    effect="read",
)
async def watch_tasks(services: Services, caller: Caller, params: WatchParams) -> Watch:
    """All tasks of the caller, or of others for an admin: what changes about them, as it changes.

    Each event has the current state of one task, so nothing depends on having seen all of them.
    """
    cursor = WatchCursor.parse(params.after) if params.after is not None else None
    if params.after is not None and cursor is None:
        raise InvalidParams.at(
            "after", "is not the id of an event of this stream; leave it out to start over"
        )
    return await services.watches.open(
        _owner(caller, params.principal),
        tasks=params.follow.tasks,
        contexts=params.follow.contexts,
        cursor=cursor,
        since=_moment(params.since) if params.since is not None else None,
    )


def _owner(caller: Caller, named: str | None) -> str | None:
    """Whose tasks are watched; None means everybody's."""
    if named is None or named == caller.principal:
        return caller.principal
    require_scope(caller, Scope.ADMIN)
    acted_as_admin(caller, action="watch tasks", target=None, owner=named)
    return None if named == EVERYBODY else named


def _moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        return max(0, int(found.timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise InvalidParams.at(
            "since", "must be a timestamp with a time zone, such as 2026-01-31T12:00:00Z"
        ) from None
