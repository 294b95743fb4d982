"""The commands that need the settings: `up`, `serve`, `card`, `openapi`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import structlog
import uvloop

from .. import logs
from ..config import (
    MIN_SECRET_LENGTH,
    SECRET_COMMAND,
    ConfigError,
    Settings,
    load,
    unknown_settings,
)
from ..errors import StoreUnavailable
from ..opencode.process import ManagedProcessFailed
from ..redaction import secrets_in
from ..store.legacy import NotMoved
from ..store.migrate import ForeignDatabase, SchemaTooNew
from .failure import CommandError
from .output import print_result
from .serve import Watch, serve, until_stopped
from .show import show
from .up import find_opencode, up

STORE_ADVICE = """\
the task store cannot be used, for the reason above. A2A_TASK_STORE_DATABASE_URL says where it is;
a SQLite file needs a directory that exists and is writable."""


def run(arguments: argparse.Namespace) -> None:
    try:
        settings = read_settings(arguments)
        if arguments.command in ("card", "openapi"):
            extended = arguments.command == "card" and arguments.extended
            print_result(show(settings, arguments.command, extended=extended))
            return
        watch = Watch.of(arguments.command)
        _configure_log(settings, watch)
        if arguments.command == "up":
            opencode = find_opencode(settings, install=arguments.install_opencode)
            work = up(settings, watch, opencode)
        else:
            work = serve(settings, watch)
        grace = settings.server.shutdown_grace_seconds
        uvloop.run(until_stopped(work, on_stop=lambda: watch.stopping(grace)))
    except ConfigError as exc:
        _exit("\n".join(f"opencode-a2a: {problem}" for problem in exc.problems), 2)
    except CommandError as exc:
        _exit(f"opencode-a2a: {exc}", exc.code)
    except (ManagedProcessFailed, SchemaTooNew, ForeignDatabase, NotMoved) as exc:
        _exit(f"opencode-a2a: {exc}", 1)
    except StoreUnavailable:
        _exit(f"opencode-a2a: {STORE_ADVICE}", 1)


def _exit(message: str, code: int) -> None:
    shown = logs.redactor.known(message)  # it may quote OpenCode
    print("\n".join(map(logs.escaped, shown.split("\n"))), file=sys.stderr)
    sys.exit(code)


def read_settings(arguments: argparse.Namespace) -> Settings:
    for name in ("host", "port"):  # a flag overrides the setting
        if getattr(arguments, name) is not None:
            os.environ[f"A2A_{name.upper()}"] = str(getattr(arguments, name))
    if getattr(arguments, "directory", None) is not None:
        os.environ["OPENCODE_WORKSPACE_ROOT"] = str(arguments.directory)
    secrets_dir = arguments.secrets
    if secrets_dir is None and "CREDENTIALS_DIRECTORY" in os.environ:  # systemd's
        secrets_dir = Path(os.environ["CREDENTIALS_DIRECTORY"])
    return load(arguments.config, secrets_dir)


def _configure_log(settings: Settings, watch: Watch) -> None:
    server = settings.server
    logs.redactor.add(*settings.secrets, *secrets_in(os.environ))
    logs.configure(server.log_level, server.log_format, watch.stream)
    log = structlog.get_logger()
    if server.log_payloads and not server.shows_payloads:
        advice = "A2A_LOG_PAYLOADS needs A2A_LOG_LEVEL=info or debug"
        log.warning("payloads.not_logged", advice=advice)
    for name, note in settings.notes:
        log.info("settings.adapted", name=name, note=note)
    if unknown := unknown_settings(os.environ):
        log.warning("settings.unknown", names=" ".join(unknown))
    if short := server.short_secrets:
        log.warning(
            "credentials.short",
            names=" ".join(short),
            characters=f"fewer than {MIN_SECRET_LENGTH}",
            make_a_better_one=SECRET_COMMAND,
        )
