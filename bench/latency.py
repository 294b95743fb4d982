"""What a client waits for, against OpenCode called directly, and what that costs in CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from opencode_a2a.opencode.http import Endpoint

from .client import Answer, Client, Connection, message, together
from .clock import cpu, descendants, spending
from .figures import Result
from .lab import Adapter, Lab, quiet

DELTAS = 500
AT_A_TIME = {1: 10, 8: 32, 32: 64}  # unary sends


def direct(adapter: Adapter) -> Client:
    """OpenCode itself."""
    upstream = adapter.upstream
    headers = Endpoint(upstream.base_url, password=upstream.password).authorization
    return Client(upstream.base_url, headers)


class Direct:
    """A conversation with OpenCode as our service has it, without our service."""

    def __init__(self, adapter: Adapter) -> None:
        self._client = direct(adapter)
        self._connection = Connection(self._client)
        self._query = f"?directory={adapter.upstream.workspace}"

    async def prompt(self, text: str, route: str) -> Any:
        # A title of one's own saves OpenCode the model call for one, as it does for us.
        session = await self._connection.ask("POST", f"/session{self._query}", {"title": text})
        body = {"parts": [{"type": "text", "text": text}]}
        return await self._connection.ask("POST", f"/session/{session['id']}/{route}", body)

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class First:
    """Milliseconds from a request to the first token, and what they were spent on."""

    asked: float  # until OpenCode has the prompt
    thought: float  # until it says the first word
    told: float  # until that is with the client

    @property
    def seen(self) -> float:
        return self.asked + self.thought + self.told


async def watched(adapter: Adapter, work: Callable[[], Awaitable[Answer | None]]) -> First:
    """A request, seen on OpenCode's own stream of events as well."""
    opencode = direct(adapter)
    request = opencode.request("GET", "/global/event")
    watching = await opencode.open(request, b'"message.updated"', b'"message.part.delta"')
    await watching.begun
    began = perf_counter()
    answer = await work()
    heard = await asyncio.wait_for(watching.done, 60)
    asked, said = heard.began + heard.first, heard.ended
    assert began < asked <= said
    seen = said if answer is None else answer.began + answer.first
    return First((asked - began) * 1e3, (said - asked) * 1e3, (seen - said) * 1e3)


async def first_token(lab: Lab) -> Result:
    result = Result(
        "Time to the first visible token",
        "A new session and a prompt, until the first text delta: directly on OpenCode's event "
        "stream, which is open already, and as the first artifact event of a streamed message. "
        "In turn, so that both see the same machine, and each when it has come to rest. What "
        "happens in between is seen on OpenCode's own stream in both cases: when it has the "
        "prompt, and when it says the first word. Our client hears of that when it is its turn on "
        "the machine, so the last step may have taken longer than it says.",
    )
    one = 0.0
    for name, real in (("real OpenCode", True), ("fake OpenCode", False)):
        with lab.on_real() if real else lab.on_fake() as adapter:
            firsts = await _firsts(adapter, lab.count(40, 10))
        ways = {f"directly, {name}": firsts[0], f"through opencode-a2a, {name}": firsts[1]}
        one, two = (result.add(way, [f.seen for f in seen], "ms") for way, seen in ways.items())
        result.add(
            f"difference of the medians, {name}",
            two - one,
            "ms",
            5 if real else None,
            note="means little where the ranges of the two rows above are wide beside it: most of "
            "them is OpenCode's own time from the prompt to its first word. The rows below leave "
            "that out. On the fake, which answers at once, nothing of ours is done while it works: "
            "it shows the most we can add, and the last rows what of that a bare server needs that "
            "makes as many transactions before it acts on what they store."
            if real
            else "",
        )
        for way, seen in ways.items():
            result.add(f"until it has the prompt, {way}", [f.asked for f in seen], "ms")
        for way, seen in ways.items():
            result.add(f"from there to its first word, {way}", [f.thought for f in seen], "ms")
        result.add(f"from that to ours, {name}", [f.told for f in firsts[1]], "ms")
        ours = [us.asked - plain.asked + us.told for plain, us in zip(*firsts, strict=True)]
        result.add(f"… more than directly, without OpenCode's own time, {name}", ours, "ms")
    bare = result.add("through a bare server that commits as often", await _at_least(lab), "ms")
    result.add("… difference to the fake directly", bare - one, "ms")
    return result


