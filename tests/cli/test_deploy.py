"""What `deploy` says where it cannot do what it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opencode_a2a.cli import deploy
from opencode_a2a.cli.deploy import LOCK_VARIABLE, Machine, locked
from opencode_a2a.cli.failure import CommandError
from opencode_a2a.cli.parser import parse
from opencode_a2a.deploy.host import LocalHost
from opencode_a2a.deploy.layout import MANIFEST, Instance
from opencode_a2a.deploy.manifest import Manifest, Record
from opencode_a2a.deploy.release import Releases
from tests.deploy.fake_host import FakeHost


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Run by systemd, with nothing on it."""
    releases = Releases(tmp_path / "releases", tmp_path / "current")
    return Machine(FakeHost(), releases, systemd=tmp_path, lock_directory=tmp_path, user_id=0)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["create", "alpha"],
            "this machine is not prepared: run `opencode-a2a deploy init` first.",
        ),
        (["update", "alpha"], "there is no instance alpha. There are: none."),
        (["status", "alpha"], "there is no instance alpha. There are: none."),
        (["remove", "alpha"], "there is no instance alpha. There are: none."),
        (["rollback"], "there is no release before the present one."),
        (["init", "--from", "nosuch"], "--from nosuch: must be a checkout of opencode-a2a"),
        (["light", "stop", "../x"], "'../x' must be small letters, digits and `-`"),
        (["light", "restart", "demo"], "demo was never started."),
        (["light", "status", "demo"], "demo is not running."),
    ],
)
def test_a_problem_is_said_in_words(
    words: list[str],
    problem: str,
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(CommandError) as said:
        deploy.run(parse(["deploy", *words]), machine)
    assert said.value.code == 1
    assert str(said.value).startswith(problem)


def test_secrets_are_written_only_with_the_explicit_setting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = parse(["deploy", "create", "alpha", "--secret", "KEY"])
    with pytest.raises(CommandError, match="set ENABLE_SECRET_PERSISTENCE=true for that"):
        deploy.run(arguments, machine)
    monkeypatch.setenv("ENABLE_SECRET_PERSISTENCE", "true")
    with pytest.raises(CommandError, match="not prepared"):
        deploy.run(arguments, machine)


@pytest.mark.parametrize("entry", [".", "", "bin", "{}/bin"])
def test_no_program_of_the_current_directory_is_run(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    here = tmp_path / "here"
    for folder in (here, here / "bin"):
        folder.mkdir()
        (folder / "systemctl").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (folder / "systemctl").chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{entry.format(here)}:/usr/bin:/bin")
    deploy.run(parse(["deploy", "list"]), machine)
    LocalHost().active(["nosuch.service"])
    assert not (tmp_path / "ran").exists()


def test_without_systemd_the_other_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="`deploy light` needs none"):
        deploy.run(parse(["deploy", "create", "alpha"]), Machine(systemd=tmp_path / "nosuch"))


@pytest.mark.parametrize("command", [["init", "--release", "one"], ["create", "alpha"]])
def test_a_dry_run_needs_neither_root_nor_systemd(
    machine: Machine,
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no systemctl
    monkeypatch.setenv("ENABLE_SECRET_PERSISTENCE", "true")
    assert LocalHost().active(["some.service"]) == frozenset()
    nothing = tmp_path / "nosuch"
    here = Machine(
        machine.host, machine.releases, systemd=nothing, lock_directory=nothing, user_id=1
    )
    _add_release(machine.releases, "one")
    if command[0] == "create":
        deploy.run(parse(["deploy", "init", "--release", "one", "--yes"]), machine)
    capsys.readouterr()
    deploy.run(parse(["deploy", *command, "--dry-run"]), here)
    shown = capsys.readouterr().out
    assert shown.endswith("Nothing was changed.\n")
    assert "+ directory " in shown


def test_who_is_not_root_sees_the_plan_and_is_told_what_is_missing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = Machine(machine.host, machine.releases, machine.systemd, machine.lock_directory, 1)
    _add_release(machine.releases, "one")
    with pytest.raises(CommandError, match="needs root: use sudo"):
        deploy.run(parse(["deploy", "init", "--release", "one"]), prepared)
    assert "+ directory /opt/opencode-a2a/releases" in capsys.readouterr().out


def test_one_command_runs_at_a_time_and_hands_its_lock_to_those_that_it_calls(
    machine: Machine,
) -> None:
    code = (
        "import pathlib, sys; from opencode_a2a.cli.deploy import Machine, locked\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "with locked(Machine(systemd=here, lock_directory=here)): pass"
    )
    command = [sys.executable, "-c", code, str(machine.lock_directory)]
    with locked(machine):
        lock = int(os.environ[LOCK_VARIABLE])
        subprocess.run(command, pass_fds=[lock], check=True, timeout=120)
        alone = {k: v for k, v in os.environ.items() if k != LOCK_VARIABLE}
        other = subprocess.Popen(command, env=alone)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=3)
    assert other.wait(timeout=120) == 0


def _add_release(releases: Releases, name: str) -> Path:
    """One whose program writes down how it is called; returns where."""
    called = releases.folder(name) / "called"
    program = Path(releases.program(name))
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    program.chmod(0o755)
    about = f'{{"opencode": "x", "origin": "{name}"}}'
    (releases.folder(name) / "release.json").write_text(about)
    return called


def test_the_program_of_its_own_release_updates_an_instance(machine: Machine) -> None:
    """Another one would give it units that its release does not know."""
    called = _add_release(machine.releases, "one")
    alpha = Instance(name="alpha", port=8010, opencode_port=18010, release="one")
    manifest = Manifest().with_record("alpha", Record(alpha))
    assert isinstance(machine.host, FakeHost)
    machine.host.put(MANIFEST, manifest.dump())
    words = ["update", "alpha", "--memory", "2G", "--public-url", "https://a.test", "--yes"]
    deploy.run(parse(["deploy", *words]), machine)
    assert sorted(called.read_text().split()) == sorted(["deploy", *words])
    assert machine.host.ran == []
