"""Where a run takes place: a folder of its own, how much of everything, and the programs."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.running import (
    ROOT,
    Program,
    Service,
    Upstream,
    fake_opencode,
    isolated,
    real_opencode,
    running,
    service,
)

from .client import Answer, Client, message, together
from .clock import cpu

UNLIMITED = {"OPENCODE_MAX_CONCURRENT_STREAMS": "0"}
COMPLETED = b"TASK_STATE_COMPLETED"


@dataclass
class Lab:
    folder: Path
    repeats: int = 3
    scale: float = 1.0  # of counts that only make a figure steadier
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def steadier(self) -> int:
        """Repeats where figures are told from each other that are close."""
        return self.repeats + 2

    def count(self, usual: int, least: int = 1) -> int:
        return max(least, round(usual * self.scale))

    def new(self, name: str) -> Path:
        path = self.folder / f"{name}-{next(self._numbers)}"
        path.mkdir(parents=True)
        return path

    @contextmanager
    def on_fake(self, command: Sequence[str] = (), **settings: str) -> Iterator[Adapter]:
        """The service on the fast fake, with no limit on tasks at a time."""
        folder = self.new("fake")
        with (
            fake_opencode(folder) as upstream,
            service(upstream, folder, command=command, **UNLIMITED, **settings) as run,
        ):
            yield Adapter(run, upstream, folder)

    @contextmanager
    def on_real(self, **config: object) -> Iterator[Adapter]:
        """The service on the real OpenCode with the scripted model, both as they come."""
        folder = self.new("real")
        with real_opencode(folder, None, **config) as upstream, service(upstream, folder) as run:
            yield Adapter(run, upstream, folder)

    @contextmanager
    def program(self, *words: str) -> Iterator[tuple[Client, int]]:
        """One of ours that says where it listens: a client for it, and its process."""
        command = [sys.executable, "-m", *words]
        with running(command, isolated(self.new("program")), ROOT) as program:
            found = program.wait_for(r"listening on (http://\S+)")
            yield Client(found[1], {"A2A-Version": "1.0"}), program.process.pid

    @contextmanager
    def bare_tasks(self) -> Iterator[tuple[Client, int]]:
        """The bare server on a fast fake of its own."""
        folder = self.new("bare")
        with (
            fake_opencode(folder) as upstream,
            self.program("bench.floor", upstream.base_url, str(folder / "bare.db")) as bare,
        ):
            yield bare


@dataclass(frozen=True)
class Adapter:
    """The service at work, and the client that loads it."""

    service: Service
    upstream: Upstream
    folder: Path

    @property
    def pid(self) -> int:
        return self.service.program.process.pid

    @property
    def client(self) -> Client:
        return Client(self.service.url, {**self.service.headers, "A2A-Version": "1.0"})

    @property
    def opencode(self) -> Program:
        assert self.upstream.program is not None
        return self.upstream.program

    async def stream(self, text: str) -> Answer:
        """A new task, streamed to its end."""
        answer = await self.client.stream("POST", "/message:stream", message(text), b'"answer"')
        if COMPLETED not in answer.end:
            raise RuntimeError(f"not completed: {answer.end!r}")
        return answer

    async def streams(self, count: int, at_a_time: int, text: str) -> list[Answer]:
        return await together(count, at_a_time, lambda: self.stream(text))


async def quiet(*pids: int, seconds: float = 30.0) -> None:
    """Wait until these processes have nothing left to do (or for a bounded time)."""
    for _ in range(int(seconds / 0.25)):
        before = cpu(*pids)
        await asyncio.sleep(0.25)
        if cpu(*pids) - before < 0.005:
            return
