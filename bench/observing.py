"""What it costs to be observable, and to be observed: metrics, JSON logs, traces, the audit log."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack

import httpx

from tests.observe.collector import collecting

from .clock import cpu, spending
from .figures import Result
from .lab import Adapter, Lab

LONG = 1_000  # deltas of the long tasks
OFF_SHARE, ON_SHARE = 1.0, 5.0  # percent
UNOBSERVED = (sys.executable, "-m", "bench.unobserved", "serve")


async def cost(lab: Lab) -> Result:
    result = Result(
        "Being observed",
        "Three services on fast fakes, in turns: one whose code that counts, traces and notes was "
        "taken out (`bench/unobserved.py`); one as it comes, with metrics off; one with metrics, "
        "JSON logs, an audit log, and a trace of every task sent to a collector. Four tasks at a "
        "time, read to the end. The services take turns every tenth of a second, because the "
        "machine's speed changes by more than what is looked for; what is added is the median of "
        "the rounds.",
    )
    short: list[list[float]] = []  # seconds per task, of each of the three
    long: list[list[float]] = []
    scrapes: list[float] = []
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        observed = {
            "A2A_LOG_FORMAT": "json",
            "A2A_AUDIT_LOG": str(lab.new("audit") / "audit.log"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        }
        bare = stack.enter_context(lab.on_fake(UNOBSERVED, A2A_METRICS="off"))
        off = stack.enter_context(lab.on_fake(A2A_METRICS="off"))
        on = stack.enter_context(lab.on_fake(**observed))
        services = (bare, off, on)
        for adapter in services:
            await adapter.streams(100, 4, "[[tokens:1]]")
            await adapter.streams(20, 4, f"[[tokens:{LONG}]]")
        for i in range(2 * lab.steadier):
            short.append(await _round(services, lab.count(30, 4), tasks=24, tokens=1))
            long.append(await _round(services, lab.count(20, 4), tasks=4, tokens=LONG))
            if i % 3 == 0:
                scrapes.append(await _scrape(on))
    for what, rounds in (("a task of one delta", short), (f"a task of {LONG} deltas", long)):
        for name, costs in zip(
            ("without what observes it", "not observed", "observed"),
            zip(*rounds, strict=True),
            strict=True,
        ):
            result.add(f"{what}, {name}", [each * 1e3 for each in costs], "ms")
        added = [(plain / bare - 1) * 100 for bare, plain, _ in rounds]
        result.add("… added by being observable", added, "%", OFF_SHARE)
        added = [(seen / plain - 1) * 100 for _, plain, seen in rounds]
        result.add("… added by being observed", added, "%", ON_SHARE)
    extra = [(seen - plain) / LONG * 1e6 for _, plain, seen in long]
    result.add("per delta, added by being observed", extra, "µs")
    result.add("one scrape", [each * 1e3 for each in scrapes], "ms")
    return result


async def _round(
    services: tuple[Adapter, ...], turns: int, *, tasks: int, tokens: int
) -> list[float]:
    """Seconds of CPU per task of each service, which work for `turns` short times in turn."""
    costs = [0.0] * len(services)
    for turn in range(turns):
        for i in range(len(services)):
            which = (turn + i) % len(services)  # each comes first, second and last
            before = cpu(services[which].pid)
            await services[which].streams(tasks, 4, f"[[tokens:{tokens}]]")
            await asyncio.sleep(0.02)  # what follows the end of a task
            costs[which] += cpu(services[which].pid) - before
    return [cost / turns / tasks for cost in costs]


async def _scrape(on: Adapter) -> float:
    with spending(on.pid) as spent:
        url, headers = f"{on.service.url}/metrics", on.service.headers
        (await asyncio.to_thread(httpx.get, url, headers=headers)).raise_for_status()
    return spent.cpu
