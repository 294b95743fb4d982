"""The agent's tools over MCP: who gets in, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from opencode_a2a.domain.peer_calls import Report, ToolResult, ToolSpec
from opencode_a2a.toolserver import ToolServer

TOOLS = (ToolSpec("call", "Calls.", {"type": "object", "properties": {"peer": {}}}),)
PATIENCE = 30.0
Json = dict[str, Any]


@dataclass
class Tools:
    """What the tools of a test do."""

    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    canceled: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(
        self, tool: str, arguments: Mapping[str, Any], report: Report, session: str | None = None
    ) -> ToolResult:
        self.calls.append((tool, arguments))
        if arguments.get("peer") == "slow":
            await report("goes on")
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.canceled.set()
        return ToolResult("done", failed=arguments.get("peer") == "bad")


def rpc(method: str, number: int | None = 1, **params: Any) -> Json:
    body: Json = {"jsonrpc": "2.0", "method": method, "params": params}
    return body if number is None else body | {"id": number}


INITIALIZE = rpc(
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)


@asynccontextmanager
async def opened(tools: Tools) -> AsyncIterator[tuple[ToolServer, httpx.AsyncClient]]:
    accept = {"accept": "application/json, text/event-stream"}
    async with (
        asyncio.timeout(PATIENCE),
        ToolServer.open(lambda: TOOLS, tools.serve) as server,
        httpx.AsyncClient(headers=accept, trust_env=False, timeout=PATIENCE) as http,
    ):
        yield server, http


@asynccontextmanager
async def connected(tools: Tools) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """A client that has said hello, as OpenCode does."""
    async with opened(tools) as (server, http):
        http.headers.update(server.headers)
        answer = await http.post(server.url, json=INITIALIZE)
        http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        await http.post(server.url, json=rpc("notifications/initialized", None))
        yield server.url, http


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "rebound.example.com"}, 421),
        ({"host": "localhost"}, 421),
    ],
)
async def test_only_opencode_gets_in(headers: dict[str, str], status: int) -> None:
    tools = Tools()
    async with opened(tools) as (server, http):
        login = dict(server.headers) if status != 401 else {}
        answer = await http.post(server.url, json=INITIALIZE, headers=login | headers)
        assert answer.status_code == status
        answer = await http.post(f"{server.url}/x", json=INITIALIZE, headers=dict(server.headers))
        assert answer.status_code == 404
        assert server.url.startswith("http://127.0.0.1:")
        assert server.secret not in repr(server)


async def test_every_process_has_a_secret_of_its_own() -> None:
    async with opened(Tools()) as (one, _), opened(Tools()) as (two, _):
        assert one.headers != two.headers


async def test_tools_are_listed_and_called() -> None:
    tools = Tools()
    async with connected(tools) as (url, http):
        listed = await http.post(url, json=rpc("tools/list", 2))
        assert '"name":"call"' in listed.text
        for peer, failed in (("good", "false"), ("bad", "true")):
            asked = rpc("tools/call", 3, name="call", arguments={"peer": peer})
            answer = await http.post(url, json=asked)
            assert '"text":"done"' in answer.text
            assert f'"isError":{failed}' in answer.text
    assert tools.calls == [("call", {"peer": "good"}), ("call", {"peer": "bad"})]


async def test_a_long_call_reports_and_can_be_canceled() -> None:
    tools = Tools()
    async with connected(tools) as (url, http):
        asked = rpc("tools/call", 7, name="call", arguments={"peer": "slow"})
        asked["params"]["_meta"] = {"progressToken": 5}
        async with http.stream("POST", url, json=asked) as answer:
            async for line in answer.aiter_lines():
                if "notifications/progress" in line:
                    assert '"progressToken":5' in line
                    break
            await tools.waiting.wait()
            await http.post(url, json=rpc("notifications/cancelled", None, requestId=7))
            await tools.canceled.wait()
