"""CPU time and memory of other processes, from /proc: precise to the nanosecond, and free."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

PROC = Path("/proc")


def cpu(*pids: int) -> float:
    """Seconds of CPU these processes have used, in all their threads that still run."""
    total = 0
    for pid in pids:
        with suppress(OSError):  # one that has ended meanwhile
            for thread in (PROC / str(pid) / "task").iterdir():
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def rss(pid: int) -> int:
    """Bytes of memory a process holds."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def descendants(pid: int) -> list[int]:
    """The processes below one, at any depth."""
    parents: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            child, _, rest = stat.read_text().rpartition(")")
            parents.setdefault(int(rest.split()[1]), []).append(int(child.split()[0]))
    found: list[int] = []
    below = [pid]
    while below:
        children = parents.get(below.pop(), [])
        found += children
        below += children
    return found


@dataclass(slots=True)
class Spent:
    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def spending(*pids: int) -> Iterator[Spent]:
    """What the block takes: wall time, and CPU time of these processes."""
    spent, before, began = Spent(), cpu(*pids), perf_counter()
    yield spent
    spent.wall, spent.cpu = perf_counter() - began, cpu(*pids) - before


def machine() -> str:
    """What this runs on, in a line."""
    lines = (PROC / "cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = int((PROC / "meminfo").read_text().split()[1]) / 2**20
    return (
        f"{len(models)} × {models[0] if models else platform.machine()}, {memory:.0f} GB, "
        f"Linux {platform.release()}"
    )


def versions() -> str:
    names = ("uvicorn", "uvloop", "httptools", "orjson", "aiohttp", "sqlalchemy", "pydantic")
    told = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    return ", ".join(told + [f"{name} {version(name)}" for name in (*names, "a2a-sdk")])
