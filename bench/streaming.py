"""What a streamed delta costs: by length, by number of streams, by number of readers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from statistics import median
from time import process_time

from .client import Client, Connection, Exchange, message, together
from .clock import spending
from .figures import Plot, Result, spread
from .floor import commit, committing
from .lab import Adapter, Lab, quiet

LENGTHS = {100: 400, 1_000: 40, 10_000: 8, 50_000: 4}  # deltas per task: tasks
STREAMS = {1: 20, 10: 60, 100: 200, 500: 500}  # at a time: in all
EACH = 500  # deltas per task there
FLOOR = 50_000
SDK = 2_000  # deltas; its cost per delta grows with them


async def per_task(adapter: Adapter, tasks: int, at_a_time: int, tokens: int) -> float:
    """Seconds of CPU the service spends on a task of so many deltas."""
    with spending(adapter.pid) as spent:
        await adapter.streams(tasks, at_a_time, f"[[tokens:{tokens}]]")
        await quiet(adapter.pid, seconds=1.0)
    return spent.cpu / tasks


async def floor_per_frame(client: Client, pid: int, frames: int) -> float:
    with spending(pid) as spent:
        await together(4, 4, lambda: client.stream("GET", f"/{frames}", None))
    return spent.cpu / frames / 4


async def sdk_per_delta(client: Client, pid: int, tokens: int) -> float:
    params = message(f"{tokens} words")
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
    with spending(pid) as spent:
        answer = await client.stream("POST", "/", body)
    if answer.events < tokens or b"TASK_STATE_COMPLETED" not in answer.end:
        raise RuntimeError(f"the SDK's server said {answer.events} events: {answer.end!r}")
    return spent.cpu / tokens


async def by_length(lab: Lab) -> Result:
    result = Result(
        "A streamed delta",
        "Fake upstream without a rate limit, SQLite log in a file, four tasks at a time, read to "
        "the end. Everything a task costs is counted, so short tasks show the cost of a task more "
        "than that of a delta; the figures beyond a task's own cost subtract what a task of one "
        "delta takes. At 100 deltas that is a small difference of large numbers: read its range. "
        "Deltas that wait together are committed, and sent, as one event.",
    )
    lengths = {n: lab.count(tasks, 4) for n, tasks in LENGTHS.items()}
    fixed: list[float] = []
    whole: dict[int, list[float]] = {n: [] for n in lengths}  # per delta, all included
    costs: dict[int, list[float]] = {n: [] for n in lengths}  # beyond the task's own
    like_sdk: list[float] = []
    words = lab.count(SDK, 300)
    floors: list[float] = []
    with lab.on_fake() as adapter, lab.program("bench.floor") as (floor, floor_pid):
        await adapter.streams(20, 4, "[[tokens:1000]]")
        await floor.stream("GET", "/1000", None)
        for _ in range(lab.steadier):
            fixed.append(await per_task(adapter, lab.count(400, 20), 4, 1))
            floors.append(await floor_per_frame(floor, floor_pid, lab.count(FLOOR, 5000)))
            for n, tasks in lengths.items():
                task = await per_task(adapter, tasks, 4, n)
                whole[n].append(task / n)
                costs[n].append((task - fixed[-1]) / (n - 1))
            like_sdk.append(await per_task(adapter, lab.count(20, 8), 1, words) / words)
        paced, events = await _paced(adapter, lab)
    [bare] = await _bare_tasks(lab, 4)
    with lab.program("bench.sdk", str(lab.new("sdk") / "tasks.db")) as (sdk, sdk_pid):
        await sdk_per_delta(sdk, sdk_pid, 50)
        sdk_cost = await sdk_per_delta(sdk, sdk_pid, words)
        growth = {n: await sdk_per_delta(sdk, sdk_pid, n) for n in (100, 500)}

    micro = {n: [c * 1e6 for c in seen] for n, seen in costs.items()}
    medians = {n: median(seen) for n, seen in micro.items()}
    base = result.add("bare SSE server, per frame", [c * 1e6 for c in floors], "µs")
    for n, seen in whole.items():
        result.add(f"per delta, {n} per task, all included", [c * 1e6 for c in seen], "µs", 50)
    included = [median(seen) for seen in whole.values()]
    task_cost, bare_cost = median(fixed) * 1e3, median(bare)
    result.add(
        "… the largest of these against the smallest",
        spread(included),
        "×",
        1.2,
        note=f"a task costs {task_cost:.1f} ms whatever its length: a request in, two to OpenCode, "
        f"a session bound, and three or four transactions in all. Spread over 100 deltas that is "
        f"{task_cost * 10:.0f} µs each. A bare server that makes such requests and as many "
        f"transactions of one row, and nothing of a task, takes {bare_cost:.1f} ms, which alone "
        f"would make {1 + bare_cost * 10 / (min(included) * 1e6):.1f}× of it. The rows below take "
        "a task's own cost off.",
    )
    for n, seen in micro.items():
        result.add(f"per delta, {n} per task, beyond the task's own cost", seen, "µs", 50)
    result.add(
        "… the largest of these against the smallest",
        spread([*medians.values()]),
        "×",
        1.2,
        note="a block is opened, closed and committed in every task, which a task of one delta "
        "shows only in part; and the longer a task, the more deltas share an event.",
    )
    result.add(
        "per delta, 10000 per task, all included, against the bare SSE server",
        [c / f for c, f in zip(whole[10_000], floors, strict=True)],
        "×",
        5,
    )
    sdk_micro = result.add(f"SDK's server, per delta, {words} per task", sdk_cost * 1e6, "µs")
    ours = result.add(f"ours, per delta, {words} per task", [c * 1e6 for c in like_sdk], "µs")
    result.add("SDK's server against ours", sdk_micro / ours, "×", 100, at_least=True)
    result.add("a task of one delta, all in all", [c * 1e3 for c in fixed], "ms")
    result.add("… only its requests and transactions, bare", bare, "ms")
    result.add(
        "per delta at 200 per second",
        paced * 1e6,
        "µs",
        note="a commit costs the same with one delta or many, so running text is gathered for up "
        "to 33 ms. Little of it is SQLite's own (the row below); the rest is the way to the "
        "writer's thread and back, SQLAlchemy's transaction, and caches that went cold meanwhile.",
    )
    result.add("SQLite alone, a transaction with one row", _sqlite(lab) * 1e6, "µs")
    result.add("… events per delta there", events, "")
    result.plots.append(
        Plot(
            "length",
            "CPU per delta by length of the task",
            "deltas per task",
            "µs per delta",
            {
                "opencode-a2a": [(n, median(seen) * 1e6) for n, seen in whole.items()],
                "bare SSE server": [(n, base) for n in lengths],
                "SDK server, SQLite": sorted(
                    [(n, c * 1e6) for n, c in growth.items()] + [(words, sdk_cost * 1e6)]
                ),
            },
        )
    )
    return result


async def _paced(adapter: Adapter, lab: Lab) -> tuple[float, float]:
    """CPU and events per delta when there is time to commit each one alone."""
    tokens = lab.count(1000, 200)
    with spending(adapter.pid) as spent:
        answer = await adapter.stream(f"[[tokens:{tokens}]] [[rate:200]]")
    return spent.cpu / tokens, answer.events / tokens


def _sqlite(lab: Lab) -> float:
    """Seconds of CPU for the commit of one row, as our log makes it, without anything around."""
    count = lab.count(5000, 1000)
    with closing(committing(str(lab.new("sqlite") / "bare.db"))) as db:
        began = process_time()
        for _ in range(count):
            commit(db)
        return (process_time() - began) / count


async def _bare_tasks(lab: Lab, *at_a_time: int) -> list[list[float]]:
    """Milliseconds of CPU for the requests and transactions of a task, nothing around them."""
    seen: list[list[float]] = [[] for _ in at_a_time]
    with lab.bare_tasks() as (floor, pid):
        for i in range(lab.repeats + 1):
            for many, costs in zip(at_a_time, seen, strict=True):
                count = max(many, lab.count(100, 20))
                with spending(pid) as spent:
                    await together(count, many, lambda: floor.stream("GET", "/task", None))
                    await quiet(pid, seconds=1.0)
                costs += [spent.cpu / count * 1e3] if i else []  # the first warms up
    return seen


async def by_streams(lab: Lab) -> Result:
    result = Result(
        "Many streams at once",
        f"Fake upstream, tasks of {EACH} deltas, everything a task costs included.",
    )
    costs: dict[int, list[float]] = {at_a_time: [] for at_a_time in STREAMS}
    with lab.on_fake() as adapter:
        await adapter.streams(50, 50, f"[[tokens:{EACH}]]")
        for _ in range(lab.repeats):
            for at_a_time, usual in STREAMS.items():
                tasks = max(at_a_time, lab.count(usual))
                cost = await per_task(adapter, tasks, at_a_time, EACH)
                costs[at_a_time].append(cost / EACH * 1e6)
        opencode = Connection(Client(adapter.upstream.base_url))
        stats = await opencode.ask("GET", "/__stats")
        opencode.close()
    for at_a_time, seen in costs.items():
        result.add(f"per delta, {at_a_time} at a time", seen, "µs")
    medians = {at_a_time: median(seen) for at_a_time, seen in costs.items()}
    bare = await _bare_tasks(lab, 1, 100)
    alone, among = (median(seen) for seen in bare)
    result.add(
        "the largest against the smallest",
        spread([*medians.values()]),
        "×",
        1.5,
        note="one task alone shares its transactions, and the waking of the process, with nobody. "
        "From ten on the cost hardly depends on their number. A bare server that makes only the "
        f"requests and as many transactions (last rows) takes {alone - among:.1f} ms more for a "
        f"task that is alone than among a hundred, {(alone - among) / EACH * 1e3:.1f} µs of each "
        f"delta here, where the difference is {medians[1] - medians[100]:.1f} µs.",
    )
    result.add("event connections to OpenCode, at most", float(stats["consumers_max"]), "", 1)
    result.add("only the requests and transactions of a task, bare, 1 at a time", bare[0], "ms")
    result.add("… 100 at a time", bare[1], "ms")
    result.plots.append(
        Plot(
            "streams",
            "CPU per delta by number of streams",
            "streams at a time",
            "µs per delta",
            {"opencode-a2a": [*medians.items()]},
        )
    )
    return result


READERS, RATE, SECONDS = 1000, 10, 8


async def by_readers(lab: Lab) -> Result:
    result = Result(
        "Many readers of one task",
        f"{READERS} subscribers of one task that says {RATE} deltas a second, each its own event, "
        f"for {SECONDS} seconds; beside it the bare SSE server with as many readers and frames "
        "of the same size.",
    )
    ours: list[float] = []
    floors: list[float] = []
    for _ in range(max(1, lab.repeats - 1)):
        with lab.program("bench.floor") as (floor, pid):
            request = floor.request("GET", f"/{RATE * (SECONDS + 5)}?{RATE}")
            floors.append(await _reading(floor, pid, request))
        with lab.on_fake() as adapter:
            client = adapter.client
            sending = message(f"[[tokens:{RATE * (SECONDS + 20)}]] [[rate:{RATE}]]")
            connection = Connection(client)
            told = await connection.ask(
                "POST", "/message:send", sending | {"configuration": {"returnImmediately": True}}
            )
            path = f"/tasks/{told['task']['id']}:subscribe"
            ours.append(await _reading(client, adapter.pid, client.request("GET", path)))
            connection.close()
    base = result.add("bare SSE server, per event and reader", floors, "µs")
    mine = result.add("opencode-a2a, per event and reader", ours, "µs")
    result.add(
        "against the bare SSE server",
        mine / base,
        "×",
        1.5,
        note="the bare server's figure is one task woken and one write to a socket, which nobody "
        "can save. Ours also moves a cursor, looks whether the stream ends, and puts the event, "
        "encoded once for all, into its frame.",
    )
    return result


async def _reading(client: Client, pid: int, request: bytes) -> float:
    """CPU per event and reader, once all readers are there."""
    readers: list[Exchange] = []
    for _ in range(READERS // 50):
        readers += await asyncio.gather(*(client.open(request) for _ in range(50)))
    await asyncio.gather(*(reader.begun for reader in readers))
    await asyncio.sleep(1)
    before = sum(reader.answer.events for reader in readers)
    with spending(pid) as spent:
        await asyncio.sleep(SECONDS - 1)
    events = sum(reader.answer.events for reader in readers) - before
    for reader in readers:
        reader.close()
    return spent.cpu / events * 1e6
