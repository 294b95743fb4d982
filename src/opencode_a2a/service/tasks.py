"""What a caller can do with tasks: start, continue, cancel, get, list, follow."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from structlog.contextvars import bind_contextvars

from ..domain.ports import Agent, Key, KeyTaken, TaskLog, TaskPage, TaskRow
from ..domain.replies import is_only_a_reply
from ..domain.task import Task, TaskHead
from ..domain.updates import MessageAdded
from ..domain.values import (
    TERMINAL_STATES,
    Caller,
    CallPath,
    Message,
    OutputModes,
    Prompt,
    RequestOptions,
    TaskQuery,
    TaskState,
    Text,
)
from ..errors import (
    IdempotencyConflict,
    InvalidParams,
    OutcomeUnknown,
    TaskHandover,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
    UpstreamBusy,
)
from ..locks import KeyedLock
from .inputs import Inputs
from .interrupts import Interrupts
from .limits import Limiter
from .options import OptionsResolver
from .replay import Replay, replay, replay_from
from .scheduler import Scheduler

MAX_TITLE = 60  # characters
HOLDER_SECONDS = 20.0  # for another process to see the request to cancel, and to do it
MAX_UNKNOWN_TASKS = 1_024  # remembered requests whose outcome is unknown …
UNKNOWN_SECONDS = 600  # … for so long
RESTING_STATES = TERMINAL_STATES | {TaskState.INPUT_REQUIRED}  # nothing happens until a person acts


@dataclass(frozen=True, slots=True)
class Request:
    """A message and where it belongs: a task, a context, or neither yet."""

    message: Message
    context_id: str | None = None
    task_id: str | None = None
    modes: OutputModes = OutputModes()
    idempotency_key: str | None = None
    options: RequestOptions = RequestOptions()
    command_id: str | None = None  # where another node was asked to take it
    new_task: bool = False  # it answers nothing, although a task of its context waits for an answer
    path: CallPath = CallPath()  # not in the digest: the same request again may have another trace

    def keys(self, now: int) -> list[Key]:
        """The keys by which the service recognises this request when it is sent again.

        They are the key that the client chose, and the message id together with the content and
        the context or task: some clients use one id for many messages. A request that a node asks
        others to take, one after the other, has a key of its own, so that only one of them does.
        """
        continues = self.context_id is not None or self.task_id is not None
        if self.idempotency_key is None and self.command_id is None and not continues:
            return []
        digest = self.digest()
        keys = []
        if self.command_id is not None:
            keys.append(Key(name=f"command:{self.command_id}", digest=digest, at=now))
        if self.idempotency_key is not None:
            keys.append(Key(name=f"key:{self.idempotency_key}", digest=digest, at=now))
        if continues:
            name = f"message:{self.message.message_id}:{digest}"
            keys.append(Key(name=name, digest=digest, at=now))
        return keys

    def digest(self) -> str:
        """The same for the same content and options in the same context and task."""
        message = asdict(self.message)
        del message["message_id"]
        content = [message, self.context_id, self.task_id, asdict(self.options)]
        content += ["new task"] if self.new_task else []
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _UnknownTasks:
    """Tasks that may or may not have been stored, by the requests that started them.

    A request without a context and without an Idempotency-Key starts a new task each time. But a
    caller whom the service has asked to send it again must not get a second task.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str, str], tuple[str, int]] = {}  # with the time it was added

    def add(self, owner: str, request: Request, *, task_id: str, now: int) -> None:
        self._tasks[self._key(owner, request)] = (task_id, now)
        if len(self._tasks) > MAX_UNKNOWN_TASKS:
            del self._tasks[next(iter(self._tasks))]

    def find(self, owner: str, request: Request, *, now: int) -> str | None:
        if not self._tasks:
            return None  # nearly always: no digest is needed then
        task_id, added_at = self._tasks.get(self._key(owner, request), (None, 0))
        return task_id if now - added_at < UNKNOWN_SECONDS * 1_000 else None

    def remove(self, owner: str, request: Request) -> None:
        self._tasks.pop(self._key(owner, request), None)

    def _key(self, owner: str, request: Request) -> tuple[str, str, str]:
        return owner, request.message.message_id, request.digest()


