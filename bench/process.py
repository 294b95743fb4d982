"""The process itself: how soon it answers, and how much memory it holds."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from tests.running import TOKEN, isolated, service

from .client import Client, Connection, Exchange, message
from .clock import cpu, rss
from .figures import Plot, Result
from .lab import Lab, quiet

CARD = "/.well-known/agent-card.json"


async def start(lab: Lab) -> Result:
    result = Result(
        "From start to the first Agent Card",
        "`opencode-a2a serve` without an OpenCode, until a client that is waiting has the card: "
        "on a database that exists, and on none (the first start of all, which makes the tables).",
    )
    python = [_python() for _ in range(lab.repeats)]
    result.add("Python itself, for comparison", python, "s")
    folder = lab.new("start")
    await _started(folder)
    again = [await _started(folder) for _ in range(lab.count(9, 5))]
    result.add(
        "to the card",
        [wall for wall, _ in again],
        "s",
        1.0,
        note=f"nearly all of it is Python at work loading modules: {_imports()}.",
    )
    result.add("… CPU of the process until then", [used for _, used in again], "s")
    fresh = [await _started(lab.new("start")) for _ in range(lab.repeats)]
    result.add("to the card, first start of all", [wall for wall, _ in fresh], "s", 1.0)
    return result


def _imports() -> str:
    """What loading takes, by package, the dearest first."""
    program = "import opencode_a2a.cli.program"
    command = [sys.executable, "-X", "importtime", "-c", program]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    spent: Counter[str] = Counter()
    for line in told.stderr.splitlines():
        itself, _, module = (part.strip() for part in line.removeprefix("import time:").split("|"))
        if itself.isdecimal():
            spent[module.partition(".")[0]] += int(itself)
    dearest = (f"{name} {used / 1e6:.2f} s" for name, used in spent.most_common(6))
    return f"{', '.join(dearest)}, in all {spent.total() / 1e6:.2f} s"


def _python() -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter() - began


async def _started(folder: Path) -> tuple[float, float]:
    """Seconds to the card, and seconds of CPU."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = isolated(
        folder / "home",
        OPENCODE_BASE_URL="http://127.0.0.1:9",  # nobody listens there
        OPENCODE_WORKSPACE_ROOT=str(folder),
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{folder / 'tasks.db'}",
        A2A_BEARER_TOKEN=TOKEN,
        A2A_PORT=str(port),
    )
    command = [str(Path(sys.executable).parent / "opencode-a2a"), "serve"]
    client, began = Client(f"http://127.0.0.1:{port}"), perf_counter()
    process = subprocess.Popen(  # noqa: ASYNC220 (its start is what is measured)
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        status = await _card(client)
        wall, used = perf_counter() - began, cpu(process.pid)
        assert status == 200, status
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(20)
    return wall, used


async def _card(client: Client) -> int:
    """The status of its answer, once it listens: from then on it lets clients wait."""
    async with asyncio.timeout(20):
        while True:
            with suppress(ConnectionRefusedError):
                exchange = await client.open(client.request("GET", CARD, close=True))
                return (await exchange.done).status
            await asyncio.sleep(0.002)


TASKS, OPEN = 5_000, 500


async def _held(client: Client, pid: int, request: bytes, count: int = OPEN) -> float:
    """Thousands of bytes for each of so many answers that are open at once."""
    await quiet(pid)
    before, readers = rss(pid), list[Exchange]()
    for _ in range(count // 20):
        readers += await asyncio.gather(*(client.open(request) for _ in range(20)))
    await asyncio.gather(*(reader.begun for reader in readers))
    await quiet(pid)
    assert all(reader.answer.status == 200 for reader in readers)
    return (rss(pid) - before) / count / 1e3


async def memory(lab: Lab) -> Result:
    result = Result(
        "Memory",
        f"Resident memory of the process on the fake upstream: idle, after {TASKS} tasks of 20 "
        f"deltas (16 at a time), and what each of {OPEN} more streams holds that are open at once, "
        "its task included, which waits for its model.",
    )
    points: list[tuple[float, float]] = []
    with lab.on_fake() as adapter:
        await quiet(adapter.pid)
        first = rss(adapter.pid) / 1e6
        used = lab.new("again")
        with service(adapter.upstream, used):
            pass  # makes the tables
        with service(adapter.upstream, used) as run:
            again = run.program.process.pid
            await quiet(again)
            result.add("idle", rss(again) / 1e6, "MB", 90)
        idle = result.add("idle after the first start of all", first, "MB")
        done, step = 0, lab.count(TASKS) // 10
        for _ in range(10):
            await adapter.streams(step, 16, "[[tokens:20]]")
            done += step
            points.append((done, rss(adapter.pid) / 1e6))
        await quiet(adapter.pid)
        result.add(f"more after {done} tasks", rss(adapter.pid) / 1e6 - idle, "MB", 10)
    with lab.on_fake() as adapter:
        await adapter.streams(600, 50, "[[tokens:20]]")  # what any work costs once is no stream's
        client, asked = adapter.client, message("[[tokens:5]] [[hang]]")
        sending = client.request("POST", "/message:stream", asked)
        own = [await _held(client, adapter.pid, sending) for _ in range(lab.repeats)]
        connection = Connection(client)
        waiting = asked | {"configuration": {"returnImmediately": True}}
        told = await connection.ask("POST", "/message:send", waiting)
        connection.close()
        path = f"/tasks/{told['task']['id']}:subscribe"
        more = await _held(client, adapter.pid, client.request("GET", path))
    with lab.program("bench.floor") as (floor, pid):
        await _held(floor, pid, floor.request("GET", "/5?1"), 100)
        bare = await _held(floor, pid, floor.request("GET", "/100?1"))
    result.add(
        "each open stream",
        own,
        "kB",
        50,
        note="of this, the bare server holds the last row for a connection alone, and the row "
        "before it is what a reader takes here; the rest is the task: its turn, its subscription "
        "to OpenCode's events, the end of its log.",
    )
    result.add("each further reader of one task", more, "kB")
    result.add("bare SSE server, each open stream", bare, "kB")
    result.plots.append(
        Plot("memory", "Memory by tasks done", "tasks", "MB", {"opencode-a2a": points})
    )
    return result
