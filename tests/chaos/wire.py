"""A2A as a client writes it: REST and JSON-RPC, 1.0 and 0.3, and event streams byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.chaos.ledger import Ask, Json
from tests.running import TOKEN

SECONDS = aiohttp.ClientTimeout(total=60, sock_read=15)
BROKEN = (aiohttp.ClientError, OSError, TimeoutError)

METHODS = {
    "1.0": ("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask"),
    "0.3": ("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
}
SEND, STREAM, GET, CANCEL, SUBSCRIBE = range(5)


class Refused(Exception):
    """An answer, and a no."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        super().__init__(f"{status} {kind} {body[:300]!r}")
        self.status, self.kind = status, kind

    @property
    def later(self) -> bool:
        """Whether trying again is what it asks for."""
        return self.status in (429, 502, 503, 504) or self.kind in (
            "UPSTREAM_UNREACHABLE",
            "UPSTREAM_TIMEOUT",
            "UPSTREAM_BUSY",
            "TASK_HANDOVER",
            "SHUTTING_DOWN",
            "STORE_UNAVAILABLE",
            "OUTCOME_UNKNOWN",
        )


@dataclass(slots=True)
class Frames:
    """Bytes in, events out: `(number, data)`."""

    handed_over: bool = False
    error: bytes | None = None
    _rest: bytes = b""

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        *whole, self._rest = (self._rest + chunk).split(b"\n\n")
        events = []
        for frame in whole:
            fields = dict(line.partition(b": ")[::2] for line in frame.split(b"\n"))
            self.handed_over |= b"retry" in fields
            if fields.get(b"event") == b"error":
                self.error = fields[b"data"]
            elif b"data" in fields:
                events.append((int(fields[b"id"]), fields[b"data"]))
        return events


@dataclass(slots=True)
class Stream:
    content: aiohttp.StreamReader
    frames: Frames = field(default_factory=Frames)


@dataclass(frozen=True, slots=True)
class Wire:
    line: str
    rpc: bool
    url: str
    http: aiohttp.ClientSession

    def message(self, ask: Ask, blocking: bool = True) -> Json:
        old = self.line == "0.3"
        part = {"kind": "text", "text": ask.text} if old else {"text": ask.text}
        message: Json = {"messageId": ask.message_id, "parts": [part]}
        message |= {"kind": "message", "role": "user"} if old else {"role": "ROLE_USER"}
        message |= {"contextId": ask.context} if ask.context else {}
        message |= {"taskId": ask.task} if ask.task else {}
        params: Json = {"message": message}
        if not blocking:
            params["configuration"] = {"blocking": False} if old else {"returnImmediately": True}
        return params

    async def call(self, what: int, params: Json, **headers: str) -> Json:
        """The task a call answers with."""
        async with self._request(what, params, headers) as response:
            raw = await response.read()
        if response.status >= 400:
            raise _refused(response.status, raw)
        answer: Json = orjson.loads(raw)
        if self.rpc:
            if "error" in answer:
                raise _refused(response.status, raw)
            answer = answer["result"]
        return answer.get("task", answer) if what == SEND else answer

    @asynccontextmanager
    async def stream(
        self, what: int, params: Json, after: int | None, in_query: bool = False, **headers: str
    ) -> AsyncIterator[Stream]:
        query = {"after": str(after)} if after is not None and in_query else {}
        if after is not None and not in_query:
            headers["last-event-id"] = str(after)
        async with self._request(what, params, headers, query) as response:
            try:
                if response.content_type != "text/event-stream":
                    raise _refused(response.status, await response.read())
                yield Stream(response.content)
            finally:
                response.close()  # what was not read is not wanted any more

    def payload(self, data: bytes) -> bytes:
        """An event without what belongs to its stream: the envelope, and where that ends."""
        if self.rpc:
            _, found, rest = data.partition(b',"result":')
            assert found, data
            data = rest[:-1]
        return data.replace(b',"final":true', b"").replace(b',"final":false', b"")

    def _request(
        self, what: int, params: Json, headers: Mapping[str, str], query: Mapping[str, str] = {}
    ) -> Any:
        told = {
            "authorization": f"Bearer {TOKEN}",
            "a2a-version": self.line,
            "a2a-extensions": "urn:a2a:stream-hints/v1",  # everything is to be seen
            **headers,
        }
        if self.rpc:
            body = {"jsonrpc": "2.0", "id": 1, "method": METHODS[self.line][what], "params": params}
            return self._http("POST", "/", told, query, body)
        if what in (SEND, STREAM):
            path = "/message:send" if what == SEND else "/message:stream"
            return self._http("POST", path, told, query, params)
        suffix = {GET: "", CANCEL: ":cancel", SUBSCRIBE: ":subscribe"}[what]
        method = "POST" if what == CANCEL else "GET"
        return self._http(method, f"/tasks/{params['id']}{suffix}", told, query, None)

    def _http(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        body: Json | None,
    ) -> Any:
        headers = {**headers, "content-type": "application/json"} if body else headers
        data = orjson.dumps(body) if body else None
        return self.http.request(
            method, self.url + path, data=data, headers=headers, params=query, timeout=SECONDS
        )


def _refused(status: int, raw: bytes) -> Refused:
    try:
        error = orjson.loads(raw)["error"]
        details = error.get("data", error.get("details"))
        kind = details["type"] if isinstance(details, dict) else details[0]["reason"]
    except (ValueError, LookupError, TypeError):
        kind = "unreadable"
    return Refused(status, kind, raw)
