"""The command line: parses arguments, starts the service, reports errors.

Exit codes: 0 fine, 1 something failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import resource
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop
from pydantic import SecretStr

from . import __version__, logs
from .app import build, endpoint_of, public_url, publication
from .config import (
    MIN_SECRET_LENGTH,
    SECRET_COMMAND,
    ConfigError,
    Server,
    Settings,
    load,
    unknown_settings,
)
from .errors import StoreUnavailable
from .inbound.failures import failure
from .inbound.routes import document
from .opencode.http import Endpoint
from .opencode.process import Launch, ManagedOpenCode, ManagedProcessFailed, has_provider
from .redaction import secrets_in
from .store.legacy import NotMoved
from .store.migrate import ForeignDatabase, SchemaTooNew
from .web.connections import KEEP_ALIVE_SECONDS, ConnectionLimits
from .web.protocol import ConnectionGuard

HELP = "Serve OpenCode, the coding agent, to any A2A client."

UP_HELP = """\
Start OpenCode and the service together. Without a model provider of your own a
built-in demo model answers; without a token one is made and shown.

  cd your-project && opencode-a2a up
"""

SERVE_HELP = f"""\
Serve the OpenCode that runs at OPENCODE_BASE_URL.

  export OPENCODE_BASE_URL=http://127.0.0.1:4096
  export A2A_BEARER_TOKEN=$({SECRET_COMMAND})
  opencode-a2a serve
"""

CARD_HELP = """\
Print the Agent Card that these settings would publish. Nothing is started.

  opencode-a2a card --extended
"""

OPENAPI_HELP = """\
Print the OpenAPI document that these settings would publish. Nothing is started.

  opencode-a2a openapi > openapi.json
"""

EPILOG = """\
Settings come from the environment, from files in a secrets directory, and from a
TOML file, in this order; docs/reference/settings.md has them all. The most useful:

  A2A_BEARER_TOKEN        the token clients must present
  A2A_HOST, A2A_PORT      where to listen (127.0.0.1, 8000)
  OPENCODE_BASE_URL       the OpenCode server to use with `serve`
  OPENCODE_WORKSPACE_ROOT the directory the agent works in (the current one)
"""

STORE_ADVICE = """\
the task store cannot be used, for the reason above. A2A_TASK_STORE_DATABASE_URL says where it is;
a SQLite file needs a directory that exists and is writable."""
GC_THRESHOLD = 10_000  # new objects before a collection: a thousand open streams have many
BACKLOG = 1024  # connections that may wait to be accepted
RESERVED_FILES = 256  # descriptors for all but clients: the database, OpenCode, attachments


class CommandError(Exception):
    """An error for the person at the terminal, with the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> None:
    _run(_parser().parse_args(argv))


def server_main(argv: Sequence[str] | None = None) -> None:
    """The same program under its older name: without a command it serves."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or (given[0].startswith("-") and not {"-h", "--help", "--version"} & set(given)):
        given.insert(0, "serve")
    main(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "opencode-a2a",
        description=HELP,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"opencode-a2a {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text, about in (
        ("up", "start OpenCode and the service together (the quick way)", UP_HELP),
        ("serve", "serve an OpenCode that runs already", SERVE_HELP),
        ("card", "print the Agent Card", CARD_HELP),
        ("openapi", "print the OpenAPI document", OPENAPI_HELP),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=about,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
        command.add_argument(
            "--secrets", type=Path, metavar="DIR", help="directory with one file per secret"
        )
        command.add_argument("--host", help="address to listen on (A2A_HOST)")
        command.add_argument("--port", type=int, help="port to listen on (A2A_PORT)")
        if name == "card":
            command.add_argument(
                "--extended", action="store_true", help="what clients see who have logged in"
            )
    return parser


def _run(arguments: argparse.Namespace) -> None:
    try:
        settings = _settings(arguments)
        if arguments.command in ("card", "openapi"):
            return _print(settings, arguments)
        logs.redactor.add(*settings.secrets, *secrets_in(os.environ))
        logs.configure(settings.server.log_level, settings.server.log_format)
        if settings.server.log_payloads and not settings.server.shows_payloads:
            advice = "A2A_LOG_PAYLOADS needs A2A_LOG_LEVEL=info or debug"
            structlog.get_logger().warning("payloads.not_logged", advice=advice)
        for name, note in settings.notes:
            structlog.get_logger().info("settings.adapted", name=name, note=note)
        if unknown := unknown_settings(os.environ):
            structlog.get_logger().warning("settings.unknown", names=" ".join(unknown))
        if short := settings.server.short_secrets:
            structlog.get_logger().warning(
                "credentials.short",
                names=" ".join(short),
                characters=f"fewer than {MIN_SECRET_LENGTH}",
                make_a_better_one=SECRET_COMMAND,
            )
        work = _up(settings) if arguments.command == "up" else _serve(settings)
        uvloop.run(_until_stopped(work))
    except ConfigError as exc:
        _exit("\n".join(f"opencode-a2a: {problem}" for problem in exc.problems), 2)
    except CommandError as exc:
        _exit(f"opencode-a2a: {exc}", exc.code)
    except (ManagedProcessFailed, SchemaTooNew, ForeignDatabase, NotMoved) as exc:
        _exit(f"opencode-a2a: {exc}", 1)
    except StoreUnavailable:
        _exit(f"opencode-a2a: {STORE_ADVICE}", 1)
    except KeyboardInterrupt:  # nothing has been started yet
        sys.exit(130)


def _print(settings: Settings, arguments: argparse.Namespace) -> None:
    published = publication(settings, public_url(settings.server, settings.server.port))
    if arguments.command == "openapi":
        found = document(published)
    elif arguments.extended:
        found = published.card.extended_hybrid
    else:
        found = json.loads(published.card.hybrid.body)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may close the pipe early
    print(json.dumps(found, indent=2, ensure_ascii=False))


def _exit(message: str, code: int) -> None:
    shown = logs.redactor.known(message)  # it may quote OpenCode
    print("\n".join(map(logs.escaped, shown.split("\n"))), file=sys.stderr)
    sys.exit(code)


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends, or until Ctrl-C or SIGTERM: then shut down in good order.

    A second signal ends the process at once. What is committed is safe, and the guardians end
    OpenCode.
    """
    working = asyncio.create_task(work)
    loop = asyncio.get_running_loop()

    def leave() -> None:
        working.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, os._exit, 1)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)
    await asyncio.wait({working})
    if not working.cancelled():
        working.result()


