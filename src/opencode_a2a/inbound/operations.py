"""The operations of A2A, the same for every transport: parse, do, render."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..domain.replies import HITL
from ..domain.scopes import Scope
from ..domain.task import Task
from ..domain.values import Caller, TaskState
from ..errors import (
    AuthorizationForbidden,
    PushNotificationNotSupported,
    UnsupportedOperation,
    VersionNotSupported,
)
from ..extensions.interrupts import INTERACTIVE
from ..service.tasks import Tasks
from . import parse
from .card import Card
from .render import V03, V1, Dialect, Json, Renderer
from .sse import Envelope, EventStream

READ, WRITE = Scope.TASKS_READ, Scope.TASKS_WRITE


@dataclass(frozen=True, slots=True)
class Call:
    """One request, after its transport has been taken off."""

    caller: Caller
    dialect: Dialect
    params: Any
    envelope: Envelope = Envelope()
    request_id: str | int | None = None
    idempotency_key: str | None = None
    last_event_id: str | None = None
    extensions: frozenset[str] = frozenset()  # those the client has activated
    notification: bool = False  # the client gets no answer, so nothing is awaited for one

    @property
    def renderer(self) -> Renderer:
        return Renderer(self.dialect, INTERACTIVE.uri in self.extensions, HITL in self.extensions)

    def needs(self, scope: str) -> None:
        if scope not in self.caller.scopes:
            raise AuthorizationForbidden(
                f"This credential lacks the scope {scope}.", required_scope=scope
            )


@dataclass(frozen=True, slots=True)
class Operations:
    tasks: Tasks
    card: Card
    stopping: asyncio.Future[None]  # done when the service can wait for nobody any more
    strict_version: bool = False

    def negotiate(self, dialect: Dialect, asked: str | None) -> None:
        """Refuse a protocol version we do not speak. The minor counts, the patch does not."""
        version = ".".join((asked or "").split(".")[:2])
        if dialect.version == "1.0":
            fine = version == "1.0" or (not version and not self.strict_version)
            advice = "This is a method of 1.0: send A2A-Version: 1.0."
        else:
            fine = version in ("", "0.3", "1.0")
            advice = "Use 1.0 or 0.3."
        if not fine:
            raise VersionNotSupported(
                f"A2A-Version {asked or '(none)'} is not supported here. {advice}",
                requested=asked or "",
                supported=["1.0", "0.3"],
            )

    async def send(self, call: Call) -> Json:
        call.needs(WRITE)
        asked = parse.Send(call.dialect, call.params, call.idempotency_key)
        task = await self.tasks.send(call.caller, asked.request)
        if asked.blocking and not call.notification:
            task = await self._settled(call, task)
        body = call.renderer.task(task, history_length=asked.history_length)
        return body if call.dialect.tagged else {"task": body}

    async def stream(self, call: Call) -> EventStream:
        call.needs(WRITE)
        asked = parse.Send(call.dialect, call.params, call.idempotency_key)
        task = await self.tasks.send(call.caller, asked.request)
        return await self._stream(call, task, asked.history_length)

    async def _settled(self, call: Call, task: Task) -> Task:
        """Wait for the task; if the service stops first, the caller gets it as it is."""
        settled = asyncio.create_task(self.tasks.settled(call.caller, task))
        try:
            either: set[asyncio.Future[Any]] = {settled, self.stopping}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if settled.done():
                return settled.result()
        finally:
            settled.cancel()
        return await self.tasks.get(call.caller, task.head.id)

    async def get(self, call: Call) -> Json:
        call.needs(READ)
        params = parse.task_params(call.params)
        task = await self.tasks.get(call.caller, params.id)
        length = parse.history(call.dialect, params.history_length)
        return call.renderer.task(task, history_length=length)

    async def list(self, call: Call) -> Json:
        call.needs(READ)
        asked = parse.Listing(call.dialect, call.caller.principal, call.params)
        if asked.impossible:
            return {"tasks": [], "nextPageToken": "", "pageSize": asked.size, "totalSize": 0}
        page = await self.tasks.list(asked.query)
        render = call.renderer
        shown: list[Json] = []
        for row in page.rows:
            if asked.artifacts or asked.history_length:
                task = await self.tasks.get(call.caller, row.head.id)
                shown.append(
                    render.task(
                        task, history_length=asked.history_length, artifacts=asked.artifacts
                    )
                )
            else:
                shown.append(render.row(row))
        return {
            "tasks": shown,
            "nextPageToken": parse.page_token(page.next),
            "pageSize": asked.size,
            "totalSize": page.total,
        }

    async def cancel(self, call: Call) -> Json:
        call.needs(WRITE)
        task = await self.tasks.cancel(call.caller, parse.task_id(call.params))
        return call.renderer.task(task)

    async def subscribe(self, call: Call) -> EventStream:
        call.needs(READ)
        task = await self.tasks.get(call.caller, parse.task_id(call.params))
        if task.state.terminal and call.dialect is V1 and call.last_event_id is None:
            raise UnsupportedOperation(
                "This task has ended, so there is nothing to subscribe to. Get it instead.",
                task_id=task.head.id,
                state=task.state.value,
            )
        # In 1.0 one can subscribe to whatever has not ended: who asks waits for it to go on.
        return await self._stream(call, task, None, waits=call.dialect is V1)

    async def push_config(self, call: Call) -> Json:
        raise PushNotificationNotSupported("This agent does not send push notifications.")

    async def extended_card(self, call: Call) -> Json:
        """The card for those who are known here; all of them are."""
        return self.card.extended_pure if call.dialect is V1 else self.card.extended_hybrid

    async def _stream(
        self, call: Call, task: Task, history_length: int | None, *, waits: bool = False
    ) -> EventStream:
        """The task as it is, or was where the client left off, then everything after.

        A task that rests is everything, unless the client `waits` for a person, too.
        """
        story = self.tasks.now(task)
        if call.last_event_id is not None:
            known = call.last_event_id.isdecimal() and len(call.last_event_id) < 19
            seq = int(call.last_event_id) if known else sys.maxsize
            story = await self.tasks.since(task, seq)
        told, renderer = story.task, call.renderer
        first = renderer.first(told, history_length, gap=story.gap)  # no await since the story
        return EventStream(
            renderer,
            call.envelope,
            told,
            first,
            None if _rests(told, task, waits or renderer.stays_open) else story.after,
            self.stopping,
            waits=waits,
            request_id=call.request_id,
        )


def _rests(told: Task, task: Task, waits: bool) -> bool:
    """Whether a stream that begins with `told` has nothing more to tell."""
    if told.state is TaskState.INPUT_REQUIRED:
        return told.last_seq >= task.last_seq and not waits
    return told.state.terminal


Operation = Callable[[Operations, Call], Any]

RPC_METHODS: dict[str, tuple[Dialect, Operation]] = {
    "SendMessage": (V1, Operations.send),
    "SendStreamingMessage": (V1, Operations.stream),
    "GetTask": (V1, Operations.get),
    "ListTasks": (V1, Operations.list),
    "CancelTask": (V1, Operations.cancel),
    "SubscribeToTask": (V1, Operations.subscribe),
    "CreateTaskPushNotificationConfig": (V1, Operations.push_config),
    "GetTaskPushNotificationConfig": (V1, Operations.push_config),
    "ListTaskPushNotificationConfigs": (V1, Operations.push_config),
    "DeleteTaskPushNotificationConfig": (V1, Operations.push_config),
    "GetExtendedAgentCard": (V1, Operations.extended_card),
    "message/send": (V03, Operations.send),
    "message/stream": (V03, Operations.stream),
    "tasks/get": (V03, Operations.get),
    "tasks/cancel": (V03, Operations.cancel),
    "tasks/resubscribe": (V03, Operations.subscribe),
    "tasks/pushNotificationConfig/set": (V03, Operations.push_config),
    "tasks/pushNotificationConfig/get": (V03, Operations.push_config),
    "tasks/pushNotificationConfig/list": (V03, Operations.push_config),
    "tasks/pushNotificationConfig/delete": (V03, Operations.push_config),
    "agent/getAuthenticatedExtendedCard": (V03, Operations.extended_card),
}

PUSH: Operation = Operations.push_config  # refused for now, in A2A's own words
SUPPORTED_METHODS = tuple(name for name, (_, op) in RPC_METHODS.items() if op is not PUSH)
