"""What a delta costs when several nodes share a PostgreSQL, and how soon it is at another node.

    python -m bench.nodes [--nodes 1 3 6] [--shared] [--anywhere] [--sqlite] [--delivery]

The fake OpenCode sends deltas at a fixed rate, the same to every node, and a plain client reads
them all. CPU time is that of the nodes and of PostgreSQL, per delta, over some seconds in which
nothing begins or ends. `--shared`: all nodes stand in front of one OpenCode. Every task is read at
the node that works on it, or, with `--anywhere`, at another one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from tests.faults.steering import control
from tests.postgres import Postgres
from tests.running import TOKEN, Service, Upstream, fake_opencode, service

from .clock import cpu, descendants

HEADERS = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}


@dataclass(frozen=True)
class Fleet:
    upstreams: list[Upstream]
    nodes: list[Service]
    postgres: Postgres | None

    @classmethod
    @contextmanager
    def of(cls, count: int, *, shared: bool, sqlite: bool) -> Iterator[Fleet]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodes-")))
            postgres = None if sqlite else stack.enter_context(Postgres.started())
            (folder / "work").mkdir()
            settings = {"OPENCODE_WORKSPACE_ROOT": str(folder / "work")}
            if postgres is not None:
                settings["A2A_TASK_STORE_DATABASE_URL"] = postgres.url()
            upstreams = [
                stack.enter_context(fake_opencode(folder / f"oc-{number}"))
                for number in range(1 if shared else count)
            ]
            nodes = [
                stack.enter_context(
                    service(
                        upstreams[0 if shared else number],
                        folder / f"node-{number}",
                        A2A_NODE_NAME=f"node-{number}",
                        **settings,
                    )
                )
                for number in range(count)
            ]
            yield cls(upstreams, nodes, postgres)

    def spent(self) -> tuple[float, float]:
        """Seconds of CPU so far: of the nodes, and of PostgreSQL."""
        nodes = cpu(*(node.program.process.pid for node in self.nodes))
        if self.postgres is None or self.postgres.process is None:
            return nodes, 0.0
        pid = self.postgres.process.pid
        return nodes, cpu(pid, *descendants(pid))

    async def deltas(self) -> int:
        return sum([(await control(each, "stats"))["deltas"] for each in self.upstreams])


def _message(text: str, node: int) -> dict[str, Any]:
    message = {
        "messageId": str(perf_counter()),
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "metadata": {"opencode": {"node": f"node-{node}"}},
    }
    return {"message": message, "configuration": {"returnImmediately": True}}


async def _read(http: aiohttp.ClientSession, url: str, task: str, ends: list[int]) -> None:
    async with http.get(f"{url}/tasks/{task}:subscribe") as response:
        async for _ in response.content.iter_any():
            pass
    ends.append(1)


async def cost(
    fleet: Fleet, *, streams: int, rate: int, seconds: float, anywhere: bool
) -> tuple[float, float, float]:
    """Microseconds of CPU per delta, of nodes and of PostgreSQL; and deltas a second."""
    text = f"[[tokens:{int(rate * (seconds + 8))}]] [[rate:{rate}]]"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as http:
        for number in range(len(fleet.nodes)):  # what is loaded late is loaded now
            await _ask(http, fleet, number, "[[tokens:20]]")
        reading: list[asyncio.Task[None]] = []
        ends: list[int] = []
        for number in [*range(len(fleet.nodes))] * streams:
            task = await _ask(http, fleet, number, text)
            read_at = fleet.nodes[(number + int(anywhere)) % len(fleet.nodes)]
            reading.append(asyncio.create_task(_read(http, read_at.url, task, ends)))
        await asyncio.sleep(3)
        before, deltas, began = fleet.spent(), await fleet.deltas(), perf_counter()
        await asyncio.sleep(seconds)
        after, more = fleet.spent(), await fleet.deltas() - deltas
        took = perf_counter() - began
        assert not ends, "streams have ended already"
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    of_nodes, of_server = ((b - a) * 1e6 / more for a, b in zip(before, after, strict=True))
    return of_nodes, of_server, more / took


async def _ask(http: aiohttp.ClientSession, fleet: Fleet, node: int, text: str) -> str:
    url = f"{fleet.nodes[node].url}/message:send"
    async with http.post(url, json=_message(text, node)) as response:
        found = await response.json()
        return str(found["task"]["id"])


async def delivery(fleet: Fleet, *, seconds: float, rate: int) -> list[float]:
    """Seconds by which an event comes later to a reader at another node than at its own."""
    here, there = (node.url for node in fleet.nodes[:2])
    arrived: list[dict[int, float]] = [{}, {}]

    async def note(http: aiohttp.ClientSession, url: str, task: str, at: dict[int, float]) -> None:
        number = 0
        async with http.get(f"{url}/tasks/{task}:subscribe") as response:
            async for line in response.content:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: ") and b'"task"' not in line[:14]:
                    at.setdefault(number, perf_counter())

    async with aiohttp.ClientSession(headers=HEADERS) as http:
        task = await _ask(http, fleet, 0, f"[[tokens:{int(seconds * rate)}]] [[rate:{rate}]]")
        await asyncio.gather(
            note(http, here, task, arrived[0]), note(http, there, task, arrived[1])
        )
    assert fleet.postgres is not None
    both = arrived[0].keys() & arrived[1].keys()
    return sorted(arrived[1][number] - arrived[0][number] for number in both)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 3, 6])
    parser.add_argument("--streams", type=int, default=4, help="for each node")
    parser.add_argument("--rate", type=int, default=75, help="deltas a second, of each stream")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--anywhere", action="store_true")
    parser.add_argument("--sqlite", action="store_true", help="one node on SQLite, too")
    parser.add_argument("--delivery", action="store_true", help="only how soon events arrive")
    given = parser.parse_args()
    if given.delivery:
        with Fleet.of(2, shared=False, sqlite=False) as fleet:
            found = asyncio.run(delivery(fleet, seconds=20, rate=100))
        at = {name: found[int(len(found) * share)] for name, share in (("p50", 0.5), ("p99", 0.99))}
        told = {name: f"{value * 1e3:.1f} ms" for name, value in at.items()}
        sys.stdout.write(f"delivery {json.dumps(told)} of {len(found)} events\n")
        return
    for _ in range(given.repeats):
        for count in ([0] if given.sqlite else []) + given.nodes:
            with Fleet.of(count or 1, shared=given.shared, sqlite=count == 0) as fleet:
                work = cost(
                    fleet,
                    streams=given.streams,
                    rate=given.rate,
                    seconds=given.seconds,
                    anywhere=given.anywhere,
                )
                node, server, speed = asyncio.run(work)
            name = f"{count} nodes" if count else "SQLite"
            line = f"{name:8} {node:6.0f} us node {server:6.1f} us PostgreSQL {speed:7.0f}/s\n"
            sys.stdout.write(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
