"""What of all that an agent can start outlives whom: `opencode-a2a up` with the real OpenCode.

    python -m tests.faults.survivors

prints a table. For each row everything is started in every way, somebody is killed, and what is
left is counted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.fakes import model
from tests.processes import EMPTY_ENVIRONMENT, NEW_PIDS, WAYS, Started, children
from tests.running import ROOT, Program, isolated, opencode_command, running

FOREGROUND, SHELL = "command in the foreground", "terminal (pty)"
MCP, LSP = "MCP server", "language server"
OPENCODE, AGAIN = "OpenCode", "OpenCode, started again"
ALL = (FOREGROUND, *WAYS, SHELL, MCP, LSP)
# Without a guard: the one says nothing about its service, the other is found by luck only.
NOT_FOUND = frozenset({EMPTY_ENVIRONMENT, NEW_PIDS})
MCP_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {
            "protocolVersion": asked.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "toy", "version": "1"},
        },
        "tools/list": {"tools": []},
    }
    if asked.get("method") in answers:
        result = answers[asked["method"]]
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
LSP_SERVER = """
import json, sys
while True:
    length = 0
    while line := sys.stdin.buffer.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if not length:
        break
    asked = json.loads(sys.stdin.buffer.read(length))
    if "id" in asked and "method" in asked:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"capabilities": {}}}
        body = json.dumps(answer).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
        sys.stdout.buffer.flush()
"""


@dataclass
class AtWork:
    """`up`, whose agent has started something in every way."""

    program: Program
    started: Started
    workspace: Path
    env: dict[str, str]

    def __post_init__(self) -> None:
        self.service = self.program.process.pid
        (self.guard,) = children(self.service)
        self.opencode = opencode_pid(self.program)
        self.before = self.started.running()

    def left(self, but: frozenset[str] = frozenset()) -> set[str]:
        """What still runs of what was started, in the end; servers may have been started again."""
        found = self.started.survivors(but={*but, MCP, LSP})
        now = self.started.running()
        again = {way for way in (MCP, LSP) if not now.get(way, set()) & self.before[way]}
        return found - again


def opencode_pid(program: Program) -> int:
    return int(program.wait_for(r"event=opencode.started pid=(\d+)")[1])


@contextmanager
def up(workspace: Path, env: dict[str, str]) -> Iterator[Program]:
    command = [str(Path(sys.executable).parent / "opencode-a2a"), "up"]
    with running(command, env, workspace) as program:
        program.wait_for("Stop with Ctrl-C")
        yield program


@contextmanager
def agent_at_work(folder: Path) -> Iterator[AtWork]:
    started = Started(FOREGROUND, SHELL, MCP, LSP)
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "start.sh").write_text(started.command)
    (workspace / "file.toy").write_text("toy\n")
    words = [sys.executable, "-m", "tests.fakes.model"]
    with running(words, isolated(folder / "model"), ROOT) as scripted:
        url = scripted.wait_for(r"scripted model on (\S+)")[1]
        config = model.opencode_config(url)
        config["permission"] = "allow"
        config["mcp"] = {
            "toy": {"type": "local", "command": ["python3", "-c", MCP_SERVER, started.tags[MCP]]}
        }
        config["lsp"] = {
            "toy": {
                "command": ["python3", "-c", LSP_SERVER, started.tags[LSP]],
                "extensions": [".toy"],
            }
        }
        env = isolated(
            folder / "home",
            OPENCODE_COMMAND=opencode_command(),
            OPENCODE_CONFIG_CONTENT=json.dumps(config),
            A2A_PORT="0",
            A2A_BEARER_TOKEN="survivors-test-token",
        )
        try:
            with up(workspace, env) as program:
                start_everything(program, started, workspace)
                started.wait_until_running(ALL)
                yield AtWork(program, started, workspace, env)
        finally:
            started.clean_up()


def start_everything(program: Program, started: Started, workspace: Path) -> None:
    url = program.wait_for(r"OpenCode answers A2A at (\S+)")[1]
    headers = {"authorization": "Bearer survivors-test-token", "a2a-version": "1.0"}
    command = {"command": f"sh start.sh; sleep {started.tags[FOREGROUND]}", "description": "all"}
    read = {"filePath": str(workspace / "file.toy")}
    tools = f"[[tool:read {json.dumps(read)}]] [[tool:bash {json.dumps(command)}]]"
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": tools}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    httpx.post(f"{url}/message:send", json=body, headers=headers, timeout=60).raise_for_status()
    # The service does not offer OpenCode's terminals: this is asked of OpenCode itself.
    environ = Path(f"/proc/{opencode_pid(program)}/environ").read_bytes().decode()
    settings = dict(line.split("=", 1) for line in environ.split("\0") if line)
    port = program.wait_for(r"event=opencode.started pid=\d+ port=(\d+)")[1]
    httpx.post(
        f"http://127.0.0.1:{port}/pty",
        json={"command": "sh", "args": ["-c", f"sleep {started.tags[SHELL]}; :"]},
        auth=("opencode", settings["OPENCODE_SERVER_PASSWORD"]),
        params={"directory": str(workspace)},
        timeout=60,
    ).raise_for_status()


def kill_at_once(*pids: int) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody can react to the death of another
        for pid in pids:
            os.kill(pid, number)


def stop(at: AtWork, *numbers: signal.Signals) -> None:
    for number in numbers:
        at.program.process.send_signal(number)
        time.sleep(1)  # it begins to stop, and would take a second signal at once for the same
    at.program.process.wait(60)


def start_again(at: AtWork) -> None:
    kill_at_once(at.service, at.guard)
    at.program.process.wait(60)
    with up(at.workspace, at.env):
        pass


VICTIMS: dict[str, tuple[Callable[[AtWork], None], frozenset[str]]] = {
    "service: kill -9": (lambda at: kill_at_once(at.service), frozenset()),
    "service: SIGTERM": (lambda at: stop(at, signal.SIGTERM), frozenset()),
    "service: Ctrl-C": (lambda at: stop(at, signal.SIGINT), frozenset()),
    "service: Ctrl-C twice": (lambda at: stop(at, signal.SIGINT, signal.SIGINT), frozenset()),
    "OpenCode: kill -9": (lambda at: kill_at_once(at.opencode), frozenset()),
    "OpenCode: crash (SIGSEGV)": (lambda at: os.kill(at.opencode, signal.SIGSEGV), frozenset()),
    "guard: kill -9": (lambda at: kill_at_once(at.guard), NOT_FOUND),
    "service and OpenCode: kill -9": (
        lambda at: kill_at_once(at.service, at.opencode),
        frozenset(),
    ),
    "guard and OpenCode: kill -9": (lambda at: kill_at_once(at.guard, at.opencode), NOT_FOUND),
    "service and guard: kill -9, then started again": (start_again, NOT_FOUND),
}


def main() -> None:
    chosen = sys.argv[1:]
    print(f"| killed | {' | '.join(ALL)} |\n|---|{'---|' * len(ALL)}")  # noqa: T201
    for name, (kill, tolerated) in VICTIMS.items():
        if chosen and not any(word in name for word in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder, agent_at_work(Path(folder)) as at:
            kill(at)
            left = at.left(tolerated)
            cells = (str(int(way in left)) for way in ALL)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
