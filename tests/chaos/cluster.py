"""Three nodes on one PostgreSQL, killed, paused and cut off at random, and asked in turn.

    python -m tests.chaos.cluster --faults 1000 --seed 7

Two nodes stand in front of one OpenCode, the third has its own. What clients have seen is recorded
and judged in the end by `tests/chaos/history.py`. The last line says RESULT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.history import ENDS, Final, History, Seen, Wanted
from tests.fakes.opencode import expected_text
from tests.faults.steering import control
from tests.postgres import Postgres
from tests.running import TOKEN, Service, Upstream, fake_opencode, service

Json = dict[str, Any]

PATIENCE = 120.0  # seconds for a request to be answered at last, and for all tasks to end
PAUSE = 13.0  # seconds a node is paused: longer than its lease
HEADERS = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
FAULTS = ("kill", "pause", "terminate", "postgres", "feeds")
WEIGHTS = (4, 1, 6, 1, 3)


@dataclass
class Place:
    """Where a node runs, again and again."""

    name: str
    upstream: Upstream
    folder: Path
    settings: dict[str, str]
    running: Service | None = None
    _opened: AbstractContextManager[Service] | None = None

    def start(self) -> None:
        self._opened = service(self.upstream, self.folder, A2A_NODE_NAME=self.name, **self.settings)
        self.running = self._opened.__enter__()

    def kill(self) -> None:
        if self.running is not None and self._opened is not None:
            self.running.program.process.send_signal(signal.SIGCONT)
            self.running.program.kill()
            self.running = None
            self._opened.__exit__(None, None, None)


@dataclass
class Cluster:
    postgres: Postgres
    upstreams: list[Upstream]
    places: list[Place]
    http: aiohttp.ClientSession
    random: random.Random
    history: History = field(default_factory=History)
    counts: Counter[str] = field(default_factory=Counter)
    stopping: bool = False
    _next: int = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, seed: int) -> AsyncIterator[Cluster]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
            postgres = stack.enter_context(Postgres.started())
            (folder / "work").mkdir()
            settings = {
                "A2A_TASK_STORE_DATABASE_URL": postgres.url(),
                "OPENCODE_WORKSPACE_ROOT": str(folder / "work"),
                "A2A_NODE_RETURN_SECONDS": "600",
            }
            upstreams = []
            for name in ("oc-1", "oc-2"):
                (folder / name).mkdir()
                upstreams.append(stack.enter_context(fake_opencode(folder / name)))
            places = []
            for name, upstream in zip("abc", (*upstreams[:1], *upstreams), strict=True):
                (folder / name).mkdir()
                places.append(Place(name, upstream, folder / name, settings))
            async with AsyncExitStack() as more:
                connector = aiohttp.TCPConnector(limit=0, force_close=True)
                http = await more.enter_async_context(
                    aiohttp.ClientSession(connector=connector, headers=HEADERS)
                )
                try:
                    await asyncio.gather(*(asyncio.to_thread(place.start) for place in places))
                    yield cls(postgres, upstreams, places, http, random.Random(seed))
                finally:
                    for place in places:
                        await asyncio.to_thread(place.kill)

    # -- a proxy that asks one node after the other

    def url(self) -> str | None:
        alive = [place.running.url for place in self.places if place.running is not None]
        self._next += 1
        return alive[self._next % len(alive)].rstrip("/") if alive else None

    async def ask(self, method: str, path: str, body: Json | None = None, key: str = "") -> Json:
        """Ask until somebody answers; what a client does who may not give up."""
        headers = {"idempotency-key": key} if key else {}
        async with asyncio.timeout(PATIENCE):
            while True:
                url = self.url()
                try:
                    if url is not None:
                        self.counts["requests"] += 1
                        wait = aiohttp.ClientTimeout(total=30)
                        async with self.http.request(
                            method, url + path, json=body, headers=headers, timeout=wait
                        ) as response:
                            found: Json = await response.json()
                            if response.status not in (429, 503, 504):
                                found["http"] = response.status
                                return found
                            self.counts[f"answered {response.status}"] += 1
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                    self.counts["not answered"] += 1
                await asyncio.sleep(0.3)

    # -- what clients do

    async def client(self) -> None:
        contexts: list[str] = []
        while not self.stopping:
            kind = self.random.choices(("text", "permission", "cancel"), (8, 1, 1))[0]
            context = self.random.choice([*contexts[-3:], None])
            tokens = self.random.randrange(20, 400)
            words = {
                "text": f"[[tokens:{tokens}]] [[rate:{self.random.choice((100, 400))}]]",
                "permission": "[[permission]]",
                "cancel": "[[hang]]",
            }[kind]
            key = str(uuid.uuid4())
            self.history.wanted[key] = Wanted(key, cancels=kind == "cancel")
            sent = await self._send(words, key, contextId=context)
            task = sent["id"]
            if kind == "text":
                contexts.append(sent["contextId"])
                if self.random.random() < 0.5:
                    await self._follow(task)
            elif kind == "permission":
                await self._until(task, "input-required", *ENDS)
                answer = str(uuid.uuid4())
                self.history.wanted[answer] = self.history.wanted[key]
                await self._send("yes", answer, taskId=task, contextId=sent["contextId"])
            else:
                await self._until(task, "working", *ENDS)
                found = await self.ask("POST", f"/tasks/{task}:cancel", {})
                if found["http"] == 200:
                    self.history.canceled.setdefault(task, time.monotonic())
            await self._until(task, *ENDS)
            final = await self._get(task)
            self.history.finals[task] = self._final(final, tokens if kind == "text" else None)
            self.counts[f"tasks {final['state']}"] += 1

    async def _send(self, text: str, key: str, **members: str | None) -> Json:
        message = {"messageId": key, "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {name: value for name, value in members.items() if value is not None}
        body = {"message": message, "configuration": {"returnImmediately": True}}
        found = await self.ask("POST", "/message:send", body, key)
        assert found["http"] == 200, (text, found)
        task: Json = found["task"]
        self.history.acknowledged.append((key, task["id"]))
        if self.random.random() < 0.1:  # the answer got lost, says the client
            again = await self.ask("POST", "/message:send", body, key)
            assert again["http"] == 200, again
            self.history.acknowledged.append((key, again["task"]["id"]))
        return task

    async def _get(self, task: str) -> Json:
        began = time.monotonic()
        found = await self.ask("GET", f"/tasks/{task}")
        assert found["http"] == 200, found
        found["state"] = found["status"]["state"].removeprefix("TASK_STATE_").lower()
        found["state"] = found["state"].replace("_", "-")
        self.history.seen.append(Seen(task, found["state"], began, time.monotonic()))
        return found

    async def _until(self, task: str, *states: str) -> None:
        async with asyncio.timeout(3 * PATIENCE):
            while True:
                if (await self._get(task))["state"] in states:
                    return
                await asyncio.sleep(0.3)

    def _final(self, task: Json, tokens: int | None) -> Final:
        texts = [
            "".join(part.get("text", "") for part in artifact["parts"])
            for artifact in task.get("artifacts", [])
            if artifact["name"] == "answer"
        ]
        metadata = task.get("metadata", {})
        session = metadata.get("shared", {}).get("session", {}).get("id", "")
        problem = metadata.get("opencode", {}).get("error", {}).get("type")
        expected = expected_text(session, tokens) if tokens else None
        return Final(task["state"], texts[-1] if texts else "", problem, expected)

    async def _follow(self, task: str) -> None:
        """Read its events, whoever sends them, from where the stream before was cut."""
        numbers: list[int] = []
        for _ in range(40):
            url = self.url()
            headers = {"last-event-id": str(numbers[-1])} if numbers else {}
            wait = aiohttp.ClientTimeout(total=None, sock_read=15, sock_connect=5)
            try:
                path = f"{url}/tasks/{task}:subscribe"
                async with self.http.get(path, headers=headers, timeout=wait) as response:
                    if response.status == 400:
                        break  # it has ended
                    if response.status == 200 and await self._read(task, response, numbers):
                        break
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.counts["streams cut"] += 1
            await asyncio.sleep(0.2)
        self.history.streams.append((task, numbers))
        self.counts["streams"] += 1

    async def _read(self, task: str, response: aiohttp.ClientResponse, numbers: list[int]) -> bool:
        """Whether it was read to the end."""
        number, first, event = 0, True, ""
        async for line in response.content:
            if line.startswith(b"event:"):
                event = line[6:].strip().decode()
            elif line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: "):
                if event == "error":
                    return False
                body = json.loads(line[6:])
                if "task" not in body:
                    numbers.append(number)
                    self.history.frames.setdefault((task, number), set()).add(line)
                    self.counts["events"] += 1
                elif first and not numbers:
                    numbers.append(number)
                first = False
                state = body.get("statusUpdate", {}).get("status", {}).get("state", "")
                if state.removeprefix("TASK_STATE_").lower() in ENDS:
                    return True
        return False

    # -- what goes wrong

    async def break_things(self, faults: int, until: float) -> None:
        while self.counts["faults"] < faults and time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
            fault = self.random.choices(FAULTS, WEIGHTS)[0]
            await getattr(self, f"_{fault}")()
            self.counts["faults"] += 1
            self.counts[f"fault {fault}"] += 1

    async def _kill(self) -> None:
        place = self.random.choice(self.places)
        await asyncio.to_thread(place.kill)
        await asyncio.sleep(self.random.uniform(0, 3))
        await asyncio.to_thread(place.start)

    async def _pause(self) -> None:
        place = self.random.choice(self.places)
        assert place.running is not None
        process = place.running.program.process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE)
        process.send_signal(signal.SIGCONT)

    async def _terminate(self) -> None:
        """Cut all connections to the database."""
        ours = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        statement = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}"
        await asyncio.to_thread(self.postgres.say, statement)

    async def _postgres(self) -> None:
        await asyncio.to_thread(self.postgres.stop, signal.SIGQUIT)
        await asyncio.sleep(self.random.uniform(0, 3))
        await asyncio.to_thread(self.postgres.start)

    async def _feeds(self) -> None:
        await control(self.random.choice(self.upstreams), "drop")


async def campaign(faults: int, seconds: float, seed: int, clients: int) -> Cluster:
    async with Cluster.open(seed) as cluster:
        working = [asyncio.create_task(cluster.client()) for _ in range(clients)]
        breaking = asyncio.create_task(cluster.break_things(faults, time.monotonic() + seconds))
        await asyncio.wait([breaking, *working], return_when=asyncio.FIRST_COMPLETED)
        if not breaking.done():
            breaking.cancel()
        cluster.stopping = True
        outcomes = await asyncio.gather(breaking, *working, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                cluster.counts["clients that gave up"] += 1
                say(f"GAVE UP {outcome!r}"[:600])
        for upstream in cluster.upstreams:
            stats = await control(upstream, "stats")
            cluster.history.prompts += [message for _, message, _ in stats["prompts"]]
        return cluster


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    given = parser.parse_args()
    cluster = asyncio.run(campaign(given.faults, given.seconds, given.seed, given.clients))
    found = list(cluster.history.violations())
    for name, count in sorted(cluster.counts.items()):
        say(f"{name:32} {count:>8}")
    for sentence in found[:20]:
        say(f"VIOLATION {sentence}")
    gave_up = cluster.counts["clients that gave up"]
    say(f"RESULT {'ok' if not found and not gave_up else f'FAILED, {len(found)} violations'}")
    return 1 if found or gave_up else 0


if __name__ == "__main__":
    sys.exit(main())
