"""The sender of notifications: whom it sends what, with a real store and receivers that obey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from opencode_a2a.domain import push as push_rules
from opencode_a2a.domain.push import (
    Answer,
    DeadLetter,
    DuePush,
    Notification,
    PushConfig,
    PushCursor,
    PushTarget,
    ReceiverKey,
)
from opencode_a2a.domain.updates import LogEntry, Started, Update
from opencode_a2a.domain.values import Caller, TaskState
from opencode_a2a.errors import InvalidParams
from opencode_a2a.service import push_sender
from opencode_a2a.service.push import PushLimits, PushNotifications
from opencode_a2a.service.push_sender import SLOTS_PER_RECEIVER, PushSender
from opencode_a2a.service.sending_slots import SLOTS, SendingSlots
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.push import LEASE, SqlPush
from tests.store.support import DONE, HELLO, OWNER, Clock, head, soon

STARTED = Started("ses_1")
URL = "https://example.com/hook"
HERE = ReceiverKey(OWNER, "https://example.com")
RETRY_MS = 24 * 3_600_000


async def takes(_: PushConfig) -> Answer:
    return Answer()


@dataclass
class Hooks:
    """Implements `domain.push.Receivers`."""

    behaviour: Callable[[PushConfig], Awaitable[Answer]] = takes
    got: list[tuple[str, str, int]] = field(default_factory=list)  # config, event, attempt
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    challenged: int = 0  # at this moment
    most_challenged: int = 0

    async def check(self, url: str, *, owner: str) -> None:
        pass

    async def challenge(self, url: str, *, owner: str) -> None:
        self.challenged += 1
        self.most_challenged = max(self.most_challenged, self.challenged)
        for _ in range(10):  # the others have begun, if they may
            await asyncio.sleep(0)
        self.challenged -= 1

    async def post(self, config: PushConfig, notification: Notification) -> Answer:
        async with self.changed:
            self.got.append((config.id, notification.id, notification.attempt))
            self.changed.notify_all()
        return await self.behaviour(config)

    async def until(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.got) >= count)


class CountingPush(SqlPush):
    """Counts how often it is asked what is due."""

    reads = 0

    async def due(self, cursor: PushCursor) -> DuePush | None:
        self.reads += 1
        return await super().due(cursor)


def render(due: DuePush, entry: LogEntry, state: TaskState) -> bytes | None:
    return b"{}" if due.config.target.every_event or entry.state is not None else None


@dataclass
class Sending:
    log: SqlTaskLog
    store: CountingPush
    hooks: Hooks
    sender: PushSender
    clock: Clock
    running: AsyncExitStack

    async def stop(self) -> None:
        await self.running.aclose()

    async def task(
        self, name: str, *updates: Update, configs: Sequence[PushConfig] = (), owner: str = OWNER
    ) -> None:
        """A task of these updates, and its configs, which are owed all of them."""
        await self.log.create(head(name, owner=owner), [HELLO, *updates])
        for config in configs:
            await self.put(config)

    async def put(self, config: PushConfig) -> None:
        cursor = PushCursor.at_start(config)
        self.sender.put(await self.store.put(config, cursor, most=1_000))

    async def until_idle(self) -> None:
        """Until no worker is at work."""
        while workers := [d.worker for d in self.sender._deliveries.values() if d.worker]:
            await asyncio.wait(workers)

    def notifications(self, limits: PushLimits) -> PushNotifications:
        return PushNotifications(
            log=self.log,
            store=self.store,
            sender=self.sender,
            receivers=self.hooks,
            clock=self.clock,
            limits=limits,
        )


def to(task: str, name: str, url: str = URL, owner: str = OWNER) -> PushConfig:
    return PushConfig(head(task, owner=owner), name, target=PushTarget(url), created_at=1_000)


@pytest.fixture
async def sending() -> AsyncIterator[Sending]:
    async with opened() as found:
        yield found


@asynccontextmanager
async def opened() -> AsyncIterator[Sending]:
    clock, hooks = Clock(), Hooks()
    async with (
        Database.open("sqlite://") as database,
        SqlTaskLog.open(database, clock=clock) as log,
    ):
        store = CountingPush(database, clock)
        sender = PushSender(store, hooks, render=render, clock=clock, retry_ms=RETRY_MS)
        async with AsyncExitStack() as running:
            await running.enter_async_context(sender.running())
            yield Sending(log, store, hooks, sender, clock, running)


async def test_who_has_lost_a_config_sends_nothing_more(sending: Sending) -> None:
    async def is_lost(_: PushConfig) -> Answer:
        sending.clock.now += LEASE + 1
        await SqlPush(sending.store._database, sending.clock).claim([])
        return Answer()

    sending.hooks.behaviour = is_lost
    async with soon():
        await sending.task("t", STARTED, DONE, configs=[to("t", "c")])
        worker = sending.sender._deliveries["t", "c"].worker
        assert worker is not None
        await worker
        assert sending.sender._deliveries == {}
        assert sending.hooks.got == [("c", "t:2", 1)]


async def test_an_attempt_that_ends_in_an_exception_counts_and_is_made_later(
    sending: Sending,
) -> None:
    async def breaks(_: PushConfig) -> Answer:
        raise OverflowError("year")

    sending.hooks.behaviour = breaks
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", "c")])
        delivery = sending.sender._deliveries["t", "c"]
        assert delivery.worker is not None
        await delivery.worker
        assert delivery.cursor.attempts == 1
        assert delivery.cursor.next_at > sending.clock.now


async def hangs(_: PushConfig) -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


async def is_away(_: PushConfig) -> Answer:
    return Answer("no answer", unwell=True)


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again, and no receiver probed, while a test lasts."""
    monkeypatch.setattr(push_rules, "FIRST_RETRY_SECONDS", 10_000.0)


