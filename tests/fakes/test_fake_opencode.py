"""The fake keeps the order and the words of the real server's recordings."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.opencode import FakeOpenCode, expected_text, serve

Json = dict[str, Any]
RECORDING = Path(__file__).parents[1] / "recordings" / "01-plain-text.jsonl"
AFTER_ABORT = [  # recording 13 of an abort in mid-stream
    "session.error",
    "session.status idle",
    "session.idle",
    "message.part.updated text",
    "message.updated assistant",
    "session.status idle",
    "session.idle",
]


def gist(event: Json) -> str:
    """An event's type, and what tells it from others of that type."""
    properties = event["properties"]
    part, info = properties.get("part", {}), properties.get("info", {})
    detail = part.get("type") or info.get("role") or properties.get("status", {}).get("type")
    return f"{event['type']} {detail}" if detail else str(event["type"])


class Client:
    """One consumer of /global/event, and the calls of the API."""

    def __init__(self, http: aiohttp.ClientSession, feed: aiohttp.ClientResponse) -> None:
        self.http, self.feed = http, feed

    async def call(self, method: str, path: str, **body: Any) -> Any:
        async with self.http.request(method, path, json=body or None) as response:
            return await response.json() if response.status == 200 else response.status

    async def next(self) -> Json:
        async with asyncio.timeout(60):
            line = await self.feed.content.readuntil(b"\n\n")
        event: Json = json.loads(line.removeprefix(b"data: "))["payload"]
        return event

    async def until(self, last: str, times: int = 1) -> list[Json]:
        events: list[Json] = []
        while [gist(event) for event in events].count(last) < times:
            events.append(await self.next())
        return events


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenCode]:
    async with serve() as fake:
        yield fake


@pytest.fixture
async def client(fake: FakeOpenCode) -> AsyncIterator[Client]:
    async with connected(fake) as client:
        yield client


@asynccontextmanager
async def connected(fake: FakeOpenCode) -> AsyncIterator[Client]:
    async with (
        aiohttp.ClientSession(fake.base_url) as http,
        http.get("/global/event") as feed,
    ):
        client = Client(http, feed)
        assert (await client.next())["type"] == "server.connected"
        yield client


async def prompted(client: Client, text: str, **session: Any) -> str:
    created = await client.call("POST", "/session", **session)
    path = f"/session/{created['id']}/prompt_async"
    assert await client.call("POST", path, parts=[{"type": "text", "text": text}]) == 204
    return str(created["id"])


async def test_a_plain_prompt_has_the_event_order_of_the_real_server(client: Client) -> None:
    with RECORDING.open() as lines:
        records = [json.loads(line) for line in lines]
    recorded = [gist(record["event"]) for record in records if record["src"] == "/event"]
    await prompted(client, "hello world")
    events = await client.until("message.updated user", times=3)
    assert [gist(event) for event in events] == recorded[1:]  # without server.connected


async def test_the_text_is_the_expected_one_on_the_stream_and_in_the_store(client: Client) -> None:
    session = await prompted(client, "[[tokens:1000]] [[size:9]]")
    events = await client.until("session.idle")
    deltas = [e["properties"]["delta"] for e in events if e["type"] == "message.part.delta"]
    assert {len(delta.encode()) for delta in deltas} == {9}
    assert "".join(deltas) == expected_text(session, 1000, 9)
    assert len({event["id"] for event in events}) == len(events)
    _, answer = await client.call("GET", f"/session/{session}/message")
    assert answer["parts"][1]["text"] == expected_text(session, 1000, 9)


async def test_words_are_not_stored_before_the_part_is_closed(client: Client) -> None:
    session = await prompted(client, "[[tokens:3]] [[hang]]")
    await client.until("message.part.delta", times=3)
    _, answer = await client.call("GET", f"/session/{session}/message")
    assert answer["parts"][1]["text"] == ""


async def test_an_abort_in_mid_stream_has_the_event_order_of_the_real_server(
    client: Client,
) -> None:
    session = await prompted(client, "[[tokens:3]] [[hang]]", title="t")
    await client.until("message.part.delta", times=3)
    assert await client.call("POST", f"/session/{session}/abort") is True
    events = await client.until("session.idle", times=2)
    assert [gist(event) for event in events] == AFTER_ABORT
    assert events[3]["properties"]["part"]["text"] == expected_text(session, 3)
    info = events[4]["properties"]["info"]
    assert info["error"]["name"] == "MessageAbortedError"
    assert "completed" in info["time"]


@pytest.mark.parametrize(("reply", "finish"), [("once", "stop"), ("reject", "tool-calls")])
async def test_a_permission_waits_for_its_reply(client: Client, reply: str, finish: str) -> None:
    session = await prompted(client, "[[permission]]")
    *_, asked = await client.until("permission.asked")
    [request] = await client.call("GET", "/permission")
    assert asked["properties"] == request
    assert await client.call("GET", "/session/status") == {session: {"type": "busy"}}
    path = f"/permission/{request['id']}/reply"
    assert await client.call("POST", path, reply=reply) is True
    events = await client.until("session.idle")
    assert "permission.replied" in [gist(event) for event in events]
    *_, answer = await client.call("GET", f"/session/{session}/message")
    assert answer["info"]["finish"] == finish
    assert await client.call("POST", path, reply=reply) == 404


async def test_a_lost_process_forgets_its_runs_and_closes_its_streams(client: Client) -> None:
    session = await prompted(client, "[[permission]]")
    await client.until("permission.asked")
    await client.call("POST", "/__lose")
    with pytest.raises((aiohttp.ClientError, asyncio.IncompleteReadError)):
        await client.until("never")
    assert await client.call("GET", "/session/status") == {}
    assert await client.call("GET", "/permission") == []
    _, answer = await client.call("GET", f"/session/{session}/message")
    assert "completed" not in answer["info"]["time"]
