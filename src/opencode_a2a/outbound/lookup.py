"""Looks up names, in threads that nobody waits for.

A name server may take as long as it likes. Whoever asks can give up meanwhile, and the process can
end: that is why no pool of threads is used, which is waited for when the interpreter exits.
"""

from __future__ import annotations

import socket
from concurrent.futures import Future
from threading import Thread
from typing import Any

AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]  # as `getaddrinfo` has it


def look_up(
    host: str, port: int, *, family: int = socket.AF_UNSPEC, flags: int = 0
) -> Future[list[AddressInfo]]:
    """It cannot be canceled, so it is done only when its thread is."""
    found = Future[list[AddressInfo]]()
    found.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer = socket.getaddrinfo(
                host, port, family=family, type=socket.SOCK_STREAM, flags=flags
            )
        except Exception as exc:  # whoever asked is told
            found.set_exception(exc)
        else:
            found.set_result(answer)

    Thread(target=run, name="lookup", daemon=True).start()
    return found


def address_of(info: AddressInfo) -> str:
    to = info[4]
    # Of IPv6, the fourth says which network a link-local address is in.
    return f"{to[0]}%{to[3]}" if len(to) == 4 and to[3] else str(to[0])
