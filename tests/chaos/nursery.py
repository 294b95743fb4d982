"""Starts the service again and again without importing it again: a fork where others would exec.

One JSON order per line on stdin, the new process's number per line on stdout. An import takes a
second of processor time, a fork some milliseconds: what dies is the same program either way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

import opencode_a2a.cli.program  # noqa: F401  # loads the whole service, before any fork
from opencode_a2a import cli


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead disappear by themselves
    last: int | None = None  # the newest process, by a descriptor: its pid may be used again
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _serve(json.loads(line))
        if last is not None:
            os.close(last)
            last = None
        with suppress(ProcessLookupError):
            last = os.pidfd_open(child)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    if last is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(last, signal.SIGKILL)


def _serve(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file, number)
        cli.main(["serve"])
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
