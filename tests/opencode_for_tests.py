"""The real OpenCode on the scripted model, as one program: prints where it is, runs until stopped.

python -m tests.opencode_for_tests WORKSPACE '{"permission": {"bash": "ask"}}'
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from opencode_a2a.opencode.process import Launch, ManagedOpenCode, merge
from tests.fakes import model
from tests.running import opencode_command


async def main(workspace: Path, config: dict[str, object]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with model.serve() as model_url:
        merged = merge(model.opencode_config(model_url), config)
        launch = Launch(opencode_command(), workspace, os.environ, merged)
        async with ManagedOpenCode.start(launch) as managed:
            endpoint = managed.endpoint
            where = {
                "base_url": endpoint.base_url,
                "password": endpoint.password,
                "model_url": model_url,
                "pid": managed.pid,
            }
            sys.stdout.write(f"ready {json.dumps(where)}\n")
            sys.stdout.flush()
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
