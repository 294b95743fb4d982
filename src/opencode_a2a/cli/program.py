"""The commands that need the settings: `up`, `serve`, `card`, `openapi`."""

from __future__ import annotations

import argparse
import os
import sys

import structlog
import uvloop

from .. import logs
from ..config import (
    MIN_SECRET_LENGTH,
    SECRET_COMMAND,
    ConfigError,
    Settings,
    has_copied_credentials,
    load,
    secrets_directory,
)
from ..errors import (
    StoreError,
)
from ..opencode.process import ManagedProcessFailed
from ..redaction import secrets_in
from ..store.file_lock import FileInUse
from ..store.schema import SchemaError
from ..systemd import ServiceManager, SocketNotUsable
from .failure import CommandError
from .output import print_result
from .reload import Reload
from .serve import Watch, serve, until_stopped
from .serve import complete as complete_serve
from .show import show
from .up import complete as complete_up
from .up import find_opencode, up

STORE_ADVICE = """\
the task store cannot be used, for the reason above. A2A_TASK_STORE_DATABASE_URL says where it is;
a SQLite file needs a directory that exists and is writable."""


_NOT_STARTED = (
    *(ManagedProcessFailed, SchemaError),
    FileInUse,
)


def run(arguments: argparse.Namespace) -> None:
    try:
        if arguments.command in ("card", "openapi"):
            settings = read_settings(arguments)
            extended = arguments.command == "card" and arguments.extended
            print_result(show(settings, arguments.command, extended=extended))
        else:
            _serve(arguments)
    except ConfigError as exc:
        _exit("\n".join(f"opencode-a2a: {problem}" for problem in exc.problems), 2)
    except CommandError as exc:
        _exit(f"opencode-a2a: {exc}", exc.code)
    except _NOT_STARTED as exc:
        _exit(f"opencode-a2a: {exc}", 1)
    except StoreError:
        _exit(f"opencode-a2a: {STORE_ADVICE}", 1)


def _serve(arguments: argparse.Namespace) -> None:
    """The commands `up` and `serve`."""
    _apply_flags(arguments)
    manager = _service_manager()
    settings, is_up = _load(arguments), arguments.command == "up"
    watch = Watch.of(arguments.command, manager)
    _apply_to_log(settings, watch)
    if is_up:
        opencode = find_opencode(settings, install=arguments.install_opencode)
        command = up(settings, watch, opencode, count=arguments.opencodes or 1)
    else:
        command = serve(settings, watch)

    async def work() -> None:
        async with manager.watchdog():
            await command

    def load_again(running: Settings) -> Settings:
        new = _load(arguments)
        return complete_up(new, running) if is_up else complete_serve(new)

    reload = Reload(
        settings,
        load=load_again,
        apply_to_log=lambda new: _apply_to_log(new, watch),
        watch=watch,
        has_copied_credentials=has_copied_credentials(arguments.secrets),
    )
    grace = settings.server.shutdown_grace_seconds
    uvloop.run(until_stopped(work(), on_stop=lambda: watch.stopping(grace), on_reload=reload))


def _service_manager() -> ServiceManager:
    """The service manager. A socket of its own overrides every setting about where to listen."""
    try:
        manager = ServiceManager.take(os.environ)
    except SocketNotUsable as exc:
        raise CommandError(str(exc), 2) from None
    if manager.listener is not None:
        host, port, *_ = manager.listener.getsockname()
        os.environ |= {"A2A_HOST": host, "A2A_PORT": str(port)}
    return manager


def _exit(message: str, code: int) -> None:
    shown = logs.redactor.known(message)  # it may quote OpenCode
    print(logs.error_lines(shown, sys.stderr), file=sys.stderr)
    sys.exit(code)


def read_settings(arguments: argparse.Namespace) -> Settings:
    _apply_flags(arguments)
    return _load(arguments)


def _load(arguments: argparse.Namespace) -> Settings:
    return load(arguments.config, secrets_directory(arguments.secrets))


def _apply_flags(arguments: argparse.Namespace) -> None:
    """A flag overrides the setting."""
    for name in ("host", "port"):
        if getattr(arguments, name) is not None:
            os.environ[f"A2A_{name.upper()}"] = str(getattr(arguments, name))
    if getattr(arguments, "directory", None) is not None:
        os.environ["OPENCODE_WORKSPACE_ROOT"] = str(arguments.directory)


def _apply_to_log(settings: Settings, watch: Watch) -> None:
    server = settings.server
    logs.redactor.add(*settings.secrets, *secrets_in(os.environ))
    logs.configure(server.log_level, server.log_format, watch.stream)
    log = structlog.get_logger()
    if server.log_payloads and not server.shows_payloads:
        advice = "A2A_LOG_PAYLOADS needs A2A_LOG_LEVEL=info or debug"
        log.warning("payloads.not_logged", advice=advice)
    if short := server.short_secrets:
        log.warning(
            "credentials.short",
            names=" ".join(short),
            characters=f"fewer than {MIN_SECRET_LENGTH}",
            make_a_better_one=SECRET_COMMAND,
        )