def _settings(arguments: argparse.Namespace) -> Settings:
    for name in ("host", "port"):  # a flag overrides the setting
        if getattr(arguments, name) is not None:
            os.environ[f"A2A_{name.upper()}"] = str(getattr(arguments, name))
    secrets_dir = arguments.secrets
    if secrets_dir is None and "CREDENTIALS_DIRECTORY" in os.environ:  # systemd's
        secrets_dir = Path(os.environ["CREDENTIALS_DIRECTORY"])
    return load(arguments.config, secrets_dir)


async def _serve(settings: Settings) -> None:
    endpoint = endpoint_of(settings)
    if endpoint is None:
        raise CommandError(
            "OPENCODE_BASE_URL is not set. Name the OpenCode server, or use `opencode-a2a up` to "
            "start one.",
            2,
        )
    if settings.server.bearer_token is None and not settings.server.static_auth_credentials:
        raise CommandError(
            "no credential is configured, and the service would be open to everyone. Set "
            "A2A_BEARER_TOKEN or A2A_STATIC_AUTH_CREDENTIALS.",
            2,
        )
    with _open_listener(settings) as listener:
        await _run_server(settings, endpoint, listener=listener)


async def _up(settings: Settings) -> None:
    if settings.upstream.base_url is not None:
        raise CommandError(
            "OPENCODE_BASE_URL is set, and `up` starts an OpenCode of its own. Use `opencode-a2a "
            "serve` for that one, or take the setting away.",
            2,
        )
    generated = None
    if settings.server.bearer_token is None and not settings.server.static_auth_credentials:
        generated = secrets.token_urlsafe(24)
        settings.server.bearer_token = SecretStr(generated)
    with _open_listener(settings) as listener:
        print("Starting OpenCode …", file=sys.stderr)
        async with _start_opencode(settings) as (managed, is_demo):
            url = public_url(settings.server, listener.getsockname()[1])
            greeting = welcome(settings, url=url, generated=generated, is_demo=is_demo)
            serving = asyncio.create_task(
                _run_server(
                    settings, endpoint=managed.endpoint, listener=listener, welcome=greeting
                )
            )
            failing = asyncio.create_task(managed.failed())
            try:
                await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
                if failing.done():
                    raise failing.result()
                await serving
            finally:
                for task in (serving, failing):
                    task.cancel()
                await asyncio.gather(serving, failing, return_exceptions=True)


