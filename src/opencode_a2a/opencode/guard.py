"""Runs OpenCode, and ends with it every process that it has started.

    python -I guard.py MARK PROGRAM ARGUMENT...

The guard stands between the service and OpenCode:

    service ── guard ── OpenCode ── tools, language servers, MCP servers, shells …

It ends everything below it as soon as OpenCode has ended or its own standard input has: the
service holds the other end, so this happens however the service dies. On Linux a process whose
parent dies becomes a child of the guard, so none can leave; and OpenCode dies with the guard. What
a guard leaves that was killed has MARK in its environment, by which `end_marked` finds it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

MARK = "OPENCODE_A2A_PROCESS"  # the variable that says to which guard a process belongs
IS_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TERM_GRACE = 1.0  # seconds from SIGTERM to SIGKILL for what an ended OpenCode left behind
PAUSE = 0.02  # seconds between two looks for what is left
MOST_LOOKS = 200  # a process that is killed may have started another one before


def main(mark: str, command: list[str]) -> int:
    if IS_LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()

    def before_exec() -> None:
        os.write(1, f"{os.getpid()}\n".encode())  # the first line that the service reads
        if IS_LINUX:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # it died before the request
                os._exit(1)

    try:
        opencode = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, MARK: mark},
            start_new_session=True,
            preexec_fn=before_exec,
        )
    except OSError as exc:
        sys.exit(f"{command[0]} cannot be run: {exc.strerror}")
    signal.signal(signal.SIGTERM, lambda *_: ask_to_end(opencode.pid))
    abandoned = threading.Event()

    def watch_service() -> None:
        os.read(0, 1)
        abandoned.set()
        end_everything_below(0)

    watching = threading.Thread(target=watch_service, daemon=True)
    watching.start()
    code = wait_for(opencode.pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pid may be another's now
    if abandoned.is_set():
        watching.join()
    end_everything_below(TERM_GRACE)
    return code if code >= 0 else 128 - code


def ask_to_end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def wait_for(pid: int) -> int:
    """The exit code of a child. Children that have lost their parents are waited for as well.

    Otherwise each of them would stay as a zombie, and OpenCode may run for months.
    """
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:  # another thread has waited for it
            return -signal.SIGKILL
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"The kernel refused prctl({option}), which `opencode-a2a up` needs.")


def end_everything_below(grace: float) -> None:
    """Return when no process is left, or only such as this user must not kill."""
    guard = psutil.Process()
    kill_at = time.monotonic() + grace
    asked = set[psutil.Process]()
    while left := set(guard.children(recursive=True)):
        if time.monotonic() < kill_at:
            for process in left - asked:
                with suppress(psutil.Error):
                    process.terminate()
            asked |= left
        elif left == {process for process in left if not kill(process)}:
            pids = sorted(process.pid for process in left)
            sys.stderr.write(f"Processes of another user keep running: {pids}\n")
            return
        psutil.wait_procs(left, timeout=PAUSE)


def kill(process: psutil.Process) -> bool:
    """Whether this process may kill that one; also when it has ended meanwhile."""
    try:
        process.kill()
    except psutil.AccessDenied:  # for example a command that was started with sudo
        return False
    except psutil.NoSuchProcess:
        pass
    return True


def end_marked(is_wanted: Callable[[str], bool]) -> list[int]:
    """Kill the processes with a wanted mark until none is left; their pids.

    This process and those above it stay: somebody may start the service in a terminal that the
    agent of an earlier one has opened.
    """
    killed: set[int] = set()
    spared = {os.getpid(), *(each.pid for each in psutil.Process().parents())}
    for _ in range(MOST_LOOKS):
        found = [p for p, mark in _marked() if is_wanted(mark) and p.pid not in spared and kill(p)]
        if not found:
            break
        killed |= {process.pid for process in found}
        time.sleep(PAUSE)
    return sorted(killed)


def end_abandoned(root: str) -> list[int]:
    """The same for what the agents of this root have left whose guards have ended."""
    marks = {mark for _, mark in _marked() if mark.partition(":")[2] == root}
    guarded = set[str]()
    for process in psutil.process_iter() if marks else ():
        with suppress(psutil.Error):
            guarded |= marks.intersection(process.cmdline())
    return end_marked((marks - guarded).__contains__)


def _marked() -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and (mark := process.environ().get(MARK)):
                yield process, mark


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
