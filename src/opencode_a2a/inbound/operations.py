"""The operations of A2A, the same for every transport, and what they work on.

An operation gets parameters that are checked already. It returns a JSON value or a
sequence of events; what stands around those on the wire is left to the framing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from ..contract import a2a
from ..contract.declare import Json
from ..contract.dispatch import require_scope
from ..contract.operations import Operation, OperationTable, Rest
from ..contract.params import validated
from ..domain.ports import TaskRow
from ..domain.push import DEFAULT_ID, PushTarget
from ..domain.replies import HITL
from ..domain.scopes import Scope
from ..domain.task import Task
from ..domain.values import Caller, Message, TaskState
from ..errors import UnsupportedOperation, VersionNotSupported
from ..extensions.audit import acted_as_admin
from ..extensions.declared import STREAM_HINTS
from ..extensions.interrupts import INTERACTIVE
from ..extensions.push import EVERY_EVENT
from ..observe import audit
from ..observe.tracing import SpanRef
from ..service.calls import check_depth, read_path
from ..service.limits import Limiter
from ..service.push import PushNotifications
from ..service.tasks import Tasks, about
from . import negotiation, parse, push
from .card import Card
from .dialect import V03, V1, Dialect
from .events import TaskEvents
from .forwarding import Forwarding
from .render import Renderer
from .watching import WatchEvents

A2A = OperationTable()
LIST_BYTES = 4 << 20  # of whole tasks in one answer; one that is larger comes alone
PUSH = "A2A_PUSH"
PUSH_CONFIGS = "/tasks/{task_id}/pushNotificationConfigs"
PUSH_CONFIG = PUSH_CONFIGS + "/{config_id}"


Answer = Json | list[Json] | TaskEvents | WatchEvents | None


@dataclass(frozen=True, slots=True)
class Call:
    """One request, whatever transport it came over."""

    caller: Caller
    dialect: Dialect
    params: Any
    idempotency_key: str | None = None
    last_event_id: str | None = None
    extensions: frozenset[str] = frozenset()  # those the client has activated in a header
    notification: bool = False  # the client gets no answer, so nothing is awaited for one
    disconnected: Callable[[], Awaitable[None]] | None = None  # waits until the client leaves
    wait_seconds: float | None = None  # the client's patience; None: as long as it takes
    depth: str | None = None  # how many agents have called each other, not checked yet
    trace: SpanRef = SpanRef("")  # the trace that the request belongs to, and its span there
    external_url: str | None = None  # where a trusted proxy was asked


@dataclass(frozen=True, slots=True)
class Operations:
    """What the operations work on."""

    tasks: Tasks
    card: Card
    stopping: asyncio.Future[None]  # done when the service can no longer wait for anybody
    extension_uris: Mapping[str, str] = field(default_factory=dict)  # by every name of each
    strict_version: bool = False
    max_wait_seconds: float | None = None  # for a task that was sent; None: as long as it takes
    every_block: bool = False  # also for clients that have not activated stream hints
    max_call_depth: int = 0
    limiter: Limiter = field(default_factory=Limiter)
    push: PushNotifications | None = None  # None where they are off
    push_keys: Json | None = None  # a JSON Web Key Set
    forwarding: Forwarding | None = None  # None where there are no other nodes

    @property
    def notifications(self) -> PushNotifications:
        if self.push is None:
            raise parse.no_push()
        return self.push

    def negotiate(self, dialect: Dialect, requested: str | None) -> None:
        """Refuse a protocol version we do not speak. The minor counts, the patch does not."""
        version = ".".join((requested or "").split(".")[:2])
        if dialect.version == "1.0":
            fine = version == "1.0" or (not version and not self.strict_version)
            advice = "This is a method of 1.0: send A2A-Version: 1.0."
        else:
            fine = version in ("", "0.3", "1.0")
            advice = "Use 1.0 or 0.3."
        if not fine:
            raise VersionNotSupported(
                f"A2A-Version {requested or '(none)'} is not supported here. {advice}",
                requested=requested or "",
                supported=["1.0", "0.3"],
            )

    def active(self, call: Call, message: Message | None) -> frozenset[str]:
        """The extensions that a request activates, in a header or in the message that it sends."""
        active = call.extensions
        if message is not None:
            active |= negotiation.of_names(message.extensions, self.extension_uris)
        return active

    def renderer(self, call: Call, message: Message | None = None) -> Renderer:
        """How this client wants to see a task: its request says that, each time."""
        active = self.active(call, message)
        return Renderer(
            call.dialect,
            hints=self.every_block or STREAM_HINTS.uri in active,
            stays_open=INTERACTIVE.uri in active,
            hitl=HITL in active,
        )

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Check that the caller may, and that the request is well formed; then do it."""
        if operation.scope is not None:
            admin = Scope.ADMIN if operation.admin else None
            require_scope(call.caller, operation.scope, or_scope=admin)
        if operation.streams:
            self.limiter.check_stream(call.caller.principal)
        if operation.sends_message:
            parse.check_idempotency_key(call.idempotency_key)
        model = operation.params
        params = validated(model, call.params) if model is not None else None
        result: Answer = await operation.run(self, call, params)
        return result

    async def owner(self, call: Call, task_id: str, *, to: str) -> Caller:
        """For whom to look the task up: the caller or, for an admin, whoever owns it."""
        if Scope.ADMIN not in call.caller.scopes:
            return call.caller
        owner = await self.tasks.owner_of(task_id)
        if owner in (None, call.caller.principal):
            return call.caller
        acted_as_admin(call.caller, action=to, target=task_id, owner=owner)
        return Caller(owner, call.caller.scopes)

    async def send(self, call: Call, params: parse.SendParams) -> tuple[parse.Send, Task]:
        """Send a message, and say who is to be told about its task if the request names somebody.

        Refused if too many agents have called each other before.
        """
        path = read_path(call.depth, call.trace)
        check_depth(path, self.max_call_depth)
        send = parse.Send(call.dialect, params, idempotency_key=call.idempotency_key, path=path)
        if send.push is None:
            return send, await self._stored(call, send)
        where, given = send.push
        target = self.push_target(call, given, where, message=send.request.message)
        # A repeated request must not add another config.
        target = replace(target, id=target.id or DEFAULT_ID)
        await self.notifications.check(
            call.caller, target, task_id=send.request.task_id, field=f"{where}url"
        )
        task = await self._stored(call, send)
        await self.notifications.attach(task, target, from_start=len(task.messages) == 1)
        return send, task

    async def _stored(self, call: Call, send: parse.Send) -> Task:
        if (forwarding := self.forwarding) is None:
            task = await self.tasks.send(call.caller, send.request)
        else:
            task = await forwarding.do(
                there=lambda: forwarding.send(call, send.request),
                here=lambda: self.tasks.send(call.caller, send.request),
            )
        about(task.head)
        audit.done()  # its answer may take hours
        return task

    async def canceled(self, owner: Caller, task_id: str) -> Task:
        if (forwarding := self.forwarding) is None:
            return await self.tasks.cancel(owner, task_id)
        return await forwarding.do(
            there=lambda: forwarding.cancel(owner, task_id),
            here=lambda: self.tasks.cancel(owner, task_id),
        )

    def push_target(
        self, call: Call, given: parse.PushConfigIn, where: str, message: Message | None = None
    ) -> PushTarget:
        every = EVERY_EVENT.uri in self.active(call, message)
        renderer = self.renderer(call, message)
        return push.target_of(given, where, renderer=renderer, every_event=every)

    async def settled(self, call: Call, task: Task) -> Task:
        """Wait for the task.

        When the time is up, or the service stops, the caller gets it as it is. Nothing is waited
        for on behalf of a client that has left.
        """
        settled = asyncio.create_task(self.tasks.settled(call.caller, task))
        either: set[asyncio.Future[Any]] = {settled, self.stopping}
        left: asyncio.Future[None] | None = None
        if call.disconnected is not None:
            left = asyncio.ensure_future(call.disconnected())
            either.add(left)
        bounds = [each for each in (call.wait_seconds, self.max_wait_seconds) if each is not None]
        try:
            await asyncio.wait(
                either, timeout=min(bounds, default=None), return_when=asyncio.FIRST_COMPLETED
            )
            if settled.done():
                return settled.result()
            if left is not None and left.done():
                raise ClientDisconnect
        finally:
            settled.cancel()
            if left is not None:
                left.cancel()
        return await self.tasks.get(call.caller, task.head.id)

    async def events(
        self,
        call: Call,
        task: Task,
        renderer: Renderer,
        *,
        history_length: int | None = None,
        waits: bool = False,
    ) -> TaskEvents:
        """The task as it is, or was at the client's last event, then everything after.

        The sequence ends where the task rests. If the client `waits`, it goes on after a
        person has answered.
        """
        replay = self.tasks.replay(task)
        if call.last_event_id is not None:
            known = call.last_event_id.isdecimal() and len(call.last_event_id) < 19
            seq = int(call.last_event_id) if known else sys.maxsize
            replay = await self.tasks.replay_from(task, seq)
        snapshot = replay.snapshot
        first = renderer.first(snapshot, history_length, gap=replay.gap)
        resting = _rests(snapshot, task, waits or renderer.stays_open)
        cursor = None if resting else replay.cursor
        return TaskEvents(renderer, snapshot, first=first, cursor=cursor, waits=waits)


