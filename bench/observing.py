"""What it costs to be observed: JSON logs, traces and the audit log, against none of them."""

from __future__ import annotations

import asyncio

import httpx

from tests.observe.collector import collecting

from .clock import spending
from .figures import Result
from .lab import Lab
from .streaming import per_task

LONG = 1_000  # deltas of the long tasks
SHARE = 5.0  # percent


async def cost(lab: Lab) -> Result:
    result = Result(
        "Being observed",
        "Two services on fast fakes, in turns: one as it comes, with metrics off; the other with "
        "JSON logs, an audit log, and a trace of every task sent to a collector. Numbers are "
        "counted for metrics in both, because they always are. Four tasks at a time, read to the "
        "end; what is added is the median of the pairs.",
    )
    short: list[tuple[float, float]] = []  # seconds per task: off, on
    long: list[tuple[float, float]] = []
    scrapes: list[float] = []
    with collecting() as collector:
        observed = {
            "A2A_LOG_FORMAT": "json",
            "A2A_AUDIT_LOG": str(lab.new("audit") / "audit.log"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        }
        with lab.on_fake(A2A_METRICS="off") as off, lab.on_fake(**observed) as on:
            for adapter in (off, on):
                await adapter.streams(40, 4, "[[tokens:200]]")
            for _ in range(lab.steadier):
                tasks = lab.count(300, 20)
                short.append((await per_task(off, tasks, 4, 1), await per_task(on, tasks, 4, 1)))
                tasks = lab.count(40, 4)
                pair = await per_task(off, tasks, 4, LONG), await per_task(on, tasks, 4, LONG)
                long.append(pair)
                with spending(on.pid) as spent:
                    url, headers = f"{on.service.url}/metrics", on.service.headers
                    (await asyncio.to_thread(httpx.get, url, headers=headers)).raise_for_status()
                scrapes.append(spent.cpu)
    for what, pairs in (("a task of one delta", short), (f"a task of {LONG} deltas", long)):
        result.add(f"{what}, not observed", [each * 1e3 for each, _ in pairs], "ms")
        result.add(f"{what}, observed", [each * 1e3 for _, each in pairs], "ms")
        added = [(observed / plain - 1) * 100 for plain, observed in pairs]
        result.add("… added to its cost", added, "%", SHARE)
    extra = [(on - off) / LONG * 1e6 for off, on in long]
    result.add("per delta, added", extra, "µs")
    result.add("one scrape", [each * 1e3 for each in scrapes], "ms")
    return result
