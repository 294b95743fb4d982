"""Which Linux user listens at a port of this machine, asked before a password is sent there.

While OpenCode is down any user can listen at its port, and would be handed its password.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
LISTENING = "0A"

AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]  # as `getaddrinfo` has it


class OtherUserListens(PermissionError):
    """Somebody else has the port."""


def users_who_listen(table: str, port: int) -> set[int]:
    """The users who listen at a port at any address, from Linux's table of TCP sockets."""
    found = set()
    for line in table.splitlines():
        _, local, _, state, _, _, _, user, *_ = line.split()
        if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
            found.add(int(user))
    return found


def socket_to_own_user(address: AddressInfo) -> socket.socket:
    """A socket that is to be connected to this address; an error where another user listens."""
    family, kind, protocol, _, (_, port, *_) = address
    tables = "".join(table.read_text() for table in TABLES if table.exists())
    found = users_who_listen(tables, port)
    if not found:
        raise ConnectionRefusedError(f"nobody listens at port {port}")
    if found != {os.getuid()}:
        raise OtherUserListens(f"another user listens at port {port}")
    return socket.socket(family, kind, protocol)
