"""Agents of others, to be called: the SDK's own server, and one that does what it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from a2a.helpers import get_message_text, new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from aiohttp import web
from starlette.applications import Starlette

from opencode_a2a.outbound.client import Peer, Peers
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.target import PeerLimits, Target

Json = dict[str, Any]


class Echo(AgentExecutor):
    """Says every word of a message as a piece of its answer; some messages tell it otherwise."""

    def __init__(self) -> None:
        self.at_work: set[str] = set()  # tasks that wait
        self.canceled: set[str] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        text = get_message_text(context.message)
        if text == "just say it":
            await event_queue.enqueue_event(new_text_message("said"))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if text == "ask":
            await updater.requires_input(updater.new_agent_message([Part(text="Which one?")]))
            return
        if text == "reject":
            await updater.reject(updater.new_agent_message([Part(text="Not my field.")]))
            return
        if text == "wait":
            self.at_work.add(task.id)
            await asyncio.Event().wait()
        if text == "where are we":
            text = task.context_id
        for position, word in enumerate(text.split(" ")):
            await updater.add_artifact(
                [Part(text=f"{word} ")], artifact_id="words", append=position > 0
            )
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self.canceled.add(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


@asynccontextmanager
async def sdk_agent(
    line: str, transport: str, *, streams: bool = True, echo: Echo | None = None
) -> AsyncIterator[str]:
    """The address of an agent that speaks only this."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    card = AgentCard(
        name="Echo",
        description="Says what you say.",
        version="1",
        capabilities=AgentCapabilities(streaming=streams),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=transport, protocol_version=line)
        ],
        skills=[AgentSkill(id="echo", name="Echo", description="Echoes.", tags=["test"])],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(echo or Echo(), InMemoryTaskStore(), card)
    speaks = create_jsonrpc_routes if transport == "JSONRPC" else create_rest_routes
    extra: Json = {"rpc_url": "/"} if transport == "JSONRPC" else {}
    routes = speaks(handler, enable_v0_3_compat=line == "0.3", **extra)
    app = Starlette(routes=[*create_agent_card_routes(card), *routes])
    config = uvicorn.Config(app, loop="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listener]))
    try:
        yield url
    finally:
        server.should_exit = server.force_exit = True
        await serving


class Rude:
    """An agent that answers as a test says. It keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.card: Json | Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.answers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []  # what, and with which header fields

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Rude]:
        self = cls()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self.card = card(self.url)
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        what = request.path
        if request.method == "POST":
            what = json.loads(await request.read())["method"]
        self.asked.append((what, {k.lower(): v for k, v in request.headers.items()}))
        if request.method == "POST":
            return await self.answers[what](request)
        if callable(self.card):
            return await self.card(request)
        if self.card is None or request.path != "/.well-known/agent-card.json":
            raise web.HTTPNotFound
        return web.json_response(self.card)


class CardNotCounted(Peers):
    """The limits hold for what follows the card: on a busy machine that may take a second."""

    def __init__(self, limits: PeerLimits) -> None:
        super().__init__(Egress(), PeerLimits())
        self._then = limits

    @asynccontextmanager
    async def connect(self, target: Target, *, counted: bool = True) -> AsyncIterator[Peer]:
        async with super().connect(target, counted=counted) as peer:
            peer.next_deadline()  # for which the card counts
            peer.limits = self._then
            yield peer


def card(url: str, version: str = "1.0") -> Json:
    return {
        "name": "Rude",
        "description": "Answers as it likes.",
        "version": "1",
        "capabilities": {"streaming": True},
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version}
        ],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
    }


def frame(event: Json, number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": event}, ensure_ascii=False)
    return f"{head}data: {body}\n\n".encode()


def task(state: str, *texts: str) -> Json:
    parts = [{"text": text} for text in texts]
    artifacts = [{"artifactId": "a", "parts": parts}] if parts else []
    status = {"state": f"TASK_STATE_{state}"}
    return {"task": {"id": "t", "contextId": "c", "status": status, "artifacts": artifacts}}


def status(state: str, text: str = "") -> Json:
    found: Json = {"state": f"TASK_STATE_{state}"}
    if text:
        parts = [{"text": text}]
        found["message"] = {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}
    return {"statusUpdate": {"taskId": "t", "contextId": "c", "status": found}}


def piece(text: str, *, append: bool = True) -> Json:
    artifact = {"artifactId": "a", "parts": [{"text": text}]}
    return {
        "artifactUpdate": {
            "taskId": "t",
            "contextId": "c",
            "artifact": artifact,
            "append": append,
        }
    }


def streaming(
    *frames: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Send these frames, and end the stream, unless something else happens then."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each in frames:
            await response.write(each)
        if then is not None:
            await then(request)
        return response

    return answer


async def cut(request: web.Request) -> None:
    """Break the connection; what was written before still arrives."""
    assert request.transport is not None
    request.transport.close()


async def silence(request: web.Request) -> None:
    await asyncio.Event().wait()
