"""Programs the tests run for real: started, awaited by what they print, and always stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parent.parent
READY_SECONDS = 180.0  # on a busy machine that has to read OpenCode from its disk first
TOKEN = "test-token"

# Nothing may be fetched or found outside the test: OpenCode's own switches for that.
OFFLINE = {
    f"OPENCODE_DISABLE_{name}": "1"
    for name in (
        "AUTOUPDATE",
        "MODELS_FETCH",
        "LSP_DOWNLOAD",
        "SHARE",
        "DEFAULT_PLUGINS",
        "EXTERNAL_SKILLS",
        "CLAUDE_CODE",
    )
}
# OpenCode's last compiler is for programs that run for long: here it takes a tenth of the CPU time.
NO_LAST_COMPILER = {"BUN_JSC_useFTLJIT": "0"}


def opencode_command() -> str:
    command = os.environ.get("OPENCODE_COMMAND") or str(ROOT / "node_modules/.bin/opencode")
    assert shutil.which(command), f"{command}: run `npm ci`, or set OPENCODE_COMMAND"
    return command


def opencode2_command() -> str | None:
    """OpenCode 2, where npm has a program of it for this system."""
    command = ROOT / "tests/opencode2/node_modules/@opencode/cli-linux-x64-baseline/bin/opencode"
    return str(command) if command.exists() else None


def isolated(home: Path, **more: str) -> dict[str, str]:
    """An environment in which nothing of the person running the tests can be seen."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    _without_npm(home / ".config" / "opencode")
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT)}
    return {**kept, **own, **OFFLINE, **NO_LAST_COMPILER, **more}


def _without_npm(config: Path) -> None:
    """Make OpenCode believe that it has installed its plugin package.

    It installs it into each new configuration directory: 13 seconds of CPU time, in the background
    or, where there are plugins, before it answers.
    """
    (config / "node_modules").mkdir(parents=True, exist_ok=True)
    root = {"dependencies": {"@opencode-ai/plugin": "*"}}
    (config / "package-lock.json").write_text(json.dumps({"packages": {"": root}}))


@dataclass
class Program:
    """A running process and everything it has said."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    silent: bool = False

    @property
    def output(self) -> str:
        return "".join(self.said)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.news:
                self.said.append(line)
                self.news.notify_all()
        with self.news:
            self.silent = True
            self.news.notify_all()

    def wait_for(self, pattern: str, seconds: float = READY_SECONDS) -> re.Match[str]:
        """The first match in its output; fails when it ends, or takes too long, without one."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.output)

        with self.news:
            self.news.wait_for(lambda: found() or self.silent, seconds)
            match = found()
        assert match, f"{self.process.args!r} never said {pattern!r}:\n{self.output}"
        return match

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it to stop, and insist if it does not; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def insist(process: subprocess.Popen[Any]) -> int:
    """Press Ctrl-C until the process ends; its exit code."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return process.returncode


@contextmanager
def running(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None = None,
    *,
    descriptors: Sequence[int] = (),
) -> Iterator[Program]:
    """A program for the length of the block; it inherits these descriptors."""
    process = subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        pass_fds=descriptors,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    program = Program(process)
    listener = threading.Thread(target=program.listen, daemon=True)
    listener.start()
    try:
        yield program
    finally:
        program.stop()
        listener.join(5)
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True)
class Upstream:
    """An OpenCode that a service under test can use, real or fake."""

    base_url: str
    password: str | None
    workspace: Path
    model_url: str | None = None  # the scripted model behind a real one
    program: Program | None = None
    pid: int | None = None  # of the real OpenCode, which is started again when it dies


@contextmanager
def real_opencode(
    directory: Path, env: Mapping[str, str] | None = None, **config: object
) -> Iterator[Upstream]:
    """The real OpenCode on the scripted model, in a fresh git workspace."""
    workspace = directory / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "README.md").write_text("hello project\n")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=workspace, check=True, env=isolated(directory / "home"))
    with opencode_in(directory, env, **config) as upstream:
        yield upstream


@contextmanager
def opencode_in(
    directory: Path, env: Mapping[str, str] | None = None, **config: object
) -> Iterator[Upstream]:
    """The real OpenCode where one was before: with its workspace and its data."""
    workspace = directory / "workspace"
    command = [sys.executable, "-m", "tests.opencode_for_tests", str(workspace), json.dumps(config)]
    more = {"OPENCODE_COMMAND": opencode_command(), **(env or {})}
    with running(command, isolated(directory / "home", **more), ROOT) as program:
        found = program.wait_for(r"ready (\{.*\})")
        told = json.loads(found[1])
        password, model, pid = told["password"], told["model_url"], told["pid"]
        yield Upstream(told["base_url"], password, workspace, model, program, pid)


@contextmanager
def fake_opencode(directory: Path, *flags: str) -> Iterator[Upstream]:
    """The fast fake, in a process of its own."""
    workspace = directory / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fakes.opencode", "--port", "0", *flags]
    with running(command, isolated(directory / "home"), ROOT) as program:
        found = program.wait_for(r"listening on (http://\S+)")
        yield Upstream(found[1], None, workspace, program=program)


@dataclass(frozen=True)
class Service:
    """`opencode-a2a serve`, as a user runs it."""

    url: str
    program: Program
    token: str = TOKEN

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


@contextmanager
def service(
    upstream: Upstream,
    directory: Path,
    *,
    serving: str = r'event"?[=:] ?"?serving"?,? ?"?url"?[=:] ?"?([^\s"]+)',  # in either format
    config: str = "",
    command: Sequence[str] = (),
    **settings: str,
) -> Iterator[Service]:
    """The service on an upstream; `settings` are its environment variables.

    `serving` is what its log says once it serves, and where; `config` is a file with settings;
    `command` is another program that serves.
    """
    env = isolated(
        directory / "home",
        OPENCODE_BASE_URL=upstream.base_url,
        OPENCODE_WORKSPACE_ROOT=str(upstream.workspace),
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{directory / 'tasks.db'}",
        A2A_PORT="0",
    )
    if upstream.password is not None:
        env["OPENCODE_AUTH_PASSWORD"] = upstream.password
    if "A2A_STATIC_AUTH_CREDENTIALS" not in settings:
        env["A2A_BEARER_TOKEN"] = TOKEN
    command = command or (str(Path(sys.executable).parent / "opencode-a2a"), "serve")
    more = ("--config", config) if config else ()
    with running([*command, *more], env | settings, upstream.workspace) as program:
        found = program.wait_for(serving)
        yield Service(found[1], program)


def until_ready(client: httpx.Client, status: int = 200) -> None:
    """Wait until a service says with this status whether it can work."""
    deadline = time.monotonic() + 60
    while client.get("/ready").status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)
