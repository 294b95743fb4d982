"""Commits to PostgreSQL are cut off at random while clients send, stream, and send again.

    python -m tests.chaos.commits --cuts 1000 --seed 1

Each client sends a text of its own until it is told of a task; then every text must have one task,
one prompt in OpenCode, and a complete answer.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.opencode import expected_text
from tests.faults.steering import control
from tests.load.client import REST, Client, Refused, Telling, connected
from tests.postgres import Cut, Postgres, Wire
from tests.running import Service, Upstream, fake_opencode, service

TOKENS = 30
SAID = b"once and only once"
KINDS: tuple[Cut, ...] = ("before", "after", "after")
AGAIN = (
    *("OUTCOME_UNKNOWN", "STORE_UNAVAILABLE", "SHUTTING_DOWN"),
    *("TASK_HANDOVER", "UPSTREAM_BUSY"),
)


@dataclass
class Found:
    """What became of it all."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{name:42} {count:>8}" for name, count in sorted(self.counts.items())]
        return "\n".join([*rows, *(f"WRONG {each}" for each in self.wrong[:20])])


async def campaign(
    upstream: Upstream, at: Service, wire: Wire, *, cuts: int, seed: int, clients: int = 6
) -> Found:
    found, chance = Found(), random.Random(seed)
    tasks: dict[str, set[str]] = {}  # by text
    enough = wire.cuts + cuts

    async def storm() -> None:
        while wire.cuts < enough:
            before = wire.cuts
            wire.only = chance.choice((b"", SAID))  # any commit, or one that makes a task
            wire.away_after = chance.random() < 0.1
            wire.cut = chance.choice(KINDS)
            while wire.cuts == before:  # noqa: ASYNC110 (another thread cuts it)
                await asyncio.sleep(0.005)
            if wire.away:
                await asyncio.sleep(chance.choice((0.3, 1.0, 5.0)))
                wire.away = False
            await asyncio.sleep(chance.random() * 0.4)
        wire.cut, wire.away_after, wire.away = None, False, False

    async def talk(client: Client, number: int) -> None:
        turn = 0
        while wire.cuts < enough:
            turn += 1
            text = f"[[tokens:{TOKENS}]] [[rate:100]] {SAID.decode()} {number}-{turn}"
            tasks[text] = set()
            told = await say(client, text, f"m-{number}-{turn}-{uuid.uuid4()}")
            tasks[text].add(told.id)
            found.counts["sent"] += 1

    async def say(client: Client, text: str, message_id: str) -> Telling:
        """The same request until it is answered."""
        while True:
            try:
                return await client.send(text, wait=False, messageId=message_id)
            except Refused as refused:
                assert refused.reason in AGAIN, refused
                found.counts[f"told {refused.reason}"] += 1
                await asyncio.sleep(0.2)

    async with connected(at) as forms:
        client = forms[REST]
        await asyncio.gather(storm(), *(talk(client, number) for number in range(clients)))
        for text, ids in tasks.items():
            for task_id in ids:
                task = await ended(client, task_id)
                if task.state != "completed":
                    found.wrong.append(f"{text} ended {task.state}: {task.problem} {task.note}")
                elif task.answer != expected_text(str(task.session), TOKENS):
                    found.wrong.append(f"{text} has another answer: {task.answer!r}")
        listed: int = (await client._ask("list", {}))["totalSize"]
    prompts = (await control(upstream, "stats"))["prompts"]
    prompted = Counter(text for _, _, text in prompts)
    found.counts["cuts"] = wire.cuts
    found.counts["tasks"] = listed
    found.counts["tasks lost"] = sum(not ids for ids in tasks.values())
    found.counts["tasks doubled"] = listed - len(tasks)
    found.counts["prompts doubled"] = sum(count - 1 for count in prompted.values())
    found.wrong += [f"{text} was prompted {n} times" for text, n in prompted.items() if n > 1]
    found.wrong += [f"{text} was never prompted" for text in tasks if text not in prompted]
    if listed != len(tasks):
        found.wrong.append(f"{len(tasks)} texts, {listed} tasks")
    return found


async def ended(client: Client, task_id: str) -> Telling:
    while True:
        try:
            return await client.until(task_id, "completed", "failed", "canceled")
        except Refused as refused:
            assert refused.reason in AGAIN, refused
            await asyncio.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.commits", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        Postgres.started() as server,
        Wire.laid(server.port) as wire,
        fake_opencode(Path(name) / "opencode") as upstream,
        service(
            upstream,
            Path(name),
            A2A_TASK_STORE_DATABASE_URL=server.url(wire),
            OPENCODE_MAX_CONCURRENT_STREAMS="0",
        ) as at,
    ):
        found = asyncio.run(campaign(upstream, at, wire, cuts=given.cuts, seed=given.seed))
        sys.stdout.write(f"{found}\n")
        if found.wrong:
            Path("commits.log").write_text(at.program.output)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
