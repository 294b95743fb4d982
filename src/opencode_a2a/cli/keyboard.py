"""Lines that a person types. Waiting for one can be cancelled, unlike `input()` in a thread."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

MAX_LINE = 65_536
TERMINAL = Path("/dev/tty")  # the one that a process belongs to


class LineReader(Protocol):
    """Where a person answers: in a chat, or beside a single call."""

    async def line(self, prompt: str) -> str | None:
        """The next line; None if there will be no more."""


class Keyboard:
    """The terminal of this process: edits lines by itself, and hands them over whole."""

    def __init__(self, descriptor: int, shows: TextIO) -> None:
        self._descriptor = descriptor
        self._shows = shows

    @classmethod
    @contextmanager
    def open(cls, *, anyway: bool) -> Iterator[Keyboard | None]:
        """The person at the terminal, if input and output are one.

        With `anyway` it is the terminal that this process belongs to, wherever its input and
        output go. OSError: it belongs to none.
        """
        if sys.stdin is not None and sys.stdin.isatty() and (anyway or sys.stderr.isatty()):
            yield cls(sys.stdin.fileno(), sys.stderr)
        elif anyway:
            with TERMINAL.open("rb", buffering=0) as typed, TERMINAL.open("w") as shows:
                yield cls(typed.fileno(), shows)
        else:
            yield None

    async def line(self, prompt: str) -> str | None:
        """The next line; None for the end of the input (Ctrl-D)."""
        self._shows.write(prompt)
        self._shows.flush()
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        typed = os.read(self._descriptor, MAX_LINE)
        if not typed:
            self._shows.write("\n")
            self._shows.flush()
            return None
        return typed.decode(errors="replace").rstrip("\r\n")


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
