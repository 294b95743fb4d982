"""What really went over the wire, kept while a client works and checked when it leaves.

Clients forgive unknown members; here nothing is forgiven. Every response of the
service is read with the official types of its protocol line, strictly.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old
from a2a.compat.v0_3 import types as v03
from a2a.types import a2a_pb2 as new
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from tests.e2e.protojson import from_json

CONFIGS = "/tasks/[^/:]+/pushNotificationConfigs"
NEW_METHODS: dict[str, type[object]] = {
    "SendMessage": new.SendMessageResponse,
    "SendStreamingMessage": new.StreamResponse,
    "GetTask": new.Task,
    "ListTasks": new.ListTasksResponse,
    "CancelTask": new.Task,
    "SubscribeToTask": new.StreamResponse,
    "CreateTaskPushNotificationConfig": new.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": new.TaskPushNotificationConfig,
    "ListTaskPushNotificationConfigs": new.ListTaskPushNotificationConfigsResponse,
    "DeleteTaskPushNotificationConfig": Empty,
}
OLD_EVENT: TypeAdapter[object] = TypeAdapter(
    v03.Task | v03.Message | v03.TaskStatusUpdateEvent | v03.TaskArtifactUpdateEvent
)
OLD_METHODS: dict[str, TypeAdapter[object]] = {
    "message/send": TypeAdapter(v03.Task | v03.Message),
    "message/stream": OLD_EVENT,
    "tasks/get": TypeAdapter(v03.Task),
    "tasks/cancel": TypeAdapter(v03.Task),
    "tasks/resubscribe": OLD_EVENT,
    "tasks/pushNotificationConfig/set": TypeAdapter(v03.TaskPushNotificationConfig),
    "tasks/pushNotificationConfig/get": TypeAdapter(v03.TaskPushNotificationConfig),
    "tasks/pushNotificationConfig/list": TypeAdapter(list[v03.TaskPushNotificationConfig]),
    "tasks/pushNotificationConfig/delete": TypeAdapter(None),
}
NEW_PATHS: dict[str, type[object]] = {
    r"/message:send": new.SendMessageResponse,
    r"/message:stream": new.StreamResponse,
    r"/tasks": new.ListTasksResponse,
    r"/tasks/[^/:]+": new.Task,
    r"/tasks/[^/:]+:cancel": new.Task,
    r"/tasks/[^/:]+:subscribe": new.StreamResponse,
    rf"POST {CONFIGS}": new.TaskPushNotificationConfig,
    rf"GET {CONFIGS}/[^/]+": new.TaskPushNotificationConfig,
    rf"GET {CONFIGS}": new.ListTaskPushNotificationConfigsResponse,
    rf"DELETE {CONFIGS}/[^/]+": Empty,
}
OLD_PATHS: dict[str, type[object]] = {
    r"/v1/message:send": old.SendMessageResponse,
    r"/v1/message:stream": old.StreamResponse,
    r"/v1/tasks/[^/:]+": old.Task,
    r"/v1/tasks/[^/:]+:cancel": old.Task,
    r"/v1/tasks/[^/:]+:subscribe": old.StreamResponse,
    rf"POST /v1{CONFIGS}": old.TaskPushNotificationConfig,
    rf"GET /v1{CONFIGS}/[^/]+": old.TaskPushNotificationConfig,
}


@dataclass
class Exchange:
    request: httpx.Request
    response: httpx.Response
    body: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    whole: bool = False

    @property
    def documents(self) -> list[Any]:
        """The JSON documents of the body: one, or one per event of a stream."""
        if not self.streams:
            zipped = self.response.headers.get("content-encoding") == "gzip"
            body = gzip.decompress(self.body) if zipped and self.whole else self.body
            return [json.loads(body)] if self.whole and self.body else []
        frames = bytes(self.body).split(b"\n\n")[:-1]  # the last one may be cut off
        lines = (line for frame in frames for line in frame.split(b"\n"))
        return [json.loads(line[5:]) for line in lines if line.startswith(b"data:")]

    @property
    def streams(self) -> bool:
        return "text/event-stream" in self.response.headers.get("content-type", "")

    def check(self) -> None:
        path = self.request.url.path
        if path.startswith("/.well-known/"):
            return
        if path == "/":
            self._check_rpc(json.loads(self.request.content))
        else:
            self._check_rest(path, OLD_PATHS if path.startswith("/v1/") else NEW_PATHS)
        if self.streams:
            numbers = [int(n) for n in re.findall(rb"^id: (\d+)$", self.body, re.MULTILINE)]
            assert numbers == sorted(set(numbers)), "every event has a number, and they grow"
            assert len(numbers) >= len(self.documents)

    def _check_rest(self, path: str, shapes: dict[str, type[object]]) -> None:
        kind = "application/json" if shapes is OLD_PATHS else "application/a2a+json"
        assert self.streams or self.response.headers["content-type"] == kind
        if self.response.is_success:
            names = (path, f"{self.request.method} {path}")
            [shape] = [
                shape
                for form, shape in shapes.items()
                if any(re.fullmatch(form, name) for name in names)
            ]
            for document in self.documents:
                from_json(document, shape)
            if self.streams and shapes is OLD_PATHS:
                self._check_final([d.get("statusUpdate", d) for d in self.documents])
        elif shapes is OLD_PATHS:
            assert self.documents[0].keys() == {"code", "message", "data", "type"}
        else:
            [body] = self.documents
            assert body.keys() == {"error"}
            assert body["error"].keys() == {"code", "status", "message", "details"}
            assert body["error"]["code"] == self.response.status_code
            _check_details(body["error"]["details"])

    def _check_rpc(self, asked: dict[str, Any]) -> None:
        method = asked["method"]
        for document in self.documents:
            assert document["jsonrpc"] == "2.0"
            assert document["id"] == asked["id"]
            assert len(document) == 3, "a response is a result or an error, and nothing else"
            if "error" in document:
                assert document["error"].keys() == {"code", "message", "data"}
                if method in NEW_METHODS:
                    _check_details(document["error"]["data"])
            elif method in NEW_METHODS:
                from_json(document["result"], NEW_METHODS[method])
            else:
                OLD_METHODS[method].validate_python(document["result"], extra="forbid")
        if method in OLD_METHODS and self.streams:
            self._check_final([document.get("result", {}) for document in self.documents])

    def _check_final(self, events: list[dict[str, Any]]) -> None:
        """In 0.3 the last event of a stream, and no other, says that it is the last."""
        assert not any(event.get("final") for event in events[:-1])
        if self.whole and len(events) > 1:
            assert events[-1]["final"] is True


def _check_details(details: list[Any]) -> None:
    """What 1.0 says about an error: first of all a google.rpc.ErrorInfo."""
    reason = details[0]
    assert reason["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert reason.keys() == {"@type", "reason", "domain", "metadata"}
    assert all(isinstance(value, str) for value in reason["metadata"].values())
    assert all("@type" in detail for detail in details)


class _Heard(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._exchange.body += chunk
            self._exchange.news.set()
            yield chunk
        self._exchange.whole = True

    async def aclose(self) -> None:
        await self._stream.aclose()


class Recording(httpx.AsyncHTTPTransport):
    """A connection that remembers what was said on it."""

    def __init__(self) -> None:
        super().__init__(verify=False)  # no TLS here, so no certificates to load
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        exchange = Exchange(request, response)
        self.exchanges.append(exchange)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Heard(response.stream, exchange)
        return response

    @property
    def last(self) -> list[Any]:
        """The documents of the newest response."""
        return self.exchanges[-1].documents

    def check(self) -> None:
        for exchange in self.exchanges:
            exchange.check()
