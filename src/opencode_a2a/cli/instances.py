"""The running instances of this user: each keeps a file, which `opencode-a2a status` reads.

An instance locks its file as long as it lives, and the kernel releases the lock however the process
ends. So a file that can be locked is left over, whatever process has its pid today.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..paths import make_private_directory, state_home, tighten
from .failure import CommandError


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    url: str
    workspace: str
    pid: int
    command: str  # up or serve
    version: str
    opencode_url: str
    started_at: int  # seconds since 1970
    opencode_version: str | None = None  # until OpenCode has answered
    tasks_at_work: int = 0


class Registration:
    """The file of this process."""

    def __init__(self, instance: RegisteredInstance, file: Path) -> None:
        self.instance = instance
        self._file = file
        self._locked: int | None = None  # the descriptor of the file, which holds the lock

    @classmethod
    @contextmanager
    def open(cls, instance: RegisteredInstance) -> Iterator[Registration]:
        """OSError, RuntimeError: there is no directory for it, or one without locks."""
        folder = _folder()
        make_private_directory(folder)
        tighten(folder)
        self = cls(instance, folder / f"{secrets.token_hex(8)}.json")
        self._write()
        try:
            yield self
        finally:
            self._file.unlink(missing_ok=True)
            self._release()

    def update(self, *, opencode_version: str | None, tasks_at_work: int) -> None:
        """Write down what has changed. A full disk is no reason to stop working."""
        changed = replace(
            self.instance, opencode_version=opencode_version, tasks_at_work=tasks_at_work
        )
        if changed != self.instance:
            self.instance = changed
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        """A new file in the place of the old one, locked before anybody can see it."""
        fresh = self._file.with_suffix(".new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(asdict(self.instance)).encode())
            fresh.rename(self._file)
        except OSError:
            os.close(descriptor)
            fresh.unlink(missing_ok=True)
            raise
        self._release()
        self._locked = descriptor

    def _release(self) -> None:
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None


def running_instances() -> list[RegisteredInstance]:
    """Those that run, oldest first; the files of others are removed."""
    found = []
    for file in _folder().glob("*.json"):
        try:
            instance = _read(file)
        except (OSError, ValueError, TypeError):  # it ends just now, or is of another version
            continue
        if instance is not None:
            found.append(instance)
    return sorted(found, key=lambda each: (each.started_at, each.pid))


def _read(file: Path) -> RegisteredInstance | None:
    """What a running instance has written; None if it has ended, and its file is removed.

    An instance releases a file only after it has put another in its place. So one that is not
    locked is left over only if it still has the name.
    """
    while True:
        with file.open("rb") as content:
            if _is_locked(content.fileno()):
                return RegisteredInstance(**json.load(content))
            if os.path.samestat(os.fstat(content.fileno()), file.stat()):
                file.unlink(missing_ok=True)
                return None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _folder() -> Path:
    return state_home() / "instances"


def show(*, as_json: bool) -> Sequence[str]:
    """The command `status`: the lines to print."""
    try:
        found = running_instances()
    except RuntimeError as exc:
        raise CommandError(f"there is no directory to keep state in: {exc}") from None
    if as_json:
        return json.dumps([asdict(each) for each in found], indent=2).splitlines()
    if not found:
        return ["No instance of yours is running. Start one: cd your-project && opencode-a2a up"]
    table = [("ADDRESS", "WORKSPACE", "PID", "COMMAND", "OPENCODE", "TASKS", "FOR")]
    for each in found:
        table.append(
            (
                each.url,
                each.workspace,
                str(each.pid),
                each.command,
                each.opencode_version or "not reached",
                str(each.tasks_at_work),
                _duration(time.time() - each.started_at),
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"
