"""The A2A SDK's own server: its default handler, its SQLite store, an agent that says words.

    python -m bench.sdk FILE      prints where it listens

Telemetry is off, and the file is in WAL mode, so that it is seen at its best.
"""

from __future__ import annotations

import os
import re
import socket
import sys

os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"

import uvicorn
import uvloop
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Part
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette


class Talker(AgentExecutor):
    """Says as many words as the message asks for, each an artifact update."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        count = int(re.findall(r"\d+", context.message.parts[0].text)[0])
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        for i in range(count):
            await updater.add_artifact(
                [Part(text="river ")], artifact_id="answer", append=i > 0, last_chunk=i == count - 1
            )
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


async def main(path: str) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.begin() as connection:
        await connection.execute(text("PRAGMA journal_mode=WAL"))
    store = DatabaseTaskStore(engine)
    await store.initialize()
    card = AgentCard(name="talker", capabilities=AgentCapabilities(streaming=True))
    handler = DefaultRequestHandler(Talker(), store, card)
    app = Starlette(routes=create_jsonrpc_routes(handler, "/"))
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        app, http="httptools", loop="none", lifespan="off", log_level="critical", access_log=False
    )
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
