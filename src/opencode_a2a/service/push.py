"""Push notifications: what a caller can do about them. `push_sender` sends them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..domain.addresses import origin_of
from ..domain.ports import Refused, TaskLog
from ..domain.push import (
    DEFAULT_ID,
    Answer,
    DeadLetter,
    PushConfig,
    PushCursor,
    PushStore,
    PushTarget,
    ReceiverKey,
    Receivers,
    TaskGone,
    TooManyConfigs,
)
from ..domain.task import Task
from ..domain.values import Caller
from ..errors import InvalidParams, RateLimited, TaskNotFound
from .push_sender import PushSender

LETTERS_PER_CALL = 20
REDELIVERY_SECONDS = 60.0  # then no further letter is begun
CHALLENGE_WAIT_SECONDS = 30.0  # for a sending slot


@dataclass(frozen=True, slots=True)
class PushLimits:
    configs_per_task: int = 10
    challenges: bool = False  # at registration


class PushNotifications:
    """What a caller can do about push notifications of its own tasks."""

    def __init__(
        self,
        *,
        log: TaskLog,
        store: PushStore,
        sender: PushSender,
        receivers: Receivers,
        clock: Callable[[], int],
        limits: PushLimits,
    ) -> None:
        self._log = log
        self._store = store
        self._sender = sender
        self._receivers = receivers
        self._clock = clock
        self._limits = limits

    async def check(
        self, caller: Caller, target: PushTarget, *, task_id: str | None = None, field: str = "url"
    ) -> None:
        """Refuse a receiver to which nothing may be sent, that does not want it, or is too many."""
        try:
            await self._receivers.check(target.url, owner=caller.principal)
            if self._limits.challenges:
                await self._challenge(caller, target)
        except Refused as exc:
            raise InvalidParams.at(field, str(exc)) from None
        if task_id is not None:
            there = {each.id for each in await self._store.of_task(caller.principal, task_id)}
            if target.id not in there and len(there) >= self._limits.configs_per_task:
                raise self._too_many()

    async def _challenge(self, caller: Caller, target: PushTarget) -> None:
        receiver = ReceiverKey(caller.principal, origin_of(target.url))
        try:
            async with (
                asyncio.timeout(CHALLENGE_WAIT_SECONDS) as waiting,
                self._sender.slot(receiver),
            ):
                waiting.reschedule(None)  # the request has a limit of its own
                await self._receivers.challenge(target.url, owner=caller.principal)
        except TimeoutError:
            raise RateLimited(
                "Too many of your receivers have not answered yet, so this one was not asked. "
                "Try again later.",
                retry_after=30,
            ) from None

    def _too_many(self) -> InvalidParams:
        most = self._limits.configs_per_task
        return InvalidParams.at(
            "taskId", f"the task has {most} push configs already; delete one first"
        )

    async def register(self, caller: Caller, task_id: str, target: PushTarget) -> PushConfig:
        """Tell this receiver what happens to the task from now on."""
        task = await self._log.get(caller.principal, task_id)
        await self.check(caller, target)
        return await self.attach(task, target, from_start=False)

    async def attach(self, task: Task, target: PushTarget, *, from_start: bool) -> PushConfig:
        """Store a target that was checked; `from_start`: the client has just made the task."""
        config_id = target.id or (str(uuid.uuid4()) if target.line == "1.0" else DEFAULT_ID)
        config = PushConfig(task.head, config_id, target=target, created_at=self._clock())
        cursor = PushCursor.at_start(config) if from_start else PushCursor.after(config, task)
        most = self._limits.configs_per_task
        try:
            self._sender.put(await self._store.put(config, cursor, most=most))
        except TooManyConfigs:
            raise self._too_many() from None
        except TaskGone:
            raise TaskNotFound(task.head.id) from None
        return config

    async def get(self, caller: Caller, task_id: str, config_id: str | None) -> PushConfig:
        """One config of a task; without an id the one that a client of 0.3 has set, or the last."""
        configs = await self.configs(caller, task_id)
        for config in configs:
            if config.id == (config_id or DEFAULT_ID):
                return config
        if config_id is None and configs:
            return configs[-1]
        raise TaskNotFound.without_config(task_id, config_id)

    async def configs(self, caller: Caller, task_id: str) -> Sequence[PushConfig]:
        await self._log.get(caller.principal, task_id)
        return await self._store.of_task(caller.principal, task_id)

    async def delete(self, caller: Caller, task_id: str, config_id: str) -> None:
        """Nothing is sent any more once this has returned."""
        await self._log.get(caller.principal, task_id)
        await self._store.delete(caller.principal, task_id, config_id)
        self._sender.remove((task_id, config_id))

    async def dead_letters(
        self,
        caller: Caller,
        *,
        task_id: str | None = None,
        config_id: str | None = None,
        limit: int = 100,
    ) -> Sequence[DeadLetter]:
        return await self._store.dead_letters(
            caller.principal, task_id=task_id, config_id=config_id, limit=limit
        )

    async def redeliver(
        self, caller: Caller, *, task_id: str | None, config_id: str | None
    ) -> list[tuple[DeadLetter, Answer]]:
        """Try some dead letters again, the oldest first; what came of each.

        A receiver that does not take one is not asked to take those that follow.
        """
        letters = await self.dead_letters(
            caller, task_id=task_id, config_id=config_id, limit=LETTERS_PER_CALL
        )
        loop = asyncio.get_running_loop()
        until = loop.time() + REDELIVERY_SECONDS
        tried: list[tuple[DeadLetter, Answer]] = []
        failed: set[ReceiverKey] = set()
        for letter in letters:
            receiver = letter.config.receiver
            if receiver not in failed and loop.time() < until:
                answer = await self._sender.redeliver(letter)
                tried.append((letter, answer))
                failed |= {receiver} if answer.error is not None else set()
        return tried
