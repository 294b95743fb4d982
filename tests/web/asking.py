"""Requests to a piece of middleware, without a server."""

from __future__ import annotations

from typing import Any, cast

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class Answers:
    """An application that gives the same answer always, and knows how often it was asked."""

    def __init__(self, response: Response | None = None) -> None:
        self._response = response or Response(b"{}", media_type="application/json")
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self._response(scope, receive, send)


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/",
    *,
    url: str = "http://127.0.0.1:8000",
    **headers: str,
) -> httpx.Response:
    transport = httpx.ASGITransport(app=cast(Any, app))
    async with httpx.AsyncClient(transport=transport, base_url=url) as client:
        dashed = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.request(method, path, headers=dashed)
