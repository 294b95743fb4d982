"""What a caller can do with tasks: start, continue, cancel, get, list, follow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ..domain.ports import Agent, Cursor, TaskLog, TaskPage
from ..domain.task import Task, TaskHead
from ..domain.updates import MessageAdded, state_after
from ..domain.values import (
    TERMINAL,
    Caller,
    Message,
    OutputModes,
    Prompt,
    TaskQuery,
    TaskState,
    Text,
)
from ..errors import (
    InvalidParams,
    TaskNotCancelable,
    UnsupportedOperation,
)
from .inputs import Inputs
from .turns import Turns

TITLE = 60
RESTING = TERMINAL | {TaskState.INPUT_REQUIRED}  # nothing happens any more until somebody acts


@dataclass(frozen=True, slots=True)
class Request:
    """A message and where it belongs: a task, a context, or neither yet."""

    message: Message
    context_id: str | None = None
    task_id: str | None = None
    modes: OutputModes = OutputModes()


class Tasks:
    def __init__(
        self, agent: Agent, log: TaskLog, turns: Turns, inputs: Inputs, clock: Callable[[], int]
    ) -> None:
        self._agent = agent
        self._log = log
        self._turns = turns
        self._inputs = inputs
        self._clock = clock

    async def send(self, caller: Caller, request: Request) -> Task:
        """Start a task, or say more in one. What is returned is committed."""
        if request.task_id is None:
            return await self._start(caller, request)
        return await self._continue(caller, request, request.task_id)

    async def _start(self, caller: Caller, request: Request) -> Task:
        with self._turns.admit():
            parts = await self._inputs.prepare(request.message.parts)
            await self._agent.available()
            head = TaskHead(
                str(uuid.uuid4()),
                request.context_id or str(uuid.uuid4()),
                caller.principal,
                self._clock(),
                request.modes,
            )
            upstream_id = self._agent.new_message_id()
            task = await self._log.create(head, [MessageAdded(request.message, upstream_id)])
            self._turns.start(head, _title(request.message), Prompt(upstream_id, parts))
        return task

    async def _continue(self, caller: Caller, request: Request, task_id: str) -> Task:
        task = await self._log.get(caller.principal, task_id)
        if request.context_id is not None and request.context_id != task.head.context_id:
            raise InvalidParams.at(
                "message.contextId", "is not the context of the task named by message.taskId"
            )
        if task.state is TaskState.INPUT_REQUIRED:
            raise UnsupportedOperation(
                "This task waits for an answer that this version cannot take. Cancel the task, "
                "or answer in OpenCode itself.",
                task_id=task_id,
            )
        parts = await self._inputs.prepare(request.message.parts)
        place = self._turns.steer(task_id)
        if place is None:
            raise UnsupportedOperation(
                "This task has ended. Send the message without taskId, in the same context, to "
                "go on in a new task.",
                task_id=task_id,
                state=task.state.value,
            )
        upstream_id = self._agent.new_message_id()
        try:
            await self._log.write(task_id, [MessageAdded(request.message, upstream_id)])
        except BaseException:  # a place that is never filled would keep the task open for ever
            place.set_result(None)
            raise
        place.set_result(Prompt(upstream_id, parts))
        return await self._log.get(caller.principal, task_id)

    async def settled(self, caller: Caller, task: Task) -> Task:
        """Wait until the task has ended or needs a person."""
        cursor = self._log.follow(task.head.id, task.last_seq)
        if task.state in RESTING:
            return task
        while entries := await cursor.read():
            state = next((s for e in reversed(entries) if (s := state_after(e.update))), None)
            if state in RESTING:
                break
        return await self._log.get(caller.principal, task.head.id)

    async def get(self, caller: Caller, task_id: str) -> Task:
        return await self._log.get(caller.principal, task_id)

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._log.list(query)

    async def cancel(self, caller: Caller, task_id: str) -> Task:
        task = await self._log.get(caller.principal, task_id)
        if not task.state.terminal:
            await self._turns.cancel(task_id)
            task = await self._log.get(caller.principal, task_id)
            if task.state is TaskState.CANCELED:
                return task
        raise TaskNotCancelable(
            "This task has ended already.", task_id=task_id, state=task.state.value
        )

    def follow(self, task: Task) -> Cursor:
        """Everything after the task as it is now. Take it before awaiting anything."""
        return self._log.follow(task.head.id, task.last_seq)


def _title(message: Message) -> str:
    words = next((part.text for part in message.parts if isinstance(part, Text)), "")
    line = " ".join(words.split())
    return (line if len(line) <= TITLE else line[: TITLE - 1] + "…") or "A2A task"
