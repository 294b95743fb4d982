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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from opencode_a2a.opencode.guardian import MARKER
from opencode_a2a.opencode.leftovers import Marker, kill_marked
from tests.processes import EMPTY_ENVIRONMENT, NEW_PIDS, WAYS, Started, children
from tests.running import ROOT, Program, isolated, running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and subreapers")

READY = 'echo "opencode server listening on http://$3:$5"\n'


# Without any guardian: the one says nothing about its service, the other is found by luck only.
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
        (outer,) = children(service)
        (inner,) = children(outer)
        (opencode,) = started.running()[FIRST]
        assert opencode in children(inner)
        yield program, {"service": service, "outer": outer, "inner": inner, FIRST: opencode}


def kill_at_once(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody can react to the death of another
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.parametrize(
    "victims",
    [["service"], ["service", "outer"], ["service", "inner"], ["service", FIRST]],
    ids=str,
)
def test_nothing_is_left_when_the_service_is_killed(
    tmp_path: Path, started: Started, victims: list[str]
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids[name] for name in victims])
        assert started.survivors() == set()


@pytest.mark.parametrize("victim", [FIRST, "inner", "outer"])
def test_nothing_is_left_when_opencode_is_started_again(
    tmp_path: Path, started: Started, victim: str
) -> None:
    with busy(tmp_path, started) as (_, pids):
        os.kill(pids[victim], signal.SIGKILL)
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


# As on a system without /proc and prctl, which has no other way to find what it has started.
ELSEWHERE = """
import sys
from opencode_a2a.opencode import guardian
guardian.IS_LINUX = False
guardian.main("marker", sys.argv[1:])
"""


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_elsewhere_all_ends_that_has_not_lost_its_parent(started: Started) -> None:
    script = f"({started.command}\nwait) &\nexec sleep {started.tags[FIRST]}"
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, "/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as guardian:
        started.wait_until_running([*WAYS, FIRST])
        assert guardian.stdin is not None
        guardian.stdin.close()
    daemons = {way for way in WAYS if "daemon" in way} | {NEW_PIDS}
    assert started.survivors(but=daemons) <= daemons


def test_the_service_finds_what_two_killed_guardians_leave(
    tmp_path: Path, started: Started
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids["outer"], pids["inner"]])
        started.wait_until_running([AGAIN])
        expected = {*NOT_FOUND, AGAIN}
        assert started.survivors(but=expected) | {NEW_PIDS} == expected


def test_the_next_start_in_the_same_folder_finds_what_was_left(
    tmp_path: Path, started: Started
) -> None:
    with busy(tmp_path, started) as (_, pids):
        kill_at_once([pids[name] for name in ("service", "outer", "inner")])
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


def test_a_marker_is_abandoned_only_if_its_service_is_certain_to_have_ended() -> None:
    ours = Marker.new(Path("/here"))
    assert Marker.parse(str(ours)) == ours
    assert not ours.is_abandoned(Path("/here"))
    gone = replace(ours, started=ours.started - 1)  # another process has the pid now
    assert gone.is_abandoned(Path("/here"))
    assert not gone.is_abandoned(Path("/elsewhere"))
    assert not replace(gone, namespace=1).is_abandoned(Path("/here"))


@pytest.mark.parametrize("text", ["", "1", "1:2:3:4", "a:b:c:d:/here"])
def test_a_marker_that_nobody_wrote_is_none(text: str) -> None:
    assert Marker.parse(text) is None


def test_only_what_carries_a_wanted_marker_is_killed() -> None:
    ours, other = Marker.new(Path("/a:b")), Marker.new(Path("/a:b"))
    environments = [{MARKER: str(ours)}, {MARKER: str(other)}, {MARKER: "nonsense"}, {}]
    sleepers = [subprocess.Popen(["/bin/sleep", "300"], env=env) for env in environments]
    try:
        assert kill_marked(lambda marker: marker == ours) == [sleepers[0].pid]
        assert [sleeper.poll() for sleeper in sleepers] == [-signal.SIGKILL, None, None, None]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


ABANDONED = """
from pathlib import Path
from opencode_a2a.opencode.leftovers import kill_marked
print(kill_marked(lambda marker: marker.is_abandoned(Path("/here"))))
"""


def test_the_service_and_the_shell_it_is_started_in_are_no_leftovers() -> None:
    gone = replace(Marker.new(Path("/here")), started=1)
    command = f"{sys.executable} -c '{ABANDONED}'; echo still here"
    env = {**os.environ, MARKER: str(gone)}
    shell = subprocess.run(
        ["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False
    )
    assert (shell.returncode, shell.stdout) == (0, "[]\nstill here\n")
