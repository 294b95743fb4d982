"""The sender of notifications: whom it sends what, with a real store and receivers that obey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from opencode_a2a.domain.push import (
    Answer,
    DuePush,
    Notification,
    PushConfig,
    PushCursor,
    PushTarget,
)
from opencode_a2a.domain.updates import LogEntry, Started, Update
from opencode_a2a.domain.values import TaskState
from opencode_a2a.service.push import PushLimits, PushSender
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.push import SqlPush
from tests.store.support import DONE, HELLO, OWNER, Clock, head, soon

STARTED = Started("ses_1")
URL = "https://example.com/hook"


async def takes(_: PushConfig) -> Answer:
    return Answer()


@dataclass
class Hooks:
    """Implements `domain.push.Receivers`."""

    behaviour: Callable[[PushConfig], Awaitable[Answer]] = takes
    got: list[tuple[str, str, int]] = field(default_factory=list)  # config, event, attempt
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def check(self, url: str) -> None:
        pass

    async def challenge(self, url: str) -> None:
        pass

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

    async def task(self, name: str, *updates: Update, configs: Sequence[PushConfig] = ()) -> None:
        """A task of these updates, and the cursors of its configs, all of which are owed."""
        await self.log.create(head(name), [HELLO, *updates])
        for config in configs:
            cursor = PushCursor(name, config.id, seq=0, state=TaskState.SUBMITTED)
            assert await self.store.put(config, cursor, most=1_000) is not None
            self.sender.add(cursor)


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
        sender = PushSender(store, hooks, render=render, clock=clock, limits=PushLimits())
        async with sender.running():
            yield Sending(log, store, hooks, sender, clock)


async def test_who_has_lost_a_config_sends_nothing_more(sending: Sending) -> None:
    async def is_lost(_: PushConfig) -> Answer:
        sending.clock.outlast_leases()
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
