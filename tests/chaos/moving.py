"""A service is moved from SQLite to PostgreSQL while clients send: nothing is lost or repeated.

    python -m tests.chaos.moving --tasks 3000 --kills 3

`migrate` is killed and started again a few times. Then it waits for the service to stop, and the
service goes on with the new database, while the clients keep trying.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.ledger import state_of
from tests.chaos.soak import Plan, Soak, world
from tests.chaos.victim import Victim
from tests.chaos.wire import GET, Wire
from tests.postgres import Postgres

SECONDS = 600.0


@dataclass(slots=True)
class Moved:
    said: str = ""
    seconds_away: float = 0.0  # from the stop of the service to its next answer
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{name}: {count}" for name, count in sorted(self.counts.items())]
        rows += [f"away for {self.seconds_away:.1f} s", self.said]
        return "\n".join([*rows, *(f"WRONG {each}" for each in self.wrong[:20])])


async def campaign(plan: Plan, server: Postgres, *, kills: int) -> Moved:
    """Move under load; what came of it."""
    moved, url = Moved(), server.emptied()
    async with world(plan) as (soak, http, upstream):
        soak.last = sys.maxsize
        clients = asyncio.gather(*soak.clients(http, upstream))
        try:
            async with asyncio.timeout(SECONDS):
                await _ended(soak, plan.tasks)  # so that there is something to copy
                await _kill(soak.victim, url, kills=kills, moved=moved, seed=plan.seed)
                await _move(soak.victim, url, moved)
                moved.counts["tasks before"] = soak.ended
                soak.last = soak.ended + plan.tasks // 2
                await clients
        finally:
            clients.cancel()
        moved.counts["tasks"] = soak.ended
        moved.wrong += soak.ledger.violations
        wire = Wire("1.0", False, soak.victim.url, http)
        for task_id, answer in soak.answers.items():
            task = await wire.call(GET, {"id": task_id})
            text = "".join(a["parts"][0]["text"] for a in task["artifacts"])
            if (state_of(task), text) != ("completed", answer):
                moved.wrong.append(f"{task_id}: {state_of(task)} {text!r}")
        code, said = await soak.victim.command("db", "check")
        if code:
            moved.wrong.append(f"db check: {said}")
    return moved


async def _ended(soak: Soak, tasks: int) -> None:
    while soak.ended < tasks:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _kill(victim: Victim, url: str, *, kills: int, moved: Moved, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(kills):
        moving = await victim.begin("migrate", "--to", url)
        await asyncio.sleep(dice.uniform(1.0, 3.0))
        if moving.returncode is None:
            moving.kill()
            moved.counts["moves killed"] += 1
        await moving.communicate()


async def _move(victim: Victim, url: str, moved: Moved) -> None:
    moving = await victim.begin("migrate", "--to", url, "--wait")
    assert moving.stdout is not None
    said: list[str] = []
    while line := (await moving.stdout.readline()).decode():
        said.append(line)
        if "Stop the service now" in line:
            break
    else:
        raise AssertionError(f"it never asked for the stop: {said}")
    began = time.monotonic()
    await victim.end(signal.SIGTERM)
    victim.use(A2A_TASK_STORE_DATABASE_URL=url)
    rest, _ = await moving.communicate()
    moved.said = "".join(said) + rest.decode()
    if moving.returncode:
        raise AssertionError(f"exit code {moving.returncode}: {moved.said}")
    await victim.start()
    moved.seconds_away = time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.moving", description=__doc__)
    parser.add_argument("--tasks", type=int, default=2_000, help="before the move")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    plan = Plan(given.tasks, SECONDS, seed=given.seed)
    with Postgres.started() as server:
        moved = asyncio.run(campaign(plan, server, kills=given.kills))
    sys.stdout.write(f"{moved}\n")
    return 1 if moved.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
