"""Thousands of tasks while the service is killed, reloaded and backed up: does anything grow?

    python -m tests.chaos.soak --tasks 20000 --report docs/reliability

Retention is short, so that the database reaches the size at which as much goes as comes. In the
last part nobody kills the service any more: what one process keeps for ever is to be seen there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.figures import Plot
from bench.plot import svg
from tests.chaos.clients import Client
from tests.chaos.ledger import Ask, Ledger, state_of
from tests.chaos.upstreams import Fake
from tests.chaos.victim import Victim

CONTEXTS = 12  # of each client, used in turns: a context is kept for ever
LATE = 1.0  # seconds between two looks at the process
# Everything is removed soon, so that the size of the database says what it comes to.
SHORT_RETENTION = {
    "A2A_TASK_STORE_RETENTION_SECONDS": "60",
}


@dataclass(frozen=True, slots=True)
class Plan:
    tasks: int = 20_000
    seconds: float = 1_200.0  # then no more tasks are sent
    clients: int = 8
    seed: int = 1
    kill_every: float = 40.0  # seconds, on average; so are the others
    reload_every: float = 10.0
    backup_every: float = 30.0
    calm_after: float = 0.6  # the share of the tasks after which nobody kills any more


@dataclass(frozen=True, slots=True)
class Sample:
    tasks: int  # ended so far
    rss: float  # MB
    descriptors: int
    database: float  # MB, with the write-ahead log
    pid: int


@dataclass(slots=True)
class Soak:
    plan: Plan
    victim: Victim
    ledger: Ledger = field(default_factory=Ledger)
    samples: list[Sample] = field(default_factory=list)
    ended: int = 0
    last: int = 0  # the number of the task after which no more are sent; 0: as planned
    answers: dict[str, str] = field(default_factory=dict)  # by task
    calm: bool = False

    @property
    def backups(self) -> Path:
        return self.victim.database.parent / "soak.backup"

    def clients(
        self, http: aiohttp.ClientSession, upstream: Fake
    ) -> list[Coroutine[Any, Any, None]]:
        """They send until there are enough tasks, or the time is over."""
        numbers, until = itertools.count(1), time.monotonic() + self.plan.seconds
        made = []
        for n in range(1, self.plan.clients + 1):
            dice = random.Random(f"{self.plan.seed}/{n}")
            client = SoakClient((1, n), self.victim.url, http, upstream, self.ledger, dice)
            made.append(client.work(self, numbers, until))
        return made

    async def run(self, http: aiohttp.ClientSession, upstream: Fake) -> None:
        dice = random.Random(self.plan.seed)
        clients = self.clients(http, upstream)
        around = [
            asyncio.create_task(work)
            for work in (
                self._every(self.plan.kill_every, dice, self._kill),
                self._every(self.plan.reload_every, dice, self._reload),
                self._every(self.plan.backup_every, dice, self._back_up),
                self._look(),
            )
        ]
        try:
            await asyncio.gather(*clients)
        finally:
            for task in around:
                task.cancel()
            for result in await asyncio.gather(*around, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _every(self, seconds: float, dice: random.Random, act: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.5, 1.5) * seconds)
            work = act()
            assert asyncio.iscoroutine(work)
            await asyncio.shield(work)

    async def _kill(self) -> None:
        self.calm |= self.ended >= self.plan.calm_after * self.plan.tasks
        if not self.calm:
            await self.victim.end(signal.SIGKILL)
            self.ledger.counts["kills"] += 1
            self.ledger.took("restart", await self.victim.start())

    async def _reload(self) -> None:
        if await self.victim.reload():
            self.ledger.counts["reloads"] += 1

    async def _back_up(self) -> None:
        began = time.monotonic()
        code, said = await self.victim.command("backup", str(self.backups))
        self.ledger.took("backup", time.monotonic() - began)
        self.ledger.counts["backups"] += 1
        if code:
            self.ledger.blame(f"backup: exit code {code}: {said}")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LATE)
            with suppress(OSError, LookupError):  # it is being killed
                self.samples.append(self._sample())

    def _sample(self) -> Sample:
        pid = self.victim.pid
        status = Path(f"/proc/{pid}/status").read_text()
        rss = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        files = self.victim.database.parent.glob(f"{self.victim.database.name}*")
        size = sum(file.stat().st_size for file in files) / 1e6
        return Sample(self.ended, rss, len(os.listdir(f"/proc/{pid}/fd")), size, pid)  # noqa: PTH208


class SoakClient(Client):
    async def work(self, soak: Soak, numbers: itertools.count[int], until: float) -> None:
        for number in numbers:
            if number > (soak.last or soak.plan.tasks) or time.monotonic() > until:
                return
            tag, tokens = self._tag(), self._dice.randint(5, 40)
            context = f"context-{self._number[1]}-{number % CONTEXTS}"
            text = f"{tag} [[tokens:{tokens}]] [[rate:4000]]"
            ask, wire = Ask(tag, text, f"key-{tag}", context), self._wire()
            if self._dice.random() < 0.2:
                await self.follow(ask, wire)
            task = await self._send(ask, wire, blocking=True)
            while state_of(task) not in ("completed", "failed", "canceled"):
                task = await self._send(ask, wire, blocking=True)
            answers = [a["parts"][0]["text"] for a in task["artifacts"] if a["name"] == "answer"]
            session = task["metadata"]["shared"]["session"]["id"]
            if answers != [self._upstream.expected(session, text)]:
                self._ledger.blame(f"{task['id']}: {state_of(task)}, {answers}")
            self._ledger.records.pop(task["id"], None)  # what is here must not grow, either
            soak.answers[task["id"]] = "".join(answers)
            soak.ended += 1


@asynccontextmanager
async def world(
    plan: Plan, **settings: str
) -> AsyncIterator[tuple[Soak, aiohttp.ClientSession, Fake]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20)
        http = await stack.enter_async_context(session)
        upstream = await stack.enter_async_context(Fake.start(folder / "opencode", http))
        (folder / "store").mkdir()
        database = folder / "store" / "tasks.db"
        victim = await stack.enter_async_context(
            Victim.open(upstream, upstream.url, folder, database, http, **settings)
        )
        yield Soak(plan, victim), http, upstream


async def run(plan: Plan) -> Soak:
    async with world(plan, **SHORT_RETENTION) as (soak, http, upstream):
        await soak.run(http, upstream)
        await soak._back_up()
        code, said = await soak.victim.command("db", "check")
        if code:
            soak.ledger.blame(f"db check: {said}")
    return soak


def table(soak: Soak) -> str:
    """What there was after each tenth of the tasks."""
    rows = ["| tasks | RSS, MB | descriptors | database, MB |", "|---|---|---|---|"]
    step = max(soak.ended // 10, 1)
    for tenth in range(10):
        here = [s for s in soak.samples if tenth * step <= s.tasks < (tenth + 1) * step]
        if not here:
            continue
        rss, files, size = (
            f"{min(values):.0f}–{max(values):.0f}"
            for values in (
                [s.rss for s in here],
                [float(s.descriptors) for s in here],
                [s.database for s in here],
            )
        )
        rows.append(f"| {tenth * step}–{(tenth + 1) * step} | {rss} | {files} | {size} |")
    rows += ["", *(f"{name}: {count}" for name, count in sorted(soak.ledger.counts.items()))]
    rows += [f"longest {name}: {took:.2f} s" for name, took in soak.ledger.longest.items()]
    rows += [f"VIOLATION {each[:500]}" for each in soak.ledger.violations[:20]]
    rows.append(f"tasks that ended: {soak.ended}")
    return "\n".join(rows) + "\n"


def plots(soak: Soak) -> dict[str, str]:
    """SVG by file name, with the highest value of each hundredth of the tasks."""
    step = max(soak.ended // 100, 1)
    groups = [list(g) for _, g in itertools.groupby(soak.samples, lambda s: s.tasks // step)]

    def line(value: Callable[[Sample], float]) -> list[tuple[float, float]]:
        return [(float(group[-1].tasks), max(map(value, group))) for group in groups]

    memory = {"RSS of the service, MB": line(lambda s: s.rss)}
    disk = {
        "database, MB": line(lambda s: s.database),
        "descriptors": line(lambda s: s.descriptors),
    }
    x = "tasks that ended"
    return {
        "soak-memory.svg": svg(Plot("soak-memory", "Memory in the soak", x, "MB", memory)),
        "soak-disk.svg": svg(
            Plot("soak-disk", "Database and descriptors in the soak", x, "", disk)
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1_200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a folder for the table and the plots")
    given = parser.parse_args()
    plan = Plan(given.tasks, given.seconds, clients=given.clients, seed=given.seed)
    soak = asyncio.run(run(plan))
    sys.stdout.write(table(soak))
    if given.report:
        given.report.mkdir(parents=True, exist_ok=True)
        (given.report / "soak.md").write_text(table(soak))
        for name, drawn in plots(soak).items():
            (given.report / name).write_text(drawn)
    return 1 if soak.ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
