"""What the store costs: reading among many tasks, and room on the disk."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from tests.running import service

from .client import Connection
from .clock import spending
from .figures import Plot, Result, spread
from .lab import Adapter, Lab, quiet

SIZES = (100, 10_000, 100_000)
TOKENS = 2_000
BYTES = 6 * TOKENS  # the fake says six bytes at a time


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, in seconds."""

    cpu: float
    wall: float


async def by_size(lab: Lab) -> Result:
    result = Result(
        "Reading among many finished tasks",
        "`GetTask` at random and `ListTasks` in pages of 50, newest first, over one connection, "
        "in a database with so many finished tasks of one caller.",
    )
    costs = await reading(lab, SIZES)
    for name, sizes in costs.items():
        for size, cost in sizes.items():
            result.add(f"{name} among {size}, CPU", cost.cpu * 1e3, "ms")
            result.add(f"{name} among {size}, wall", cost.wall * 1e3, "ms")
        cpu, wall = ([getattr(c, at) for c in sizes.values()] for at in ("cpu", "wall"))
        result.add(f"{name}, CPU: the largest against the smallest", spread(cpu), "×", 1.5)
        result.add(f"{name}, wall: the largest against the smallest", spread(wall), "×", 1.5)
    lines = {
        name: [(float(size), cost.cpu * 1e3) for size, cost in sizes.items()]
        for name, sizes in costs.items()
    }
    title = "CPU per request by number of finished tasks"
    result.plots.append(Plot("stored", title, "finished tasks", "ms per request", lines))
    return result


async def reading(lab: Lab, sizes: tuple[int, ...]) -> dict[str, dict[int, Cost]]:
    """What a get and a list cost, by the number of finished tasks."""
    costs: dict[str, dict[int, Cost]] = {"get": {}, "list": {}}
    with lab.on_fake() as adapter:
        await adapter.streams(4, 4, "[[tokens:50]]")
        for size in sizes:
            folder = lab.new("stored")
            _fill(adapter.folder / "tasks.db", folder / "tasks.db", size)
            with service(adapter.upstream, folder) as run:
                measured = Adapter(run, adapter.upstream, folder)
                await quiet(measured.pid)
                for name, cost in (await _read(measured, lab.count(300, 60))).items():
                    costs[name][size] = cost
    return costs


async def _read(adapter: Adapter, count: int) -> dict[str, Cost]:
    """What a get and a list cost: CPU on average, wall time at the median."""
    dice, connection = random.Random(7), Connection(adapter.client)
    with sqlite3.connect(adapter.folder / "tasks.db") as db:
        ids = [row[0] for row in db.execute("SELECT id FROM tasks WHERE cleared = 1")]
    costs = {}
    for name in ("get", "list"):
        tokens, rounds = [""], []
        for timed in (False, True):
            walls = []
            with spending(adapter.pid) as spent:
                for i in range(count if timed else 30):
                    path = f"/tasks/{dice.choice(ids)}"
                    if name == "list":
                        path = f"/tasks?pageSize=50&pageToken={tokens[i % len(tokens)]}"
                    began = perf_counter()
                    body = await connection.ask("GET", path)
                    walls.append(perf_counter() - began)
                    if name == "list" and not timed and len(ids) > 500 and body["nextPageToken"]:
                        tokens.append(body["nextPageToken"])
            rounds.append(Cost(spent.cpu / len(walls), median(walls)))
        costs[name] = rounds[-1]
    connection.close()
    return costs


def _fill(source: Path, target: Path, size: int) -> None:
    """A store with so many finished tasks, copies of those in another."""
    with sqlite3.connect(source) as db, sqlite3.connect(target) as copy:
        db.backup(copy)
    with sqlite3.connect(target) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info(tasks)")]
        rows = db.execute("SELECT * FROM tasks").fetchall()
        db.execute("DELETE FROM entries")
        at = {name: i for i, name in enumerate(names)}
        made = []
        for i in range(size):
            row = list(rows[i % len(rows)])
            row[at["id"]] = f"{i:08x}-0000-4000-8000-{random.Random(i).getrandbits(48):012x}"
            row[at["context_id"]] = f"context-{i}"
            row[at["status_at"]] -= 10 * (size - i)
            row[at["created_at"]] -= 10 * (size - i)
            row[at["cleared"]] = 1
            made.append(row)
        db.execute("DELETE FROM tasks")
        db.executemany(f"INSERT INTO tasks VALUES ({','.join('?' * len(names))})", made)
    db.close()


async def growth(lab: Lab) -> Result:
    result = Result(
        "Room on the disk",
        f"Finished tasks of {TOKENS} deltas, {BYTES // 1000} kB of text each, said at 1 000 a "
        "second; the database file after the service has stopped, before and after the single "
        "events were swept (A2A_TASK_STORE_REPLAY_SECONDS after the end).",
    )
    tasks = lab.count(20, 4)
    with lab.on_fake() as adapter:
        path = adapter.folder / "tasks.db"
        await quiet(adapter.pid)
        empty = _size(path)
        answers = await adapter.streams(tasks, tasks, f"[[tokens:{TOKENS}]] [[rate:1000]]")
    full = _size(path)
    async with Database.open(f"sqlite:///{path}") as database, SqlTaskLog.open(database) as log:
        await asyncio.sleep(0.01)
        await log.sweep(Retention(replay=0.0))
    swept = _size(path)
    result.add("text of a task", BYTES / 1e3, "kB")
    result.add("growth per finished task", (swept - empty) / tasks / 1e3, "kB")
    result.add("… against its text", (swept - empty) / tasks / BYTES, "×", 3)
    result.add("while its events can be replayed", (full - empty) / tasks / 1e3, "kB")
    result.add("… events per task there", [float(answer.events) for answer in answers], "")
    return result


def _size(path: Path) -> int:
    """Bytes of content: what is in the file and in use."""
    db = sqlite3.connect(path)
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    db.close()
    return int((pages - free) * size)
