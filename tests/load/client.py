"""A client that speaks every form of the protocol, for many conversations at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.api.forms import Form
from tests.running import Service

Json = dict[str, Any]

REST, RPC = Form("1.0", rpc=False), Form("1.0", rpc=True)
REST_03, RPC_03 = Form("0.3", rpc=False), Form("0.3", rpc=True)
FORMS = (REST, RPC, REST_03, RPC_03)
STATES = ("submitted", "working", "input-required", "completed", "canceled", "failed")
ENDS = ("completed", "canceled", "failed")
PATIENCE = 60.0  # seconds any single exchange may take


class Refused(Exception):
    """An error answer, in whatever shape it came."""

    def __init__(self, status: int, headers: Mapping[str, str], body: Json) -> None:
        error = body.get("error", body)
        super().__init__(error["message"])
        self.status = status
        self.code = error["code"]  # the JSON-RPC code, but for REST 1.0
        data = error.get("details", error.get("data"))
        self.reason: str = data[0]["reason"] if isinstance(data, list) else data["type"]
        self.message: str = error["message"]
        self.retry_after = headers.get("retry-after")


@dataclass
class Telling:
    """A task, as somebody knows it who has heard only this."""

    form: Form
    id: str = ""
    context: str = ""
    session: str | None = None
    state: str = ""
    at: str = ""  # since when
    note: str = ""
    problem: str | None = None
    numbers: list[int] = field(default_factory=list)
    ends: int = 0
    blocks: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """The last text artifact."""
        texts = ["".join(pieces) for name, pieces in self.blocks.values() if name == "answer"]
        return texts[-1] if texts else ""

    @property
    def heard(self) -> int:
        """How many pieces of text there were so far."""
        return sum(len(pieces) for _, pieces in self.blocks.values())

    def hear(self, kind: str, body: Json) -> None:
        self.id = body["id"] if kind == "task" else body["taskId"]
        self.context = body["contextId"]
        if kind == "task":
            for artifact in body.get("artifacts", []):
                self._artifact(artifact, append=False)
        if kind == "artifact":
            self._artifact(body["artifact"], append=body.get("append", False))
        else:
            self._status(body)

    def _status(self, body: Json) -> None:
        named = {self.form.state(state): state for state in STATES}
        self.state = named[body["status"]["state"]]
        self.at = body["status"]["timestamp"]
        self.ends += self.state in ENDS
        message = body["status"].get("message")
        self.note = message[self.form.content][0]["text"] if message else ""
        metadata = body.get("metadata", {})
        self.session = metadata.get("shared", {}).get("session", {}).get("id", self.session)
        self.problem = metadata.get("opencode", {}).get("error", {}).get("type")

    def _artifact(self, artifact: Json, append: bool) -> None:
        _, pieces = self.blocks.setdefault(artifact["artifactId"], (artifact["name"], []))
        if not append:
            pieces.clear()
        pieces += [part["text"] for part in artifact["parts"] if "text" in part]


@dataclass(frozen=True)
class Client:
    http: aiohttp.ClientSession
    url: str
    form: Form

    async def send(self, text: str, *, wait: bool = True, **members: Any) -> Telling:
        """`members` of the message may be contextId, taskId and metadata."""
        body = await self._ask("send", self.form.sending(text, wait=wait, **members))
        return self._told(body if self.form.tagged else body["task"])

    async def get(self, task_id: str) -> Telling:
        return self._told(await self._ask("get", {"id": task_id}))

    async def cancel(self, task_id: str) -> Telling:
        return self._told(await self._ask("cancel", {"id": task_id}))

    async def list(self, state: str) -> list[str]:
        """The ids of the tasks in a state."""
        body = await self._ask("list", {"status": self.form.state(state)})
        return [task["id"] for task in body["tasks"]]

    async def until(self, task_id: str, *states: str) -> Telling:
        """The task once it is in one of these states; polled, so that no stream is needed."""
        async with asyncio.timeout(PATIENCE):
            while (task := await self.get(task_id)).state not in states:
                assert task.state not in ENDS, (task.state, task.problem, task.note)
                await asyncio.sleep(0.02)
        return task

    @asynccontextmanager
    async def stream(self, text: str, **members: str) -> AsyncIterator[AsyncIterator[Telling]]:
        """What is known of the task, again after every event."""
        async with self._stream("stream", self.form.sending(text, wait=True, **members)) as telling:
            yield telling

    @asynccontextmanager
    async def subscribe(self, task_id: str) -> AsyncIterator[AsyncIterator[Telling]]:
        async with self._stream("subscribe", {"id": task_id}) as telling:
            yield telling

    async def told(self, text: str, **members: str) -> Telling:
        """The whole stream of a new task."""
        async with self.stream(text, **members) as telling:
            return await last(telling)

    def _told(self, body: Json) -> Telling:
        telling = Telling(self.form)
        telling.hear("task", body)
        return telling

    @asynccontextmanager
    async def _request(self, operation: str, given: Json) -> AsyncIterator[aiohttp.ClientResponse]:
        method, path, headers = "POST", "/", self.form.version
        body: Json | None = given
        if self.form.rpc:
            body = {"jsonrpc": "2.0", "id": 1, "method": self.form.method(operation)}
            body["params"] = given
        else:
            method, path = self.form.route(operation)
            if "id" in given:
                path, body = path.format(id=given["id"]), None
        query = given if method == "GET" and body else None
        async with self.http.request(
            method,
            self.url + path,
            json=body if query is None else None,
            params=query,
            headers=headers,
        ) as response:
            if response.content_type != "text/event-stream":
                found = json.loads(await response.read())
                if response.status != 200 or "error" in found:
                    raise Refused(response.status, response.headers, found)
            yield response

    async def _ask(self, operation: str, given: Json) -> Json:
        async with asyncio.timeout(PATIENCE), self._request(operation, given) as response:
            body: Json = json.loads(await response.read())
        result: Json = body["result"] if self.form.rpc else body
        return result

    @asynccontextmanager
    async def _stream(self, operation: str, given: Json) -> AsyncIterator[AsyncIterator[Telling]]:
        async with self._request(operation, given) as response:
            yield self._follow(response.content.iter_any())

    async def _follow(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[Telling]:
        telling, blocks = Telling(self.form), Blocks()
        async for chunk in chunks:
            for block in blocks.feed(chunk):
                if not block.startswith(b":"):
                    listen(telling, block)
                    yield telling


class Blocks:
    """Cuts a stream into its blocks, in time proportional to its length."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._rest and self._rest[-1].endswith(b"\n"):  # the separator may be torn apart
            chunk = self._rest.pop() + chunk
        *whole, rest = chunk.split(b"\n\n")
        if whole:
            whole[0] = b"".join(self._rest) + whole[0]
            self._rest = []
        if rest:
            self._rest.append(rest)
        return whole


def listen(telling: Telling, block: bytes) -> None:
    """One event, whose number must be higher than all before it."""
    number, _, data = block.partition(b"\n")
    assert number.startswith(b"id: "), block[:200]
    telling.numbers.append(int(number[4:]))
    assert telling.numbers[-2:] == sorted(set(telling.numbers[-2:])), "numbers must rise"
    kind, body = telling.form.event(json.loads(data.removeprefix(b"data: ")), 1)
    telling.hear(kind, body)


async def last(telling: AsyncIterator[Telling], seconds: float = PATIENCE) -> Telling:
    """What is known once the stream has ended."""
    async with asyncio.timeout(seconds):
        known = [told async for told in telling]
    assert known, "a stream without an event"
    return known[-1]


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[dict[Form, Client]]:
    """One client for each form, all on the same connections."""
    connector = aiohttp.TCPConnector(limit=0)
    nothing = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        headers=service.headers, connector=connector, timeout=nothing
    ) as http:
        yield {form: Client(http, service.url, form) for form in FORMS}