def _rests(snapshot: Task, task: Task, waits: bool) -> bool:
    """Whether a stream that begins with `snapshot` has no further events."""
    if snapshot.state is TaskState.INPUT_REQUIRED:
        return snapshot.last_seq >= task.last_seq and not waits
    return snapshot.state.terminal


@A2A.operation(
    {"1.0": "SendMessage", "0.3": "message/send"},
    Rest(("POST",), "/message:send"),
    scope=Scope.TASKS_WRITE,
    result=a2a.Sent,
    sends_message=True,
)
async def send_message(service: Operations, call: Call, params: parse.SendParams) -> Json:
    """Send a message."""
    send, task = await service.send(call, params)
    if send.blocking and not call.notification:
        task = await service.settled(call, task)
    renderer = service.renderer(call, send.request.message)
    body = renderer.task(task, history_length=send.history_length)
    return body if call.dialect.tagged else {"task": body}


@A2A.operation(
    {"1.0": "SendStreamingMessage", "0.3": "message/stream"},
    Rest(("POST",), "/message:stream"),
    scope=Scope.TASKS_WRITE,
    result=a2a.StreamEvent,
    sends_message=True,
)
async def send_streaming_message(
    service: Operations, call: Call, params: parse.SendParams
) -> TaskEvents:
    """Send a message, stream the answer."""
    send, task = await service.send(call, params)
    renderer = service.renderer(call, send.request.message)
    return await service.events(call, task, renderer, history_length=send.history_length)


