"""What `deploy` says where it cannot do what it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opencode_a2a.cli import deploy, main
from opencode_a2a.deploy.layout import Instance
from opencode_a2a.deploy.manifest import Manifest, Record
from tests.cli.commands import Ran, called

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by systemd, with nothing on it; whoever runs the tests is root nowhere."""
    monkeypatch.setattr(deploy, "RUNNING_SYSTEMD", tmp_path)
    monkeypatch.setattr(deploy, "LOCKED", str(tmp_path))
    monkeypatch.setattr("opencode_a2a.deploy.operator.MANIFEST", str(tmp_path / "manifest.json"))
    monkeypatch.setattr("opencode_a2a.deploy.operator.CURRENT", str(tmp_path / "current"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def said(capsys: Capture, *words: str, **settings: str) -> Ran:
    return called(main, ["deploy", *words], settings, capsys)


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
        (["init", "--from", "nosuch"], "--from nosuch: must be a checkout, a wheel"),
        (["light", "stop", "../x"], "'../x' must be small letters, digits and `-`"),
        (["light", "restart", "demo"], "demo was never started."),
        (["light", "status", "demo"], "demo is not running."),
    ],
)
def test_a_problem_is_said_in_words(words: list[str], problem: str, capsys: Capture) -> None:
    ran = said(capsys, *words)
    assert ran.code == 1
    assert ran.problems[0].startswith(problem)


def test_secrets_are_written_only_with_the_explicit_setting(capsys: Capture) -> None:
    ran = said(capsys, "create", "alpha", "--secret", "KEY")
    assert ran.problems == [
        "--secret writes secrets to disk: set ENABLE_SECRET_PERSISTENCE=true for that."
    ]
    ran = said(capsys, "create", "alpha", "--secret", "KEY", ENABLE_SECRET_PERSISTENCE="true")
    assert "not prepared" in ran.problems[0]


def test_without_systemd_the_other_way_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deploy, "RUNNING_SYSTEMD", tmp_path / "nosuch")
    assert "`deploy light` needs none" in said(capsys, "create", "alpha").err


def test_one_command_runs_at_a_time_and_hands_its_lock_to_those_that_it_calls(
    tmp_path: Path,
) -> None:
    code = (
        "import pathlib, sys; from opencode_a2a.cli import deploy\n"
        "deploy.LOCKED, deploy.RUNNING_SYSTEMD = sys.argv[1], pathlib.Path(sys.argv[1])\n"
        "with deploy.locked(): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with deploy.locked():
        lock = int(os.environ[deploy.LOCK_VARIABLE])
        subprocess.run(command, pass_fds=[lock], check=True, timeout=120)
        alone = {k: v for k, v in os.environ.items() if k != deploy.LOCK_VARIABLE}
        other = subprocess.Popen(command, env=alone)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=3)
    assert other.wait(timeout=120) == 0


@pytest.fixture
def three_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their releases, with programs that write down how they are called. That of beta fails."""
    releases = tmp_path / "releases"
    monkeypatch.setattr("opencode_a2a.deploy.release.RELEASES", str(releases))
    monkeypatch.setattr("opencode_a2a.deploy.release.CURRENT", str(tmp_path / "current"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("one", "two", "three"):
        program = releases / name / "bin" / "opencode-a2a"
        program.parent.mkdir(parents=True)
        program.write_text(
            f'#!/bin/sh\necho "{name}: $*" >>{tmp_path}/called\n'
            'case "$*" in *beta*) exit 1 ;; esac\n'
        )
        program.chmod(0o755)
        about = {"opencode": "x", "origin": f"opencode-a2a=={name}"}
        (releases / name / "release.json").write_text(json.dumps(about))
    (tmp_path / "current").symlink_to(releases / "three")
    manifest = Manifest()
    for number, name in enumerate(("alpha", "beta", "gamma")):
        instance = Instance(
            name=name, port=8010 + number, opencode_port=18010 + number, release="two"
        )
        manifest = manifest.with_record(name, Record(replace(instance, previous="one")))
    (tmp_path / "manifest.json").write_text(manifest.dump())
    return tmp_path / "called"


def test_one_instance_that_cannot_go_back_does_not_keep_the_others_from_it(
    three_instances: Path, capsys: Capture
) -> None:
    ran = said(capsys, "rollback", "--yes", "--no-question")
    assert ran.code == 1
    assert ran.problems[-1] == "these could not go back, or do not work: beta."
    assert three_instances.read_text().splitlines() == [
        f"one: deploy update {name} --release one --no-question --yes"
        for name in ("alpha", "beta", "gamma")
    ]


def test_the_upgrade_of_one_instance_leaves_the_current_release(three_instances: Path) -> None:
    given = ("--from", "opencode-a2a==one", "--release", "one", "--yes")
    main(["deploy", "upgrade", *given, "gamma"])
    assert three_instances.read_text() == "one: deploy update gamma --release one --yes\n"
    assert (three_instances.parent / "releases" / "three").is_dir()
