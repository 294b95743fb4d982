"""Only the classes of growth: does a cost grow with what it must not grow with?

The sizes lie so far apart that a cost in proportion to them shows on any machine, however busy;
absolute times are not looked at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .client import Client, Connection
from .lab import Adapter, Lab
from .stored import among
from .streaming import per_task

TOLERATED = 2.5  # times the cost, between sizes that are at least thirty times apart
ATTEMPTS = 2


async def run(lab: Lab) -> list[str]:
    """What grows, in words; nothing when all is well."""
    problems: list[str] = []
    with lab.on_fake() as adapter:
        await adapter.streams(20, 20, "[[tokens:500]]")
        problems += await _steady("the length of a task", lambda: _by_length(adapter))
        problems += await _steady("the number of streams", lambda: _by_streams(adapter))
        connection = Connection(Client(adapter.upstream.base_url))
        stats = await connection.ask("GET", "/__stats")
        connection.close()
        if stats["consumers_max"] != 1:
            problems.append(f"{stats['consumers_max']} event connections to OpenCode, not one")
    problems += await _steady("the number of finished tasks", lambda: _by_size(lab))
    return problems


async def _steady(what: str, measure: Callable[[], Awaitable[tuple[float, float]]]) -> list[str]:
    """Told only if every attempt shows it: a busy machine can spoil one."""
    ratio = 0.0
    for _ in range(ATTEMPTS):
        small, large = await measure()
        ratio = large / max(small, 1e-9)
        if ratio < TOLERATED:
            return []
    return [f"the cost grows with {what}: {ratio:.1f} times between the smallest and the largest"]


async def _by_length(adapter: Adapter) -> tuple[float, float]:
    """CPU per delta of a task with 1 000 and with 30 000, what it costs anyhow included."""
    short = await per_task(adapter, 4, 1, 1_000)
    long = await per_task(adapter, 1, 1, 30_000)
    return short / 1_000, long / 30_000


async def _by_streams(adapter: Adapter) -> tuple[float, float]:
    """CPU per task with 2 and with 120 at a time."""
    few = await per_task(adapter, 12, 2, 500)
    many = await per_task(adapter, 120, 120, 500)
    return few, many


async def _by_size(lab: Lab) -> tuple[float, float]:
    """CPU per request among 200 and among 40 000 finished tasks, of the kind that grows most."""
    few, many = 200, 40_000
    costs = (await among(lab, (few, many))).values()
    return max(((c[few].cpu, c[many].cpu) for c in costs), key=lambda pair: pair[1] / pair[0])
