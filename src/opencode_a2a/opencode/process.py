"""The `opencode serve` behind `opencode-a2a up`: started, kept alive, and taken down with us."""

import asyncio
import json
import math
import re
import secrets
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import structlog

from ..paths import program_path
from . import guard
from .http import Endpoint

HOST, USERNAME, PORT_ATTEMPTS = "127.0.0.1", "opencode", 5
# The delay doubles with each restart until OpenCode was ready for STABLE_SECONDS.
MAX_RESTARTS, STABLE_SECONDS, FIRST_DELAY = 5, 20.0, 0.1
TERM_GRACE, KILL_GRACE, OUTPUT_GRACE, TAIL_LINES, LINE_LENGTH = 5.0, 10.0, 1.0, 20, 2_000
# OpenCode does not get these. Settings may be in any case; systemd's directory holds our secrets.
SERVICE_VARIABLES = re.compile(
    "A2A_.*|OPENCODE_(BASE_URL|AUTH_(USERNAME|PASSWORD)|COMMAND|WORKSPACE_ROOT|SERVER_USERNAME"
    "|PASSWORD)"  # the last one counts more than OPENCODE_SERVER_PASSWORD, on OpenCode 2
    "|CREDENTIALS_DIRECTORY|OTEL_EXPORTER_OTLP_([A-Z]+_)?HEADERS",
    re.IGNORECASE,
)
log = structlog.get_logger()


