"""Three nodes on one PostgreSQL behind a load balancer; everything is killed, paused and cut off.

    python -m tests.chaos.cluster --faults 350 --seconds 360 --seed 7
    python -m tests.chaos.cluster --upstream real --faults 100 --topology fleet

`--topology` says which OpenCode each node uses: `mixed` (two nodes at one, the third has its own),
`shared` (all at one), `fleet` (one each). Every connection has a proxy that can be cut: between
clients and nodes, nodes and OpenCodes, nodes and PostgreSQL. Two of the nodes have a process
namespace of their own, so that others cannot see that they are dead, and all have a clock that can
be set (libfaketime), where that is possible. What clients have seen is recorded, and judged in the
end by `tests/chaos/history.py`. The last line says RESULT.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp

from tests.chaos.crowd import HEADERS, Crowd
from tests.chaos.history import Loss
from tests.chaos.line import Balancer, Line
from tests.chaos.upstreams import Fake, Real, Upstream
from tests.chaos.victim import Victim
from tests.postgres import Postgres

TOPOLOGIES = {"mixed": (0, 0, 1), "shared": (0, 0, 0), "fleet": (0, 1, 2)}
PAUSE_SECONDS = 13.0  # for which a node is paused, or cut off from PostgreSQL: more than its lease
SKEWS = (-900, -300, -120, 0, 120, 300, 900)  # seconds by which the clock of a node is wrong
REPLAYS = 40  # tasks whose events are read once more in the end, at any node
LAST_WORDS = 240.0  # seconds for what clients have begun
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


@dataclass
class Place:
    """A node: its process, again and again, and what connects it."""

    victim: Victim
    to_opencode: Line
    to_postgres: Line
    clock: Path
    busy: bool = False  # it is killed or paused already

    def skew(self, seconds: int) -> None:
        """Set its clock."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.clock)


def faketime(clock: Path) -> dict[str, str]:
    """Settings for a process whose clock a file sets. How much time passes stays true."""
    library = next(iter(sorted(Path("/").glob(FAKETIME[1:]))), None)
    if library is None:
        return {}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


