"""The service with an agent that plays the scenarios of the A2A conformance kits.

    A2A_BEARER_TOKEN=test-token python -m tests.conformance --port 0

Everything but the agent is what `opencode-a2a serve` runs, with the same settings. There is no
OpenCode behind it, so what the extensions ask of one is answered UPSTREAM_UNREACHABLE.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path

import uvicorn

from opencode_a2a.app import build, public_url
from opencode_a2a.config import Settings, load
from opencode_a2a.opencode.http import Endpoint
from opencode_a2a.store.database import Database
from tests.conformance.agent import Heard, Player

NOWHERE = Endpoint("http://127.0.0.1:9")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--port", default="8000")
    parser.add_argument("--hold", action="store_true", help="tasks wait for more, for the 0.3 kit")
    parser.add_argument("--long", type=float, default=5.0, help="seconds of a long task")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "A2A_PORT": given.port,
            "OPENCODE_WORKSPACE_ROOT": folder,
            "A2A_TASK_STORE_DATABASE_URL": f"sqlite:///{Path(folder) / 'tasks.db'}",
        }
        asyncio.run(serve(load(), given.long, given.hold))


async def serve(settings: Settings, long: float, hold: bool) -> None:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()
    with socket.create_server((settings.server.host, settings.server.port)) as listener:
        url = public_url(settings.server, listener.getsockname()[1])
        async with Database.open(settings.state.url(settings.upstream.workspace_root)) as database:
            agent = Player(Heard(database), str(settings.upstream.workspace_root), long, hold)
            async with build(
                settings, endpoint=NOWHERE, url=url, stopping=stopping, agent=agent
            ) as built:
                server = uvicorn.Server(
                    uvicorn.Config(built.app, lifespan="off", log_level="warning")
                )
                sys.stdout.write(f"playing at {url}\n")
                sys.stdout.flush()
                await server.serve(sockets=[listener])
                stopping.set_result(None)


if __name__ == "__main__":
    main()
