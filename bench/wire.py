"""What goes over the wire, and into the log, for what the agent says and does: in bytes."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
import orjson

from .client import PATIENCE, message
from .figures import Result
from .lab import Adapter, Lab

HINTS = {"A2A-Extensions": "urn:a2a:stream-hints/v1"}
STEP = 101  # bytes that the tool prints at a time
FILE = 28_000  # bytes of the file that the agent asks to write


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer, as it came."""

    raw: bytes

    @property
    def frames(self) -> list[bytes]:
        return [frame + b"\n\n" for frame in self.raw.split(b"\n\n") if b"\ndata: " in frame]

    @property
    def chunks(self) -> list[int]:
        """The bytes around each piece of text that is appended."""
        sizes = []
        for frame in self.frames:
            event = orjson.loads(frame.partition(b"data: ")[2]).get("artifactUpdate", {})
            if event.get("append"):
                text = event["artifact"]["parts"][0]["text"]
                sizes.append(len(frame) - len(text.encode()))
        return sizes

    @property
    def task_id(self) -> str:
        found: str = orjson.loads(self.frames[0].partition(b"data: ")[2])["task"]["id"]
        return found


async def by_content(lab: Lab) -> Result:
    result = Result(
        "Bytes on the wire",
        "HTTP+JSON 1.0, without and with stream hints, on the real OpenCode. A chunk is one event "
        "that appends text; what is counted is everything around that text. The tool prints 101 "
        "bytes at a time, every 20 ms. The agent asks for permission to write a file of 28 kB. "
        "Before every block was for those who ask, and before running output was appended, it was "
        "448 bytes around a chunk; 221 to 266 kB on the wire and 205 kB in the log for the tool "
        "with 20 kB, on a busy machine where many steps share an event (920 kB on an idle one); "
        "and 92 kB for the permission, 30 kB of it the text of the status.",
    )
    with lab.on_real(permission={"edit": "ask"}) as adapter:
        for name, headers, limit in (("without hints", {}, 260), ("with hints", HINTS, 380)):
            said = await _stream(adapter, "[[tokens:60]] [[delay:50]]", headers)
            result.add(f"around a chunk, {name}", median(said.chunks), "bytes", limit)
        for steps in (200, 400):
            await _tool(adapter, result, steps=steps)
        await _permission(adapter, result)
    return result


async def _tool(adapter: Adapter, result: Result, *, steps: int) -> None:
    loop = f"for i in $(seq {steps}); do printf '%0{STEP - 1}d\\n' $i; sleep 0.02; done"
    asked = f"[[tool:bash {json.dumps({'command': loop, 'description': 'Prints'})}]] [[text:Done.]]"
    what = f"a tool that prints {STEP * steps / 1000:.1f} kB in {steps} steps"
    plain = await _stream(adapter, asked, {})
    result.add(f"{what}, stream without hints", len(plain.raw) / 1e3, "kB")
    seen = await _stream(adapter, asked, HINTS)
    result.add(f"{what}, stream with hints", len(seen.raw) / 1e3, "kB", 0.9 * steps)
    stored = _stored(adapter, seen.task_id)
    result.add(f"{what}, in the log", stored / 1e3, "kB", 0.6 * steps)


def _stored(adapter: Adapter, task_id: str) -> int:
    """The bytes of a task's log."""
    with sqlite3.connect(adapter.folder / "tasks.db") as db:
        query = "SELECT sum(length(body)) FROM entries WHERE task_id = ?"
        (size,) = db.execute(query, (task_id,)).fetchone()
    return int(size)


async def _permission(adapter: Adapter, result: Result) -> None:
    content = "".join(f"line {n:>9} of a file\n" for n in range(FILE // 25))
    write = json.dumps({"filePath": "long.txt", "content": content})
    for name, headers, limit in (("without hints", {}, 40), ("with hints", HINTS, 70)):
        task = await _send(adapter, f"[[tool:write {write}]]", headers)
        text = orjson.loads(task)["task"]["status"]["message"]["parts"][0]["text"]
        result.add(f"a permission for a 28 kB write, {name}", len(task) / 1e3, "kB", limit)
        result.add(f"… the text of its status, {name}", len(text.encode()), "bytes", 2_000)


async def _stream(adapter: Adapter, text: str, headers: dict[str, str]) -> Seen:
    return Seen(await _post(adapter, "/message:stream", text, headers))


async def _send(adapter: Adapter, text: str, headers: dict[str, str]) -> bytes:
    return await _post(adapter, "/message:send", text, headers)


async def _post(adapter: Adapter, path: str, text: str, headers: dict[str, str]) -> bytes:
    told: dict[str, Any] = {**adapter.service.headers, "A2A-Version": "1.0", **headers}
    async with httpx.AsyncClient(base_url=adapter.service.url, timeout=PATIENCE) as http:
        body = message(text) | {"configuration": {"historyLength": 0}}  # only what is answered
        answer = await http.post(path, json=body, headers=told)
    answer.raise_for_status()
    return answer.content
