"""Nothing stays unfinished because a process died.

At the start, and then every few seconds, the tasks that no process holds are
taken up: queued ones run in their order, running ones go on where OpenCode is,
lost ones end with the reason. The same beat renews the lease on what we hold and
hears of tasks that another process was asked to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from ..domain.ports import TaskLog
from ..domain.updates import MessageAdded
from ..domain.values import Prompt
from ..errors import StoreUnavailable
from .inputs import Inputs
from .tasks import title_of
from .turns import Turns

logger = structlog.get_logger()


class Recovery:
    def __init__(self, log: TaskLog, turns: Turns, inputs: Inputs) -> None:
        self._log = log
        self._turns = turns
        self._inputs = inputs
        self._stopping: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, log: TaskLog, turns: Turns, inputs: Inputs, every: float = 2.0
    ) -> AsyncIterator[Recovery]:
        """On entry everything orphaned is taken up, if the store allows; then watch for more."""
        self = cls(log, turns, inputs)
        with suppress(StoreUnavailable):  # reading may go on; what is orphaned waits for the disk
            await self.take_up()
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
                for task_id in await self._log.beat():
                    stop = asyncio.create_task(self._turns.cancel(task_id))
                    self._stopping.add(stop)
                    stop.add_done_callback(self._stopping.discard)
                await self.take_up()
            except StoreUnavailable:
                continue  # logged where it happened
            except Exception:
                logger.exception("recovery.broken")  # the beat must go on

    async def take_up(self) -> None:
        for task in await self._log.take_orphans():
            logger.info("task.resumed", task=task.head.id, state=task.state.value)
            asked: dict[str, MessageAdded] = {
                entry.update.upstream_id: entry.update
                for entry in task.history
                if isinstance(entry.update, MessageAdded) and entry.update.upstream_id
            }

            async def prepare(message_id: str, asked: dict[str, MessageAdded] = asked) -> Prompt:
                added = asked[message_id]
                parts = await self._inputs.prepare(added.message.parts)
                return Prompt(message_id, parts, added.selection)

            self._turns.resume(task, title_of(task.messages[0]), list(asked), prepare)
