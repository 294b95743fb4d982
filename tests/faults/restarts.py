"""How soon the service works again after OpenCode was killed and has started again.

    python -m tests.faults.restarts serve --times 100
    python -m tests.faults.restarts up --times 100

kills the real OpenCode at random moments while a task is at work. Each time it measures, from
OpenCode's first healthy answer, until `/ready` says 200, until a message is accepted that was sent
at that moment, and until the task that was at work has failed, as it must.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.opencode.process import child_environment, free_port
from tests.fakes import model
from tests.processes import PROC
from tests.running import (
    TOKEN,
    Program,
    Upstream,
    isolated,
    opencode_command,
    running,
    service,
)

Json = dict[str, Any]
PASSWORD = "restarts"
TIMEOUT = 120.0
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED")
# Five restarts within twenty seconds each would be too many for a real service.
UP = """
from opencode_a2a.opencode import process
process.STABLE_SECONDS = 0
from opencode_a2a.__main__ import main
main()
"""


def has_ended(task: Json) -> bool:
    return task["status"]["state"] in ENDED


def state_and_answer(task: Json) -> tuple[str, str]:
    """How a task has ended, and what the agent has said last."""
    return task["status"]["state"], task["artifacts"][-1]["parts"][0]["text"]


class Killable(Protocol):
    """A service, and the OpenCode behind it."""

    url: str

    @property
    def opencode(self) -> str: ...

    @property
    def password(self) -> str: ...

    async def restart(self, away: float) -> None:
        """Kill OpenCode; have it started again, where that is not the service's work."""
        ...


