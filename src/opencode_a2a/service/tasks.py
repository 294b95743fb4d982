"""What a caller can do with tasks: start, continue, cancel, get, list, follow."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ..domain.ports import Agent, Cursor, Key, KeyTaken, TaskLog, TaskPage
from ..domain.replies import is_only_a_reply
from ..domain.task import Task, TaskHead
from ..domain.updates import MessageAdded
from ..domain.values import (
    TERMINAL,
    Caller,
    Message,
    OutputModes,
    Prompt,
    TaskQuery,
    TaskState,
    Text,
    Wish,
)
from ..errors import (
    IdempotencyConflict,
    InvalidParams,
    OutcomeUnknown,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
    UpstreamBusy,
)
from .inputs import Inputs
from .interrupts import Interrupts
from .sessions import Lanes
from .turns import Turns, in_transit
from .wishes import Granting

TITLE = 60
HOLDER_SECONDS = 20.0  # for another process to hear of a cancel, and to do it
UNKNOWN = 1_024  # requests whose outcome was unknown, remembered …
UNKNOWN_SECONDS = 600  # … for so long
RESTING = TERMINAL | {TaskState.INPUT_REQUIRED}  # nothing happens any more until somebody acts


@dataclass(frozen=True, slots=True)
class Request:
    """A message and where it belongs: a task, a context, or neither yet."""

    message: Message
    context_id: str | None = None
    task_id: str | None = None
    modes: OutputModes = OutputModes()
    idempotency_key: str | None = None
    wish: Wish = Wish()

    def keys(self, now: int) -> list[Key]:
        """What this request is known by if it is sent again.

        The key its client chose, and its message id, which counts only together with the
        same content in the same place: some clients use one id for many messages.
        """
        placed = self.context_id is not None or self.task_id is not None
        if self.idempotency_key is None and not placed:
            return []
        digest = self.digest()
        keys = []
        if self.idempotency_key is not None:
            keys.append(Key(f"key:{self.idempotency_key}", digest, now))
        if placed:
            keys.append(Key(f"message:{self.message.message_id}:{digest}", digest, now))
        return keys

    def digest(self) -> str:
        """The same for the same content in the same place."""
        message = asdict(self.message)
        del message["message_id"]
        place = [self.context_id, self.task_id, asdict(self.wish)]
        told = json.dumps([message, *place], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()


class _UnknownTasks:
    """Tasks of which nobody knew whether they were stored, by the requests that asked for them.

    A request without a context and without an Idempotency-Key makes a new task each time. But a
    caller who was told to send it again must not get a second one.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str, str], tuple[str, int]] = {}  # and since when

    def add(self, owner: str, request: Request, task_id: str, now: int) -> None:
        self._tasks[self._key(owner, request)] = (task_id, now)
        if len(self._tasks) > UNKNOWN:
            del self._tasks[next(iter(self._tasks))]

    def find(self, owner: str, request: Request, now: int) -> str | None:
        if not self._tasks:
            return None  # nearly always: nothing is computed then
        task_id, since = self._tasks.get(self._key(owner, request), (None, 0))
        return task_id if now - since < UNKNOWN_SECONDS * 1_000 else None

    def remove(self, owner: str, request: Request) -> None:
        self._tasks.pop(self._key(owner, request), None)

    def _key(self, owner: str, request: Request) -> tuple[str, str, str]:
        return owner, request.message.message_id, request.digest()


@dataclass(frozen=True, slots=True)
class Story:
    """A task from some point of its log on: as it was there, and everything after.

    `gap` says why it does not begin where it was asked to: the single events are gone
    (`compacted`), or the point does not exist (`unknown`).
    """

    task: Task
    after: Cursor
    gap: Literal["compacted", "unknown"] | None = None


