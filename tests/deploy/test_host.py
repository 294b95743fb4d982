"""This machine: what is found is what was made, for whoever runs the tests."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from opencode_a2a.deploy.host import LocalHost
from opencode_a2a.deploy.resources import (
    Change,
    Command,
    DeployError,
    Directory,
    Entry,
    File,
    Link,
    Make,
    Remove,
    Resource,
)

OWNER = f"{pwd.getpwuid(os.getuid()).pw_name}:{grp.getgrgid(os.getgid()).gr_name}"


def test_what_was_made_is_found_and_can_be_removed(tmp_path: Path) -> None:
    host = LocalHost()
    resources: list[Resource] = [
        Directory(f"{tmp_path}/d", 0o750, OWNER),
        File(f"{tmp_path}/d/f", "content", 0o640, OWNER),
        Link(f"{tmp_path}/l", f"{tmp_path}/d"),
    ]
    assert host.find(resources) == {}
    for resource in resources:
        assert host.perform(Make(resource)) is None
    assert host.find(resources) == {resource.key: resource for resource in resources}
    assert (
        host.perform(Remove(Entry.of(resources[0]))) == f"{tmp_path}/d is left: Directory not empty"
    )
    for resource in reversed(resources):
        assert host.perform(Remove(Entry.of(resource))) is None
    assert list(tmp_path.iterdir()) == []


def test_only_the_rights_of_a_file_of_the_operator_are_mended(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("theirs")
    LocalHost().perform(Change(File(str(path), "ours", 0o600, OWNER, is_operators=True)))
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("theirs", 0o600)


def test_a_command_that_fails_is_quoted_with_its_words() -> None:
    with pytest.raises(DeployError, match=r"failed with code 3:\nno space"):
        LocalHost().perform(Command(("sh", "-c", "echo no space; exit 3")))
    assert LocalHost().perform(Command(("false",), may_fail=True)) is None


def test_what_a_command_makes_can_be_read_by_instances_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)  # as after the secrets were written
    try:
        LocalHost().perform(Command(("mkdir", f"{tmp_path}/release")))
    finally:
        os.umask(before)
    assert (tmp_path / "release").stat().st_mode & 0o777 == 0o755


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    assert LocalHost().secrets(str(tmp_path / "nosuch")) == {}
    (tmp_path / "A2A_BEARER_TOKEN").write_text("x")
    (tmp_path / "A2A_BEARER_TOKEN").chmod(0o644)
    with pytest.raises(DeployError, match="chmod 600"):
        LocalHost().secrets(str(tmp_path))


def test_deploying_needs_no_packages() -> None:
    """A fresh machine has none: the command runs from a checkout with any Python."""
    code = "import opencode_a2a.cli.deploy, sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
