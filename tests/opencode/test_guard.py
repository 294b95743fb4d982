"""Nothing that OpenCode started outlives the service, whoever is killed.

A shell script plays OpenCode here: it starts a process in every way at once. What the real one
starts is tried in `tests/cli/test_up.py` and, at length, by `python -m tests.faults.survivors`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from opencode_a2a.opencode import guard
from opencode_a2a.opencode.guard import MARK, end_marked
from tests.processes import EMPTY_ENVIRONMENT, NEW_PIDS, WAYS, Started, children
from tests.running import ROOT, Program, isolated, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")

READY = 'echo "opencode server listening on http://$3:$5"\n'


# Without a guard: the one says nothing about its service, the other is found by luck only.
NOT_FOUND = {EMPTY_ENVIRONMENT, NEW_PIDS}
FIRST, AGAIN = "OpenCode", "OpenCode, started again"


@pytest.fixture
def started() -> Iterator[Started]:
    found = Started(FIRST, AGAIN)
    yield found
    found.clean_up()


@contextmanager
def managed(folder: Path, script: str) -> Iterator[Program]:
    """A service that runs a script as its OpenCode, ready."""
    workspace, command = folder / "workspace", folder / "opencode"
    workspace.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{script}")
    command.chmod(0o755)
    env = isolated(folder / "home", OPENCODE_COMMAND=str(command))
    words = [sys.executable, "-m", "tests.opencode_for_tests", str(workspace), "{}"]
    with running(words, env, ROOT) as program:
        program.wait_for("ready {")
        yield program


@contextmanager
def busy(folder: Path, started: Started) -> Iterator[tuple[Program, dict[str, int]]]:
    """A service whose agent has started a process in every way, and who can be killed."""
    script = f"""
        {READY}
        [ -e once ] && exec sleep {started.tags[AGAIN]}
        touch once
        ({started.command}
        )
        exec sleep {started.tags[FIRST]}
    """
    with managed(folder, dedent(script)) as program:
        started.wait_until_running([*WAYS, FIRST])
        service = program.process.pid
        (guard,) = children(service)
        (opencode,) = started.running()[FIRST]
        assert opencode in children(guard)
        yield program, {"service": service, "guard": guard, FIRST: opencode}


def kill_at_once(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody can react to the death of another
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.parametrize("victims", [["service"], ["service", FIRST]], ids=str)
def test_nothing_is_left_when_the_service_is_killed(
    tmp_path: Path, started: Started, victims: list[str]
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids[name] for name in victims])
        assert started.survivors() == set()


def test_nothing_is_left_when_opencode_is_started_again(tmp_path: Path, started: Started) -> None:
    with busy(tmp_path, started) as (_, pids):
        os.kill(pids[FIRST], signal.SIGKILL)
        started.wait_until_running([AGAIN])
        assert started.survivors(but={AGAIN}) == {AGAIN}
    assert started.survivors() == set()


def test_nothing_is_left_after_an_ordinary_stop(tmp_path: Path, started: Started) -> None:
    with busy(tmp_path, started) as (program, _):
        assert program.stop() == 0
        assert started.running() == {}


def test_what_an_ended_opencode_leaves_is_asked_before_it_is_killed(
    tmp_path: Path, started: Started
) -> None:
    asked = tmp_path / "asked"
    daemon = f"trap 'touch {asked}; exit' TERM; echo > {tmp_path / 'trapped'}; while :; do :; done"
    script = f'setsid sh -c "{daemon}" &\nuntil [ -e {tmp_path / "trapped"} ]; do :; done\n'
    with managed(tmp_path, f"{script}{READY}exec sleep {started.tags[FIRST]}") as program:
        assert program.stop() == 0
    assert asked.exists()


def test_what_has_lost_its_parent_stays_no_zombie(tmp_path: Path) -> None:
    script = "(sh -c 'echo $$ > pid; mv pid orphan' &); exec sleep 300"
    orphan = tmp_path / "orphan"
    with subprocess.Popen(
        [sys.executable, guard.__file__, "mark", "/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    ) as running_guard:
        assert running_guard.stdin is not None
        with running_guard.stdin:
            deadline = time.monotonic() + 30
            while not orphan.exists() or psutil.pid_exists(int(orphan.read_text())):
                assert time.monotonic() < deadline
                time.sleep(0.02)


# As on a system without /proc and prctl, which has no other way to find what it has started.
ELSEWHERE = """
import sys
from opencode_a2a.opencode import guard
guard.IS_LINUX = False
guard.main("mark", sys.argv[1:])
"""


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_elsewhere_all_ends_that_has_not_lost_its_parent(tmp_path: Path, started: Started) -> None:
    script = tmp_path / "script"  # as an argument it would count as running
    script.write_text(f"({started.command}\nwait) &\nexec sleep {started.tags[FIRST]}")
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, "/bin/sh", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        started.wait_until_running([*WAYS, FIRST])
        assert guard.stdin is not None
        guard.stdin.close()
    daemons = {way for way in WAYS if "daemon" in way} | {NEW_PIDS}
    assert started.survivors(but=daemons) <= daemons


@pytest.mark.parametrize("victims", [["guard"], ["guard", FIRST]], ids=str)
def test_the_service_finds_what_a_killed_guard_leaves(
    tmp_path: Path, started: Started, victims: list[str]
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids[name] for name in victims])
        started.wait_until_running([AGAIN])
        expected = {*NOT_FOUND, AGAIN}
        assert started.survivors(but=expected) | {NEW_PIDS} == expected


def test_the_next_start_in_the_same_folder_finds_what_was_left(
    tmp_path: Path, started: Started
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids[name] for name in ("service", "guard")])
    assert started.survivors(but=WAYS) == WAYS.keys()  # the kernel has killed OpenCode
    with managed(tmp_path, f"{READY}exec sleep {started.tags[AGAIN]}") as program:
        started.wait_until_running([AGAIN])
        assert started.running().keys() | {NEW_PIDS} == {*NOT_FOUND, AGAIN}
        assert "opencode.leftovers_killed" in program.output


def test_a_second_service_in_the_same_folder_leaves_the_first_alone(
    tmp_path: Path, started: Started
) -> None:
    with busy(tmp_path, started) as (_, pids):
        with managed(tmp_path, f"{READY}exec sleep {started.tags[AGAIN]}") as second:
            assert "leftovers" not in second.output
        assert started.survivors(but={*WAYS, FIRST}) == {*WAYS, FIRST}
        assert started.running()[FIRST] == {pids[FIRST]}


def test_only_what_carries_a_wanted_mark_is_killed() -> None:
    environments = [{MARK: "ours:/a:b"}, {MARK: "other:/a:b"}, {MARK: "nonsense"}, {}]
    sleepers = [subprocess.Popen(["/bin/sleep", "300"], env=env) for env in environments]
    try:
        assert end_marked("ours:/a:b".__eq__) == [sleepers[0].pid]
        assert [sleeper.poll() for sleeper in sleepers] == [-signal.SIGKILL, None, None, None]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


ABANDONED = """
from opencode_a2a.opencode.guard import end_abandoned
print(end_abandoned("/here"))
"""


def test_the_service_and_the_shell_it_is_started_in_are_not_ended() -> None:
    command = f"{sys.executable} -c '{ABANDONED}'; echo still here"
    env = {**os.environ, MARK: "gone:/here"}
    shell = subprocess.run(
        ["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False
    )
    assert (shell.returncode, shell.stdout) == (0, "[]\nstill here\n")