class Tasks:
    def __init__(
        self,
        agent: Agent,
        log: TaskLog,
        turns: Turns,
        interrupts: Interrupts,
        wishes: Granting,
        inputs: Inputs,
        clock: Callable[[], int],
    ) -> None:
        self._agent = agent
        self._log = log
        self._turns = turns
        self._interrupts = interrupts
        self._wishes = wishes
        self._inputs = inputs
        self._clock = clock
        self._repeats: Lanes[tuple[str, str]] = Lanes()
        self._newest = 0  # when the last task was created
        self._unknown = _UnknownTasks()

    async def send(self, caller: Caller, request: Request) -> Task:
        """Start a task, or say more in one. What is returned is committed.

        The same request again, also at the same time, is answered with the same task.
        """
        keys = request.keys(self._clock())
        async with AsyncExitStack() as stack:
            for key in keys:
                await stack.enter_async_context(self._repeats((caller.principal, key.name)))
            while True:
                for key in keys:
                    if (task := await self._known(caller, key)) is not None:
                        return task
                try:
                    if request.task_id is None:
                        return await self._start(caller, request, keys)
                    return await self._continue(caller, request, request.task_id, keys)
                except KeyTaken:
                    continue  # another process was faster: its task is the one

    async def _known(self, caller: Caller, key: Key) -> Task | None:
        found = await self._log.known(caller.principal, key.name)
        if found is None:
            return None
        task_id, digest = found
        if digest != key.digest:
            raise IdempotencyConflict(
                "This Idempotency-Key was used for another message. Use a new key for a new one.",
                task_id=task_id,
            )
        return await self._log.get_own(caller.principal, task_id)

    async def _start(self, caller: Caller, request: Request, keys: Sequence[Key]) -> Task:
        if not keys and (task := await self._settled(caller, request)) is not None:
            return task
        with self._turns.admit(caller.principal):
            parts = await self._inputs.prepare(request.message.parts)
            await self._agent.available()
            title = title_of(request.message)
            context_id = await self._wishes.context(caller, request.context_id, request.wish)
            if request.context_id is not None:
                await self._log.check_context(caller.principal, context_id)
            selection = await self._wishes.grant(caller, context_id, title, request.wish)
            head = TaskHead(
                str(uuid.uuid4()), context_id, caller.principal, self._moment(), request.modes
            )
            prompt = Prompt(self._agent.new_message_id(), parts, selection)
            added = MessageAdded(request.message, prompt.message_id, selection)
            fresh = request.context_id is None and request.wish == Wish()
            place = self._turns.start(head, title, fresh=fresh)
        try:
            task = await self._log.create(head, [added], keys)
        except BaseException as exc:
            self._turns.abandon(head.id)
            if isinstance(exc, OutcomeUnknown) and not keys:
                self._unknown.add(caller.principal, request, head.id, self._clock())
            raise
        place.set_result(prompt)
        return task

    async def _settled(self, caller: Caller, request: Request) -> Task | None:
        """The task of the same request, if its caller was told that nobody knows whether it is."""
        task_id = self._unknown.find(caller.principal, request, self._clock())
        if task_id is None:
            return None
        await self._log.settled(task_id)
        try:
            return await self._log.get(caller.principal, task_id)
        except TaskNotFound:
            self._unknown.remove(caller.principal, request)
            return None

    def _moment(self) -> int:
        """Now, but never twice the same: a context's tasks go on in this order after a restart."""
        self._newest = max(self._clock(), self._newest + 1)
        return self._newest

    async def _continue(
        self, caller: Caller, request: Request, task_id: str, keys: Sequence[Key]
    ) -> Task:
        task = await self._log.get_own(caller.principal, task_id)
        if request.context_id is not None and request.context_id != task.head.context_id:
            raise InvalidParams.at(
                "message.contextId", "is not the context of the task named by message.taskId"
            )
        if await self._interrupts.reply(task, request.message, keys):
            return await self._log.get(caller.principal, task_id)
        if is_only_a_reply(request.message) and not task.state.terminal:
            raise UnsupportedOperation(
                "This is an answer, and the task waits for none (any more).", task_id=task_id
            )
        parts = await self._inputs.prepare(request.message.parts)
        selection = await self._wishes.next(caller, task.head.context_id, request.wish)
        place = self._turns.steer(task_id)
        if place is None:
            if not task.state.terminal:
                raise in_transit()
            raise UnsupportedOperation(
                "This task has ended. Send the message without taskId, in the same context, to "
                "go on in a new task.",
                task_id=task_id,
                state=task.state.value,
            )
        upstream_id = self._agent.new_message_id()
        try:
            added = MessageAdded(request.message, upstream_id, selection)
            await self._log.write(task_id, [added], keys)
        except BaseException:  # a place that is never filled would keep the task open for ever
            place.set_result(None)
            raise
        place.set_result(Prompt(upstream_id, parts, selection))
        return await self._log.get(caller.principal, task_id)

    async def settled(self, caller: Caller, task: Task) -> Task:
        """Wait until the task has ended or needs a person."""
        cursor = self._log.follow(task.head.id, task.last_seq)
        if task.state in RESTING:
            return task
        while entries := await cursor.read():
            state = next((s for e in reversed(entries) if (s := e.state)), None)
            if state in RESTING:
                break
        return await self._log.get(caller.principal, task.head.id)

    async def get(self, caller: Caller, task_id: str) -> Task:
        return await self._log.get(caller.principal, task_id)

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._log.list(query)

    async def cancel(self, caller: Caller, task_id: str) -> Task:
        task = await self._log.get_own(caller.principal, task_id)
        if not task.state.terminal:
            if self._log.holds(task_id):
                await self._turns.cancel(task_id)
            else:
                await self._ask_holder_to_stop(task)
            task = await self._log.get(caller.principal, task_id)
            if task.state is TaskState.CANCELED:
                return task
            if not task.state.terminal:
                raise in_transit()
        raise TaskNotCancelable(
            "This task has ended already.", task_id=task_id, state=task.state.value
        )

    async def _ask_holder_to_stop(self, task: Task) -> None:
        """Another process works on it, and looks every few seconds whether it should stop."""
        cursor = self._log.follow(task.head.id, task.last_seq)
        await self._log.ask_to_stop(task.head.id)
        try:
            async with asyncio.timeout(HOLDER_SECONDS):
                while await cursor.read():
                    pass
        except TimeoutError:
            raise UpstreamBusy(
                "Another process of this service works on the task and was asked to stop it.",
                retry_after=5,
            ) from None

    def now(self, task: Task) -> Story:
        """The task as it is, and everything after. Tell it before awaiting anything."""
        return Story(task, self._log.follow(task.head.id, task.last_seq))

    async def since(self, task: Task, seq: int) -> Story:
        """The task as it was after an entry a client has seen, and everything after that."""
        if seq > task.last_seq:
            return replace(self.now(task), gap="unknown")
        then = task if seq == task.last_seq else await self._log.as_of(task.head.id, seq)
        if then is None:
            return replace(self.now(task), gap="compacted")
        return Story(then, self._log.follow(task.head.id, seq))


def title_of(message: Message) -> str:
    words = next((part.text for part in message.parts if isinstance(part, Text)), "")
    line = " ".join(words.split())
    return (line if len(line) <= TITLE else line[: TITLE - 1] + "…") or "A2A task"