@dataclass
class OfServe:
    """OpenCode is ours to start; it is away for a while."""

    folder: Path
    config: Json
    password: str = PASSWORD
    url: str = ""
    process: subprocess.Popen[bytes] | None = None
    port: int = field(default_factory=free_port)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def opencode(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [opencode_command(), "serve", "--hostname", "127.0.0.1", "--port", str(self.port)],
            cwd=self.workspace,
            env=child_environment(isolated(self.folder / "home"), PASSWORD, self.config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    async def restart(self, away: float) -> None:
        self.kill()
        await asyncio.sleep(away)
        self.start()


@dataclass
class OfUp:
    """The service starts it again by itself."""

    program: Program
    url: str

    @property
    def _last(self) -> tuple[int, int]:
        found = re.findall(r"event=opencode.started pid=(\d+) port=(\d+)", self.program.output)
        pid, port = found[-1]
        return int(pid), int(port)

    @property
    def opencode(self) -> str:
        return f"http://127.0.0.1:{self._last[1]}"

    @property
    def password(self) -> str:
        environ = (PROC / str(self._last[0]) / "environ").read_bytes().decode()
        return dict(line.split("=", 1) for line in environ.split("\0") if line)[
            "OPENCODE_SERVER_PASSWORD"
        ]

    async def restart(self, away: float) -> None:
        os.kill(self._last[0], signal.SIGKILL)


@contextmanager
def of_serve(folder: Path, config: Json) -> Iterator[Killable]:
    killable = OfServe(folder, config)
    killable.workspace.mkdir()
    killable.start()
    try:
        upstream = Upstream(killable.opencode, PASSWORD, killable.workspace)
        with service(upstream, folder) as running_service:
            killable.url = running_service.url
            yield killable
    finally:
        killable.kill()


@contextmanager
def of_up(folder: Path, config: Json) -> Iterator[Killable]:
    workspace = folder / "workspace"
    workspace.mkdir()
    env = isolated(
        folder / "home",
        OPENCODE_COMMAND=opencode_command(),
        OPENCODE_CONFIG_CONTENT=json.dumps(config),
        A2A_PORT="0",
        A2A_BEARER_TOKEN=TOKEN,
    )
    with running([sys.executable, "-c", UP, "up"], env, workspace) as program:
        url = program.wait_for(r"OpenCode answers A2A at (\S+)", TIMEOUT)[1]
        yield OfUp(program, url)


@dataclass
class Client:
    http: aiohttp.ClientSession
    killable: Killable

    async def send(self, text: str) -> str:
        """The id of a task, once a message is accepted."""
        message = {"messageId": os.urandom(8).hex(), "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"message": message, "configuration": {"returnImmediately": True}}
        while True:
            async with self.http.post(f"{self.killable.url}/message:send", json=body) as answer:
                told = await answer.json()
                if answer.status == 200:
                    task_id: str = told["task"]["id"]
                    return task_id
            await asyncio.sleep(0.02)

    async def until(self, task_id: str, happened: Callable[[Json], bool]) -> Json:
        while True:
            async with self.http.get(f"{self.killable.url}/tasks/{task_id}") as answer:
                task: Json = await answer.json()
                if happened(task):
                    return task
            await asyncio.sleep(0.02)

    async def until_ready(self) -> None:
        while True:
            async with self.http.get(f"{self.killable.url}/ready") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)

    async def until_healthy(self, password: str) -> None:
        """Ask OpenCode itself, so often that its first healthy answer is seen."""
        url = f"{self.killable.opencode}/global/health"
        login = Endpoint(self.killable.opencode, password=password).authorization
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(headers=login, timeout=timeout) as http:
            healthy = asyncio.Event()

            async def ask() -> None:
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with http.get(url) as answer:
                        if answer.status == 200:
                            healthy.set()

            asking: list[asyncio.Task[None]] = []
            while not healthy.is_set():
                asking.append(asyncio.create_task(ask()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await healthy.wait()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@asynccontextmanager
async def at_work(how: str, folder: Path) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {TOKEN}", "a2a-version": "1.0"}
    async with model.serve() as model_url, aiohttp.ClientSession(headers=headers) as http:
        config = model.opencode_config(model_url) | {"snapshot": False}
        started = of_serve(folder, config) if how == "serve" else of_up(folder, config)
        killable = await asyncio.to_thread(started.__enter__)
        try:
            client = Client(http, killable)
            async with asyncio.timeout(TIMEOUT):
                await client.until_ready()
            yield client
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)


async def one_restart(client: Client, dice: random.Random) -> dict[str, float]:
    """Seconds from the first healthy answer to each of three things."""
    async with asyncio.timeout(TIMEOUT):
        working = await client.send("[[tokens:100000]] [[delay:100]]")
        await client.until(working, lambda task: bool(task["artifacts"]))  # it answers
        await asyncio.sleep(dice.uniform(0, 2))
        password = client.killable.password
        await client.killable.restart(dice.uniform(0, 5))
        await client.until_healthy(password)
        began = time.monotonic()

        async def since() -> float:
            return time.monotonic() - began

        async def ready() -> float:
            await client.until_ready()
            return await since()

        async def accepted() -> float:
            await client.send("hello")
            return await since()

        async def told() -> float:
            task = await client.until(working, has_ended)
            assert "UPSTREAM_INTERRUPTED" in json.dumps(task), task
            return await since()

        took = await asyncio.gather(ready(), accepted(), told())
        return dict(zip(("ready", "send accepted", "task told"), took, strict=True))


def summary(figures: list[float]) -> str:
    p95 = (
        statistics.quantiles(figures, n=20, method="inclusive")[-1]
        if len(figures) > 1
        else figures[0]
    )
    points = (min(figures), statistics.median(figures), p95, max(figures))
    return " | ".join(f"{point:.2f}" for point in points)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("serve", "up"))
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    results: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with at_work(chosen.how, Path(folder)) as client:
            for number in range(chosen.times):
                results.append(await one_restart(client, dice))
                print(number, results[-1], file=sys.stderr, flush=True)  # noqa: T201
    print(f"| `{chosen.how}`: from OpenCode's answer to | min | median | p95 | max |")  # noqa: T201
    print("|---|---|---|---|---|")  # noqa: T201
    for name in results[0]:
        print(f"| {name} | {summary([each[name] for each in results])} |")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
