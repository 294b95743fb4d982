"""Prompts that make the agent ask, messages that answer it, and the callbacks by id."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.types.a2a_pb2 import Part, SendMessageRequest, StreamResponse, Task

from tests.e2e.clients import ask
from tests.e2e.protojson import from_json, to_json
from tests.e2e.seen import PATIENCE, shared
from tests.running import Service, Upstream

HITL = "https://kagent.dev/extensions/hitl/v1"
INTERACTIVE = (
    "https://github.com/Intelligent-Internet/opencode-a2a/blob/main/"
    "docs/extension-specifications.md#shared-interactive-interrupt-v1"
)
HOW = (
    "What follows “no, ” is told to the agent, which then looks for another way; "
    "a bare no stops it."
)


class Mark:
    """A file that exists once the agent was allowed to make it."""

    def __init__(self, upstream: Upstream) -> None:
        self.name = f"mark-{uuid.uuid4()}"
        self._file = upstream.workspace / self.name
        self.command = f"touch {self.name}"

    @property
    def made(self) -> bool:
        return self._file.exists()

    def __str__(self) -> str:
        return bash(self.command)


def tool(name: str, **arguments: Any) -> str:
    return f"[[tool:{name} {json.dumps(arguments)}]]"


def bash(command: str) -> str:
    return tool("bash", command=command, description="Leaves a mark")


def sub_agent(prompt: str) -> str:
    return tool("task", description="Look", prompt=prompt, subagent_type="general")


def data(value: Any) -> Part:
    return from_json({"data": value}, Part)


def reply(task: Task, *content: str | Part) -> SendMessageRequest:
    """An ordinary message on the task."""
    return ask(*content, task=task.id, context=task.context_id)


def kagent(task: Task, payload: dict[str, Any]) -> SendMessageRequest:
    request = reply(task, "(see metadata)")
    request.message.extensions.append(HITL)
    request.message.metadata.update({HITL: payload})
    return request


def interrupt(event: StreamResponse) -> dict[str, Any]:
    """What a status event says about a request; empty when it says nothing."""
    told = to_json(event.status_update.metadata).get("shared", {})
    found: dict[str, Any] = told.get("interrupt", {})
    return found


def request_id(task: Task) -> str:
    found: str = shared(task)["interrupt"]["request_id"]
    return found


class Callbacks:
    """The methods beyond A2A, as any JSON-RPC client calls them."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def of(cls, service: Service, token: str | None = None) -> AsyncIterator[Callbacks]:
        headers = {"authorization": f"Bearer {token or service.token}"}
        async with httpx.AsyncClient(
            base_url=service.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=False
        ) as http:
            yield cls(http)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result, or the error's `code` and `message`."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self._http.post("/", json=body)).json()
        found: dict[str, Any] = answer.get("result") or answer["error"]
        return found

    async def permit(self, request_id: str, reply: str, **more: Any) -> dict[str, Any]:
        method = "a2a.interrupt.permission.reply"
        return await self.call(method, request_id=request_id, reply=reply, **more)

    async def answer(self, request_id: str, *answers: list[str]) -> dict[str, Any]:
        method = "a2a.interrupt.question.reply"
        return await self.call(method, request_id=request_id, answers=[*answers])

    async def dismiss(self, request_id: str) -> dict[str, Any]:
        return await self.call("a2a.interrupt.question.reject", request_id=request_id)

    async def pending(self) -> list[dict[str, Any]]:
        """Permissions, then questions."""
        kinds = ("opencode.permissions.list", "opencode.questions.list")
        return [item for method in kinds for item in (await self.call(method))["items"]]
