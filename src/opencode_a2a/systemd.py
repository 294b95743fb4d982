"""What a service manager such as systemd hands to this process, and what the process tells it.

The manager sets variables: where to send datagrams (sd_notify(3)), which sockets are open already
(sd_listen_fds(3)), and which stream leads to its journal (sd-daemon(3)). Without them nothing of
this happens. `ServiceManager.take` removes them, so that no child takes them for its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TextIO

import structlog

log = structlog.get_logger()

FIRST_DESCRIPTOR = 3  # of the sockets that are handed over
SEND_SECONDS = 1.0  # a manager that does not read must not stop the service for longer
VARIABLES = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
)


class SocketNotUsable(Exception):
    """The manager has handed over something that the service cannot listen on."""


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The manager of this process; one that was not named is told nothing."""

    address: str | None = None  # of its datagram socket
    watchdog_seconds: float | None = None  # it expects a sign of life at least this often
    listener: socket.socket | None = None  # a socket that it has opened for this process

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """The manager that the variables name, which are removed."""
        given = {name: environment.pop(name, "") for name in VARIABLES}
        address = given["NOTIFY_SOCKET"]
        if address.startswith("@"):
            address = f"\0{address[1:]}"  # an abstract socket, which no file stands for
        return cls(
            address=address or None,
            watchdog_seconds=_watchdog_seconds(given),
            listener=_listener(given),
        )

    def notify(self, **facts: object) -> None:
        """Tell the manager, such as `READY=1` or `STATUS="1 task is at work."`."""
        if self.address is None:
            return
        lines = [f"{name}={' '.join(str(fact).split())}" for name, fact in facts.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_SECONDS)
                sender.sendto("\n".join(lines).encode(), self.address)
        except OSError as exc:
            log.warning("service_manager.not_told", facts=" ".join(facts), reason=str(exc))

    def reloading(self) -> None:
        """Say that settings are read again; `READY=1` must follow."""
        self.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1_000)

    @asynccontextmanager
    async def watchdog(self) -> AsyncIterator[None]:
        """Give signs of life while the block lasts. An event loop that is stuck gives none."""
        living = asyncio.create_task(self._live())
        try:
            yield
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)

    async def _live(self) -> None:
        while self.watchdog_seconds is not None:
            self.notify(WATCHDOG=1)
            await asyncio.sleep(self.watchdog_seconds / 2)


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether what is written to the stream goes to systemd's journal."""
    try:
        file = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is no file
        return False
    return environment.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"


def _watchdog_seconds(given: Mapping[str, str]) -> float | None:
    for_us = given["WATCHDOG_PID"] in ("", str(os.getpid()))
    if not for_us or not given["WATCHDOG_USEC"].isdecimal():
        return None
    return int(given["WATCHDOG_USEC"]) / 1_000_000 or None


def _listener(given: Mapping[str, str]) -> socket.socket | None:
    """The socket that was handed over, if one was, and to this process."""
    if given["LISTEN_PID"] != str(os.getpid()) or not given["LISTEN_FDS"].isdecimal():
        return None
    count = int(given["LISTEN_FDS"])
    if count == 0:
        return None
    if count > 1:
        names = f" ({given['LISTEN_FDNAMES']})" if given["LISTEN_FDNAMES"] else ""
        raise SocketNotUsable(
            f"{count} sockets were handed over{names}, and the service listens on one. Leave one "
            "ListenStream= in the socket unit."
        )
    try:
        found = socket.socket(fileno=FIRST_DESCRIPTOR)
    except OSError as exc:
        raise SocketNotUsable(
            f"LISTEN_FDS is 1, and descriptor {FIRST_DESCRIPTOR} is no socket: {exc.strerror}"
        ) from None
    found.set_inheritable(False)
    if (
        found.family not in (socket.AF_INET, socket.AF_INET6)
        or found.type != socket.SOCK_STREAM
        or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        found.close()
        raise SocketNotUsable(
            "the socket that was handed over does not listen on TCP. In the socket unit, use an "
            "address such as ListenStream=127.0.0.1:8000, and not Accept=yes."
        )
    return found
