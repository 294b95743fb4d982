"""What the store costs: work among many tasks, and room on the disk."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from tests.running import service

from .client import Connection, message
from .clock import spending
from .figures import Plot, Result, spread
from .lab import Adapter, Lab, quiet

SIZES = (100, 10_000, 100_000)
REQUESTS = {"get": 300, "list": 100, "send": 100}  # of each kind; the last makes more tasks
TOKENS = 2_000
COPIED = ("tasks", "contexts", "sessions")
BYTES = 6 * TOKENS  # the fake says six bytes at a time


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, in seconds."""

    cpu: float
    wall: float


async def by_size(lab: Lab) -> Result:
    result = Result(
        "Among many finished tasks",
        "`GetTask` at random, `ListTasks` in pages of 50, newest first, and `SendMessage` for one "
        "delta in a new context, over one connection, in a database with so many finished tasks "
        "of one caller, each in a context of its own.",
    )
    costs = await among(lab, SIZES)
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


async def among(lab: Lab, sizes: tuple[int, ...]) -> dict[str, dict[int, Cost]]:
    """What each request costs, by the number of finished tasks: one service for each."""
    with ExitStack() as stack:
        adapter = stack.enter_context(lab.on_fake())
        await adapter.streams(4, 4, "[[tokens:50]]")
        callers: dict[int, Caller] = {}
        for size in sizes:
            folder = lab.new("stored")
            _fill(adapter.folder / "tasks.db", folder / "tasks.db", size)
            run = stack.enter_context(service(adapter.upstream, folder))
            callers[size] = Caller(Adapter(run, adapter.upstream, folder))
        for caller in callers.values():
            await quiet(caller.adapter.pid)
        seen: dict[str, dict[int, list[Cost]]] = {
            name: {size: [] for size in sizes} for name in REQUESTS
        }
        for name, usual in REQUESTS.items():
            for i in range(lab.steadier + 1):  # in turn, so that all see the same machine
                for size, caller in callers.items():
                    cost = await caller.ask(name, lab.count(usual, 30))
                    seen[name][size] += [cost] if i else []  # the first warms up
        for caller in callers.values():
            caller.connection.close()
    return {
        name: {
            size: Cost(median(c.cpu for c in costs), median(c.wall for c in costs))
            for size, costs in by_size.items()
        }
        for name, by_size in seen.items()
    }


class Caller:
    """Asks one service, at random places."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.connection = Connection(adapter.client)
        self._dice = random.Random(7)
        self._pages = [""]
        with sqlite3.connect(adapter.folder / "tasks.db") as db:
            self._ids = [row[0] for row in db.execute("SELECT id FROM tasks")]

    async def ask(self, name: str, count: int) -> Cost:
        """CPU on average, wall time at the median."""
        walls = []
        with spending(self.adapter.pid) as spent:
            for _ in range(count):
                began = perf_counter()
                await getattr(self, f"_{name}")()
                walls.append(perf_counter() - began)
        return Cost(spent.cpu / count, median(walls))

    async def _get(self) -> None:
        await self.connection.ask("GET", f"/tasks/{self._dice.choice(self._ids)}")

    async def _list(self) -> None:
        page = self._dice.choice(self._pages)
        body = await self.connection.ask("GET", f"/tasks?pageSize=50&pageToken={page}")
        if len(body["tasks"]) == 50 and body["nextPageToken"]:
            self._pages = [*self._pages, body["nextPageToken"]][-40:]

    async def _send(self) -> None:
        await self.connection.ask("POST", "/message:send", message("[[tokens:1]]"))


def _fill(source: Path, target: Path, size: int) -> None:
    """A store with so many finished tasks, each in its context, copies of those in another."""
    with sqlite3.connect(source) as db, sqlite3.connect(target) as copy:
        db.backup(copy)
    with sqlite3.connect(target) as db:
        db.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        found = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in COPIED}
        made: dict[str, list[dict[str, object]]] = {table: [] for table in COPIED}
        for i in range(size):
            task, context, session = (rows[i % len(rows)] for rows in found.values())
            ids = {"context_id": f"context-{i}", "session_id": f"ses_{i:026d}"}
            earlier = 10 * (size - i)
            times = {at: task[at] - earlier for at in ("status_at", "created_at")}
            name = f"{i:08x}-0000-4000-8000-{random.Random(i).getrandbits(48):012x}"
            made["tasks"].append({**task, **ids, **times, "id": name, "cleared": 1})
            made["contexts"].append({**context, **ids})
            made["sessions"].append({**session, "session_id": ids["session_id"]})
        for table in ("entries", *COPIED):
            db.execute(f"DELETE FROM {table}")
        for table, rows in made.items():
            values = ",".join(f":{column}" for column in rows[0])
            db.executemany(f"INSERT INTO {table} VALUES ({values})", rows)
    db.close()


async def growth(lab: Lab) -> Result:
    result = Result(
        "Room on the disk",
        f"Finished tasks of {TOKENS} deltas, {BYTES // 1000} kB of text each, said at 1 000 a "
        "second; the database file after the service has stopped, before and after the single "
        "events were swept (15 minutes after the end).",
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
