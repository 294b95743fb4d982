"""Processes of this machine, and all the ways in which an agent's command can leave one behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
# A process that forks and exits for ever: its pid is another one whenever somebody looks.
HOPPER = """
import os, time
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.1)
"""
EMPTY_ENVIRONMENT = "daemon with an empty environment"
NEW_PIDS = "process that changes its pid"
WAYS = {  # {} is a number of seconds, by which the process is recognised
    "background job": "sleep {} &",
    "nohup": "nohup sleep {} &",
    "own session": "setsid sleep {} &",
    "daemon (double fork)": "(setsid sleep {} &)",
    EMPTY_ENVIRONMENT: "(env -i $(command -v setsid) $(command -v sleep) {} &)",
    "daemon that ignores signals": "(setsid sh -c \"trap '' TERM INT HUP; sleep {}; :\" &)",
    "stopped process": "sh -c 'kill -STOP $$; :' {} &",
    "shell in a shell in a shell": "sh -c \"sh -c 'sleep {}; :'; :\" &",
    NEW_PIDS: f"(setsid python3 -c '{HOPPER}' {{}} &)",
}


class Started:
    """The processes of one test, each with a number of its own among its arguments."""

    def __init__(self, *more: str) -> None:
        number = random.SystemRandom().randrange(10**9, 10**10)
        self.tags = {way: f"1{index:03d}000.{number}" for index, way in enumerate([*WAYS, *more])}

    @property
    def command(self) -> str:
        """Starts one process in each of the ways, and returns."""
        lines = [f"{WAYS[way].format(self.tags[way])}" for way in WAYS]
        return "\n".join(["exec >/dev/null 2>&1", *lines])

    def running(self) -> dict[str, set[int]]:
        """The pids of those that run, by the way they were started."""
        ways = {tag.encode(): way for way, tag in self.tags.items()}
        found: dict[str, set[int]] = {}
        for pid in pids():
            with suppress(OSError):
                arguments = (PROC / str(pid) / "cmdline").read_bytes()
                for tag, way in ways.items():
                    if tag in arguments:
                        found.setdefault(way, set()).add(pid)
        return found

    def wait_until_running(self, ways: Iterable[str], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while missing := set(ways) - self.running().keys():
            assert time.monotonic() < deadline, f"never started: {missing}"
            time.sleep(0.05)

    def survivors(self, seconds: float = 60, but: Collection[str] = ()) -> set[str]:
        """The ways of which a process still runs; waits for all of them to end, except `but`."""
        deadline = time.monotonic() + seconds
        while True:
            left: set[str] = set()
            for _ in range(8):  # a look can miss the one that changes its pid
                left |= self.running().keys()
                time.sleep(0.01)
            if left <= set(but) or time.monotonic() > deadline:
                return left

    def clean_up(self) -> None:
        for _ in range(1_000):
            found = {pid for pids in self.running().values() for pid in pids}
            if not found:
                return
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        raise AssertionError(f"cannot be killed: {self.running()}")


def pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]


def children(parent: int) -> list[int]:
    found = []
    for pid in pids():
        with suppress(OSError):
            state, ppid, *_ = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if int(ppid) == parent and state != "Z":
                found.append(pid)
    return found
