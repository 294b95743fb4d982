"""Push notifications under fire: receivers that misbehave, and a service that is killed.

    python -m tests.push_campaign --tasks 1000 --kills 12 --seed 1

Each task has three webhooks. The receivers fail, hang, redirect, hang up and answer late, until all
tasks have ended; then they take everything. At the end each config must have got every event it is
owed, in order, and nothing may have gone where a redirect points. The latency is that of the first
attempt at receivers that answer at once, from the time in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from opencode_a2a.outbound.push import signature
from tests.receivers import ENDS
from tests.running import Service, Upstream, fake_opencode, service

Json = dict[str, Any]
Key = tuple[str, str]  # of a config: its task, its id

KINDS = ("prompt", "prompt", "failing", "late", "hanging", "redirecting", "dropping")
TOLD = ("Queued", "Started", "Ended", "InterruptOpened", "InterruptUnclear", "InterruptResolved")
KIND = web.AppKey("kind", str)
SECRET = "the-secret-of-all-receivers"
TIMEOUT_SECONDS = "2"


@dataclass(frozen=True)
class Plan:
    tasks: int = 1000
    kills: int = 12
    seed: int = 1
    at_once: int = 24
    webhooks: int = 3


@dataclass
class Ledger:
    """What receivers were told, and what is wrong with it."""

    taken: dict[Key, list[int]] = field(default_factory=dict)
    registered_at: dict[Key, int] = field(default_factory=dict)  # ms; 0: with the message
    latencies: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Receivers:
    """One server for each kind, all in this process."""

    def __init__(self, ledger: Ledger, dice: random.Random) -> None:
        self._ledger = ledger
        self._dice = dice
        self.calm = False  # all take what they get
        self.urls: list[tuple[str, str]] = []  # kind and address
        self._elsewhere = ""  # where redirects point

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        runners = []
        for kind in ("elsewhere", *KINDS):
            app = web.Application()
            app[KIND] = kind
            app.router.add_post("/{config}", self._receive)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            if kind == "elsewhere":
                self._elsewhere = f"{url}/x"
            else:
                self.urls.append((kind, url))
        try:
            yield
        finally:
            for runner in runners:
                await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        body, kind = await request.read(), request.app[KIND]
        at, counts = time.time(), self._ledger.counts
        counts["attempts"] += 1
        if kind == "elsewhere":
            self._ledger.wrong.append("a redirect was followed")
            return web.Response(status=204)
        if not self.calm and (trouble := await self._misbehave(kind, request)) is not None:
            counts[f"not taken: {kind}"] += 1
            return trouble
        self._take(request, body, at=at, kind=kind)
        return web.Response(status=204)

    async def _misbehave(self, kind: str, request: web.Request) -> web.StreamResponse | None:
        roll = self._dice.random()
        if kind == "failing" and roll < 0.4:
            return web.Response(status=self._dice.choice((500, 503, 404, 429)))
        if kind == "late":
            await asyncio.sleep(roll)
        if kind == "hanging" and roll < 0.3:
            await asyncio.sleep(3)
            return web.Response(status=500)
        if kind == "redirecting" and roll < 0.5:
            return web.Response(status=307, headers={"location": self._elsewhere})
        if kind == "dropping" and roll < 0.4:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        return None

    def _take(self, request: web.Request, body: bytes, *, at: float, kind: str) -> None:
        ledger, headers = self._ledger, request.headers
        event_id = headers["webhook-id"]
        task_id, _, number = event_id.rpartition(":")
        key, seq = (task_id, request.match_info["config"]), int(number)
        right = signature(SECRET, event_id, timestamp=int(headers["webhook-timestamp"]), body=body)
        if headers["webhook-signature"] != right:
            ledger.wrong.append(f"{key}: a wrong signature")
        told = ledger.taken.setdefault(key, [])
        if told and seq < told[-1]:
            ledger.wrong.append(f"{key}: {seq} after {told[-1]}")
        if told and seq == told[-1]:
            ledger.counts["taken again"] += 1
        told.append(seq)
        ledger.counts["taken"] += 1
        if kind == "prompt" and headers["a2a-notification-attempt"] == "1":
            event = json.loads(body)
            inner = event.get("statusUpdate") or event.get("task")
            moment = datetime.fromisoformat(inner["status"]["timestamp"])
            ledger.latencies.append(at - moment.timestamp())


class Victim:
    """The service, which is killed and started again at the same address."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream, self._folder = upstream, folder
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port = str(free.getsockname()[1])
        self._stack = ExitStack()
        self._running: Service | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._stack = ExitStack()
        self._running = self._stack.enter_context(
            service(
                self._upstream,
                self._folder,
                A2A_PORT=self._port,
                A2A_PUSH="true",
                A2A_PUSH_PRIVATE_HOSTS="127.0.0.1",
                A2A_MAX_QUEUED_TASKS="16000",
            )
        )

    def kill(self) -> None:
        assert self._running is not None
        self._running.program.kill()
        self._stack.close()

    def stop(self) -> None:
        self._stack.close()


