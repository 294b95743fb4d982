"""Push notifications: who may register a receiver, and the sender that tells receivers.

    commit ──► wake ──► due (after the cursor) ──► post ──► save the cursor ──► …
                                                    └──► try again later, or a dead letter

Each config is told one event at a time, in order. All configs of one origin share a few slots and a
breaker, so a receiver that hangs or fails delays nobody else.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from ..domain.addresses import origin_of
from ..domain.ports import Refused, TaskLog
from ..domain.push import (
    DEFAULT_ID,
    Answer,
    Breaker,
    DeadLetter,
    DuePush,
    Notification,
    PushConfig,
    PushCursor,
    PushStore,
    PushTarget,
    Receivers,
    RenderPush,
    TooManyConfigs,
    event_id,
    retry_seconds,
)
from ..domain.task import Task
from ..domain.updates import LogEntry
from ..domain.values import Caller, TaskState
from ..errors import InvalidParams, StoreUnavailable, TaskNotFound

logger = structlog.get_logger()

LOOK_SECONDS = 3.0  # between two looks at what other processes have written or left
SAVE_RETRY_SECONDS = 1.0
SLOTS_PER_ORIGIN = 8
SLOTS = 256  # of all origins
GOODBYE_SECONDS = 3.0  # for the cursors, when the service stops
LETTERS_PER_CALL = 20

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PushLimits:
    configs_per_task: int = 10
    retry_ms: int = 24 * 3_600_000  # after the event; then it is a dead letter
    challenges: bool = False  # at registration


@dataclass(slots=True)
class _Origin:
    """What receivers at one address share."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS_PER_ORIGIN))
    breaker: Breaker = field(default_factory=Breaker)
    waiting: dict[Key, _Delivery] = field(default_factory=dict)  # for the breaker


@dataclass(slots=True)
class _Delivery:
    """A config that this process sends to: its cursor and, while there is work, its worker."""

    cursor: PushCursor
    worker: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None  # starts the worker
    every_event: bool = True  # until its config was read
    woken: bool = False

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.worker is not None:
            self.worker.cancel()


