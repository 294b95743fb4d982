"""The sender of push notifications.

    commit ──► wake ──► slot ──► due (after the cursor) ──► post ──► save the cursor ──► …
                                                             └──► try again later, or a dead letter

Each config is told one event at a time, in order. All configs of one owner and origin share a few
slots and a breaker, and each owner has a fair share of all slots, so a receiver that hangs or fails
delays nobody else. A config whose receiver is away costs nothing until the receiver is back, or the
time of its next event is up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from ..domain.push import (
    MAX_RETRY_AFTER_SECONDS,
    Answer,
    Breaker,
    DeadLetter,
    DuePush,
    Notification,
    PushConfig,
    PushCursor,
    PushStore,
    ReceiverKey,
    Receivers,
    RenderPush,
    StoredConfig,
    event_id,
    retry_seconds,
)
from ..domain.updates import LogEntry
from ..domain.values import TaskState
from ..errors import StoreError
from ..observe.metrics import (
    PUSH_ATTEMPTS,
    PUSH_CONFIGS,
    PUSH_DEAD,
    PUSH_SECONDS,
    Gauge,
    Values,
)
from .sending_slots import SendingSlots

logger = structlog.get_logger()

LOOK_SECONDS = 3.0  # between two looks at what other processes have written or left
SAVE_RETRY_SECONDS = 1.0
SLOTS_PER_RECEIVER = 8
FORGET_SECONDS = 900.0  # after the last attempt at a receiver that has failed
LAST_REQUESTS_SECONDS = 1.0  # for those on their way, when the service stops
STOP_TIMEOUT_SECONDS = 3.0  # for the cursors, then

Key = tuple[str, str]


@dataclass(slots=True)
class _Receiver:
    """What the configs of one owner and origin share."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS_PER_RECEIVER))
    breaker: Breaker = field(default_factory=Breaker)
    waiting: dict[Key, _Delivery] = field(default_factory=dict)  # for the breaker, the oldest first
    probe: asyncio.TimerHandle | None = None  # lets the first of them try
    users: int = 0  # that have or want a slot
    used_at: float = 0.0

    def is_idle(self, now: float) -> bool:
        """Whether nothing is lost when it is forgotten."""
        if self.users or self.waiting:
            return False
        return not self.breaker.failures or now - self.used_at > FORGET_SECONDS


