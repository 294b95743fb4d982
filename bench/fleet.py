"""How many messages a second `up` answers with one OpenCode, and with one for each core."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.commands import command
from tests.running import TOKEN, isolated, opencode_command, running

from .client import Client, message, together
from .clock import descendants, spending
from .figures import Result
from .lab import COMPLETED, Lab

AT_A_TIME = 8


async def messages_a_second(lab: Lab) -> Result:
    cores = len(os.sched_getaffinity(0))
    result = Result(
        "Several OpenCodes behind one service",
        f"`up` with its demo model; new conversations, {AT_A_TIME} at a time, each with one short "
        "answer of the real OpenCode. The model, the service and this client use the same cores.",
    )
    rates: dict[int, list[float]] = {1: [], cores: []}
    spent: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(lab.repeats):
        for count in rates:
            rate, seconds = await _answered(lab.new("fleet"), count, lab.count(48, 16))
            rates[count].append(rate)
            spent[count].append(seconds * 1e3)
    one = result.add("messages a second, one OpenCode", rates[1], "/s")
    more = result.add(f"messages a second, {cores} OpenCodes", rates[cores], "/s")
    result.add(f"… {cores} against one", more / one, "×")
    for count, seen in spent.items():
        what = f"CPU of everything per message, OpenCodes: {count}"
        result.add(what, seen, "ms")
    return result


async def _answered(folder: Path, count: int, messages: int) -> tuple[float, float]:
    """Messages a second, and the seconds of CPU for each."""
    workspace = folder / "workspace"
    workspace.mkdir()
    settings = {"A2A_BEARER_TOKEN": TOKEN, "A2A_PORT": "0"}
    env = isolated(folder / "home", OPENCODE_COMMAND=opencode_command(), **settings)
    words = command("opencode-a2a", "up", "--opencodes", str(count))
    with running(words, env, workspace) as program:
        program.wait_for("Stop with Ctrl-C", 120)
        url = program.wait_for(r"OpenCode answers A2A at (\S+)")[1]
        client = Client(url, {"Authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"})

        async def send() -> None:
            answer = await client.stream("POST", "/message:stream", message("Hello!"))
            if COMPLETED not in answer.end:
                raise RuntimeError(f"not completed: {answer.end!r}")

        await together(2 * count, 2 * count, send)  # the first ones are slow
        with spending(program.process.pid, *descendants(program.process.pid)) as spent:
            await together(messages, AT_A_TIME, send)
    return messages / spent.wall, spent.cpu / messages