@dataclass(slots=True)
class _Saves:
    """What the next transaction writes; `done` is for those who wait for it."""

    cursors: dict[Key, PushCursor] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    done: asyncio.Future[Collection[Key]] = field(  # with what this process does not hold any more
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class _Lost(Exception):
    """Another process sends to this config, or it was deleted."""


class PushSender:
    """Tells receivers what the log says after their cursors."""

    def __init__(
        self,
        store: PushStore,
        receivers: Receivers,
        *,
        render: RenderPush,
        clock: Callable[[], int],
        limits: PushLimits,
    ) -> None:
        self._store = store
        self._receivers = receivers
        self._render = render
        self._clock = clock
        self._limits = limits
        self._deliveries: dict[Key, _Delivery] = {}
        self._of_task: dict[str, dict[str, _Delivery]] = {}
        self._origins: dict[str, _Origin] = {}
        self._slots = asyncio.Semaphore(SLOTS)
        self._saves = _Saves()
        self._to_save = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send, from where the last process stopped. Release all configs at the end."""
        looking = asyncio.create_task(self._look_forever())
        saving = asyncio.create_task(self._save_forever())
        try:
            yield
        finally:
            looking.cancel()
            workers = [d.worker for d in self._deliveries.values() if d.worker is not None]
            for delivery in self._deliveries.values():
                delivery.stop()
            await asyncio.gather(looking, *workers, return_exceptions=True)
            with suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    if self._to_save.is_set():
                        await self._saves.done
                    await self._store.release()
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    def wake(self, task_id: str, entries: Sequence[LogEntry]) -> None:
        """Entries of a task were committed."""
        of_task = self._of_task.get(task_id)
        if of_task is None:
            return
        has_state = any(entry.state is not None for entry in entries)
        for delivery in of_task.values():
            if has_state or delivery.every_event:
                self._start(delivery)

    def add(self, cursor: PushCursor) -> None:
        """Send to this config from now on; it is held by this process."""
        if cursor.key in self._deliveries or cursor.over:
            return
        delivery = _Delivery(cursor)
        self._deliveries[cursor.key] = delivery
        self._of_task.setdefault(cursor.task_id, {})[cursor.config_id] = delivery
        self._start(delivery)

    def remove(self, key: Key) -> None:
        """Send nothing more, also nothing that is on its way."""
        delivery = self._deliveries.pop(key, None)
        if delivery is None:
            return
        of_task = self._of_task[key[0]]
        del of_task[key[1]]
        if not of_task:
            del self._of_task[key[0]]
        if delivery.worker is not asyncio.current_task():
            delivery.stop()

    async def redeliver(self, letter: DeadLetter) -> Answer:
        """Try a dead letter once more, out of its order."""
        due = await self._store.dead_entry(letter)
        if due is None:
            return Answer("the event is not kept any more")
        (entry,) = due.entries
        body = self._render(due, entry, entry.state or TaskState.WORKING)
        assert body is not None, "otherwise it would not have been sent"
        sent = Notification(
            event_id(letter.config.head.id, letter.seq), body, attempt=letter.attempts + 1
        )
        answer = await self._receivers.post(letter.config, sent)
        if answer.error is None:
            await self._store.redelivered(letter)
        else:
            again = replace(letter, attempts=letter.attempts + 1, error=answer.error)
            await self._store.save([], [again])
        return answer

    # -- one config

    def _start(self, delivery: _Delivery) -> None:
        delivery.woken = True
        if delivery.worker is not None or delivery.timer is not None:
            return
        pause = (delivery.cursor.next_at - self._clock()) / 1000
        if pause > 0:
            self._start_later(delivery, pause)
        else:
            self._begin(delivery)

    def _start_later(self, delivery: _Delivery, seconds: float) -> None:
        if delivery.timer is None:
            delivery.timer = self._loop.call_later(seconds, self._begin, delivery)

    def _begin(self, delivery: _Delivery) -> None:
        delivery.timer = None
        if delivery.worker is None and delivery.cursor.key in self._deliveries:
            delivery.worker = asyncio.create_task(self._work(delivery))

    async def _work(self, delivery: _Delivery) -> None:
        pause: float | None = None
        try:
            pause = await self._tell(delivery)
        except StoreUnavailable:  # already logged
            pause = SAVE_RETRY_SECONDS
        except _Lost:
            if self._deliveries.get(delivery.cursor.key) is delivery:
                self.remove(delivery.cursor.key)
            return
        except Exception:
            logger.exception("push.internal_error", task=delivery.cursor.task_id)
            pause = LOOK_SECONDS
        finally:
            delivery.worker = None
        if delivery.cursor.key not in self._deliveries:
            return
        if pause is not None:
            self._start_later(delivery, pause)
        elif delivery.cursor.over:
            self.remove(delivery.cursor.key)
        elif delivery.woken:
            self._start(delivery)

    async def _tell(self, delivery: _Delivery) -> float | None:
        """Send what is due. Returns how long to wait, if something could not be sent."""
        cursor = delivery.cursor
        while not cursor.over:
            delivery.woken = False
            saved = cursor.status_at
            due = await self._store.due(cursor)
            if due is None:
                self.remove(cursor.key)
                return None
            delivery.every_event = due.config.target.every_event
            for entry in due.entries:
                if (pause := await self._tell_one(delivery, due, entry)) is not None:
                    return pause
            if not due.entries:
                return None
            if cursor.status_at != saved:
                await self._save(cursor)  # also what was not told: nobody has to look again
        return None

    async def _tell_one(self, delivery: _Delivery, due: DuePush, entry: LogEntry) -> float | None:
        cursor = delivery.cursor
        try:
            answer = await self._attempt(delivery, due, entry)
        except Exception:  # counts as an attempt: otherwise it would be made again for ever
            logger.exception("push.internal_error", task=cursor.task_id, number=entry.seq)
            answer = Answer("internal error; the log of the service says more")
        if isinstance(answer, float):
            return answer
        if answer is not None and answer.error is not None:
            return await self._failed(cursor, due.config, entry, answer=answer)
        cursor.passed(entry)
        if answer is not None:
            await self._save(cursor)
        return None

    async def _attempt(
        self, delivery: _Delivery, due: DuePush, entry: LogEntry
    ) -> Answer | float | None:
        """The answer; None if there is nothing to tell; or how long nobody is to ask there."""
        cursor = delivery.cursor
        body = self._render(due, entry, entry.state or cursor.state)
        if body is None:
            return None
        origin = self._origin(due.config.target)
        async with origin.slots:
            if (pause := origin.breaker.admit(self._loop.time())) > 0:
                origin.waiting[cursor.key] = delivery
                return pause
            async with self._slots:
                notification = Notification(
                    event_id(cursor.task_id, entry.seq), body, attempt=cursor.attempts + 1
                )
                try:
                    answer = await self._receivers.post(due.config, notification)
                except BaseException:
                    origin.breaker.probing = False
                    raise
            self._note(origin, answer)
        return answer

    async def _failed(
        self, cursor: PushCursor, config: PushConfig, entry: LogEntry, *, answer: Answer
    ) -> float | None:
        cursor.attempts += 1
        now, attempts = self._clock(), cursor.attempts
        error = answer.error or ""
        about = {"task": cursor.task_id, "config": cursor.config_id, "number": entry.seq}
        if now - entry.at >= self._limits.retry_ms:
            logger.warning("push.dead", **about, attempts=attempts, reason=error)
            letter = DeadLetter(config, entry.seq, at=entry.at, attempts=attempts, error=error)
            cursor.passed(entry)
            await self._save(cursor, letter)
            return None
        pause = retry_seconds(attempts, jitter=random.random(), retry_after=answer.retry_after)
        log = logger.info if attempts == 1 else logger.debug
        log("push.failed", **about, attempts=attempts, reason=error, next_in=round(pause, 1))
        cursor.next_at = now + int(pause * 1000)
        await self._save(cursor)
        return pause

    def _origin(self, target: PushTarget) -> _Origin:
        name = origin_of(target.url)
        if (found := self._origins.get(name)) is None:
            found = self._origins[name] = _Origin()
        return found

    def _note(self, origin: _Origin, answer: Answer) -> None:
        """What an attempt says about the receiver, for all who want to send there."""
        if answer.unwell:
            origin.breaker.failed(self._loop.time(), jitter=random.random())
        elif origin.breaker.worked():
            waiting, origin.waiting = origin.waiting, {}
            for delivery in waiting.values():
                if delivery.timer is not None:
                    delivery.timer.cancel()
                    delivery.timer = None
                self._start(delivery)

    # -- cursors

    async def _save(self, cursor: PushCursor, letter: DeadLetter | None = None) -> None:
        """Wait until the cursor is stored, together with all that wait for the same."""
        saves = self._saves
        saves.cursors[cursor.key] = replace(cursor)
        if letter is not None:
            saves.dead.append(letter)
        self._to_save.set()
        if cursor.key in await asyncio.shield(saves.done):
            raise _Lost

    async def _save_forever(self) -> None:
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            saves, self._saves = self._saves, _Saves()
            saves.done.set_result(await self._stored(saves))

    async def _stored(self, saves: _Saves) -> Collection[Key]:
        while True:
            try:
                return await self._store.save(list(saves.cursors.values()), saves.dead)
            except StoreUnavailable:  # already logged
                await asyncio.sleep(SAVE_RETRY_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            try:
                await self._look()
            except StoreUnavailable:
                pass  # already logged
            except Exception:
                logger.exception("push.internal_error")
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        known = dict(self._deliveries)
        found = await self._store.claim(known.keys())
        for key in found.lost:
            if self._deliveries.get(key) is known[key]:  # not made again meanwhile
                self.remove(key)
        for cursor in found.taken:
            self.remove(cursor.key)  # whose cursor is older
            self.add(cursor)
        for cursor in found.changed:
            if (delivery := self._deliveries.get(cursor.key)) is not None:
                self._start(delivery)
            else:
                self.add(cursor)
        self._forget_idle_origins()

    def _forget_idle_origins(self) -> None:
        if not self._deliveries:
            self._origins.clear()


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

    async def check(self, target: PushTarget, *, field: str = "url") -> None:
        """Refuse a receiver to which nothing may be sent, or that does not want it."""
        try:
            await self._receivers.check(target.url)
            if self._limits.challenges:
                await self._receivers.challenge(target.url)
        except Refused as exc:
            raise InvalidParams.at(field, str(exc)) from None

    async def register(self, caller: Caller, task_id: str, target: PushTarget) -> PushConfig:
        """Tell this receiver what happens to the task from now on."""
        task = await self._log.get(caller.principal, task_id)
        await self.check(target)
        return await self.attach(task, target, from_start=False)

    async def attach(self, task: Task, target: PushTarget, *, from_start: bool) -> PushConfig:
        """Store a target that was checked; `from_start`: the client has just made the task."""
        config_id = target.id or (str(uuid.uuid4()) if target.line == "1.0" else DEFAULT_ID)
        config = PushConfig(task.head, config_id, target=target, created_at=self._clock())
        cursor = PushCursor(
            task_id=task.head.id,
            config_id=config_id,
            seq=0 if from_start else task.last_seq,
            state=TaskState.SUBMITTED if from_start else task.state,
            status_at=0 if from_start else task.status_at,
            over=task.state.terminal and not from_start,
        )
        try:
            stored = await self._store.put(config, cursor, most=self._limits.configs_per_task)
        except TooManyConfigs:
            most = self._limits.configs_per_task
            raise InvalidParams.at(
                "taskId", f"the task has {most} push configs already; delete one first"
            ) from None
        if stored is not None:  # otherwise its holder goes on, from where it is
            self._sender.add(stored)
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
        tried: list[tuple[DeadLetter, Answer]] = []
        failed: set[tuple[str, str]] = set()
        for letter in letters:
            key = (letter.config.head.id, letter.config.id)
            if key not in failed:
                answer = await self._sender.redeliver(letter)
                tried.append((letter, answer))
                failed |= {key} if answer.error is not None else set()
        return tried
