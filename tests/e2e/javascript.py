"""The JavaScript SDK's clients, each in a node process of its own; see js/lines.mjs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as v03
from a2a.types.a2a_pb2 import SendMessageRequest, StreamResponse, Task
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP

from tests.e2e.clients import STREAM_HINTS, Line, Refusal, extensions_header
from tests.e2e.protojson import from_json, to_json
from tests.e2e.seen import PATIENCE, Stream
from tests.e2e.wire import OLD_EVENT
from tests.running import Service, isolated

SCRIPTS = Path(__file__).parent / "js"
LINE_BYTES = 1 << 24

CODES = {kind.__name__: code for kind, code in JSON_RPC_ERROR_CODE_MAP.items()}
CODES["RequestMalformedError"] = -32602  # the 1.0 client's name for it


class JavaScriptClient:
    def __init__(self, line: Line, node: asyncio.subprocess.Process) -> None:
        self.line = line
        self._node = node
        self._numbers = count(1)
        self._calls: dict[int, asyncio.Queue[dict[str, Any] | None]] = {0: asyncio.Queue()}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, service: Service, line: Line, home: Path, *, hints: bool = True
    ) -> AsyncIterator[JavaScriptClient]:
        script = SCRIPTS / ("v1.mjs" if line.version == "1.0" else "v03.mjs")
        node = await asyncio.create_subprocess_exec(
            "node",
            str(script),
            service.url,
            line.binding,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=isolated(
                home,
                A2A_TOKEN=service.token,
                EXTENSIONS_HEADER=extensions_header(line),
                EXTENSIONS=STREAM_HINTS if hints else "",
            ),
            limit=LINE_BYTES,
        )
        self = cls(line, node)
        listening = asyncio.create_task(self._listen())
        try:
            assert await self._heard(0) == {"id": 0, "item": "ready"}
            yield self
        finally:
            assert node.stdin is not None
            node.stdin.close()
            try:
                await asyncio.wait_for(node.wait(), 5)
            except TimeoutError:
                node.kill()
                await node.wait()
            await listening

    async def who(self) -> list[str]:
        """The transport and protocol version that the client has chosen from the card."""
        chosen: list[str] = await self._one("who", {})
        return chosen

    async def push(self, config: dict[str, Any]) -> list[Any]:
        """Make a push config, read it, list all, and delete one named `gone`; the answers."""
        answers: list[Any] = await self._one("push", config)
        return answers

    async def receive(self, body: dict[str, Any]) -> dict[str, Any]:
        """A notification as the SDK reads it."""
        found: dict[str, Any] = await self._one("receive", body)
        return found

    async def send(self, request: SendMessageRequest) -> Task:
        return self._task(await self._one("send", self._params(request)))

    async def get(self, task_id: str, history: int | None = None) -> Task:
        params: dict[str, Any] = {"id": task_id}
        if history is not None:
            params["historyLength"] = history
        return self._task(await self._one("get", params))

    async def cancel(self, task_id: str) -> Task:
        return self._task(await self._one("cancel", {"id": task_id}))

    @asynccontextmanager
    async def stream(self, request: SendMessageRequest) -> AsyncIterator[Stream]:
        async with aclosing(self._call("stream", self._params(request))) as items:
            yield Stream(self._events(items))

    @asynccontextmanager
    async def resubscribe(self, task_id: str) -> AsyncIterator[Stream]:
        async with aclosing(self._call("resubscribe", {"id": task_id})) as items:
            yield Stream(self._events(items))

    # -- shapes

    def _params(self, request: SendMessageRequest) -> Any:
        if self.line.version == "1.0":
            return to_json(request)
        old = conversions.to_compat_send_message_request(request, request_id=0)
        return old.params.model_dump(by_alias=True, exclude_none=True, mode="json")

    def _task(self, item: Any) -> Task:
        if self.line.version == "1.0":
            return from_json(item, Task)
        return conversions.to_core_task(v03.Task.model_validate(item))

    async def _events(self, items: AsyncIterator[Any]) -> AsyncIterator[StreamResponse]:
        begun: set[str] = set()
        async for item in items:
            event = self._event(item)
            begun |= {artifact.artifact_id for artifact in event.task.artifacts}
            chunk = event.artifact_update
            if str(self.line) == "0.3-rest" and chunk.artifact.name in ("answer", "reasoning"):
                # This one client (0.3.14) drops `append` when it reads an event. Text that is
                # not replaced can be told without it, and these tests replace none.
                chunk.append = chunk.artifact.artifact_id in begun
                begun.add(chunk.artifact.artifact_id)
            yield event

    def _event(self, item: Any) -> StreamResponse:
        if self.line.version == "1.0":
            return from_json(item, StreamResponse)
        answer = v03.SendStreamingMessageSuccessResponse.model_validate(
            {"result": OLD_EVENT.validate_python(item)}
        )
        return conversions.to_core_stream_response(answer)

    # -- lines

    async def _one(self, call: str, params: Any) -> Any:
        [item] = [item async for item in self._call(call, params)]
        return item

    async def _call(self, call: str, params: Any) -> AsyncGenerator[Any, None]:
        number = next(self._numbers)
        self._calls[number] = asyncio.Queue()
        self._write({"id": number, "call": call, "params": params})
        over = False
        try:
            while True:
                line = await self._heard(number)
                over = "item" not in line
                if refused := line.get("error"):
                    raise Refusal(CODES.get(refused["name"]), refused["message"])
                if over:
                    return
                yield line["item"]
        finally:
            if not over:
                self._write({"id": number, "call": "leave"})
            del self._calls[number]

    def _write(self, line: dict[str, Any]) -> None:
        assert self._node.stdin is not None
        self._node.stdin.write(json.dumps(line).encode() + b"\n")

    async def _heard(self, number: int) -> dict[str, Any]:
        line = await asyncio.wait_for(self._calls[number].get(), PATIENCE)
        assert line is not None, "node ended before the call did"
        return line

    async def _listen(self) -> None:
        assert self._node.stdout is not None
        async for raw in self._node.stdout:
            line = json.loads(raw)
            if call := self._calls.get(line["id"]):
                call.put_nowait(line)
        for call in self._calls.values():
            call.put_nowait(None)
