"""What a service manager is told, over real datagram sockets, and what it hands over."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from opencode_a2a.systemd import VARIABLES, ServiceManager, SocketNotUsable, is_journal


@pytest.fixture(params=["file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address as NOTIFY_SOCKET has it."""
    return f"@{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")


@pytest.fixture
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        heard.settimeout(30)
        yield heard


def told(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().splitlines()


def test_facts_arrive_as_one_datagram_each_on_its_line(
    manager: socket.socket, address: str
) -> None:
    service = ServiceManager.take({"NOTIFY_SOCKET": address})
    service.notify(READY=1, STATUS="1 task\nis\tat work.")
    assert told(manager) == ["READY=1", "STATUS=1 task is at work."]


def test_a_reload_says_when_it_began(manager: socket.socket, address: str) -> None:
    before = time.monotonic_ns() // 1_000
    ServiceManager.take({"NOTIFY_SOCKET": address}).reloading()
    reloading, began = told(manager)
    assert reloading == "RELOADING=1"
    assert before <= int(began.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1_000


async def test_signs_of_life_come_from_the_event_loop(manager: socket.socket, address: str) -> None:
    given = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getpid())}
    manager.setblocking(False)
    async with asyncio.timeout(60), ServiceManager.take(given).watchdog():
        for _ in range(3):
            assert await asyncio.get_running_loop().sock_recv(manager, 4096) == b"WATCHDOG=1"
        with suppress(BlockingIOError):
            while manager.recv(4096):
                pass
        time.sleep(0.2)  # noqa: ASYNC251  # the loop is stuck for several intervals
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
        assert await asyncio.get_running_loop().sock_recv(manager, 4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("30000000", "ours", 30.0),
        ("30000000", "", 30.0),
        ("30000000", "1", None),  # the watchdog of another process
        ("0", "", None),
        ("", "", None),
        ("soon", "", None),
    ],
)
def test_a_watchdog_is_for_the_process_that_it_names(
    usec: str, pid: str, seconds: float | None
) -> None:
    named = str(os.getpid()) if pid == "ours" else pid
    given = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": named}
    assert ServiceManager.take(given).watchdog_seconds == seconds


def test_no_child_finds_the_variables() -> None:
    environment = dict.fromkeys(VARIABLES, "1") | {"HOME": "/home/me"}
    ServiceManager.take(environment)
    assert environment == {"HOME": "/home/me"}


async def test_without_a_manager_nothing_happens() -> None:
    alone = ServiceManager.take({})
    assert alone == ServiceManager(address=None, watchdog_seconds=None, listener=None)
    with structlog.testing.capture_logs() as logged:
        alone.notify(READY=1)
        async with alone.watchdog():
            await asyncio.sleep(0)
    assert logged == []


def test_a_manager_that_is_gone_is_a_line_in_the_log(tmp_path: Path) -> None:
    service = ServiceManager.take({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with structlog.testing.capture_logs() as logged:
        service.notify(READY=1)
    assert [(each["event"], each["facts"]) for each in logged] == [
        ("service_manager.not_told", "READY")
    ]


def test_the_sockets_of_another_process_are_left_alone() -> None:
    assert ServiceManager.take({"LISTEN_PID": "1", "LISTEN_FDS": "1"}).listener is None


def test_of_several_sockets_none_is_chosen() -> None:
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "web:admin"}
    with pytest.raises(SocketNotUsable, match=r"2 sockets were handed over \(web:admin\)"):
        ServiceManager.take(given)


def test_the_journal_is_known_by_the_stream_that_leads_to_it(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as journal, (tmp_path / "other").open("w") as other:
        file = os.fstat(journal.fileno())
        environment = {"JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino}"}
        assert is_journal(journal, environment)
        assert not is_journal(other, environment)
        assert not is_journal(journal, {})
