"""Offering tools to sessions: registered where they are not, with rules that people have the last
word about. What the real OpenCode makes of that is in tests/e2e/test_peer_calls.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from opencode_a2a.domain.peer_calls import ASK, DENY
from opencode_a2a.domain.permissions import action_of
from opencode_a2a.domain.values import PermissionRule, SessionRef
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.feed import Feed
from opencode_a2a.opencode.http import Endpoint, Http
from opencode_a2a.opencode.tools import OpenCodeTools
from opencode_a2a.opencode.v1 import wire
from opencode_a2a.opencode.v1.catalog import Api1

Json = dict[str, Any]
ALLOW = {"permission": "*", "pattern": "*", "action": "allow"}
OURS = [
    {"permission": "a2a_*", "pattern": "*", "action": "deny"},
    {"permission": "a2a_*", "pattern": "*", "action": "ask"},
]
SESSION = SessionRef("ses_1", directory="/work")


class Registry:
    """The part of OpenCode that keeps MCP servers and rules."""

    def __init__(self) -> None:
        self.servers: dict[str, Json] = {}
        self.status = "connected"
        self.rules: list[Json] = []
        self.agents: list[Json] = [{"name": "build", "permission": [ALLOW]}]
        self.asked: list[str] = []
        self.broken = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        body = json.loads(await request.read() or b"{}")
        if self.broken:
            return web.json_response({"name": "UnknownError"}, status=500)
        match request.method, request.path:
            case "POST", "/mcp":
                assert request.query["directory"] == "/work"
                self.servers[body["name"]] = body["config"]
            case "PATCH", _:
                self.rules += body["permission"]
            case "GET", "/agent":
                return web.json_response(self.agents)
            case "GET", "/session/ses_1":
                return web.json_response({"id": "ses_1", "permission": self.rules})
            case _:
                pass
        return web.json_response({name: {"status": self.status} for name in self.servers})


@dataclass
class ConnectionOf1:
    feed: Feed
    api: Api1


@asynccontextmanager
async def offering(
    registry: Registry, *rules: PermissionRule
) -> AsyncIterator[tuple[OpenCodeTools, Feed]]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", registry.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Http.open(Endpoint(url)) as http:
            feed, defaults = Feed(http), Defaults("/elsewhere", rules=lambda: rules)
            tools = OpenCodeTools(
                ConnectionOf1(feed, Api1(http, feed, defaults)),
                defaults,
                url="http://127.0.0.1:1/mcp",
                headers={"authorization": "Bearer secret"},
            )
            yield tools, feed
    finally:
        await runner.cleanup()


def dispose(feed: Feed) -> None:
    event = {"type": "server.instance.disposed", "properties": {"directory": "/work"}}
    feed._route(json.dumps({"payload": event}).encode(), wire)


async def test_tools_are_registered_once_and_again_where_they_are_gone() -> None:
    registry = Registry()
    async with offering(registry) as (tools, feed):
        await tools.offer(SESSION)
        await tools.offer(SESSION)
        assert registry.asked.count("POST /mcp") == 1
        assert registry.servers["a2a"]["headers"] == {"authorization": "Bearer secret"}
        dispose(feed)  # but they are still there: to register them again would break calls
        await tools.offer(SESSION)
        assert registry.asked.count("POST /mcp") == 1
        registry.servers.clear()
        dispose(feed)
        await tools.offer(SESSION)
        assert registry.asked.count("POST /mcp") == 2


@pytest.mark.parametrize("trouble", ["status", "broken"])
async def test_a_session_goes_on_without_tools_where_they_cannot_be_had(trouble: str) -> None:
    registry = Registry()
    registry.status, registry.broken = "failed", trouble == "broken"
    async with offering(registry) as (tools, _):
        rules = await tools.offer(SESSION)
        assert action_of(rules("build"), "a2a_call") == "ask"  # nothing is allowed unseen
        registry.status, registry.broken = "connected", False
        rules = await tools.offer(SESSION)
        assert action_of(rules("build"), "a2a_call") == "allow"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], OURS),
        ([ALLOW], [ALLOW, *OURS]),
        (OURS, OURS),
        ([*OURS, ALLOW], [*OURS, ALLOW, *OURS]),
        (OURS[1:], [*OURS[1:], *OURS]),  # sub-agents must have the rule that denies
        ([*OURS, OURS[0]], [*OURS, OURS[0]]),
        ([ALLOW | {"action": "deny"}], [ALLOW | {"action": "deny"}]),
    ],
)
async def test_sessions_have_the_rules_once_unless_the_tools_are_denied_to_them(
    before: list[Json], after: list[Json]
) -> None:
    registry = Registry()
    registry.rules = list(before)
    async with offering(registry) as (tools, _):
        await tools.offer(SESSION)
        assert registry.rules == after
        await tools.offer(SESSION)
        assert registry.rules == after


async def test_the_rules_of_people_are_those_of_agent_session_and_deployment() -> None:
    registry = Registry()
    registry.agents.append({"name": "plan", "permission": [ALLOW, OURS[0]]})
    registry.rules = [*OURS, {"permission": "read", "pattern": "*.key", "action": "deny"}]
    async with offering(registry) as (tools, _):
        rules = await tools.offer(SESSION)
        assert action_of(rules("build"), "a2a_call") == "allow"
        assert action_of(rules("plan"), "a2a_call") == "deny"
        assert action_of(rules("unknown"), "a2a_call") == "ask"
        assert action_of(rules("build"), "read", "a/b.key") == "deny"
    async with offering(Registry(), ASK) as (tools, _):
        assert action_of((await tools.offer(SESSION))("build"), "a2a_call") == "ask"
    async with offering(Registry(), DENY) as (tools, _):
        assert action_of((await tools.offer(SESSION))("build"), "a2a_call") == "deny"