@A2A.operation(
    {"1.0": "GetTask", "0.3": "tasks/get"},
    Rest(("GET",), "/tasks/{id}"),
    scope=Scope.TASKS_READ,
    admin=True,
    result=a2a.Task,
)
async def get_task(service: Operations, call: Call, params: parse.TaskParams) -> Json:
    """Get a task."""
    owner = await service.owner(call, params.id, to="get task")
    task = await service.tasks.get(owner, params.id)
    about(task.head)
    length = parse.history(call.dialect, params.history_length)
    return service.renderer(call).task(task, history_length=length)


@A2A.operation(
    {"1.0": "ListTasks"},
    Rest(("GET",), "/tasks"),
    scope=Scope.TASKS_READ,
    admin=True,
    result=a2a.TaskList,
)
async def list_tasks(service: Operations, call: Call, params: parse.ListParams) -> Json:
    """List tasks."""
    whose = _whose(call, params)
    listing = parse.Listing(call.dialect, whose, params)
    if listing.impossible:
        return {"tasks": [], "nextPageToken": "", "pageSize": listing.size, "totalSize": 0}
    page = await service.tasks.list(listing.query)
    render, following = service.renderer(call), page.next
    if listing.artifacts or listing.history_length:
        tasks, rows = await _whole_tasks(service, page.rows, listing, render, whose)
        if rows < len(page.rows):
            last = page.rows[rows - 1]
            following = (last.status_at, last.head.id)
    else:
        tasks = [_with_owner(render.row(row), row.head.owner, whose) for row in page.rows]
    return {
        "tasks": tasks,
        "nextPageToken": parse.page_token(following),
        "pageSize": listing.size,
        "totalSize": page.total,
    }


async def _whole_tasks(
    service: Operations,
    rows: Sequence[TaskRow],
    listing: parse.Listing,
    render: Renderer,
    whose: str | None,
) -> tuple[list[Json], int]:
    """The tasks of the first rows, as many as an answer may hold, and the number of these rows.

    What was deleted meanwhile is left out. There is at least one, unless all are deleted.
    """
    shown: list[Json] = []
    size = 0
    found = await service.tasks.listed(rows, max_bytes=LIST_BYTES)
    for number, task in enumerate(found):
        if task is None:
            continue
        body = render.task(task, history_length=listing.history_length, artifacts=listing.artifacts)
        body = _with_owner(body, task.head.owner, whose)
        size += len(orjson.dumps(body))
        if shown and size > LIST_BYTES:
            return shown, number
        shown.append(body)
    return shown, len(found)


def _whose(call: Call, params: parse.ListParams) -> str | None:
    """Whose tasks are to be listed; None means everybody's."""
    caller, named = call.caller, params.principal
    if named is None or named == caller.principal:
        return caller.principal
    require_scope(caller, Scope.ADMIN)
    acted_as_admin(caller, action="list tasks", target=None, owner=named)
    return None if named == parse.EVERYBODY else named


def _with_owner(task: Json, owner: str, whose: str | None) -> Json:
    """A list of everybody's tasks says whose each one is."""
    if whose is not None:
        return task
    metadata = task.get("metadata", {})
    opencode = {**metadata.get("opencode", {}), "principal": owner}
    return {**task, "metadata": {**metadata, "opencode": opencode}}


