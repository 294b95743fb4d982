"""Processes that lost their service and both guardians at once, found by a marker.

OpenCode and what it starts carry in their environment which service they belong to. Only Linux
shows the environment of a process; elsewhere nothing is found.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .guardian import IS_LINUX, MARKER

PROC = Path("/proc")
MAX_ROUNDS, PAUSE = 200, 0.01  # a killed process may have started another one before


@dataclass(frozen=True, slots=True)
class Marker:
    """Names an OpenCode server by the service that started it.

    A pid names a process only together with the time of its start, and only in its namespace.
    """

    pid: int
    started: int
    namespace: int
    server: str
    root: str

    @classmethod
    def new(cls, root: Path) -> Self:
        pid = os.getpid()
        return cls(
            pid=pid,
            started=start_time(pid),
            namespace=pid_namespace(),
            server=secrets.token_hex(8),
            root=str(root),
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        with suppress(ValueError):
            pid, started, namespace, server, root = text.split(":", 4)
            return cls(
                pid=int(pid),
                started=int(started),
                namespace=int(namespace),
                server=server,
                root=root,
            )
        return None

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}:{self.namespace}:{self.server}:{self.root}"

    def is_abandoned(self, root: Path) -> bool:
        """Whether its service worked in this root and has ended."""
        is_comparable = (self.namespace, self.root) == (pid_namespace(), str(root))
        return is_comparable and start_time(self.pid) != self.started


def kill_marked(is_wanted: Callable[[Marker], bool]) -> list[int]:
    """Kill the processes whose marker is wanted, until none is left; their pids.

    This process and those above it stay: somebody may start the service in a terminal that the
    agent of an earlier one has opened.
    """
    killed: set[int] = set()
    spared = _ancestry()
    for _ in range(MAX_ROUNDS if IS_LINUX else 0):
        pids = {int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()} - spared
        found = {pid for pid in pids if _kill_if(pid, is_wanted)}
        if not found:
            break
        killed |= found
        time.sleep(PAUSE)
    return sorted(killed)


def _kill_if(pid: int, is_wanted: Callable[[Marker], bool]) -> bool:
    # The descriptor is opened first: should another process get the pid before the environment
    # is read, the signal still goes to the process that has ended, that is to nobody.
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            marker = _marker_of(pid)
            if marker is not None and is_wanted(marker):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


def _marker_of(pid: int) -> Marker | None:
    name = f"{MARKER}=".encode()
    for entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
        if entry.startswith(name):
            return Marker.parse(os.fsdecode(entry.removeprefix(name)))
    return None


def _ancestry() -> set[int]:
    """This process, its parent, the parent of that one and so on."""
    found, pid = set[int](), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return found


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since the boot; 0 if it has ended or nobody knows."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def _stat(pid: int) -> list[str]:
    """State, parent and more of a process, as /proc lists them; nothing if it has ended."""
    with suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def pid_namespace() -> int:
    with suppress(OSError):
        return (PROC / "self/ns/pid").stat().st_ino
    return 0
