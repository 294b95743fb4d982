"""What a client waits for, against OpenCode called directly, and what that costs in CPU."""

from __future__ import annotations

import asyncio
from statistics import median
from time import perf_counter
from typing import Any

from opencode_a2a.opencode.http import Endpoint

from .client import Client, Connection, message, together
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

    async def first_token(self, text: str) -> float:
        """Seconds from the request for a session to the first delta on an open stream."""
        request = self._client.request("GET", "/global/event")
        stream = await self._client.open(request, b"message.part.delta", b"message.part.delta")
        await stream.begun
        began = perf_counter()
        await self.prompt(text, "prompt_async")
        answer = await asyncio.wait_for(stream.done, 60)
        answer.began = began
        return answer.first

    def close(self) -> None:
        self._connection.close()


async def first_token(lab: Lab) -> Result:
    result = Result(
        "Time to the first visible token",
        "A new session and a prompt, until the first text delta: directly on OpenCode's event "
        "stream, which is open already, and as the first artifact event of a streamed message. "
        "In turn, so that both see the same machine.",
    )
    for name, real in (("real OpenCode", True), ("fake OpenCode", False)):
        with lab.on_real() if real else lab.on_fake() as adapter:
            for _ in range(3):
                await adapter.stream("[[tokens:20]]")
            straight, through = [], []
            for _ in range(lab.count(30, 10)):
                plain = Direct(adapter)
                straight.append(await plain.first_token("[[tokens:20]]") * 1e3)
                plain.close()
                await quiet(adapter.pid, *descendants(adapter.opencode.process.pid), seconds=0.5)
                answer = await adapter.stream("[[tokens:20]]")
                through.append(answer.first * 1e3)
                await quiet(adapter.pid, *descendants(adapter.opencode.process.pid), seconds=0.5)
        one = result.add(f"directly, {name}", straight, "ms")
        two = result.add(f"through opencode-a2a, {name}", through, "ms")
        result.add(
            f"difference of the medians, {name}",
            two - one,
            "ms",
            5 if real else None,
            note="means little where the ranges of the two rows above are wide beside it, as on a "
            "busy machine. On an upstream that answers at once the service adds what stands below."
            if real
            else "",
        )
    return result


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
            for _ in range(lab.repeats):
                for work, seen in ((straight, ones), (through, twos)):
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
