"""OpenCode and its model, asked directly: what really happened behind the service."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.e2e.seen import PATIENCE
from tests.features import is_2
from tests.running import Upstream


class Behind:
    """With OpenCode 1.x; `Behind2` is the same with 2.x."""

    def __init__(self, http: httpx.AsyncClient, upstream: Upstream) -> None:
        self.http = http
        self._model_url = upstream.model_url
        self._workspace = str(upstream.workspace)

    @staticmethod
    @asynccontextmanager
    async def look(upstream: Upstream) -> AsyncIterator[Behind]:
        assert upstream.password is not None
        assert upstream.model_url is not None
        async with httpx.AsyncClient(
            base_url=upstream.base_url,
            auth=("opencode", upstream.password),
            params={"directory": str(upstream.workspace)} if not is_2() else {},
            timeout=PATIENCE,
            verify=False,
        ) as http:
            yield (Behind2 if is_2() else Behind)(http, upstream)

    async def delete(self, session: str) -> None:
        (await self.http.delete(f"/session/{session}")).raise_for_status()

    async def busy(self, session: str) -> bool:
        return session in await self.get("/session/status")

    async def waiting(self, session: str) -> list[Any]:
        """The permissions and questions that a session has open."""
        asked = await self.waiting_anywhere()
        return [request for request in asked if request["sessionID"] == session]

    async def waiting_anywhere(self) -> list[Any]:
        return [*await self.get("/permission"), *await self.get("/question")]

    async def session(self, session: str) -> Any:
        return await self.get(f"/session/{session}")

    async def rules(self, session: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = (await self.session(session)).get("permission", [])
        return found

    async def saved(self) -> list[Any]:
        """What OpenCode 2 would never again ask for, in any session of the project."""
        return []

    async def permit(self, request: Any, reply: str, message: str | None = None) -> None:
        """Decide past the service."""
        body = {"reply": reply} | ({"message": message} if message else {})
        await self.post(f"/permission/{request['id']}/reply", body)

    async def answer(self, request: Any, answer: str) -> None:
        await self.post(f"/question/{request['id']}/reply", {"answers": [[answer]]})

    async def said(self, session: str) -> list[tuple[str, str]]:
        """Role and text of every message of a session, oldest first."""
        return [
            (
                message["info"]["role"],
                "".join(part.get("text", "") for part in message["parts"]),
            )
            for message in await self.get(f"/session/{session}/message")
        ]

    async def prompts(self, session: str) -> list[Any]:
        """What the model was asked in a session."""
        assert self._model_url is not None
        root = httpx.URL(self._model_url).copy_with(path="/requests")
        asked = (await self.http.get(root)).json()
        return [request for request in asked if request["session"] == session]

    async def create(self, title: str) -> str:
        """A session as the terminal makes one: nobody's."""
        created: str = (await self.post("/session", {"title": title}))["id"]
        return created

    async def fork(self, session: str) -> str:
        forked: str = (await self.post(f"/session/{session}/fork", {}))["id"]
        return forked

    async def agents_of(self, session: str) -> list[str]:
        """The agent of each message of a session."""
        messages = await self.get(f"/session/{session}/message")
        return [message["info"]["agent"] for message in messages]

    async def get(self, path: str, **query: str) -> Any:
        response = await self.http.get(path, params=query)
        response.raise_for_status()
        return response.json()

    async def post(self, path: str, body: Any) -> Any:
        """Do something past the service."""
        response = await self.http.post(path, json=body)
        response.raise_for_status()
        return response.json() if response.content else None


class Behind2(Behind):
    async def delete(self, session: str) -> None:
        (await self.http.delete(f"/api/session/{session}")).raise_for_status()

    async def busy(self, session: str) -> bool:
        return session in (await self.get("/api/session/active"))["data"]

    async def waiting_anywhere(self) -> list[Any]:
        here = {"location[directory]": self._workspace}
        permissions = await self.get("/api/permission/request", **here)
        forms = await self.get("/api/form", **here)
        return [*permissions["data"], *forms["data"]]

    async def session(self, session: str) -> Any:
        return (await self.get(f"/api/session/{session}"))["data"]

    async def rules(self, session: str) -> list[dict[str, str]]:
        return [
            {"permission": rule["action"], "pattern": rule["resource"], "action": rule["effect"]}
            for rule in (await self.session(session))["permissions"]
        ]

    async def saved(self) -> list[Any]:
        found: list[Any] = (await self.get("/api/permission/saved"))["data"]
        return found

    async def permit(self, request: Any, reply: str, message: str | None = None) -> None:
        body = {"decision": reply} | ({"message": message} if message else {})
        where = f"/api/session/{request['sessionID']}/permission/{request['id']}/reply"
        await self.post(where, body)

    async def answer(self, request: Any, answer: str) -> None:
        where = f"/api/session/{request['sessionID']}/form/{request['id']}/reply"
        await self.post(where, {"answer": {"q0": answer}})

    async def said(self, session: str) -> list[tuple[str, str]]:
        roles = {"user": "user", "assistant": "assistant"}
        return [
            (
                roles[message["type"]],
                "".join(
                    [
                        message.get("text", ""),
                        *(block.get("text", "") for block in message.get("content", ())),
                        *(b64decode(file["data"]).decode() for file in message.get("files", ())),
                    ]
                ),
            )
            for message in await self.messages(session)
            if message["type"] in roles
        ]

    async def messages(self, session: str) -> list[Any]:
        """Of every type, oldest first."""
        found: list[Any] = (
            await self.get(f"/api/session/{session}/message", limit="200", order="asc")
        )["data"]
        return found

    async def create(self, title: str) -> str:
        where = {"directory": self._workspace}
        created: str = (await self.post("/api/session", {"title": title, "location": where}))[
            "data"
        ]["id"]
        return created

    async def fork(self, session: str) -> str:
        forked: str = (await self.post(f"/api/session/{session}/fork", {}))["data"]["id"]
        return forked

    async def agents_of(self, session: str) -> list[str]:
        return [m["agent"] for m in await self.messages(session) if m["type"] == "assistant"]
