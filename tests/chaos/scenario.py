"""Rounds of storm and check, on one service and one OpenCode after the other."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.chaos.backups import Backups
from tests.chaos.checks import Checks
from tests.chaos.clients import Client
from tests.chaos.disk import SmallDisk
from tests.chaos.ledger import Ledger
from tests.chaos.line import Line
from tests.chaos.storm import Storm
from tests.chaos.upstreams import Fake, Real, Real2, Upstream
from tests.chaos.victim import Victim

ROUNDS = 12  # then a fresh world: the checks read the whole database
LAST_WORDS = 150.0  # seconds for what clients have begun
UPSTREAMS: dict[str, type[Fake | Real]] = {"fake": Fake, "real": Real, "real2": Real2}
TROUBLE = ("Traceback", ".internal_error", "unreadable")


@dataclass(frozen=True, slots=True)
class Plan:
    upstream: str = "fake"
    kills: int = 20
    cuts: int = 200  # each followed by a resumption
    seed: int = 1
    seconds: float = 120.0
    clients: int = 8
    disk: bool = False  # the database is on a disk that is full from time to time
    backup_every: float = 0.0  # seconds; 0: no backups

    @property
    def kills_per_round(self) -> int:
        return 10 if self.upstream == "fake" else 4

    @property
    def calm(self) -> float:
        """Seconds between two faults, on average."""
        return 0.33 if self.upstream == "fake" else 1.0

    def fulfilled(self, ledger: Ledger) -> bool:
        return ledger.counts["kills"] >= self.kills and ledger.counts["resumed"] >= self.cuts


@dataclass(frozen=True, slots=True)
class World:
    victim: Victim
    upstream: Upstream
    line: Line
    http: aiohttp.ClientSession
    disk: SmallDisk | None

    @classmethod
    @asynccontextmanager
    async def open(cls, plan: Plan) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
            disk = None
            if plan.disk:
                disk = stack.enter_context(SmallDisk.mounted(folder / "disk"))
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            session = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20)
            http = await stack.enter_async_context(session)
            start = UPSTREAMS[plan.upstream].start
            upstream: Upstream = await stack.enter_async_context(start(folder / "opencode", http))
            line = await stack.enter_async_context(Line.to(upstream.url))
            database = (disk.folder if disk else folder) / "tasks.db"
            victim = await stack.enter_async_context(
                Victim.open(upstream, line.url, folder, database, http)
            )
            yield cls(victim, upstream, line, http, disk)


async def run(plan: Plan, say: Callable[[str], None]) -> Ledger:
    """Storms until the plan is fulfilled or its time is up; the evidence and the violations."""
    ledger = Ledger()
    until = time.monotonic() + plan.seconds
    number = 0
    while time.monotonic() < until and not plan.fulfilled(ledger):
        ledger.change_database()
        async with World.open(plan) as world:
            for _ in range(ROUNDS):
                number, blamed = number + 1, len(ledger.violations)
                try:
                    await _round(world, plan, number, ledger, until)
                except BaseException:
                    say(f"round {number} broke; log and database: {_keep(world.victim, plan)}")
                    raise
                say("\n".join([_progress(number, ledger), *ledger.violations[blamed:]]))
                if time.monotonic() > until or plan.fulfilled(ledger):
                    break
            _check_log(world.victim.log, ledger)
            if ledger.violations:
                say(f"log and database: {_keep(world.victim, plan)}")
    return ledger


def _progress(number: int, ledger: Ledger) -> str:
    counts = ledger.counts
    return (
        f"round {number}: {counts['kills']} kills, {counts['resumed']} cut and resumed, "
        f"{len(ledger.past)} tasks, {counts['violations']} violations"
    )


async def _round(world: World, plan: Plan, number: int, ledger: Ledger, until: float) -> None:
    """A storm while clients are at work, then calm, then the truth. Every other one is gentle."""
    dice, gentle = random.Random(f"{plan.seed}/{number}"), number % 2 == 1
    victim, upstream = world.victim, world.upstream
    storm = Storm(victim, upstream, world.line, world.disk, ledger, dice, gentle, plan.calm)
    backups = Backups(victim, ledger, plan.backup_every)
    target = min(plan.kills, ledger.counts["kills"] + plan.kills_per_round)
    leave = asyncio.Event()
    clients = []
    for n in range(1, plan.clients + 1):
        own_dice = random.Random(f"{plan.seed}/{number}/{n}")
        client = Client((number, n), victim.url, world.http, upstream, ledger, own_dice)
        clients.append(asyncio.create_task(client.live(leave)))
    async with AsyncExitStack() as meanwhile:
        if plan.backup_every:
            await meanwhile.enter_async_context(backups.going_on())
        try:
            await storm.rage(lambda: ledger.counts["kills"] >= target, until)
        finally:
            await storm.calm()
    if target >= plan.kills:
        while not plan.fulfilled(ledger) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the clients have cuts to make
    leave.set()
    await _finished(clients, ledger)
    checks = Checks(victim.url, world.http, victim.database, upstream, ledger, dice)
    await checks.all(losses_allowed=not gentle)
    await backups.check(upstream, world.http)
    ledger.turn_page()


async def _finished(clients: list[asyncio.Task[None]], ledger: Ledger) -> None:
    _, late = await asyncio.wait(clients, timeout=LAST_WORDS)
    for client in late:
        client.cancel()
        ledger.blame("a client never came to an end")
    for result in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _check_log(log: Path, ledger: Ledger) -> None:
    """Whatever happened, the service knew what it was."""
    told = log.read_text(errors="replace")
    for trouble in TROUBLE:
        if times := told.count(trouble):
            at = told.index(trouble)
            around = told[max(0, at - 300) : at + 1500]
            ledger.blame(f"{times} × {trouble} in the service's log: {around}")


def _keep(victim: Victim, plan: Plan) -> Path:
    """What there is to look at after a violation."""
    kept = Path(tempfile.gettempdir()) / f"chaos-{plan.upstream}-{plan.seed}"
    kept.mkdir(exist_ok=True)
    for file in (victim.log, *victim.database.parent.glob(victim.database.name + "*")):
        (kept / file.name).write_bytes(file.read_bytes())
    return kept
