"""The faults, one after the other and some at once, at moments the dice choose."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.chaos.disk import SmallDisk
from tests.chaos.ledger import Ledger
from tests.chaos.line import Line
from tests.chaos.upstreams import Upstream
from tests.chaos.victim import Victim


class Storm:
    """`gentle` leaves OpenCode and the way to it alone, so no task has a reason to fail."""

    def __init__(
        self,
        victim: Victim,
        upstream: Upstream,
        line: Line,
        disk: SmallDisk | None,
        ledger: Ledger,
        dice: random.Random,
        gentle: bool,
        calm: float,
    ) -> None:
        self._victim, self._upstream, self._line = victim, upstream, line
        self._ledger, self._dice, self._disk = ledger, dice, disk
        self._calm = calm  # seconds between two faults, on average
        self._background: set[asyncio.Task[None]] = set()
        self._faults: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (50, self.kill),
            (8, self.terminate),
            (6, self.pause_service),
            (6, self.pause_upstream),
            (12, self.cut_events),
            (8, self.trap_a_prompt),
        ]
        if not gentle:
            self._faults += [(6, self.cut_everything), (4, self.partition), (8, self.lose)]
        if disk is not None:
            self._faults.append((30, self.fill_the_disk))

    async def rage(self, enough: Callable[[], bool], until: float) -> None:
        weights, faults = zip(*self._faults, strict=True)
        while not enough() and time.monotonic() < until:
            await self._dice.choices(faults, weights)[0]()
            await asyncio.sleep(self._dice.expovariate(1 / self._calm))

    async def calm(self) -> None:
        """Nothing is broken any more."""
        if self._background:
            await asyncio.wait(self._background)
        self._line.disarm()
        self._line.open = True
        await self._victim.start()

    async def kill(self) -> None:
        await self._die(signal.SIGKILL)
        while self._dice.random() < 0.2:  # once more, before it is ready
            await self._victim.launch()
            await asyncio.sleep(self._dice.uniform(0, 0.6))
            await self._die(signal.SIGKILL)
        self._ledger.took("restart", await self._victim.start())

    async def terminate(self) -> None:
        self._ledger.took("goodbye", await self._die(signal.SIGTERM))
        self._ledger.took("restart", await self._victim.start())

    async def _die(self, number: signal.Signals) -> float:
        took = await self._victim.end(number)
        self._ledger.counts["kills" if number is signal.SIGKILL else "terminations"] += 1
        return took

    async def pause_service(self) -> None:
        await self._pause("pauses of the service", self._victim.pause)

    async def pause_upstream(self) -> None:
        await self._pause("pauses of OpenCode", self._upstream.pause)

    async def fill_the_disk(self) -> None:
        self._ledger.counts["full disks"] += 1
        full = self._full(self._dice.uniform(0.1, 2.0))
        if self._dice.random() < 0.5:
            self._meanwhile(full)
        else:
            await full

    async def _full(self, seconds: float) -> None:
        assert self._disk is not None
        self._disk.fill()
        await asyncio.sleep(seconds)
        self._disk.free()

    async def _pause(self, name: str, pause: Callable[[float], Awaitable[None]]) -> None:
        seconds = self._dice.uniform(0.1, 0.6 if self._dice.random() < 0.8 else 3.0)
        self._ledger.counts[name] += 1
        if self._dice.random() < 0.5 and pause == self._upstream.pause:
            self._meanwhile(pause(seconds))
        else:
            await pause(seconds)

    def _meanwhile(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def cut_events(self) -> None:
        self._ledger.counts["event streams cut"] += self._line.cut(only_events=True)

    async def trap_a_prompt(self) -> None:
        before = self._line.sprung
        self._line.trap(self._dice.choice(("before", "after")))
        await asyncio.sleep(self._dice.uniform(0, 0.3))
        self._ledger.counts["prompts cut"] += self._line.sprung - before

    async def cut_everything(self) -> None:
        self._ledger.counts["connections to OpenCode cut"] += self._line.cut()

    async def partition(self) -> None:
        self._ledger.counts["partitions"] += 1
        self._line.open = False
        self._line.cut()
        await asyncio.sleep(self._dice.uniform(0.1, 1.5))
        self._line.open = True

    async def lose(self) -> None:
        self._ledger.counts["losses of OpenCode"] += 1
        began = time.monotonic()
        await self._upstream.lose()
        self._ledger.took("restart of OpenCode", time.monotonic() - began)
        if self._dice.random() < 0.5:  # it may as well be killed before that
            self._ledger.took("reconnection to OpenCode", await self._victim.reconnected())
