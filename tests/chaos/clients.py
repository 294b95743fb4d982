"""Clients that want their answers, whatever happens to their connections; often they cut these."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import aiohttp
import orjson

from tests.chaos.ledger import TERMINAL, Ask, Json, Ledger, Record, View, state_of, task_in
from tests.chaos.upstreams import Upstream
from tests.chaos.wire import (
    BROKEN,
    CANCEL,
    GET,
    SEND,
    STREAM,
    SUBSCRIBE,
    Refused,
    Stream,
    Wire,
)

PATIENCE = 120.0  # seconds for one thing to succeed at last
RESTING = TERMINAL | {"input-required"}
GOODBYE_SECONDS = 8.0
LEFT_WAITING = 4  # tasks per client that nobody answers

T = TypeVar("T")


class Cut(Exception):
    """Our own doing."""


class Client:
    def __init__(
        self,
        number: tuple[int, int],
        url: str,
        http: aiohttp.ClientSession,
        upstream: Upstream,
        ledger: Ledger,
        dice: random.Random,
    ) -> None:
        self._number, self._url, self._http = number, url, http
        self._upstream, self._ledger, self._dice = upstream, ledger, dice
        self._asked = 0
        self._left_waiting = 0
        self._broken_since: float | None = None

    async def live(self, enough: asyncio.Event) -> None:
        actions: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (50, self.stream_something),
            (12, self.send_and_wait),
            (12, self.send_and_poll),
            (8, self.converse),
            (8, self.cancel_something),
            (8, self.steer_something),
            (2, self.need_a_person),
        ]
        weights, acts = zip(*actions, strict=True)
        while not enough.is_set():
            try:
                await self._dice.choices(acts, weights)[0]()
            except Refused as exc:
                self._ledger.blame(f"refused: {exc}")

    # -- what they do

    async def stream_something(self, context: str | None = None) -> None:
        await self.follow(self._ask(context), self._wire())

    async def send_and_wait(self, context: str | None = None) -> None:
        ask, wire = self._ask(context), self._wire()
        task = await self._send(ask, wire, blocking=True)
        while state_of(task) not in RESTING:  # the service stopped meanwhile
            self._ledger.counts["unsettled answers"] += 1
            await asyncio.sleep(0.05)
            task = await self._send(ask, wire, blocking=True)

    async def send_and_poll(self, context: str | None = None) -> None:
        ask, wire = self._ask(context), self._wire()
        task = await self._send(ask, wire, blocking=False)
        until = time.monotonic() + PATIENCE
        while state_of(task) not in RESTING:
            if time.monotonic() > until:
                self._ledger.blame(f"{task['id']}: still {state_of(task)} after {PATIENCE:g} s")
                return
            await asyncio.sleep(self._dice.uniform(0.01, 0.3))
            if self._dice.random() < 0.1:
                await self._send(ask, wire, blocking=False)
            task = await self._get(task["id"], wire)

    async def converse(self) -> None:
        """Several messages in one context, some of them at the same time."""
        context = f"context-{self._tag()}"
        some = (self.stream_something, self.send_and_wait, self.send_and_poll)
        for _ in range(self._dice.randint(1, 2)):
            talks = [self._dice.choice(some)(context) for _ in range(self._dice.randint(1, 3))]
            await asyncio.gather(*talks)

    async def cancel_something(self) -> None:
        ask, wire = self._ask(None, length=2.0), self._wire()
        task = await self._send(ask, wire, blocking=False)
        following = asyncio.create_task(self.follow(ask, wire))
        await asyncio.sleep(self._dice.uniform(0, 0.5))
        await self._cancel(task["id"], wire)
        await following

    async def steer_something(self) -> None:
        ask, wire = self._ask(None, length=2.0), self._wire()
        task = await self._send(ask, wire, blocking=False)
        following = asyncio.create_task(self.follow(ask, wire))
        for _ in range(self._dice.randint(1, 2)):
            await asyncio.sleep(self._dice.uniform(0, 0.4))
            more = self._ask(None, length=0.4)
            more.task = task["id"]
            try:
                await self._send(more, wire, blocking=False)
                self._ledger.counts["steered"] += 1
            except Refused as exc:
                if exc.kind != "UNSUPPORTED_OPERATION":  # it has ended
                    raise
        await following

    async def need_a_person(self) -> None:
        ask, wire = self._ask(None), self._wire()
        text = self._upstream.waiting_phrase(ask.tag)
        if text is None or self._left_waiting >= LEFT_WAITING:
            return
        ask.text, ask.waits = text, True
        record = await self.follow(ask, wire)
        if record is not None and self._dice.random() < 0.7:
            await self._cancel(record.id, wire)
        else:
            self._left_waiting += 1

    # -- how they do it

    def _tag(self) -> str:
        self._asked += 1
        return f"#{self._number[0]}-{self._number[1]}-{self._asked}#"

    def _ask(self, context: str | None, length: float = 1.0) -> Ask:
        tag = self._tag()
        ask = Ask(tag, self._upstream.phrase(tag, self._dice, length), f"key-{tag}", context)
        self._ledger.asks.append(ask)
        return ask

    def _wire(self) -> Wire:
        line, rpc = self._dice.choice((("1.0", False), ("1.0", True), ("0.3", True)))
        return Wire(line, rpc, self._url, self._http)

    async def _send(self, ask: Ask, wire: Wire, blocking: bool) -> Json:
        async def once() -> Json:
            params = wire.message(ask, blocking)
            task = await wire.call(SEND, params, **{"idempotency-key": ask.key})
            self._note(self._ledger.told(ask, task["id"]), wire, task)
            return task

        return await self._insist(once)

    async def _get(self, task_id: str, wire: Wire) -> Json:
        async def once() -> Json:
            task = await wire.call(GET, {"id": task_id})
            self._note(self._ledger.records[task_id], wire, task)
            return task

        return await self._insist(once)

    async def _cancel(self, task_id: str, wire: Wire) -> None:
        record = self._ledger.records[task_id]
        record.cancel_asked = True
        try:
            task = await self._insist(lambda: wire.call(CANCEL, {"id": task_id}))
            self._note(record, wire, task)
            if state_of(task) != "canceled":
                self._ledger.blame(f"{task_id}: a cancel was answered with {state_of(task)}")
            self._ledger.counts["canceled by us"] += 1
        except Refused as exc:
            if exc.kind != "TASK_NOT_CANCELABLE":
                raise

    def _note(self, record: Record, wire: Wire, task: Json) -> None:
        if state_of(task) in TERMINAL:
            self._ledger.saw_final(record, wire.line, task)

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                answer = await attempt()
                self._heard()
                return answer
            except BROKEN:
                self._lost()
            except Refused as exc:
                self._heard()
                self._ledger.counts[f"told to wait: {exc.kind}"] += exc.later
                if not exc.later:
                    raise
            if time.monotonic() > until:
                raise Refused(0, "OUT_OF_PATIENCE", b"")
            await asyncio.sleep(self._dice.uniform(0.01, 0.2))

    def _lost(self) -> None:
        self._ledger.counts["connections lost"] += 1
        self._broken_since = self._broken_since or time.monotonic()

    def _heard(self) -> None:
        if self._broken_since is not None:
            self._ledger.took("outage for a client", time.monotonic() - self._broken_since)
            self._broken_since = None

    # -- streams

    async def follow(self, ask: Ask, wire: Wire) -> Record | None:
        """Stream to where the task rests, cutting and resuming on the way."""
        following = _Following(ask, wire, self._ledger)
        until = time.monotonic() + PATIENCE
        trial = False
        while not following.over:
            if time.monotonic() > until:
                self._ledger.blame(f"{ask.tag}: stream not over after {PATIENCE:g} s")
                return following.record
            try:
                await self._listen(following)
                self._ledger.counts["resumed"] += trial
                trial = False
            except Cut:
                self._ledger.counts["cuts"] += 1
                self._ledger.counts["resumed"] += trial
                trial = True
                if self._dice.random() < 0.3:
                    await asyncio.sleep(self._dice.uniform(0, 0.2))
            except BROKEN:
                self._lost()
                await asyncio.sleep(self._dice.uniform(0.01, 0.2))
            except Refused as exc:
                self._ledger.counts[f"told to wait: {exc.kind}"] += exc.later
                if not exc.later:
                    raise
                await asyncio.sleep(self._dice.uniform(0.01, 0.2))
        return following.record

    async def _listen(self, following: _Following) -> None:
        dice, wire, ask = self._dice, following.wire, following.ask
        record = following.record
        headers: dict[str, str] = {}
        if record is None or dice.random() < 0.3:
            what, params, headers = STREAM, wire.message(ask), {"idempotency-key": ask.key}
        else:
            what, params = SUBSCRIBE, {"id": record.id}
        after = following.resume_after(dice, record is not None)
        cut_bytes, cut_seconds = self._cut()
        patience = asyncio.timeout(cut_seconds)
        try:
            async with (
                patience,
                wire.stream(what, params, after, dice.random() < 0.5, **headers) as stream,
            ):
                self._heard()
                following.begin(after)
                while chunk := await stream.content.readany():
                    for seq, data in stream.frames.feed(chunk[:cut_bytes]):
                        following.take(seq, data)
                    if following.over:
                        patience.reschedule(None)
                        await self._expect_goodbye(following, stream)
                        return
                    if cut_bytes is not None:
                        cut_bytes -= len(chunk)
                        if cut_bytes <= 0:
                            raise Cut
        except TimeoutError:
            if patience.expired():
                raise Cut from None
            raise
        if stream.frames.error is not None:
            self._ledger.counts["streams that told an error"] += 1
        elif not stream.frames.handed_over:
            self._ledger.blame(f"{ask.tag}: a stream ended without an end, in {following.state}")

    async def _expect_goodbye(self, following: _Following, stream: Stream) -> None:
        """The service ends a stream where the task rests, all by itself."""
        patience = asyncio.timeout(GOODBYE_SECONDS)
        try:
            async with patience:
                while chunk := await stream.content.readany():
                    for seq, data in stream.frames.feed(chunk):
                        following.take(seq, data)
        except TimeoutError:
            if patience.expired():
                self._ledger.blame(f"{following.ask.tag}: open though {following.state}")
        except BROKEN:
            pass

    def _cut(self) -> tuple[int | None, float | None]:
        """When to cut: after some bytes, after some time, or not."""
        kind = self._dice.random()
        if kind < 0.4:
            return self._dice.randint(0, 5_000), None
        if kind < 0.8:
            return None, self._dice.expovariate(12)
        return None, None


class _Following:
    """One client's picture of one task, across its connections."""

    def __init__(self, ask: Ask, wire: Wire, ledger: Ledger) -> None:
        self.ask, self.wire, self._ledger = ask, wire, ledger
        self.record: Record | None = None
        with suppress(StopIteration):
            self.record = ledger.records[next(iter(ask.task_ids))]
        self.over = False
        self._view: View | None = None  # never started over, only continued
        self._numbers: list[int] = []  # of what was taken
        self._expected: int | None = None
        self._first = True
        self._last = -1

    @property
    def state(self) -> str:
        return self._view.state if self._view else "nothing"

    def resume_after(self, dice: random.Random, known: bool) -> int | None:
        """Mostly where we were; sometimes from further back, as a client that lost some."""
        if not self._numbers:
            return 0 if known else None
        if dice.random() < 0.1:
            return dice.choice(self._numbers)
        return self._numbers[-1]

    def begin(self, after: int | None) -> None:
        self._first, self._expected, self._last = True, after, -1

    def take(self, seq: int, data: bytes) -> None:
        payload = self.wire.payload(data)
        event = orjson.loads(payload)
        if self._first:
            self._take_task(seq, payload, event)
            self._first = False
        else:
            assert self.record is not None and self._view is not None
            self._ledger.saw(self.record, self.wire.line, seq, payload, is_task=False)
            if seq <= self._last:
                self._ledger.blame(f"{self.record.id}: event {seq} came after {self._last}")
            if not self._numbers or seq > self._numbers[-1]:
                self._view.apply(event)
                self._numbers.append(seq)
                self.over = self._view.state in RESTING
            self._ledger.counts["events"] += 1
        self._last = seq

    def _take_task(self, seq: int, payload: bytes, event: Json) -> None:
        task = task_in(event)
        if task is None:
            self._ledger.blame(f"{self.ask.tag}: a stream began with {payload[:200]!r}")
            return
        self.record = self._ledger.told(self.ask, task["id"])
        if "replay" in str(task.get("metadata", {}).get("shared", {}).get("stream", "")):
            self._ledger.blame(f"{self.record.id}: could not resume after {self._expected}")
            return
        self._ledger.saw(self.record, self.wire.line, seq, payload, is_task=True)
        if self._expected is not None and seq != self._expected:
            self._ledger.blame(f"{self.record.id}: asked for {self._expected}, began at {seq}")
        if self._view is None:
            self._view = View(task)
            self._numbers.append(seq)
            self.over = self._view.state in RESTING
        elif self._numbers[-1] == seq:
            shown = View(task)
            if (shown.artifacts, shown.state) != (self._view.artifacts, self._view.state):
                self._ledger.blame(
                    f"{self.record.id}: at {seq} the client holds {self._view.state} "
                    f"{self._view.artifacts}, the service says {shown.state} {shown.artifacts}"
                )