@dataclass(slots=True)
class _Delivery:
    """A config that this process sends to: its cursor and, while there is work, its worker."""

    cursor: PushCursor
    worker: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None  # starts the worker
    woken: bool = False

    def stop(self) -> None:
        self.stop_timer()
        if self.worker is not None:
            self.worker.cancel()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


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
        retry_ms: int,
    ) -> None:
        self._store = store
        self._outbound = receivers
        self._render = render
        self._clock = clock
        self._retry_ms = retry_ms  # after the event; then it is a dead letter
        self._deliveries: dict[Key, _Delivery] = {}
        self._of_task: dict[str, dict[str, _Delivery]] = {}
        self._receivers: dict[ReceiverKey, _Receiver] = {}
        self._slots = SendingSlots()
        self._saves = _Saves()
        self._being_saved: _Saves | None = None
        self._to_save = asyncio.Event()
        self._look_soon = asyncio.Event()
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send, from where the last process stopped. Release all configs at the end."""
        looking = asyncio.create_task(self._look_forever())
        saving = asyncio.create_task(self._save_forever())
        listen_no_more = self._store.on_news(self._on_news)
        try:
            yield
        finally:
            self._stopped = True
            listen_no_more()
            looking.cancel()
            await self._stop_workers(looking)
            with suppress(TimeoutError, StoreError):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    # When one is done, the next may be under way already.
                    while self._being_saved is not None or self._to_save.is_set():
                        await asyncio.wait({(self._being_saved or self._saves).done})
                    await self._store.release()  # last: what is saved must be held
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def _stop_workers(self, looking: asyncio.Task[None]) -> None:
        for receiver in self._receivers.values():
            if receiver.probe is not None:
                receiver.probe.cancel()
        for delivery in self._deliveries.values():
            delivery.stop_timer()
        workers = [d.worker for d in self._deliveries.values() if d.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=LAST_REQUESTS_SECONDS)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(looking, *workers, return_exceptions=True)

    @property
    def gauges(self) -> Mapping[Gauge, Callable[[], Values]]:
        return {PUSH_CONFIGS: self._count_configs}

    def _count_configs(self) -> Values:
        away = sum(len(receiver.waiting) for receiver in self._receivers.values())
        failed = sum(delivery.cursor.attempts > 0 for delivery in self._deliveries.values())
        return {("open",): len(self._deliveries), ("failing",): failed, ("receiver_away",): away}

    def wake(self, task_id: str, entries: Sequence[LogEntry]) -> None:
        """Entries of a task were committed."""
        of_task = self._of_task.get(task_id)
        if of_task is None:
            return
        has_state = any(entry.state is not None for entry in entries)
        for delivery in of_task.values():
            if has_state or delivery.cursor.every_event:
                self._start(delivery)

    def _on_news(self, task_id: str | None, seq: int, *, has_state: bool) -> None:
        """Another process may have written something."""
        if task_id is None:
            self._look_soon.set()
            return
        for delivery in self._of_task.get(task_id, {}).values():
            if delivery.cursor.seq < seq and (has_state or delivery.cursor.every_event):
                self._start(delivery)

    def put(self, stored: StoredConfig) -> None:
        """Send to this config from now on, if it is held by this process."""
        if stored.cursor is None:
            return
        if stored.replaced:  # what is on its way goes to the receiver that it had
            self.remove(stored.cursor.key)
        self._add(stored.cursor)
        if stored.cursor.every_event:
            self._look_soon.set()  # and follow its task

    def _add(self, cursor: PushCursor) -> None:
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
        if (receiver := self._receivers.get(delivery.cursor.receiver)) is not None:
            receiver.waiting.pop(key, None)
        if delivery.worker is not asyncio.current_task():
            delivery.stop()

    @asynccontextmanager
    async def slot(self, key: ReceiverKey) -> AsyncIterator[_Receiver]:
        """Wait until a request to this receiver may be sent."""
        receiver = self._receivers.setdefault(key, _Receiver())
        receiver.users += 1
        try:
            async with receiver.slots, self._slots.slot(key.owner):
                yield receiver
        finally:
            receiver.users -= 1
            receiver.used_at = self._loop.time()
            self._forget_if_idle(key, receiver)

    def _forget_if_idle(self, key: ReceiverKey, receiver: _Receiver) -> None:
        if receiver.is_idle(self._loop.time()) and self._receivers.get(key) is receiver:
            del self._receivers[key]

    async def redeliver(self, letter: DeadLetter) -> Answer:
        """Try a dead letter once more, out of its order and whatever the breaker says."""
        async with self.slot(letter.config.receiver) as receiver:
            due = await self._store.dead_entry(letter)
            if due is None:
                await self._store.redelivered(letter)
                return Answer("the event is not kept any more")
            (entry,) = due.entries
            body = self._render(due, entry, entry.state or TaskState.WORKING)
            assert body is not None, "otherwise it would not have been sent"
            answer = await self._post(
                receiver, letter.config, letter.seq, body=body, attempt=letter.attempts + 1
            )
        if answer.error is None:
            await self._store.redelivered(letter)
        else:
            await self._store.not_redelivered(letter, answer.error)
        return answer

    # -- one config

    def _start(self, delivery: _Delivery) -> None:
        delivery.woken = True
        if delivery.worker is not None or delivery.timer is not None or self._stopped:
            return
        pause = (delivery.cursor.next_at - self._clock()) / 1000
        if pause > 0:
            self._start_later(delivery, min(pause, MAX_RETRY_AFTER_SECONDS))
        else:
            self._begin(delivery)

    def _start_later(self, delivery: _Delivery, seconds: float) -> None:
        if delivery.timer is None and not self._stopped:
            delivery.timer = self._loop.call_later(seconds, self._begin, delivery)

    def _begin(self, delivery: _Delivery) -> None:
        delivery.stop_timer()
        if delivery.worker is None and delivery.cursor.key in self._deliveries:
            delivery.worker = asyncio.create_task(self._work(delivery))

    async def _work(self, delivery: _Delivery) -> None:
        pause: float | None = None
        cursor = delivery.cursor
        try:
            async with self.slot(cursor.receiver) as receiver:
                receiver.waiting.pop(cursor.key, None)
                pause = await self._tell(delivery, receiver)
        except StoreError:  # already logged
            pause = SAVE_RETRY_SECONDS
        except _Lost:
            if self._deliveries.get(cursor.key) is delivery:
                self.remove(cursor.key)
            return
        except Exception:
            logger.exception("push.internal_error", task=cursor.task_id)
            pause = LOOK_SECONDS
        finally:
            delivery.worker = None
        if self._deliveries.get(cursor.key) is not delivery:
            return
        if pause is not None:
            self._start_later(delivery, pause)
        elif cursor.over:
            self.remove(cursor.key)
        elif delivery.woken:
            self._start(delivery)

    async def _tell(self, delivery: _Delivery, receiver: _Receiver) -> float | None:
        """Send some of what is due. Returns how long to wait, if something could not be sent."""
        cursor = delivery.cursor
        delivery.woken = False
        saved = cursor.status_at, cursor.state
        due = await self._store.due(cursor)
        if due is None:
            self.remove(cursor.key)
            return None
        for entry in due.entries:
            if self._stopped:
                return None
            if (
                pause := await self._tell_one(delivery, receiver, due=due, entry=entry)
            ) is not None:
                return pause
        if saved != (cursor.status_at, cursor.state):
            await self._save(cursor)  # also what was not told: nobody has to look again
        delivery.woken = delivery.woken or due.more
        return None

    async def _tell_one(
        self, delivery: _Delivery, receiver: _Receiver, due: DuePush, entry: LogEntry
    ) -> float | None:
        cursor = delivery.cursor
        body = self._render(due, entry, entry.state or cursor.state)
        if body is None:
            cursor.passed(entry)
            return None
        if not receiver.breaker.admit(self._loop.time()):
            return await self._wait_for_receiver(delivery, receiver, due=due, entry=entry)
        answer = await self._attempt(receiver, due.config, cursor, entry=entry, body=body)
        if answer.gone:
            await self._store.delete(due.config.head.owner, cursor.task_id, cursor.config_id)
            raise _Lost
        if answer.error is not None:
            return await self._failed(cursor, due.config, entry, answer=answer)
        PUSH_SECONDS.observe(max(self._clock() - entry.at, 0) / 1000)
        cursor.passed(entry)
        await self._save(cursor)
        return None

    async def _attempt(
        self,
        receiver: _Receiver,
        config: PushConfig,
        cursor: PushCursor,
        *,
        entry: LogEntry,
        body: bytes,
    ) -> Answer:
        try:
            attempt = cursor.attempts + 1
            answer = await self._post(receiver, config, entry.seq, body=body, attempt=attempt)
        except Exception:  # counts as an attempt: otherwise it would be made again for ever
            logger.exception("push.internal_error", task=cursor.task_id, number=entry.seq)
            answer = Answer("internal error; the log of the service says more")
        cursor.attempts += answer.error is not None
        return answer

    async def _failed(
        self, cursor: PushCursor, config: PushConfig, entry: LogEntry, *, answer: Answer
    ) -> float | None:
        now, attempts = self._clock(), cursor.attempts
        error = answer.error or ""
        about = {"task": cursor.task_id, "config": cursor.config_id, "number": entry.seq}
        if now - entry.at >= self._retry_ms:
            PUSH_DEAD.inc()
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

    # -- receivers

    async def _post(
        self, receiver: _Receiver, config: PushConfig, seq: int, *, body: bytes, attempt: int
    ) -> Answer:
        """Send an event, and note what that says about the receiver, for all who want to send."""
        notification = Notification(event_id(config.head.id, seq), body, attempt=attempt)
        try:
            answer = await self._outbound.post(config, notification)
        except BaseException:
            receiver.breaker.probing = False
            self._probe_later(receiver)
            raise
        PUSH_ATTEMPTS.labels("failed" if answer.error is not None else "taken").inc()
        if answer.unwell:
            receiver.breaker.failed(self._loop.time(), jitter=random.random())
            self._probe_later(receiver)
        else:
            receiver.breaker.worked()
            self._let_all_try(receiver)
        return answer

    async def _wait_for_receiver(
        self, delivery: _Delivery, receiver: _Receiver, due: DuePush, entry: LogEntry
    ) -> float | None:
        """Wait until the receiver is probed or back, or the time of the event is up."""
        left = (entry.at + self._retry_ms - self._clock()) / 1000
        if left <= 0:
            away = Answer("the receiver has not answered anything for too long")
            return await self._failed(delivery.cursor, due.config, entry, answer=away)
        receiver.waiting[delivery.cursor.key] = delivery
        self._probe_later(receiver)
        return left

    def _probe_later(self, receiver: _Receiver) -> None:
        """Let one config try when the breaker allows it. Until then nobody looks."""
        if receiver.probe is None and receiver.waiting and not receiver.breaker.probing:
            pause = max(receiver.breaker.closed_until - self._loop.time(), 0.0)
            receiver.probe = self._loop.call_later(pause, self._probe, receiver)

    def _probe(self, receiver: _Receiver) -> None:
        receiver.probe = None
        if receiver.waiting:
            self._try_now(receiver.waiting.pop(next(iter(receiver.waiting))))

    def _let_all_try(self, receiver: _Receiver) -> None:
        waiting, receiver.waiting = receiver.waiting, {}
        for delivery in waiting.values():
            self._try_now(delivery)

    def _try_now(self, delivery: _Delivery) -> None:
        delivery.stop_timer()
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
            self._being_saved = saves
            try:
                saves.done.set_result(await self._stored(saves))
            except Exception as exc:  # theirs alone: the next ones may be stored
                saves.done.set_exception(exc)
            self._being_saved = None

    async def _stored(self, saves: _Saves) -> Collection[Key]:
        while True:
            try:
                return await self._store.save(list(saves.cursors.values()), saves.dead)
            except StoreError:  # already logged
                await asyncio.sleep(SAVE_RETRY_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            more = False
            try:
                more = await self._look()
            except StoreError:
                pass  # already logged
            except Exception:
                logger.exception("push.internal_error")
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._look_soon.wait()
            self._look_soon.clear()

    async def _look(self) -> bool:
        """Whether there is more to be found at once."""
        known = dict(self._deliveries)
        found = await self._store.claim(known.keys())

        def is_as_known(key: Key) -> bool:  # otherwise it was made or deleted meanwhile
            return self._deliveries.get(key) is known.get(key)

        for key in filter(is_as_known, found.lost):
            self.remove(key)
        for cursor in found.taken:
            if is_as_known(cursor.key):
                self.remove(cursor.key)  # whose cursor is older
                self._add(cursor)
        for cursor in found.changed:
            if (delivery := self._deliveries.get(cursor.key)) is not None:
                self._start(delivery)
            elif is_as_known(cursor.key):
                self._add(cursor)
        for key, receiver in list(self._receivers.items()):
            self._probe_later(receiver)
            self._forget_if_idle(key, receiver)
        whole = {
            each.cursor.task_id for each in self._deliveries.values() if each.cursor.every_event
        }
        await self._store.follow(sorted(whole))
        return found.more
