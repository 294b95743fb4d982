"""Where a release comes from, and how one is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opencode_a2a.deploy.layout import Instance
from opencode_a2a.deploy.release import (
    OPENCODE,
    Releases,
    check_opencode,
    install_steps,
    opencode_beside,
    source_of,
)
from opencode_a2a.deploy.resources import DeployError
from tests.running import ROOT


def test_a_checkout_is_installed_with_pinned_packages_only() -> None:
    source = source_of(str(ROOT), name=None)
    assert source.name.startswith("0.1.0-")
    packages, own = source.pip
    assert "--require-hashes" in packages
    assert own == ("--no-deps", "--no-build-isolation", str(ROOT))


def test_a_wheel_and_a_version_give_a_release_its_name(tmp_path: Path) -> None:
    wheel = tmp_path / "opencode_a2a-0.2.0-py3-none-any.whl"
    wheel.touch()
    assert source_of(str(wheel), name=None).name == "0.2.0"
    assert source_of("opencode-a2a==0.3.0", name=None).name == "0.3.0"
    assert source_of("opencode-a2a==0.3.0", name="tuesday").name == "tuesday"


@pytest.mark.parametrize(
    ("given", "name"),
    [("nosuch", None), ("opencode_a2a-1-py3-none-any.whl", None), ("opencode-a2a==1", "../etc")],
)
def test_what_is_no_source_or_no_name_is_refused(given: str, name: str | None) -> None:
    with pytest.raises(DeployError):
        source_of(given, name=name)


def test_a_release_is_tried_before_it_is_declared_whole(tmp_path: Path) -> None:
    opencode = tmp_path / "opencode"
    opencode.write_bytes(b"\x7fELF")
    source = source_of("opencode-a2a==1.0", name=None)
    steps = [str(each) for each in install_steps(source, python="python3", opencode=opencode)]
    assert steps[0] == "> rm -rf /opt/opencode-a2a/releases/1.0"  # what an interrupted run has left
    assert "opencode_a2a.deploy.trial" in steps[-2]
    assert "release.json" in steps[-1]


def test_a_release_gets_the_opencode_of_its_checkout(tmp_path: Path) -> None:
    assert opencode_beside(str(tmp_path)) is None
    file = tmp_path / OPENCODE
    file.parent.mkdir(parents=True)
    file.touch()
    assert opencode_beside(str(tmp_path)) == str(file)
    assert opencode_beside("opencode-a2a==0.1.0") is None
    assert opencode_beside(None) is None


def test_a_script_is_not_taken_for_opencode(tmp_path: Path) -> None:
    script = tmp_path / "opencode"
    script.write_text("#!/usr/bin/env node\n")
    with pytest.raises(DeployError, match="no executable for Linux"):
        check_opencode(str(script))


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    for name in ("1.0", "1.1", "2.0", "3.0"):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / "release.json").write_text(
            json.dumps({"opencode": "a", "origin": f"opencode-a2a=={name}"})
        )
    (tmp_path / "current").symlink_to(tmp_path / "releases" / "2.0")
    return Releases(tmp_path / "releases", tmp_path / "current")


def test_a_release_is_removed_only_if_nobody_can_come_to_need_it(releases: Releases) -> None:
    releases.folder("something else").mkdir()
    alpha = Instance(name="alpha", port=1, opencode_port=2, release="1.1", previous="1.0")
    assert (releases.current, releases.own) == ("2.0", None)
    assert releases.unused([alpha], kept=[releases.current]) == ["3.0"]
    assert releases.unused([alpha.switched_to("3.0")], kept=["3.0"]) == ["1.0", "2.0"]


def test_a_name_stands_for_one_source(releases: Releases) -> None:
    assert releases.is_installed(source_of("opencode-a2a==1.0", name=None))
    assert not releases.is_installed(source_of("opencode-a2a==4.0", name=None))
    with pytest.raises(DeployError, match=r"a release 1\.0 already, from opencode-a2a==1\.0"):
        releases.is_installed(source_of("opencode-a2a==4.0", name="1.0"))


def test_an_opencode_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="nosuch: No such file"):
        check_opencode(str(tmp_path / "nosuch"))
