"""OpenCode and its model, asked directly: what really happened behind the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.e2e.seen import PATIENCE
from tests.running import Upstream


class Behind:
    def __init__(self, http: httpx.AsyncClient, model_url: str) -> None:
        self._http = http
        self._model_url = model_url

    @classmethod
    @asynccontextmanager
    async def look(cls, upstream: Upstream) -> AsyncIterator[Behind]:
        assert upstream.password is not None
        assert upstream.model_url is not None
        async with httpx.AsyncClient(
            base_url=upstream.base_url,
            auth=("opencode", upstream.password),
            params={"directory": str(upstream.workspace)},
            timeout=PATIENCE,
            verify=False,
        ) as http:
            yield cls(http, upstream.model_url)

    async def delete(self, session: str) -> None:
        (await self._http.delete(f"/session/{session}")).raise_for_status()

    async def busy(self, session: str) -> bool:
        return session in await self._get("/session/status")

    async def waiting(self, session: str) -> list[Any]:
        """The permissions and questions that a session has open."""
        asked = await self.waiting_anywhere()
        return [request for request in asked if request["sessionID"] == session]

    async def waiting_anywhere(self) -> list[Any]:
        return [*await self._get("/permission"), *await self._get("/question")]

    async def session(self, session: str) -> Any:
        return await self._get(f"/session/{session}")

    async def post(self, path: str, body: Any) -> None:
        """Do something past the service."""
        (await self._http.post(path, json=body)).raise_for_status()

    async def said(self, session: str) -> list[tuple[str, str]]:
        """Role and text of every message of a session, oldest first."""
        return [
            (
                message["info"]["role"],
                "".join(part.get("text", "") for part in message["parts"]),
            )
            for message in await self._get(f"/session/{session}/message")
        ]

    async def prompts(self, session: str) -> list[Any]:
        """What the model was asked in a session."""
        root = httpx.URL(self._model_url).copy_with(path="/requests")
        asked = (await self._http.get(root)).json()
        return [request for request in asked if request["session"] == session]

    async def create(self, title: str) -> str:
        """A session as the terminal makes one: nobody's."""
        response = await self._http.post("/session", json={"title": title})
        created: str = response.json()["id"]
        return created

    async def agents_of(self, session: str) -> list[str]:
        """The agent of each message of a session."""
        messages = await self._get(f"/session/{session}/message")
        return [message["info"]["agent"] for message in messages]

    async def _get(self, path: str) -> Any:
        response = await self._http.get(path)
        response.raise_for_status()
        return response.json()