class Client:
    """Sends a message until it is accepted: the service may be away."""

    def __init__(self, http: aiohttp.ClientSession, url: str, ledger: Ledger) -> None:
        self._http, self._url, self._ledger = http, url, ledger

    async def call(self, method: str, params: Json) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"idempotency-key": str(uuid.uuid4()), "a2a-version": "1.0"}
        headers["authorization"] = "Bearer test-token"
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                async with self._http.post(self._url, json=body, headers=headers) as response:
                    answer: Json = await response.json()
                if "result" in answer:
                    found: Json = answer["result"]
                    return found
                self._ledger.counts[f"refused: {answer['error']['message'][:60]}"] += 1
            await asyncio.sleep(0.2)

    async def run_task(self, urls: list[str]) -> str:
        """One task with its webhooks; its id."""
        configs = [{"id": str(uuid.uuid4()), "url": url, "token": SECRET} for url in urls]
        for config in configs:
            config["url"] += f"/{config['id']}"
        message = {
            "messageId": str(uuid.uuid4()),
            "role": "ROLE_USER",
            "parts": [{"text": "[[tokens:100]] [[rate:40]]"}],
        }
        configuration = {"returnImmediately": True, "taskPushNotificationConfig": configs[0]}
        sent = await self.call("SendMessage", {"message": message, "configuration": configuration})
        task_id: str = sent["task"]["id"]
        self._ledger.registered_at[task_id, configs[0]["id"]] = 0
        for config in configs[1:]:
            await self.call("CreateTaskPushNotificationConfig", {"taskId": task_id, **config})
            self._ledger.registered_at[task_id, config["id"]] = int(time.time() * 1000)
        while True:
            task = await self.call("GetTask", {"id": task_id, "historyLength": 0})
            state = task["status"]["state"].removeprefix("TASK_STATE_").lower()
            if state in ENDS:
                return task_id
            await asyncio.sleep(0.5)


async def run(plan: Plan, folder: Path) -> Ledger:
    ledger, dice = Ledger(), random.Random(plan.seed)
    receivers = Receivers(ledger, dice)
    with ExitStack() as stack:
        upstream = stack.enter_context(fake_opencode(folder))
        victim = Victim(upstream, folder)
        await asyncio.to_thread(victim.start)
        stack.callback(victim.stop)
        limits = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            receivers.listening(),
            aiohttp.ClientSession(
                connector=limits, timeout=aiohttp.ClientTimeout(total=20)
            ) as http,
        ):
            client = Client(http, victim.url, ledger)
            slots, ended = asyncio.Semaphore(plan.at_once), asyncio.Condition()

            async def one() -> None:
                async with slots:
                    chosen = dice.sample(receivers.urls, plan.webhooks)
                    await client.run_task([url for _, url in chosen])
                ledger.counts["tasks"] += 1
                async with ended:
                    ended.notify_all()

            working = [asyncio.create_task(one()) for _ in range(plan.tasks)]
            for number in range(plan.kills):
                until = plan.tasks * (number + dice.random()) / max(plan.kills, 1)
                async with ended:
                    while ledger.counts["tasks"] < until:
                        await ended.wait()
                await asyncio.to_thread(victim.kill)
                ledger.counts["kills"] += 1
                await asyncio.to_thread(victim.start)
            await asyncio.gather(*working)
            receivers.calm = True
            await _wait_until_told(folder / "tasks.db", ledger)
            _judge(folder / "tasks.db", ledger)
    return ledger


def _is_owed(file: Path) -> int:
    with closing(sqlite3.connect(file, timeout=30)) as db:
        query = "SELECT count(*) FROM push_configs WHERE is_over = 0"
        found: int = db.execute(query).fetchone()[0]
        return found


async def _wait_until_told(file: Path, ledger: Ledger) -> None:
    deadline = time.monotonic() + 900
    while left := _is_owed(file):
        if time.monotonic() > deadline:
            ledger.wrong.append(f"{left} configs are not told the end")
            return
        await asyncio.sleep(0.5)


def _judge(file: Path, ledger: Ledger) -> None:
    """Compare what was taken with what the log says each config is owed."""
    marks = ",".join("?" * len(TOLD))
    events: dict[str, list[tuple[int, int]]] = {}
    with closing(sqlite3.connect(file, timeout=30)) as db:
        query = f"SELECT task_id, seq, at FROM entries WHERE kind IN ({marks}) ORDER BY seq"
        for task_id, seq, at in db.execute(query, TOLD):
            events.setdefault(task_id, []).append((seq, at))
        letters = db.execute("SELECT count(*) FROM push_dead").fetchone()[0]
    ledger.counts["dead letters"] = letters
    for key, since in ledger.registered_at.items():
        ledger.counts["configs"] += 1
        all_events = events.get(key[0], [])
        owed = {seq for seq, at in all_events if at > since}
        got = ledger.taken.get(key, [])
        ledger.counts["events owed"] += len(owed)
        if missing := owed - set(got):
            ledger.wrong.append(f"{key}: was not told {sorted(missing)}")
        if extra := set(got) - {seq for seq, _ in all_events}:
            ledger.wrong.append(f"{key}: was told {sorted(extra)}, which is not in the log")


def report(plan: Plan, ledger: Ledger) -> str:
    rows = [f"{plan.tasks} tasks, {plan.webhooks} webhooks each, seed {plan.seed}"]
    rows += [f"{name:60} {count:>7}" for name, count in sorted(ledger.counts.items())]
    if len(ledger.latencies) > 1:
        cuts = statistics.quantiles([each * 1000 for each in ledger.latencies], n=100)
        rows.append(f"from the log to the receiver: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
    rows += [f"WRONG {sentence}" for sentence in ledger.wrong[:20]]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.push_campaign", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=24)
    given = parser.parse_args()
    plan = Plan(given.tasks, given.kills, given.seed, at_once=given.at_once)
    with tempfile.TemporaryDirectory() as folder:
        ledger = asyncio.run(run(plan, Path(folder)))
    sys.stdout.write(report(plan, ledger))
    return 1 if ledger.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