@asynccontextmanager
async def _start_opencode(settings: Settings) -> AsyncIterator[tuple[ManagedOpenCode, bool]]:
    """OpenCode with the user's own configuration or, where that names no model, the demo's."""
    upstream = settings.upstream
    launch = Launch(upstream.command, upstream.workspace_root, environment=os.environ)
    async with AsyncExitStack() as stack:
        attempt = await stack.enter_async_context(AsyncExitStack())
        managed = await attempt.enter_async_context(ManagedOpenCode.start(launch))
        is_demo = not await has_provider(managed.endpoint, upstream.workspace_root)
        if is_demo:
            from .demo import model as demo  # only few runs need it

            await attempt.aclose()
            base_url = await stack.enter_async_context(demo.serve())
            launch = Launch(
                upstream.command,
                upstream.workspace_root,
                environment=os.environ,
                config=demo.opencode_config(base_url),
            )
            managed = await stack.enter_async_context(ManagedOpenCode.start(launch))
        yield managed, is_demo


def _open_listener(settings: Settings) -> socket.socket:
    server = settings.server
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


async def _run_server(
    settings: Settings, endpoint: Endpoint, listener: socket.socket, welcome: str = ""
) -> None:
    url = public_url(settings.server, listener.getsockname()[1])
    grace = settings.server.shutdown_grace_seconds
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with (
        build(settings, endpoint=endpoint, url=url, stopping=stopping) as app,
        ConnectionGuard.open(
            _connection_limits(settings.server),
            settings.server.max_request_head_bytes,
            render_error=failure,
        ) as guard,
    ):
        config = uvicorn.Config(
            app,
            http=guard.protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what breaks in a request is in our own log
            access_log=False,
            server_header=False,
            proxy_headers=False,  # no part of the service needs the address behind a proxy
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(grace) + 3,
        )
        server = _Server(config)
        gc.freeze()  # these objects stay, so the collector need not search them
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        structlog.get_logger().info("serving", url=url)
        if welcome:
            print(welcome, file=sys.stderr)
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            asyncio.get_running_loop().call_later(grace, _resolve, stopping)
            await serving


def _connection_limits(server: Server) -> ConnectionLimits:
    """How many connections this process can have; its limit for open files is raised to fit."""
    wanted = server.max_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total = wanted
    if soft != resource.RLIM_INFINITY:
        total = min(wanted, max(soft - RESERVED_FILES, soft // 2))
    if total < wanted:
        structlog.get_logger().warning(
            "connections.limited", to=total, open_files=soft, max_connections=wanted
        )
    return ConnectionLimits.of(
        total=total,
        per_address=server.max_connections_per_address,
        head_seconds=server.request_head_timeout_seconds,
        body_seconds=server.request_body_timeout_seconds,
    )


def _resolve(stopping: asyncio.Future[None]) -> None:
    if not stopping.done():
        stopping.set_result(None)


class _Server(uvicorn.Server):
    """Does not handle signals: `_until_stopped` does, and shuts down more than the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def welcome(settings: Settings, url: str, generated: str | None, is_demo: bool) -> str:
    login, put_in = _login(settings.server, generated)
    lines = [
        "",
        f"OpenCode answers A2A at {url}",
        f"It works in {settings.upstream.workspace_root}",
    ]
    if is_demo:
        lines += [
            "",
            "No model provider is configured, so a built-in demo model answers: it shows how",
            "answers, tool calls and questions arrive. For a real one run `opencode auth login`,",
            "or set a provider's key such as ANTHROPIC_API_KEY, and start again.",
        ]
    if generated:
        lines += ["", f"Token (made for this run; set A2A_BEARER_TOKEN to keep one): {generated}"]
    lines += [
        "",
        f"Try it{put_in}:",
        "",
        f"  curl -s {url}/message:send \\",
        f"    {login} \\",
        "    -H 'Content-Type: application/json' -H 'A2A-Version: 1.0' \\",
        '    -d \'{"message": {"messageId": "m1", "role": "ROLE_USER",'
        ' "parts": [{"text": "Hello!"}]}}\'',
        "",
        "Stop with Ctrl-C.",
        "",
    ]
    return "\n".join(lines)


def _login(server: Server, generated: str | None) -> tuple[str, str]:
    """The login for curl, and what the reader must replace: configured secrets are never shown."""
    bearer = '-H "Authorization: Bearer {}"'
    if generated is not None:
        return bearer.format(generated), ""
    if server.bearer_token is not None:
        for name, value in os.environ.items():  # which overrides files
            if name.upper() == "A2A_BEARER_TOKEN" and value:
                return bearer.format(f"${name}"), ""
        return bearer.format("TOKEN"), ", with your A2A_BEARER_TOKEN for TOKEN"
    credential = server.static_auth_credentials[0]
    if credential.scheme == "bearer":
        return bearer.format("TOKEN"), f", with the token of {credential.principal} for TOKEN"
    user = f"{credential.username}:PASSWORD"
    return f"-u {shlex.quote(user)}", f", with the password of {credential.principal} for PASSWORD"
