"""A program that runs OpenCode and leaves no process behind that OpenCode has started.

    python -I -S guardian.py MARKER PROGRAM ARGUMENT...

Two guardians, the inner a child of the outer, stand between the service and OpenCode:

    service ── outer ── inner ── OpenCode ── tools, language servers, MCP servers, shells …

A guardian ends every process below it as soon as its child has ended, its standard input has
ended (the service holds the other end, so this happens however the service dies), or the outer
guardian has died. There are two so that each one cleans up after the other.

On Linux a guardian is a child subreaper: a process whose parent dies becomes a child of the
guardian, whatever session, process group or environment it has. Therefore no process below can
leave, and a guardian without children has no descendants. It kills only its children: nobody can
reuse the pid of a child before the guardian has waited for it. If both guardians die at once,
the kernel kills OpenCode, and the service finds the rest by MARKER in its environment.

Other systems have no subreaper. There one guardian finds its descendants by their parents; a
process that has lost its parent, such as a daemon, is not found.

OpenCode waits for this program, so it loads as little as possible.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MARKER = "OPENCODE_A2A_PROCESS"  # the variable that says to which service a process belongs
IS_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
HANDLED_SIGNALS = STOP_SIGNALS | {signal.SIGCHLD}
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
TERM_GRACE = 1.0  # seconds from SIGTERM to SIGKILL for what an ended OpenCode left behind
PAUSE_MS = 20  # between two rounds of signals, unless a child ends earlier


def main(marker: str, command: list[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)  # until each process handles them
    if not IS_LINUX:
        guard(lambda guardian: become(command, marker, parent=guardian), ties=[0])
    watched, held = os.pipe()

    def be_inner(outer: int) -> NoReturn:
        os.setsid()
        os.close(held)  # now only the outer guardian holds it, so `watched` ends when that dies
        guard(lambda inner: become(command, marker, parent=inner), ties=[0, watched])

    guard(be_inner, ties=[0])


def guard(run: Callable[[int], NoReturn], ties: list[int]) -> NoReturn:
    """Call `run(pid of this process)` in a child; exit with its code when nothing below is left.

    When one of the file descriptors `ties` ends, nobody waits any more: all is killed at once.
    """
    if IS_LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken = handle_signals()
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        run(guardian)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    waiting = select.poll()
    for descriptor in (woken, *ties):
        waiting.register(descriptor, select.POLLIN)
    code: int | None = None
    grace = TERM_GRACE
    while code is None and grace:
        for descriptor, _ in waiting.poll():
            received = os.read(descriptor, 512)
            if descriptor == woken and not STOP_SIGNALS.isdisjoint(received):
                os.kill(child, signal.SIGTERM)
            elif not received:
                grace = 0.0
        code = reap()[0].get(child)
    end_everything_below(woken, grace)
    sys.exit(128 + signal.SIGKILL if code is None else code)


def handle_signals() -> int:
    """A file descriptor from which the numbers of arriving signals can be read."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in HANDLED_SIGNALS:
        signal.signal(number, lambda *_: None)
    return woken


def become(command: list[str], marker: str, parent: int) -> NoReturn:
    """Replace this process by `command`, in a session of its own; it dies with its parent."""
    os.setsid()
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request
            sys.exit(1)
    for number in HANDLED_SIGNALS | IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.write(1, f"{os.getpid()}\n".encode())  # the service reads this line
    try:
        os.execve(command[0], command, {**os.environ, MARKER: marker})
    except OSError as exc:
        sys.exit(f"{command[0]} cannot be run: {exc.strerror}")


def end_everything_below(woken: int, grace: float) -> None:
    """Return when no process is left, or only such as this user must not kill."""
    terminated: set[int] = set()
    kill_at = time.monotonic() + grace
    waiting = select.poll()
    waiting.register(woken, select.POLLIN)
    while reap()[1]:
        found = children() if IS_LINUX else descendants()
        if time.monotonic() < kill_at:
            for pid in found - terminated:
                send(pid, signal.SIGTERM)
            terminated |= found
        else:
            if not IS_LINUX:
                found = stop_all(found)
            refused = {pid for pid in found if not send(pid, signal.SIGKILL)}
            if refused and refused == found:
                sys.stderr.write(f"Processes of another user keep running: {sorted(found)}\n")
                return
        if waiting.poll(PAUSE_MS):
            os.read(woken, 512)


def send(pid: int, number: int) -> bool:
    """Whether this process may send signals to that one."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:  # for example a command that was started with sudo
        return False
    return True


def reap() -> tuple[dict[int, int], bool]:
    """The exit codes of children that have ended, and whether there are more children."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code


def children() -> set[int]:
    """The children of this process, on Linux."""
    own_pid = str(os.getpid()).encode()
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    # "pid (any name) state parent …"
                    parent = stat.read().rpartition(b")")[2].split()[1]
            except OSError:  # it has ended
                continue
            if parent == own_pid:
                found.add(int(name))
    return found


def descendants() -> set[int]:
    """The children of this process, their children and so on, on any Unix."""
    import subprocess

    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE) as ps:
        lines = ps.communicate()[0].splitlines()
    parents = {int(pid): int(parent) for pid, parent in map(bytes.split, lines)}
    found, last = {os.getpid()}, 0
    while len(found) > last:
        last = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid(), ps.pid}


def stop_all(found: set[int]) -> set[int]:
    """Stop all descendants, so that none starts a process while they are killed; all of them."""
    while True:
        for pid in found:
            send(pid, signal.SIGSTOP)
        more = descendants()
        if more <= found:
            return found
        found |= more


def prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"The kernel refused prctl({option}), which `opencode-a2a up` needs.")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