async def test_receivers_of_one_owner_that_hang_leave_slots_for_others(sending: Sending) -> None:
    async def hangs_for_one(config: PushConfig) -> Answer:
        return await (takes if config.head.owner == "bob" else hangs)(config)

    sending.hooks.behaviour = hangs_for_one
    many = [to("t", str(n), f"https://{n}.example.com/") for n in range(SLOTS + 10)]
    async with soon():
        await sending.task("t", STARTED, configs=many)
        await sending.hooks.until(SLOTS // 2)
        bobs = to("b", "his", owner="bob")
        await sending.task("b", STARTED, DONE, configs=[bobs], owner="bob")
        await sending.hooks.until(SLOTS // 2 + 2)
    assert [got[1] for got in sending.hooks.got if got[0] == "his"] == ["b:2", "b:3"]
    assert len(sending.hooks.got) == SLOTS // 2 + 2


async def test_a_slot_is_taken_over_by_who_waits_and_not_by_who_has_left() -> None:
    slots = SendingSlots(2)
    order: list[str] = []

    async def use(owner: str, over: asyncio.Event) -> None:
        async with slots.slot(owner):
            order.append(owner)
            await over.wait()

    async with soon():
        first, rest = asyncio.Event(), asyncio.Event()
        users = [asyncio.create_task(use("a", first)), asyncio.create_task(use("b", rest))]
        leaver = asyncio.create_task(use("c", rest))
        users.append(asyncio.create_task(use("d", rest)))
        await asyncio.sleep(0)
        assert order == ["a", "b"]
        leaver.cancel()
        first.set()
        await users[0]
        await asyncio.wait([leaver])
        rest.set()
        await asyncio.gather(*users)
        assert order == ["a", "b", "d"]
        assert slots._waiting == {}
        assert slots._shares._free == 2


async def test_nothing_is_read_for_a_config_that_waits_for_a_slot(sending: Sending) -> None:
    sending.hooks.behaviour = hangs
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", str(n)) for n in range(40)])
        await sending.hooks.until(SLOTS_PER_RECEIVER)
        assert sending.store.reads == SLOTS_PER_RECEIVER


async def test_challenges_of_one_caller_to_one_receiver_wait_for_each_other(
    sending: Sending,
) -> None:
    notifications = sending.notifications(PushLimits(challenges=True))
    async with soon():
        alice = Caller(OWNER)
        await asyncio.gather(
            *(notifications.check(alice, PushTarget(f"{URL}/{n}")) for n in range(40))
        )
    assert sending.hooks.most_challenged == SLOTS_PER_RECEIVER


async def test_a_message_with_one_config_too_many_is_refused_before_it_is_sent(
    sending: Sending,
) -> None:
    notifications = sending.notifications(PushLimits(configs_per_task=1))
    async with soon():
        await sending.task("t", configs=[to("t", "one")])
        alice = Caller(OWNER)
        await notifications.check(alice, PushTarget(URL, id="one"), task_id="t")
        with pytest.raises(InvalidParams, match="1 push configs already"):
            await notifications.check(alice, PushTarget(URL, id="two"), task_id="t")


@pytest.mark.usefixtures("long_pauses")
async def test_nobody_looks_at_configs_whose_receiver_is_away_until_it_is_probed(
    sending: Sending,
) -> None:
    count = 50
    sending.hooks.behaviour = is_away
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", str(n)) for n in range(count)])
        await sending.until_idle()
        receiver = sending.sender._receivers[HERE]
        tried = len(sending.hooks.got)
        assert tried < 5 + SLOTS_PER_RECEIVER
        assert len(receiver.waiting) == count - tried
        assert sending.store.reads == count
        now = asyncio.get_running_loop().time()
        for delivery in receiver.waiting.values():
            assert delivery.timer is not None
            assert delivery.timer.when() > now + RETRY_MS / 1000 - 60, "when its time is up"

        await probe(sending)
        await sending.hooks.until(tried + 1)
        await sending.until_idle()
        assert len(sending.hooks.got) == tried + 1, "one of them has tried"
        assert sending.store.reads == count + 1
        assert receiver.probe is not None

        sending.hooks.behaviour = takes
        await probe(sending)
        await sending.hooks.until(tried + 1 + len(receiver.waiting))
        await sending.until_idle()
        assert receiver.waiting == {}


async def probe(sending: Sending) -> None:
    """The pause of the breaker is over."""
    receiver = sending.sender._receivers[HERE]
    assert receiver.probe is not None
    receiver.probe.cancel()
    receiver.probe, receiver.breaker.closed_until = None, 0.0
    sending.sender._probe_later(receiver)


@pytest.mark.usefixtures("long_pauses")
async def test_an_event_whose_receiver_is_away_for_too_long_becomes_a_dead_letter(
    sending: Sending,
) -> None:
    sending.hooks.behaviour = is_away
    async with soon():
        await sending.task("t", STARTED, DONE, configs=[to("t", str(n)) for n in range(20)])
        await sending.until_idle()
        (waiting, *_) = sending.sender._receivers[HERE].waiting.values()
        sending.clock.now += RETRY_MS
        sending.sender._begin(waiting)  # its timer
        await sending.until_idle()
        found = await sending.store.dead_letters(
            OWNER, task_id="t", config_id=waiting.cursor.config_id, limit=9
        )
        assert [(each.seq, each.attempts) for each in found] == [(2, 0), (3, 0)]
        assert "not answered" in found[0].error
        assert waiting.cursor.key not in sending.sender._deliveries


@pytest.mark.usefixtures("long_pauses")
async def test_a_receiver_that_is_away_for_one_caller_is_tried_for_another(
    sending: Sending,
) -> None:
    async def away_for_one(config: PushConfig) -> Answer:
        return await (takes if config.head.owner == "bob" else is_away)(config)

    sending.hooks.behaviour = away_for_one
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", str(n)) for n in range(20)])
        await sending.until_idle()
        tried = len(sending.hooks.got)
        bobs = to("b", "his", owner="bob")
        await sending.task("b", STARTED, configs=[bobs], owner="bob")
        await sending.hooks.until(tried + 1)
        assert sending.hooks.got[-1] == ("his", "b:2", 1)


async def test_a_replaced_receiver_gets_nothing_more_and_the_new_one_what_is_owed(
    sending: Sending,
) -> None:
    old, new = to("t", "c"), to("t", "c", "https://example.org/")
    posted: list[str] = []

    async def old_hangs(config: PushConfig) -> Answer:
        posted.append(config.target.url)
        return await (hangs if config.target == old.target else takes)(config)

    sending.hooks.behaviour = old_hangs
    async with soon():
        await sending.task("t", STARTED, DONE, configs=[old])
        await sending.hooks.until(1)
        await sending.put(new)
        await sending.hooks.until(3)
    assert posted == [old.target.url, new.target.url, new.target.url]


async def test_a_config_that_is_set_again_as_it_is_goes_on(sending: Sending) -> None:
    sending.hooks.behaviour = hangs
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", "c")])
        await sending.hooks.until(1)
        worker = sending.sender._deliveries["t", "c"].worker
        await sending.put(to("t", "c"))
        assert sending.sender._deliveries["t", "c"].worker is worker
    assert len(sending.hooks.got) == 1


async def test_receivers_that_were_told_everything_are_forgotten(sending: Sending) -> None:
    many = [to("t", str(n), f"https://{n}.example.com/") for n in range(20)]
    async with soon():
        await sending.task("t", STARTED, DONE, configs=many)
        await sending.until_idle()
    assert len(sending.hooks.got) == 40
    assert sending.sender._receivers == {}


async def test_a_sender_that_has_stopped_starts_nothing() -> None:
    async with soon(), opened() as sending:
        await sending.task("t", configs=[to("t", "c")])
        await sending.until_idle()
        sender = sending.sender
    sender.wake("t", [LogEntry(2, 1_000, STARTED)])
    (delivery,) = sender._deliveries.values()
    assert delivery.worker is None


async def test_what_is_on_its_way_when_the_service_stops_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_sender, "LAST_REQUESTS_SECONDS", 60.0)
    async with soon(), opened() as sending:
        answering = asyncio.Event()

        async def slow(_: PushConfig) -> Answer:
            answering.set()
            await asyncio.sleep(0.01)
            return Answer()

        sending.hooks.behaviour = slow
        await sending.task("t", STARTED, DONE, configs=[to("t", "c")])
        await answering.wait()
        await sending.stop()
        (left,) = (await SqlPush(sending.store._database, sending.clock).claim([])).taken
        assert left.seq == 2
        assert sending.hooks.got == [("c", "t:2", 1)], "nothing new is begun"


async def test_cursors_that_could_not_be_stored_are_stored_later(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_sender, "LOOK_SECONDS", 0.01)
    real, failures = sending.store.save, iter([RuntimeError("a mistake of ours")])

    async def save(*args: Any) -> Any:
        for failure in failures:
            raise failure
        return await real(*args)

    monkeypatch.setattr(sending.store, "save", save)
    async with soon():
        await sending.task("t", STARTED, DONE, configs=[to("t", "c")])
        await sending.hooks.until(2)
        await sending.until_idle()
        assert sending.sender._deliveries == {}
    assert sending.hooks.got == [("c", "t:2", 1), ("c", "t:3", 1)]


async def test_a_browser_that_wants_nothing_more_is_forgotten(sending: Sending) -> None:
    async def has_left(_: PushConfig) -> Answer:
        return Answer("the browser wants nothing more", gone=True)

    sending.hooks.behaviour = has_left
    async with soon():
        await sending.task("t", STARTED, configs=[to("t", "c")])
        await sending.hooks.until(1)
        await sending.until_idle()
        assert await sending.store.of_task(OWNER, "t") == []
        await sending.log.write("t", [DONE])
        await sending.until_idle()
    assert len(sending.hooks.got) == 1
    letters = sending.store.dead_letters(OWNER, task_id=None, config_id=None, limit=9)
    assert await letters == []


class SlowToSave(CountingPush):
    """Saves as often as it may, and notes the order of what is written."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.order: list[str] = []
        self.begun, self.may_save = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def save(
        self, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter]
    ) -> Collection[tuple[str, str]]:
        self.begun.release()
        await self.may_save.acquire()
        self.order.append("saved")
        return await super().save(cursors, dead)

    async def release(self) -> None:
        self.order.append("released")
        await super().release()


async def test_configs_are_released_after_all_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is released is not ours to save: the receiver would be told again."""
    monkeypatch.setattr(push_sender, "LAST_REQUESTS_SECONDS", 0)
    clock = Clock()
    async with (
        soon(),
        Database.open("sqlite://") as database,
        SqlTaskLog.open(database, clock=clock) as log,
    ):
        store = SlowToSave(database, clock)
        sender = PushSender(store, Hooks(), render=render, clock=clock, retry_ms=RETRY_MS)
        running = AsyncExitStack()
        await running.enter_async_context(sender.running())
        for name in ("t", "u"):
            await log.create(head(name), [HELLO, STARTED])
        sender.put(await store.put(to("t", "c"), PushCursor.at_start(to("t", "c")), most=1))
        await store.begun.acquire()
        sender.put(await store.put(to("u", "c"), PushCursor.at_start(to("u", "c")), most=1))
        await sender._to_save.wait()  # until the first one is done
        stopping = asyncio.create_task(running.aclose())
        for permits in range(2):
            for _ in range(20):  # time enough to release them
                await store.of_task(OWNER, "t")
            assert store.order == ["saved"] * permits
            store.may_save.release()
        await stopping
        assert store.order == ["saved", "saved", "released"]
