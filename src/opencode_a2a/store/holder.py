"""The holder of a task: the one process that may write it, for as long as its lease lasts.

A lease is short and renewed often. Another process claims the task when the lease runs
out, or earlier when it finds, on the same machine, that the holder is dead.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

LEASE = 10_000  # milliseconds for which a task is held without a sign of life


@dataclass(frozen=True, slots=True)
class Holder:
    """A process: where it runs, its number, and when it began, because numbers are reused."""

    name: str

    @classmethod
    def this_process(cls) -> Holder:
        pid = os.getpid()
        began = _began(pid) or secrets.token_hex(4)
        return cls(f"{_machine()}/{pid}/{began}/{secrets.token_hex(4)}")

    @staticmethod
    def is_dead(name: str) -> bool:
        """Whether the process of this name certainly no longer exists."""
        machine, pid, began, *_ = [*name.split("/"), "", "", ""]
        if machine != _machine() or not pid.isdecimal() or not Path("/proc/self/stat").exists():
            return False
        return _began(int(pid)) != began


@dataclass(frozen=True, slots=True)
class Lease:
    """A holder, and until when it may write without another sign of life."""

    holder: str
    until: int


def _machine() -> str:
    """Where process numbers mean the same: a machine since its start, and one container of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:13]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname().replace("/", "_")[:32]


def _began(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] in ("Z", "X") else after_name[19]