class Tasks:
    def __init__(
        self,
        *,
        agent: Agent,
        log: TaskLog,
        scheduler: Scheduler,
        interrupts: Interrupts,
        options: OptionsResolver,
        inputs: Inputs,
        clock: Callable[[], int],
        limiter: Limiter | None = None,
    ) -> None:
        self._limiter = limiter or Limiter()
        self._agent = agent
        self._log = log
        self._scheduler = scheduler
        self._interrupts = interrupts
        self._options = options
        self._inputs = inputs
        self._clock = clock
        self._repeats: KeyedLock[tuple[str, str]] = KeyedLock()
        self._last_created_at = 0
        self._unknown = _UnknownTasks()

    async def send(self, caller: Caller, request: Request) -> Task:
        """Start or continue a task; the task as it is stored.

        The same request again, also at the same time, returns the same task.
        """
        keys = request.keys(self._clock())
        async with AsyncExitStack() as stack:
            for key in keys:
                await stack.enter_async_context(self._repeats((caller.principal, key.name)))
            while True:
                for key in keys:
                    if (task := await self._known(caller, key)) is not None:
                        if task.interrupts and request.idempotency_key is None:
                            await self._interrupts.on_repeated(task, request.message)
                            return await self._log.get(caller.principal, task.head.id)
                        return task
                try:
                    if request.task_id is not None:
                        return await self._continue(caller, request, request.task_id, keys=keys)
                    if (task := await self._answered(caller, request, keys=keys)) is not None:
                        return task
                    return await self._start(caller, request, keys=keys)
                except KeyTaken:
                    continue  # another process has stored the same request: return its task

    async def find(self, caller: Caller, request: Request) -> Task | None:
        """The task of a request that is stored already."""
        for key in request.keys(self._clock()):
            if (task_id := await self._known_as(caller, key)) is not None:
                return await self._log.get(caller.principal, task_id)
        return None

    async def _known(self, caller: Caller, key: Key) -> Task | None:
        task_id = await self._known_as(caller, key)
        return await self._log.get_own(caller.principal, task_id) if task_id is not None else None

    async def _known_as(self, caller: Caller, key: Key) -> str | None:
        """The task of a key, if it was stored for the same content."""
        found = await self._log.known(caller.principal, key.name)
        if found is None:
            return None
        task_id, digest = found
        if digest != key.digest:
            raise IdempotencyConflict(
                "This Idempotency-Key was used for another message. Use a new key for a new one.",
                task_id=task_id,
            )
        return task_id

    async def _answered(
        self, caller: Caller, request: Request, *, keys: Sequence[Key]
    ) -> Task | None:
        """The task that waits for an answer in the context of a message, which is taken for one.

        Many clients answer without the task's id. A new task would wait until the other one is
        answered, and nobody would be told.
        """
        if request.context_id is None or request.new_task:
            return None
        waiting = await self._interrupts.waiting_tasks(caller, request.context_id)
        if len(waiting) == 1:
            task = await self._log.get_own(caller.principal, waiting[0])
            about(task.head)
            if await self._interrupts.reply(task, request.message, keys=keys, by_context=True):
                return await self._log.get(caller.principal, task.head.id)
        if is_only_a_reply(request.message):
            raise UnsupportedOperation(
                "This message is an answer, but no task of this context waits for one (any more).",
                context_id=request.context_id,
            )
        return None

    async def _start(self, caller: Caller, request: Request, *, keys: Sequence[Key]) -> Task:
        if not keys and (task := await self._find_unknown(caller, request)) is not None:
            return task
        await self._limiter.check_budget(caller.principal)
        with self._scheduler.admit(caller.principal):
            parts = await self._inputs.prepare(request.message.parts)
            await self._agent.available()
            title = title_of(request.message)
            context_id = await self._options.context_for(
                caller, named=request.context_id, options=request.options
            )
            if request.context_id is not None:
                await self._log.check_context(caller.principal, context_id)
            selection = await self._options.resolve(
                caller, context_id, title=title, options=request.options
            )
            head = TaskHead(
                id=str(uuid.uuid4()),
                context_id=context_id,
                owner=caller.principal,
                created_at=self._creation_time(),
                modes=request.modes,
            )
            prompt = Prompt(self._agent.new_message_id(), parts, selection=selection)
            added = MessageAdded(
                request.message, prompt.message_id, selection=selection, path=request.path
            )
            # A worktree is made only for a task that is stored.
            plain = request.options == RequestOptions() and selection.isolation is None
            plain = plain and not self._limiter.of(caller.principal).narrows
            fresh = request.context_id is None and plain
            pending_prompt = self._scheduler.start(head, title, path=request.path, fresh=fresh)
        try:
            task = await self._log.create(head, [added], keys=keys)
        except BaseException as exc:
            self._scheduler.abandon(head.id)
            if isinstance(exc, OutcomeUnknown) and not keys:
                self._unknown.add(caller.principal, request, task_id=head.id, now=self._clock())
            raise
        pending_prompt.stored(prompt)
        about(head)
        return task

    async def _find_unknown(self, caller: Caller, request: Request) -> Task | None:
        """The task of the same request, if its outcome was unknown and it was stored after all."""
        task_id = self._unknown.find(caller.principal, request, now=self._clock())
        if task_id is None:
            return None
        await self._log.settled(task_id)
        try:
            return await self._log.get(caller.principal, task_id)
        except TaskNotFound:
            self._unknown.remove(caller.principal, request)
            return None

    def _creation_time(self) -> int:
        """Now, but never the same twice: after a restart a context's tasks run in this order."""
        self._last_created_at = max(self._clock(), self._last_created_at + 1)
        return self._last_created_at

    async def _continue(
        self, caller: Caller, request: Request, task_id: str, *, keys: Sequence[Key]
    ) -> Task:
        task = await self._log.get_own(caller.principal, task_id)
        about(task.head)
        if request.context_id is not None and request.context_id != task.head.context_id:
            raise InvalidParams.at(
                "message.contextId", "is not the context of the task named by message.taskId"
            )
        if await self._interrupts.reply(task, request.message, keys=keys):
            return await self._log.get(caller.principal, task_id)
        if is_only_a_reply(request.message) and not task.state.terminal:
            raise UnsupportedOperation(
                "This message is an answer, but the agent does not wait for one (any more). Send "
                "what it should do next as text.",
                task_id=task_id,
            )
        await self._limiter.check_budget(caller.principal)
        parts = await self._inputs.prepare(request.message.parts)
        selection = await self._options.resolve_next(
            caller, task.head.context_id, options=request.options
        )
        pending_prompt = self._scheduler.steer(task_id, request.path)
        if pending_prompt is None:
            task = await self._log.get(caller.principal, task_id)
            if not task.state.terminal:
                raise TaskHandover
            raise UnsupportedOperation(
                f"This task has already ended (state: {task.state.value}). Send the message "
                "without taskId, in the same context, to go on in a new task.",
                task_id=task_id,
                state=task.state.value,
            )
        upstream_id = self._agent.new_message_id()
        try:
            added = MessageAdded(
                request.message, upstream_id, selection=selection, path=request.path
            )
            await self._log.write(task_id, [added], keys=keys)
        except BaseException:  # a prompt that stays pending would keep the task open for ever
            pending_prompt.withdraw()
            raise
        pending_prompt.stored(Prompt(upstream_id, parts, selection=selection))
        return await self._log.get(caller.principal, task_id)

    async def settled(self, caller: Caller, task: Task) -> Task:
        """Wait until the task has ended or needs a person."""
        cursor = self._log.follow(task.head.id, task.last_seq)
        if task.state in RESTING_STATES:
            return task
        while entries := await cursor.read():
            state = next((s for e in reversed(entries) if (s := e.state)), None)
            if state in RESTING_STATES:
                break
        return await self._log.get(caller.principal, task.head.id)

    async def get(self, caller: Caller, task_id: str) -> Task:
        return await self._log.get(caller.principal, task_id)

    async def owner_of(self, task_id: str) -> str | None:
        """Whose task it is, for those who may know."""
        return await self._log.owner_of(task_id)

    async def list(self, query: TaskQuery) -> TaskPage:
        return await self._log.list(query)

    async def listed(self, rows: Sequence[TaskRow], *, max_bytes: int) -> Sequence[Task | None]:
        """The first tasks of a page, as many as have so many bytes; None: it was deleted."""
        return await self._log.listed([row.head.id for row in rows], max_bytes=max_bytes)

    async def cancel(self, caller: Caller, task_id: str) -> Task:
        task = await self._log.get_own(caller.principal, task_id)
        about(task.head)
        if not task.state.terminal:
            if self._log.is_mine(task_id):
                await self._scheduler.cancel(task_id)
            else:
                await self._ask_holder_to_stop(task)
            task = await self._log.get(caller.principal, task_id)
            if task.state is TaskState.CANCELED:
                return task
            if not task.state.terminal:
                raise TaskHandover
        raise TaskNotCancelable(
            f"This task has already ended (state: {task.state.value}), so it cannot be canceled.",
            task_id=task_id,
            state=task.state.value,
        )

    async def _ask_holder_to_stop(self, task: Task) -> None:
        """Another process works on the task, and checks every few seconds whether to stop it."""
        cursor = self._log.follow(task.head.id, task.last_seq)
        await self._log.ask_to_stop(task.head.id)
        try:
            async with asyncio.timeout(HOLDER_SECONDS):
                while await cursor.read():
                    pass
        except TimeoutError:
            raise UpstreamBusy(
                "Another process of this service works on the task and has been asked to stop it. "
                "Try again in a moment.",
                retry_after=5,
            ) from None

    def replay(self, task: Task) -> Replay:
        """The task as it was when it was read, and all later entries."""
        return replay(self._log, task)

    async def replay_from(self, task: Task, seq: int) -> Replay:
        """The task as it was after an entry that a client has seen, and all later entries."""
        return await replay_from(self._log, task, seq)


def about(head: TaskHead) -> None:
    """Let the lines of the log say what the current request is about."""
    bind_contextvars(task=head.id, context=head.context_id)


def title_of(message: Message) -> str:
    words = next((part.text for part in message.parts if isinstance(part, Text)), "")
    line = " ".join(words.split())
    return (line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…") or "A2A task"
