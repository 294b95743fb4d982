"""The command line: parses arguments, runs a command, reports errors.

What a command needs is loaded only when that command runs: `--help`, `--version` and the small
commands answer at once.

Exit codes: 0 fine, 1 something failed, 2 wrong usage or settings; `call` has more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .failure import CommandError
from .output import print_result
from .parser import parse

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    try:
        _run(arguments)
    except CommandError as exc:
        print(f"opencode-a2a: {exc}", file=sys.stderr)
        sys.exit(exc.code)
    except KeyboardInterrupt:  # nothing has been started yet
        sys.exit(130)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command == "status" and arguments.ready:
        from .ready import check_ready

        check_ready(arguments.url)
        return
    if arguments.command in ("token show", "status", "completion"):
        print_result("\n".join(_lines(arguments)))
        return
    if arguments.command.startswith("deploy "):
        from . import deploy

        deploy.run(arguments)
        return
    if arguments.command.startswith("token "):
        from .tokens import run_token

        if lines := list(run_token(arguments)):
            print_result("\n".join(lines))
        return
    if arguments.command.startswith("config "):
        from .settings import run_config

        sys.exit(run_config(arguments))
    if arguments.command in ("call", "peers") or getattr(arguments, "peer", None):
        from .call import run_client

        sys.exit(run_client(arguments))
    if arguments.command == "usage":
        from .usage import run_usage

        sys.exit(run_usage(arguments))
    if arguments.command.startswith("nodes "):
        from .nodes import run_nodes

        sys.exit(run_nodes(arguments))
    if arguments.command.startswith("push "):
        from .push import run_push

        sys.exit(run_push(arguments))
    if arguments.command == "doctor":
        from .doctor import run_doctor

        sys.exit(run_doctor(arguments))
    if arguments.command.partition(" ")[0] in ("backup", "restore", "migrate", "db"):
        from .data import run_data

        sys.exit(run_data(arguments))
    from .program import run

    run(arguments)


def server_main(argv: Sequence[str] | None = None) -> None:
    """The same program under its older name: without a command it serves."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or (given[0].startswith("-") and not {"-h", "--help", "--version"} & set(given)):
        given.insert(0, "serve")
    main(given)


def _lines(arguments: argparse.Namespace) -> Sequence[str]:
    """What a command prints that needs neither settings nor a service."""
    if arguments.command == "token show":
        from . import token

        return token.show(_workspace(arguments.directory), new=arguments.new)
    if arguments.command == "status":
        from . import instances

        if arguments.url is not None:
            raise CommandError("an address belongs to --ready: status --ready URL", 2)
        return instances.show(as_json=arguments.json)
    from . import completion

    return completion.script(arguments.shell).splitlines()


def _workspace(directory: Path | None) -> Path:
    given = directory or Path(os.environ.get("OPENCODE_WORKSPACE_ROOT") or ".")
    if not given.is_dir():
        raise CommandError(f"{given}: there is no such directory", 2)
    return given.resolve()
