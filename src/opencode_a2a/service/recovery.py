"""Takes over the tasks of processes that died.

At the start, and then every few seconds, this process claims the tasks whose lease
has expired: queued ones run in their order, running ones go on where OpenCode is,
lost ones end with the reason. The same loop renews the leases of this process and
cancels tasks when a caller has asked another process to cancel them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from ..domain.phrases import CONTINUE_PROMPT
from ..domain.ports import TaskLog
from ..domain.updates import Continued, MessageAdded
from ..domain.values import Prompt
from ..errors import StoreUnavailable
from .inputs import Inputs
from .scheduler import Scheduler
from .tasks import title_of

logger = structlog.get_logger()


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
        with suppress(StoreUnavailable):  # callers can still read; the loop tries again
            await self.resume_expired()
        watching = asyncio.create_task(self._watch(every))
        try:
            yield self
        finally:
            jobs = [watching, *self._stopping]
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _watch(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                for task_id in await self._log.renew_leases():
                    stop = asyncio.create_task(self._scheduler.cancel(task_id))
                    self._stopping.add(stop)
                    stop.add_done_callback(self._stopping.discard)
                await self.resume_expired()
            except StoreUnavailable:
                continue  # logged where it happened
            except Exception:
                logger.exception("recovery.internal_error")  # the leases must be renewed

    async def resume_expired(self) -> None:
        for task in await self._log.claim_expired():
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

            async def prepare(
                message_id: str, messages: dict[str, MessageAdded] = messages
            ) -> Prompt:
                added = messages[message_id]
                parts = await self._inputs.prepare(added.message.parts)
                return Prompt(message_id, parts, selection=added.selection)

            self._scheduler.resume(
                task, title=title_of(task.messages[0]), prompts=prompts, prepare=prepare
            )
