"""Takes over the tasks of processes that died.

At the start, and then every few seconds, this process claims the tasks whose lease
has expired: queued ones run in their order, running ones go on where OpenCode is,
lost ones end with the reason. A second loop renews the leases of this process and
cancels tasks when a caller has asked another process to cancel them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from ..domain.phrases import CONTINUE_PROMPT
from ..domain.ports import TaskLog
from ..domain.task import Task
from ..domain.updates import Continued, Ended, MessageAdded
from ..domain.values import Failure, Problem, Prompt, TaskState
from ..errors import StoreError
from .inputs import Inputs
from .scheduler import Scheduler
from .tasks import title_of

logger = structlog.get_logger()

CLAIM_TASKS = 20  # in one transaction
NOT_RESUMED = Problem(
    Failure.INTERNAL,
    "The service was started again, and could not go on with this task. Send the request again in "
    "the same context.",
)


class Recovery:
    def __init__(self, log: TaskLog, scheduler: Scheduler, inputs: Inputs) -> None:
        self._log = log
        self._scheduler = scheduler
        self._inputs = inputs
        self._stopping: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, log: TaskLog, scheduler: Scheduler, *, inputs: Inputs, every: float = 2.0
    ) -> AsyncIterator[Recovery]:
        """Take over expired tasks on entry, if the store is available, and then again and again."""
        self = cls(log, scheduler, inputs=inputs)
        renewing = asyncio.create_task(self._renew_forever(every))
        claiming: asyncio.Task[None] | None = None
        try:
            await self._try(self.resume_expired)  # callers can still read; the loop tries again
            claiming = asyncio.create_task(self._claim_forever(every))
            yield self
        finally:
            jobs = [renewing, *self._stopping, *([claiming] if claiming is not None else [])]
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _renew_forever(self, every: float) -> None:
        """Renew the leases in time, however long it takes to claim what others have left."""
        while True:
            await asyncio.sleep(every)
            await self._try(self._renew)

    async def _claim_forever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self._try(self.resume_expired)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StoreError:
            pass  # logged where it happened
        except Exception:
            logger.exception("recovery.internal_error")

    async def _renew(self) -> None:
        for task_id in await self._log.renew_leases():
            stop = asyncio.create_task(self._scheduler.cancel(task_id))
            self._stopping.add(stop)
            stop.add_done_callback(self._stopping.discard)

    async def resume_expired(self) -> None:
        """Take over a few tasks at a time: commits and renewals wait for each such step."""
        expired = await self._log.expired()
        for start in range(0, len(expired), CLAIM_TASKS):
            for task in await self._log.claim(expired[start : start + CLAIM_TASKS]):
                try:
                    self._resume(task)
                except Exception:  # the others must go on
                    logger.exception("task.not_resumed", task=task.head.id, advice="it has failed")
                    ended = Ended(TaskState.FAILED, NOT_RESUMED.message, NOT_RESUMED)
                    self._log.append(task.head.id, [ended])

    def _resume(self, task: Task) -> None:
        logger.info("task.resumed", task=task.head.id, state=task.state.value)
        prompts: list[Prompt] = []
        messages: dict[str, MessageAdded] = {}
        for update in (entry.update for entry in task.history):
            match update:
                case MessageAdded(upstream_id=str(upstream_id), selection=selection):
                    prompts.append(Prompt(upstream_id, (), selection=selection))
                    messages[upstream_id] = update
                case Continued(upstream_id, selection):
                    prompts.append(Prompt(upstream_id, (CONTINUE_PROMPT,), selection=selection))
                case _:
                    pass

        async def prepare(message_id: str, messages: dict[str, MessageAdded] = messages) -> Prompt:
            added = messages[message_id]
            parts = await self._inputs.prepare(added.message.parts)
            return Prompt(message_id, parts, selection=added.selection)

        self._scheduler.resume(
            task, title=title_of(task.messages[0]), prompts=prompts, prepare=prepare
        )
