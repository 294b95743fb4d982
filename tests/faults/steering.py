"""What the tests do to OpenCode, and what they ask it afterwards."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import aiohttp

from tests.running import Service, Upstream

Json = dict[str, Any]


async def control(upstream: Upstream, name: str, **body: Any) -> Json:
    """One of the fake's own routes: fault, drop, stall, lose, stats."""
    counts: Json = await _call("POST", f"{upstream.base_url}/__{name}", body)
    return counts


async def stored(upstream: Upstream, session: str | None) -> list[Json]:
    """The messages OpenCode has of a session."""
    found = await _call("GET", f"{upstream.base_url}/session/{session}/message", None)
    return list(found)


async def session_of(upstream: Upstream, session: str | None) -> Json:
    """What OpenCode says of a session."""
    found: Json = await _call("GET", f"{upstream.base_url}/session/{session}", None)
    return found


async def aborted(upstream: Upstream, session: str | None) -> bool:
    """Whether the newest answer of a session was stopped."""
    newest = (await stored(upstream, session))[-1]["info"]
    return bool(newest.get("error", {}).get("name") == "MessageAbortedError")


async def pending(upstream: Upstream) -> list[str]:
    """The sessions that wait for a permission."""
    query = urlencode({"directory": upstream.workspace})
    asks = await _call("GET", f"{upstream.base_url}/permission?{query}", None)
    return [ask["sessionID"] for ask in asks]


async def ready(service: Service, status: int = 200, seconds: float = 60.0) -> Json:
    """What /ready says, once it says it with this status."""
    async with aiohttp.ClientSession(headers=service.headers) as http, asyncio.timeout(seconds):
        while True:
            async with http.get(f"{service.url}/ready") as answer:
                if answer.status == status:
                    body: Json = await answer.json()
                    return body
            await asyncio.sleep(0.05)


async def _call(method: str, url: str, body: Json | None) -> Any:
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.request(method, url, json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()