class ManagedProcessFailed(RuntimeError):
    """OpenCode cannot be started; the message says why and, where known, what to do."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: str
    directory: Path
    environment: Mapping[str, str] = field(repr=False)  # holds provider keys
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    ready_timeout: float = 120  # a busy machine reads the program from its disk first


def child_environment(
    base: Mapping[str, str], password: str, config: Mapping[str, Any] | None
) -> dict[str, str]:
    """The user's environment without our settings and secrets, locked with `password`."""
    child = {name: value for name, value in base.items() if not SERVICE_VARIABLES.fullmatch(name)}
    if config is not None:
        try:
            merged = merge(json.loads(base.get("OPENCODE_CONFIG_CONTENT") or "{}"), config)
        except ValueError as exc:
            raise ManagedProcessFailed("OPENCODE_CONFIG_CONTENT must be plain JSON.") from exc
        child["OPENCODE_CONFIG_CONTENT"] = json.dumps(merged)
    child["OPENCODE_SERVER_PASSWORD"] = password
    return child | {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1"}


def merge(base: Any, over: Any) -> Any:
    """`over` wins, object by object; lists and plain values are replaced whole."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}


class ManagedOpenCode:
    """A server on one endpoint for the length of an `async with`, restarted when it dies."""

    def __init__(self, launch: Launch) -> None:
        self.restarts = 0
        self.pid: int | None = None  # while it is ready
        self._ready_since = math.inf
        self._launch, self._executable = launch, find_executable(launch)
        self._port, self._password = free_port(), secrets.token_urlsafe(32)
        self._environment = child_environment(
            launch.environment, self._password, config=launch.config
        )
        self._mark = f"{secrets.token_hex(8)}:{launch.directory}"
        self._settled = asyncio.Event()  # it was ready once, or never will be
        self._supervisor = asyncio.create_task(self._supervise())
        self._supervisor.add_done_callback(lambda _: self._settled.set())

    @classmethod
    @asynccontextmanager
    async def start(cls, launch: Launch) -> AsyncIterator[Self]:
        if left := await asyncio.to_thread(guard.end_abandoned, str(launch.directory)):
            log.warning("opencode.leftovers_killed", pids=left)
        managed = cls(launch)
        try:
            await managed._settled.wait()
            if managed._supervisor.done():
                raise await managed.failed()
            yield managed
        finally:
            managed._supervisor.cancel()
            await asyncio.wait({managed._supervisor})

    @property
    def endpoint(self) -> Endpoint:
        url = f"http://{HOST}:{self._port}"
        return Endpoint(url, USERNAME, password=self._password, managed=True)

    async def failed(self) -> ManagedProcessFailed:
        """Wait until OpenCode is given up; the reason."""
        return await asyncio.shield(self._supervisor)

    async def _supervise(self) -> ManagedProcessFailed:
        clock = asyncio.get_running_loop().time
        in_vain = 0
        spare_ports = [free_port() for _ in range(PORT_ATTEMPTS - 1)]
        while True:
            self._ready_since = math.inf
            death = await self._run()
            if not self._settled.is_set():
                if not spare_ports or "ServeError" not in str(death):  # its word for a taken port
                    return death
                self._port = spare_ports.pop()
                continue
            if clock() - self._ready_since >= STABLE_SECONDS:
                in_vain = 0
            if in_vain == MAX_RESTARTS:
                return ManagedProcessFailed(f"{death}\n{MAX_RESTARTS} restarts did not help.")
            delay = FIRST_DELAY * 2**in_vain
            log.warning("opencode.died", reason=str(death).splitlines()[0], restart_in=delay)
            await asyncio.sleep(delay)
            in_vain += 1
            self.restarts += 1

    async def _run(self) -> ManagedProcessFailed:
        """One process, until nothing it started is left; says how it ended."""
        python = [sys.executable, "-I", guard.__file__, self._mark]
        serve = [self._executable, "serve", "--hostname", HOST, "--port", str(self._port)]
        try:
            transport, child = await asyncio.get_running_loop().subprocess_exec(
                lambda: Child(f"listening on http://{HOST}:{self._port}"),
                *(*python, *serve),
                cwd=self._launch.directory,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,  # when we die it ends, which the guard notices
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except OSError as exc:
            where = self._launch.directory
            return ManagedProcessFailed(f"OpenCode cannot run in {where}: {exc.strerror}.")
        with closing(transport):
            try:
                end = await self._until_death(child)
            finally:
                await self._end(child)
        return ManagedProcessFailed("\n".join([f"OpenCode {end}. Its last lines:", *child.tail]))

    async def _until_death(self, child: "Child") -> str:
        await asyncio.wait({child.ready}, timeout=self._launch.ready_timeout)
        if not child.ready.done():
            return f"was not ready within {self._launch.ready_timeout:g} s"
        if child.ready.result():
            self.pid, self._ready_since = child.pid, asyncio.get_running_loop().time()
            log.info("opencode.started", pid=child.pid, port=self._port)
            self._settled.set()
        return describe_exit(await asyncio.shield(child.exited))

    async def _end(self, child: "Child") -> None:
        self.pid = None
        try:
            child.terminate()
            await asyncio.wait({child.exited}, timeout=TERM_GRACE)
        finally:  # also when a second Ctrl-C ends the wait
            child.kill()
        await asyncio.wait({child.exited}, timeout=KILL_GRACE)
        if not child.exited.done():
            log.error("opencode.cannot_be_killed", pid=child.pid)
            return
        code = child.exited.result()
        log.info("opencode.stopped", pid=child.pid, code=code)
        await asyncio.wait({child.silent}, timeout=OUTPUT_GRACE)
        if code < 0:  # the guard was killed
            await asyncio.to_thread(guard.end_marked, self._mark.__eq__)


class Child(asyncio.SubprocessProtocol):
    """OpenCode and its guard: what they print, and when both have ended."""

    def __init__(self, ready_line: str) -> None:
        # Only the line says ready: a request sent between listen and the line is never answered.
        self.ready = asyncio.Future[bool]()  # False: it ended instead
        self.exited = asyncio.Future[int]()
        self.silent = asyncio.Future[None]()
        self.pid: int | None = None  # of OpenCode
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._ready_line, self._rest = ready_line, ""

    def terminate(self) -> None:
        """Ask OpenCode to end; whatever it leaves behind is then killed."""
        with suppress(ProcessLookupError):
            self._transport.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill OpenCode and everything it has started."""
        control = self._transport.get_pipe_transport(0)
        if control is not None:
            control.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's is no subclass

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.pid is None and (first := data.partition(b"\n"))[0].isdigit():
            self.pid, data = int(first[0]), first[2]  # the guard writes it in one piece
        *lines, rest = (self._rest + data.decode(errors="replace")).split("\n")
        self._rest = rest[:LINE_LENGTH]
        self.tail.extend(line[:LINE_LENGTH] for line in lines)
        if any(line.endswith(self._ready_line) for line in lines) and not self.ready.done():
            self.ready.set_result(True)

    def process_exited(self) -> None:
        code = self._transport.get_returncode()
        self.exited.set_result(-signal.SIGKILL if code is None else code)

    def connection_lost(self, exc: Exception | None) -> None:
        self.silent.set_result(None)
        if not self.ready.done():
            self.ready.set_result(False)


def describe_exit(code: int) -> str:
    """In words, from the exit code of the guard."""
    if code < 0:
        return f"was lost: its guard was killed by signal {-code}"
    if code - 128 in signal.valid_signals():  # as a shell says it
        return f"was killed by signal {code - 128}"
    return f"exited with code {code}"


def find_executable(launch: Launch) -> str:
    path = program_path(launch.environment.get("PATH"), outside=launch.directory)
    if found := shutil.which(launch.command, path=path):
        return str(Path(found).absolute())  # it will start in another directory
    advice = (
        "Install it with `opencode-a2a up --install-opencode` or `npm install -g opencode-ai`, or "
        "set OPENCODE_COMMAND to its path."
    )
    raise ManagedProcessFailed(f"OpenCode was not found: {launch.command}. {advice}")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])