@A2A.operation(
    {"1.0": "CancelTask", "0.3": "tasks/cancel"},
    Rest(("POST",), "/tasks/{id}:cancel"),
    scope=Scope.TASKS_WRITE,
    admin=True,
    result=a2a.Task,
)
async def cancel_task(service: Operations, call: Call, params: parse.TaskIdParams) -> Json:
    """Cancel a task."""
    owner = await service.owner(call, params.id, to="cancel task")
    return service.renderer(call).task(await service.canceled(owner, params.id))


@A2A.operation(
    {"1.0": "SubscribeToTask", "0.3": "tasks/resubscribe"},
    Rest(("GET", "POST"), "/tasks/{id}:subscribe"),
    scope=Scope.TASKS_READ,
    admin=True,
    result=a2a.StreamEvent,
)
async def subscribe_to_task(
    service: Operations, call: Call, params: parse.TaskIdParams
) -> TaskEvents:
    """Follow a task."""
    owner = await service.owner(call, params.id, to="follow task")
    task = await service.tasks.get(owner, params.id)
    about(task.head)
    if task.state.terminal and call.dialect is V1 and call.last_event_id is None:
        raise UnsupportedOperation(
            "This task has ended, so there is nothing to subscribe to. Get it instead.",
            task_id=task.head.id,
            state=task.state.value,
        )
    # 1.0 lets clients subscribe to any task that has not ended, also to one that needs a person.
    return await service.events(call, task, service.renderer(call), waits=call.dialect is V1)


@A2A.operation(
    {"1.0": "CreateTaskPushNotificationConfig", "0.3": "tasks/pushNotificationConfig/set"},
    Rest(("POST",), PUSH_CONFIGS),
    scope=Scope.TASKS_WRITE,
    result=a2a.PushConfig,
    takes_body=True,
    needs=PUSH,
)
async def create_push_config(
    service: Operations, call: Call, params: push.CreatePushParams
) -> Json:
    """Tell a receiver about a task from now on."""
    task_id, given, where = params.given(call.dialect)
    target = service.push_target(call, given, where)
    config = await service.notifications.register(call.caller, task_id, target)
    return push.config_json(config, call.dialect)


@A2A.operation(
    {"1.0": "GetTaskPushNotificationConfig", "0.3": "tasks/pushNotificationConfig/get"},
    Rest(("GET",), PUSH_CONFIG),
    scope=Scope.TASKS_READ,
    result=a2a.PushConfig,
    needs=PUSH,
)
async def get_push_config(service: Operations, call: Call, params: push.PushParams) -> Json:
    """Get a push config, without its secrets."""
    dialect = call.dialect
    named = params.config(dialect) if dialect is V03 else params.one_config(dialect)
    config = await service.notifications.get(call.caller, params.task(dialect), named)
    return push.config_json(config, dialect)


@A2A.operation(
    {"1.0": "ListTaskPushNotificationConfigs", "0.3": "tasks/pushNotificationConfig/list"},
    Rest(("GET",), PUSH_CONFIGS),
    scope=Scope.TASKS_READ,
    result=a2a.PushConfigs,
    needs=PUSH,
)
async def list_push_configs(
    service: Operations, call: Call, params: push.ListPushParams
) -> Json | list[Json]:
    """List the push configs of a task."""
    configs = await service.notifications.configs(call.caller, params.task(call.dialect))
    if call.dialect is V03:
        return [push.config_json(config, V03) for config in configs]
    page, token = push.page_of(configs, size=params.page_size, token=params.page_token)
    found = [push.config_json(config, call.dialect) for config in page]
    return {"configs": found, "nextPageToken": token}


@A2A.operation(
    {"1.0": "DeleteTaskPushNotificationConfig", "0.3": "tasks/pushNotificationConfig/delete"},
    Rest(("DELETE",), PUSH_CONFIG),
    scope=Scope.TASKS_WRITE,
    result=a2a.Nothing,
    needs=PUSH,
)
async def delete_push_config(
    service: Operations, call: Call, params: push.PushParams
) -> Json | None:
    """Delete a push config."""
    config_id = params.one_config(call.dialect)
    await service.notifications.delete(call.caller, params.task(call.dialect), config_id)
    return None if call.dialect is V03 else {}


async def refuse_push(service: Operations, call: Call, params: None) -> Json:
    raise parse.no_push()


@A2A.operation(
    {"1.0": "GetExtendedAgentCard", "0.3": "agent/getAuthenticatedExtendedCard"},
    Rest(("GET",), "/extendedAgentCard", ("1.0",)),
    Rest(("GET",), "/card", ("0.3",)),
    scope=None,
    result=a2a.AgentCard,
)
async def get_extended_card(service: Operations, call: Call, params: None) -> Json:
    """The extended Agent Card."""
    return service.card.extended(is_pure=call.dialect is V1, external_url=call.external_url)


WITHOUT_PUSH = A2A.without(PUSH, refuse_push, "Push configurations (not supported)")
