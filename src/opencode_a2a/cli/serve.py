"""The service in this process: its socket, its server, and what it shows while it runs."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TextIO, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from .. import __version__, logs
from ..access import stored_tokens
from ..app import Built, build, endpoint_of, public_url
from ..config import Server, Settings
from ..credentials import CredentialsFileError
from ..inbound.failures import failure
from ..observe import metrics
from ..opencode.http import Endpoint
from ..service.scheduler import TaskAtWork
from ..store.clock import now_ms
from ..systemd import ServiceManager
from ..web.connections import (
    BODY_SECONDS,
    HEAD_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS,
    MAX_HEAD_BYTES,
    RESERVED_FILES,
    ConnectionLimits,
)
from ..web.protocol import ConnectionGuard
from ..web.proxies import TrustedNetworks
from ..web.server import QuietServer
from ..web.tls import ServerTls, TlsNotUsable
from .failure import CommandError
from .instances import RegisteredInstance, Registration
from .observing import observing
from .terminal import Terminal, has_cursor, task_line

BACKLOG = 1024  # connections that may wait to be accepted
DEFAULT_OPENCODE = "http://127.0.0.1:4096"  # where `opencode serve` listens unless told otherwise
LOOK_SECONDS = 0.5  # after which the machine is examined: the first clients are served meanwhile
WATCH_SECONDS = 1.0  # between two looks at the tasks at work
SAME_SIGNAL_SECONDS = 0.5  # in which further signals are taken for copies of the first

log = structlog.get_logger()


@dataclass(slots=True)
class Watch:
    """What is seen of the service: on a terminal, in `opencode-a2a status`, by systemd."""

    command: str
    terminal: Terminal | None
    manager: ServiceManager
    built: Built | None = None  # until it is built, and when it has ended
    tls: ServerTls | None = None  # once it is served, where it has a certificate
    _status: str = ""  # as the manager knows it

    @classmethod
    def of(cls, command: str, manager: ServiceManager) -> Watch:
        return cls(command, Terminal(sys.stderr) if has_cursor(sys.stderr) else None, manager)

    @property
    def _at_work(self) -> list[TaskAtWork]:
        return self.built.at_work() if self.built is not None else []

    @property
    def stream(self) -> TextIO:
        """Where to write to; the lines of the tasks stay below that."""
        return sys.stderr if self.terminal is None else cast(TextIO, self.terminal)

    def say(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def stopping(self, grace: float) -> None:
        """Say what the service waits for before it ends."""
        tasks = len(self._at_work)
        self.manager.notify(STOPPING=1)
        log.info("stopping", tasks_at_work=tasks, grace_seconds=grace if tasks else 0)
        if not sys.stderr.isatty():
            return
        if tasks:
            self.say(f"Stopping: {self._tasks_are} at work and may go on for {grace:g} s.")
        else:
            self.say("Stopping: nothing is at work.")
        self.say("Press Ctrl-C again to stop at once.")

    @asynccontextmanager
    async def over(self, settings: Settings, endpoint: Endpoint, url: str) -> AsyncIterator[None]:
        """Show what is going on while the block lasts."""
        with ExitStack() as stack:
            registration = None
            try:
                registration = stack.enter_context(
                    Registration.open(
                        RegisteredInstance(
                            url=url,
                            workspace=str(settings.upstream.workspace_root),
                            pid=os.getpid(),
                            command=self.command,
                            version=__version__,
                            opencode_url=endpoint.base_url,
                            started_at=int(time.time()),
                        )
                    )
                )
            except (OSError, RuntimeError) as exc:
                log.info("instance.not_listed", reason=str(exc))
            watching = asyncio.create_task(self._watch(registration))
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                self.built = None
                if self.terminal is not None:
                    self.terminal.show([])

    async def _watch(self, registration: Registration | None) -> None:
        while True:
            tasks = self._at_work
            if self.terminal is not None:
                now = now_ms()
                shown = [logs.redactor.known(task_line(task, now)) for task in tasks]
                self.terminal.show([logs.escaped(line) for line in shown])
            if registration is not None:
                registration.update(opencode_version=self._version, tasks_at_work=len(tasks))
            self._tell_status()
            await asyncio.sleep(WATCH_SECONDS)

    @property
    def _version(self) -> str | None:
        """Of OpenCode, once that has answered."""
        release = self.built.release() if self.built is not None else None
        return release.version if release is not None else None

    def ready(self, built: Built) -> None:
        """The service takes requests from now on."""
        self.built = built
        self.manager.notify(READY=1)
        self._tell_status()

    def _tell_status(self) -> None:
        """Tell the manager in a line how the service is, if that has changed."""
        if self.built is None:
            status = "Starting."
        elif not self.built.is_connected():
            status = f"{self._tasks_are} at work. OpenCode cannot be reached."
        else:
            status = f"{self._tasks_are} at work. OpenCode {self._version or ''} is connected."
        if status != self._status:
            self._status = status
            self.manager.notify(STATUS=status)

    @property
    def _tasks_are(self) -> str:
        tasks = len(self._at_work)
        return "1 task is" if tasks == 1 else f"{tasks} tasks are"


def complete(settings: Settings) -> Settings:
    """The settings as `serve` needs them: with an OpenCode, and not without a credential."""
    if settings.upstream.base_url is None:
        settings.upstream.base_url = DEFAULT_OPENCODE
    try:
        if settings.has_credentials or stored_tokens(settings):
            return settings
    except CredentialsFileError as exc:
        raise CommandError(f"A2A_CREDENTIALS_FILE: {exc}", 2) from None
    raise CommandError(
        "no credential is configured, and nobody could use the service. Set A2A_BEARER_TOKEN, "
        "A2A_STATIC_AUTH_CREDENTIALS or A2A_OIDC_ISSUER, or make a token: opencode-a2a token "
        "create NAME",
        2,
    )


async def serve(settings: Settings, watch: Watch) -> None:
    """The command `serve`."""
    if settings.upstream.base_url is None:
        log.info("opencode.default_address", url=DEFAULT_OPENCODE, setting="OPENCODE_BASE_URL")
    endpoint = endpoint_of(complete(settings))
    assert endpoint is not None
    with open_listener(settings, watch.manager) as listener:
        await run_server(settings, endpoint, listener=listener, watch=watch)


async def until_stopped(
    work: Coroutine[Any, Any, None],
    on_stop: Callable[[], None],
    on_reload: Callable[[], None] = lambda: None,
) -> None:
    """Run until the work ends, or until Ctrl-C or SIGTERM: then shut down in good order.

    A second signal ends the process at once. What is committed is safe, and the guard ends
    OpenCode. One Ctrl-C may arrive as several signals, such as from the terminal and from `uv run`,
    so those that follow the first closely are ignored.

    SIGHUP reloads the settings, unless it says that the terminal is gone.
    """
    working = asyncio.create_task(work)
    loop = asyncio.get_running_loop()

    def on_signal(handler: Callable[..., None], *args: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, handler, *args)

    def leave() -> None:
        if working.cancelling():  # the loop has read two signals at once
            return
        on_signal(lambda: None)
        loop.call_later(SAME_SIGNAL_SECONDS, on_signal, os._exit, 1)
        working.cancel()  # first: what is said may fail, where nobody reads it any more
        on_stop()

    terminals = _terminals()
    survives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as with nohup

    def hang_up() -> None:
        if terminals and not _terminals():
            if not survives_terminal:
                leave()
        elif not working.cancelling():
            on_reload()

    on_signal(leave)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()


def _terminals() -> list[int]:
    """Which of its standard streams still lead to a terminal."""
    return [descriptor for descriptor in range(3) if os.isatty(descriptor)]


def open_listener(settings: Settings, manager: ServiceManager) -> socket.socket:
    """The socket that the service manager has opened, or one of our own."""
    server = settings.server
    if manager.listener is not None:
        log.info("socket.taken", host=server.host, port=server.port)
        return manager.listener
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
        listener.listen(BACKLOG)  # from here on clients wait for an answer instead of being refused
    except OSError as exc:
        listener.close()
        raise CommandError(
            f"cannot listen on {server.host} port {server.port}: {exc.strerror}. "
            "Choose another with A2A_HOST and A2A_PORT."
        ) from None
    return listener


async def run_server(
    settings: Settings,
    endpoint: Endpoint,
    *,
    listener: socket.socket,
    watch: Watch,
    welcome: str = "",
    more_opencodes: Sequence[Endpoint] = (),
) -> None:
    """Serve the OpenCode at `endpoint`, and more that have the same sessions."""
    url = public_url(settings.server, listener.getsockname()[1])
    watch.tls = tls = _tls(settings.server)
    grace = settings.server.shutdown_grace_seconds
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with (
        observing(settings.server),
        watch.over(settings, endpoint, url),
        build(
            settings,
            endpoint=endpoint,
            more_opencodes=more_opencodes,
            url=url,
            stopping=stopping,
        ) as built,
        ConnectionGuard.open(
            _connection_limits(),
            MAX_HEAD_BYTES,
            render_error=failure,
            trusted=TrustedNetworks(settings.server.trusted_proxies),
        ) as guard,
        tls.watching() if tls is not None else nullcontext(),
    ):

        def on_started() -> None:
            log.info("serving", url=url)
            if welcome:
                watch.say(welcome)
            watch.ready(built)

        config = _server_config(built.app, guard, tls=tls, grace=grace)
        server = _Server(config, on_started)
        metrics.CONNECTIONS.read = guard.connections.kinds
        gc.freeze()  # these objects stay, so the collector need not search them
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        looking = asyncio.create_task(_log_findings(settings))
        try:
            await asyncio.shield(serving)
        finally:
            looking.cancel()
            server.should_exit = True
            asyncio.get_running_loop().call_later(grace, _resolve, stopping)
            await serving
            metrics.CONNECTIONS.read = None


def _server_config(
    app: ASGIApp, guard: ConnectionGuard, *, tls: ServerTls | None, grace: float
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guard.protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # what breaks in a request is in our own log
        access_log=False,
        server_header=False,
        proxy_headers=False,  # web/proxies.py reads them
        reset_contextvars=True,  # else a request may be logged with the last one's ids
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(grace) + 3,
        ssl_context_factory=(lambda *_: tls.context) if tls is not None else None,
    )


def _tls(server: Server) -> ServerTls | None:
    if server.tls_certificate is None or server.tls_key is None:
        return None
    try:
        return ServerTls(server.tls_certificate, server.tls_key)
    except TlsNotUsable as exc:
        raise CommandError(str(exc), 2) from None


async def _log_findings(settings: Settings) -> None:
    """Log once what is not as it should be on this machine; the command `doctor` looks further."""
    await asyncio.sleep(LOOK_SECONDS)
    from ..doctor.examine import examine  # when clients are served already
    from ..doctor.machine import examine_start

    for report in await examine(examine_start(settings)):
        verdict = report.verdict
        if verdict.finding is not None:
            write = log.error if verdict.level == "error" else log.warning
            write("doctor.found", finding=verdict.finding, says=verdict.says, fix=verdict.fix)


def _connection_limits() -> ConnectionLimits:
    """How many connections this process can have; its limit for open files is raised to fit."""
    wanted = MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total = wanted
    if soft != resource.RLIM_INFINITY:
        total = min(wanted, max(soft - RESERVED_FILES, soft // 2))
    if total < wanted:
        log.warning("connections.limited", to=total, open_files=soft, max_connections=wanted)
    return ConnectionLimits.of(
        total=total,
        per_address=MAX_CONNECTIONS_PER_ADDRESS,
        head_seconds=HEAD_SECONDS,
        body_seconds=BODY_SECONDS,
    )


def _resolve(stopping: asyncio.Future[None]) -> None:
    if not stopping.done():
        stopping.set_result(None)


class _Server(QuietServer):
    """`until_stopped` handles the signals."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()