async def _firsts(adapter: Adapter, count: int) -> tuple[list[First], list[First]]:
    """First tokens seen directly, and through us."""
    resting = (adapter.pid, *descendants(adapter.opencode.process.pid))
    text = "[[tokens:20]]"

    async def straight() -> None:
        plain = Direct(adapter)
        await plain.prompt(text, "prompt_async")
        plain.close()

    found: tuple[list[First], list[First]] = ([], [])
    for i in range(count + 3):
        for work, seen in zip((straight, lambda: adapter.stream(text)), found, strict=True):
            first = await watched(adapter, work)
            seen += [first] if i > 2 else []  # the others warm up
            await quiet(*resting, seconds=2.0)
    return found


async def _at_least(lab: Lab) -> list[float]:
    """Milliseconds to the first words from a server that does nothing but store and pass on."""
    seen = []
    with lab.bare_tasks() as (floor, pid):
        for _ in range(lab.count(40, 10) + 3):
            answer = await floor.stream("GET", "/task", None, b'"answer"')
            seen.append(answer.first * 1e3)
            await quiet(pid, seconds=2.0)
    return seen[3:]


async def unary(lab: Lab) -> Result:
    result = Result(
        "A unary send",
        "`SendMessage` that begins a context and waits for the answer, against `POST /session` "
        "and `POST /session/…/message` on OpenCode itself; the real OpenCode, wall time of all "
        "requests by their number, in turn.",
    )
    with lab.on_real() as adapter:
        idle: list[Direct] = [Direct(adapter) for _ in range(max(AT_A_TIME))]
        free: list[Connection] = [Connection(adapter.client) for _ in range(max(AT_A_TIME))]

        async def straight() -> None:
            connection = idle.pop()
            await connection.prompt("hello", "message")
            idle.append(connection)

        async def through() -> None:
            connection = free.pop()
            answer = await connection.ask("POST", "/message:send", message("hello"))
            assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer
            free.append(connection)

        await together(8, 4, straight)
        await together(8, 4, through)
        for at_a_time, usual in AT_A_TIME.items():
            ones, twos = list[float](), list[float]()
            for i in range(lab.steadier):
                for work, seen in ((straight, ones), (through, twos))[:: -1 if i % 2 else 1]:
                    count = max(at_a_time, lab.count(usual))
                    began = perf_counter()
                    await together(count, at_a_time, work)
                    seen.append((perf_counter() - began) / count * 1e3)
            one = result.add(f"directly, {at_a_time} at a time", ones, "ms")
            two = result.add(f"through opencode-a2a, {at_a_time} at a time", twos, "ms")
            result.add(
                f"ratio, {at_a_time} at a time",
                two / one,
                "×",
                1.1,
                note="added are the cost of a task (a task of one delta, above), and the wait for "
                "OpenCode's word that it is idle, which comes after its own answer."
                if at_a_time == 1
                else "",
            )
        for one_idle in idle:
            one_idle.close()
        for one_free in free:
            one_free.close()
    return result


async def share(lab: Lab) -> Result:
    result = Result(
        "CPU beside OpenCode's",
        f"The real OpenCode, one task of {DELTAS} deltas after the other, streamed: said at once, "
        "and with 5 ms between two, as a fast model does. Of OpenCode only the server counts, not "
        "what it starts for a moment.",
    )
    with lab.on_real() as adapter:
        for name, text in (("at once", ""), ("one by one", " [[delay:5]]")):
            prompt = f"[[tokens:{DELTAS}]]{text}"
            opencode = descendants(adapter.opencode.process.pid)
            await adapter.stream(prompt)
            ours, theirs, events = [], [], []
            for _ in range(lab.count(6, 3)):
                await quiet(adapter.pid, *opencode, seconds=2.0)
                before = cpu(*opencode)
                with spending(adapter.pid) as spent:
                    answer = await adapter.stream(prompt)
                    await quiet(adapter.pid, *opencode, seconds=2.0)
                ours.append(spent.cpu * 1e3)
                theirs.append((cpu(*opencode) - before) * 1e3)
                events.append(float(answer.events))
            mine = result.add(f"opencode-a2a, per task, {name}", ours, "ms")
            result.add(f"OpenCode, per task, {name}", theirs, "ms")
            result.add(f"share, {name}", mine / median(theirs) * 100, "%", 10)
            result.add(f"events per task, {name}", events, "")
    return result