@dataclass
class Cluster:
    postgres: Postgres
    upstreams: list[Upstream]
    places: list[Place]
    balancer: Balancer
    crowd: Crowd
    dice: random.Random
    has_clocks: bool
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # with their times
    background: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, kind: str, topology: str, seed: int, keep: Path | None
    ) -> AsyncIterator[Cluster]:
        """`keep` is the folder to work in, which stays; without it, one that goes."""
        async with AsyncExitStack() as stack:
            folder = keep or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
            )
            postgres = stack.enter_context(Postgres.started())
            work = folder / "work"
            work.mkdir()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                headers=HEADERS,
                read_bufsize=1 << 20,
            )
            http = await stack.enter_async_context(session)
            start = partial(Real.start, asks=True) if kind == "real" else Fake.start
            which = TOPOLOGIES[topology]
            upstreams: list[Upstream] = [
                await stack.enter_async_context(start(folder / f"oc-{number}", http))
                for number in range(max(which) + 1)
            ]
            balancer = await stack.enter_async_context(Balancer().laid())
            dice = random.Random(seed)
            crowd = Crowd(balancer.url, upstreams[0], http, random.Random(dice.random()))
            crowd.waits = upstreams[0].waiting_phrase("") is not None
            self = cls(postgres, upstreams, [], balancer, crowd, dice, bool(faketime(work)))
            for name, number in zip("abc", which, strict=True):
                self.places.append(await self._place(stack, folder, name, number))
            balancer.targets = [place.victim.url for place in self.places]
            yield self
            for place in self.places:
                _complain(place.victim.log)

    async def _place(self, stack: AsyncExitStack, folder: Path, name: str, number: int) -> Place:
        own = folder / name
        own.mkdir()
        upstream = self.upstreams[number]
        to_opencode = await stack.enter_async_context(Line.to(upstream.url))
        database = f"http://127.0.0.1:{self.postgres.port}"
        to_postgres = await stack.enter_async_context(Line.to(database))
        clock = own / "clock"
        clock.write_text(f"{self.dice.choice(SKEWS):+d}\n")
        settings = {
            "A2A_TASK_STORE_DATABASE_URL": self.postgres.url(to_postgres),
            "OPENCODE_WORKSPACE_ROOT": str(folder / "work"),
            "A2A_NODE_NAME": name,
            "A2A_NODE_OPENCODE": f"oc-{number}",
            "A2A_NODE_RETURN_SECONDS": "600",
            **faketime(clock),
        }
        apart = name != "a" and os.geteuid() == 0
        victim = Victim(
            upstream,
            to_opencode.url,
            own,
            own / "unused",
            self.crowd.http,
            settings,
            apart=apart,
        )
        await stack.enter_async_context(victim.running())
        return Place(victim, to_opencode, to_postgres, clock)

    # -- what goes wrong

    async def storm(self, faults: int, until: float, calm: float) -> None:
        """Several things at once: each kind of fault has its own rhythm."""
        lines: list[tuple[float, list[tuple[int, Callable[[], Awaitable[bool]]]]]] = [
            (1.0, [(6, self._kill), (2, self._stop), (2, self._pause), (1, self._cut_off)]),
            (1.0, [(6, self._cut_postgres), (4, self._terminate), (2, self._kill_postgres),
                   (1, self._read_only)]),
            (1.0, [(5, self._cut_feed), (3, self._cut_calls), (3, self._trap), (2, self._lose),
                   (1, self._pause_opencode)]),
            (1.0, [(5, self._cut_clients), (3 if self.has_clocks else 0, self._set_clock)]),
        ]  # fmt: skip

        async def rage(pace: float, kinds: list[tuple[int, Callable[[], Awaitable[bool]]]]) -> None:
            weights, functions = zip(*kinds, strict=True)
            while self.counts["faults"] < faults and time.monotonic() < until:
                await asyncio.sleep(self.dice.expovariate(1 / (pace * calm)))
                function = self.dice.choices(functions, weights)[0]
                began = _now()
                if await function():
                    fault = function.__name__.replace("_", " ").strip()
                    self.counts["faults"] += 1
                    self.counts[f"fault {fault}"] += 1
                    self.faults.append(f"{began} until {_now()} {fault}")

        await asyncio.gather(*(rage(pace, kinds) for pace, kinds in lines))
        if self.background:
            await asyncio.wait(self.background)
        await asyncio.gather(*(place.victim.start() for place in self.places))

    def _meanwhile(self, work: Awaitable[None]) -> bool:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return True

    def _free_place(self) -> Place | None:
        """A node to which nothing happens; one at least is left alone."""
        free = [place for place in self.places if not place.busy]
        return self.dice.choice(free) if len(free) > 1 else None

    async def _kill(self) -> bool:
        return self._down(signal.SIGKILL)

    async def _stop(self) -> bool:
        return self._down(signal.SIGTERM)

    def _down(self, how: signal.Signals) -> bool:
        if (place := self._free_place()) is None:
            return False
        place.busy = True

        async def down() -> None:
            await place.victim.end(how)
            await asyncio.sleep(self.dice.uniform(0, 2))
            await place.victim.start()
            place.busy = False

        return self._meanwhile(down())

    async def _pause(self) -> bool:
        """SIGSTOP, for longer than a lease."""
        if (place := self._free_place()) is None:
            return False
        place.busy = True

        async def pause() -> None:
            await place.victim.pause(PAUSE_SECONDS)
            place.busy = False

        return self._meanwhile(pause())

    async def _cut_off(self) -> bool:
        """From PostgreSQL, for longer than a lease, while it works on."""
        if (place := self._free_place()) is None:
            return False
        place.busy = True

        async def cut_off() -> None:
            place.to_postgres.open = False
            place.to_postgres.cut()
            await asyncio.sleep(PAUSE_SECONDS)
            place.to_postgres.open = True
            place.busy = False

        return self._meanwhile(cut_off())

    async def _cut_postgres(self) -> bool:
        return bool(self.dice.choice(self.places).to_postgres.cut())

    async def _terminate(self) -> bool:
        ours = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        statement = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}"
        return bool(await asyncio.to_thread(self.postgres.say, statement))

    async def _kill_postgres(self) -> bool:
        await asyncio.to_thread(self.postgres.kill)
        await asyncio.sleep(self.dice.uniform(0, 2))
        await asyncio.to_thread(self.postgres.start)
        return True

    async def _read_only(self) -> bool:
        await asyncio.to_thread(self._set_read_only, "on")
        await asyncio.sleep(self.dice.uniform(0.5, 3))
        await asyncio.to_thread(self._set_read_only, "off")
        return True

    def _set_read_only(self, value: str) -> None:
        self.postgres.say(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        self.postgres.say("SELECT pg_reload_conf()")

    async def _cut_feed(self) -> bool:
        return bool(self.dice.choice(self.places).to_opencode.cut(only_events=True))

    async def _cut_calls(self) -> bool:
        return bool(self.dice.choice(self.places).to_opencode.cut())

    async def _trap(self) -> bool:
        """The next prompt is cut before OpenCode gets it, or after, without its answer."""
        line = self.dice.choice(self.places).to_opencode
        before = line.sprung
        line.trap(self.dice.choice(("before", "after")))
        await asyncio.sleep(self.dice.uniform(0, 1.5))
        line.disarm()
        return line.sprung > before

    async def _lose(self) -> bool:
        """OpenCode dies and comes back: with the fake, as far as anybody can see."""
        upstream = self.dice.choice(self.upstreams)
        loss = Loss(time.monotonic())
        self.crowd.history.losses.append(loss)
        try:
            await upstream.lose()
        finally:
            loss.until = time.monotonic()
        return True

    async def _pause_opencode(self) -> bool:
        return self._meanwhile(self.dice.choice(self.upstreams).pause(self.dice.uniform(0.5, 4)))

    async def _cut_clients(self) -> bool:
        return bool(self.balancer.cut())

    async def _set_clock(self) -> bool:
        self.dice.choice(self.places).skew(self.dice.choice(SKEWS))
        return True

    # -- what is there in the end

    async def look(self) -> None:
        """What the database and the OpenCodes have, and all events once more."""
        history = self.crowd.history
        rows = await asyncio.to_thread(
            self.postgres.say, "SELECT task_id, seq, kind FROM entries ORDER BY task_id, seq"
        )
        for task, seq, kind in rows:
            assert isinstance(seq, int)
            history.entries.setdefault(str(task), []).append((seq, str(kind)))
        tasks = await asyncio.to_thread(self.postgres.say, "SELECT id, opencode FROM tasks")
        where = {str(task): str(opencode) for task, opencode in tasks}
        history.stored = set(where)
        for number, upstream in enumerate(self.upstreams):
            sessions = {
                session
                for task, session in self.crowd.sessions.items()
                if session and where.get(task) == f"oc-{number}"
            }
            history.heard.update(await upstream.heard(sessions))
        ended = sorted(history.finals)
        for task in self.dice.sample(ended, min(REPLAYS, len(ended))):
            await self.crowd.replay(task)


def _now() -> str:
    """As the logs write it."""
    return datetime.now(UTC).isoformat()


def _complain(log: Path) -> None:
    """Say what a node should never log."""
    for line in log.read_text(errors="replace").splitlines():
        if "internal_error" in line or "Traceback" in line:
            say(f"LOG {log.parent.name} {line[:300]}")


async def campaign(given: argparse.Namespace) -> Cluster:
    if given.keep is not None:
        given.keep.mkdir(parents=True)
    async with Cluster.open(given.upstream, given.topology, given.seed, given.keep) as cluster:
        crowd, until = cluster.crowd, time.monotonic() + given.seconds
        working = [asyncio.create_task(crowd.client(number)) for number in range(given.clients)]
        raging = asyncio.create_task(cluster.storm(given.faults, until, given.calm))
        await asyncio.wait([raging, *working], return_when=asyncio.FIRST_COMPLETED)
        crowd.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await asyncio.wait([raging, *working])
        for each in (raging, *working):
            each.cancel()
        outcomes = await asyncio.gather(raging, *working, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                cluster.counts["gave up"] += 1
                say(f"GAVE UP {outcome!r}"[:600])
        if given.keep is not None:
            (given.keep / "faults.log").write_text("\n".join(cluster.faults))
        if cluster.counts["gave up"]:
            crowd.history.is_whole = False
        else:
            await cluster.look()
        return cluster


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster", description=__doc__)
    parser.add_argument("--upstream", choices=("fake", "real"), default="fake")
    parser.add_argument("--topology", choices=TOPOLOGIES, default="mixed")
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--calm", type=float, default=4.0, help="seconds between faults of a kind")
    parser.add_argument("--keep", type=Path, help="a new folder for the logs, which stays")
    given = parser.parse_args()
    began = time.monotonic()
    cluster = asyncio.run(campaign(given))
    found = list(cluster.crowd.history.violations())
    for name, count in sorted((cluster.counts + cluster.crowd.counts).items()):
        say(f"{name:48} {count:>8}")
    for sentence in found:
        say(f"VIOLATION {sentence}")
    say(f"{time.monotonic() - began:.0f} seconds")
    failed = bool(found) or bool(cluster.counts["gave up"])
    say(f"RESULT {'ok' if not failed else f'FAILED, {len(found)} violations'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
