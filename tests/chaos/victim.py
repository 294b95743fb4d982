"""The service under attack: one port, one database, started again whenever it has ended."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from opencode_a2a.opencode.process import free_port
from tests.chaos.upstreams import Upstream, stopped_for
from tests.running import ROOT, TOKEN, isolated

APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
END_SECONDS = 60.0  # it waits for a PostgreSQL that is away, to store how its tasks ended
UP_SECONDS = 180.0  # beside a load of 30 a start was seen to take more than 60


class Victim:
    def __init__(
        self,
        upstream: Upstream,
        line: str,
        folder: Path,
        database: Path,
        http: aiohttp.ClientSession,
        settings: Mapping[str, str],
        *,
        apart: bool = False,
        port: int = 0,
    ) -> None:
        """`apart`: others cannot see whether its process is alive, as if on another machine."""
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.database = database
        self.log = folder / "service.log"
        self.slowest_start = 0.0
        self.starts = 0
        self._http = http
        self._pid = 0
        self._workspace = upstream.workspace
        self._env = isolated(
            folder / "home",
            PYTHONPATH=f"{ROOT / 'src'}:{ROOT}",
            OPENCODE_BASE_URL=line,
            OPENCODE_WORKSPACE_ROOT=str(upstream.workspace),
            A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{database}",
            A2A_PORT=str(port),
            A2A_BEARER_TOKEN=TOKEN,
            A2A_SHUTDOWN_GRACE_SECONDS="0.3",
            **({"OPENCODE_AUTH_PASSWORD": upstream.password} if upstream.password else {}),
        )
        self._env |= settings
        self._apart = apart
        nursery = [sys.executable, "-m", "tests.chaos.nursery"]
        self._nursery = subprocess.Popen(
            [*APART, *nursery] if apart else nursery,
            env=self._env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        upstream: Upstream,
        line: str,
        folder: Path,
        database: Path,
        http: aiohttp.ClientSession,
        **settings: str,
    ) -> AsyncIterator[Victim]:
        async with cls(upstream, line, folder, database, http, settings).running() as self:
            yield self

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Victim]:
        try:
            await self.start()
            yield self
        finally:
            await self.end(signal.SIGKILL)
            assert self._nursery.stdin and self._nursery.stdout
            self._nursery.stdin.close()
            self._nursery.wait(60)
            self._nursery.stdout.close()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def alive(self) -> bool:
        return self._pid != 0 and Path(f"/proc/{self._pid}").exists()

    async def start(self) -> float:
        """Run it, again if it gives up, until it answers; how long that took."""
        began = time.monotonic()
        async with asyncio.timeout(UP_SECONDS):
            while not await self._healthy():
                if not self.alive:
                    await self.launch()
                await asyncio.sleep(0.02)
        took = time.monotonic() - began
        self.slowest_start = max(self.slowest_start, took)
        return took

    async def launch(self) -> None:
        """Run it, without waiting for anything."""
        order = {"env": self._env, "cwd": str(self._workspace), "log": str(self.log)}
        self._pid = await asyncio.to_thread(self._order, json.dumps(order))
        self.starts += 1

    def _order(self, order: str) -> int:
        assert self._nursery.stdin and self._nursery.stdout
        self._nursery.stdin.write(order + "\n")
        self._nursery.stdin.flush()
        pid = int(self._nursery.stdout.readline())
        return _seen_from_here(self._nursery.pid, pid) if self._apart else pid

    async def reconnected(self) -> float:
        """Wait until it talks to OpenCode again; how long that took."""
        began = time.monotonic()
        async with asyncio.timeout(UP_SECONDS):
            while not await self._healthy("/ready"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def _healthy(self, path: str = "/health") -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with self._http.get(self.url + path, timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def end(self, number: signal.Signals) -> float:
        """Signal it, and wait until it is no more; how long that took."""
        began = time.monotonic()
        if self.alive:
            with suppress(ProcessLookupError):
                watched = os.pidfd_open(self._pid)
                try:
                    signal.pidfd_send_signal(watched, number)
                    if not await asyncio.to_thread(_ended, watched, END_SECONDS):
                        signal.pidfd_send_signal(watched, signal.SIGKILL)
                        raise AssertionError(f"the service outlived {number.name} for too long")
                finally:
                    os.close(watched)
        self._pid = 0
        return time.monotonic() - began

    async def reload(self) -> bool:
        """Have it read its settings again. False if it is not there, or not ready for that."""
        if not await self._healthy():
            return False
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        return True

    def use(self, **settings: str) -> None:
        """Change settings; they hold from the next start on."""
        self._env |= settings

    async def command(self, *words: str, **settings: str) -> tuple[int, str]:
        """Run the program with its settings: the exit code, and what it says."""
        process = await self.begin(*words, **settings)
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def begin(self, *words: str, **settings: str) -> asyncio.subprocess.Process:
        """The same, without waiting for its end."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "opencode_a2a", *words),
            env=self._env | settings,
            cwd=self._workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def pause(self, seconds: float) -> None:
        if self.alive:
            await stopped_for(seconds, self._pid)


def _ended(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def _seen_from_here(parent: int, inner: int) -> int:
    """The number here of a process that has that number among the descendants of this one."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            found = dict(line.split(":", 1) for line in status.read_text().splitlines())
            numbers = found["NSpid"].split()
            inside = len(numbers) > 1 and int(numbers[-1]) == inner
            if inside and _has_ancestor(int(numbers[0]), parent):
                return int(numbers[0])
    return 0  # it has ended already


def _has_ancestor(pid: int, wanted: int) -> bool:
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(stat[1])
        if pid == wanted:
            return True
    return False
