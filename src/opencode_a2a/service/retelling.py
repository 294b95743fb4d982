"""Finds what was said in a context whose session is gone with its node.

It is looked up when the first prompt of a task is sent, and not kept: a process that goes on with
the task of another one finds the same. The session itself says whether it was told already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ..domain.ports import AgentSession, TaskLog
from ..domain.retelling import retell
from ..domain.task import Task, TaskHead
from ..domain.updates import Continued, MessageAdded, Retold
from ..errors import TaskNotFound


class Retelling:
    def __init__(self, log: TaskLog) -> None:
        self._log = log

    async def before(self, head: TaskHead, session: AgentSession, message_id: str) -> str | None:
        """What the session must be told before this prompt; None where it knows what was said."""
        earlier = await self._log.earlier_tasks(head)
        if not any(each.elsewhere for each in earlier):
            return None
        task = await self._log.get(head.owner, head.id)
        tasks: list[Task] = []
        for each in earlier:
            with suppress(TaskNotFound):  # its time was up just now
                tasks.append(await self._log.get(head.owner, each.id))
        here = {each.id for each in earlier if each.session == session.ref.id}
        for told in (task, *(each for each in reversed(tasks) if each.head.id in here)):
            for sent in _prompts(told):
                if sent != message_id and await session.has(sent):
                    return None
        if (said := retell(tasks)) is not None and not task.retold:
            self._log.append(head.id, [Retold()])
        return said


def _prompts(task: Task) -> Iterator[str]:
    for update in (entry.update for entry in task.history):
        if isinstance(update, MessageAdded | Continued) and update.upstream_id is not None:
            yield update.upstream_id
