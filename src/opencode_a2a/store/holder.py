"""The holder of a task: the one process that may write it, for as long as its lease lasts.

A lease is short and renewed often. When it runs out, another process claims the task. Nothing else
says that a holder is dead: whether its process can be seen depends on users, containers and
`ProtectProc`, and who is wrong about that takes a task from a process that works on it.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

LEASE = 10_000  # milliseconds for which a task is held without a sign of life


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. Host and number are for people who read the table; the rest makes it unique."""

    name: str

    @classmethod
    def this_process(cls) -> Holder:
        host = socket.gethostname().replace("/", "_")[:32]
        return cls(f"{host}/{os.getpid()}/{secrets.token_hex(8)}")


@dataclass(frozen=True, slots=True)
class Lease:
    """A holder, and until when it may write without another sign of life."""

    holder: str
    until: int
