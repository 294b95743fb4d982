"""Where a release comes from, and how one is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from opencode_a2a.cli import deploy, executable
from opencode_a2a.cli.deploy import Machine
from opencode_a2a.cli.failure import CommandError
from opencode_a2a.cli.parser import parse
from opencode_a2a.deploy.layout import Instance
from opencode_a2a.deploy.release import (
    OPENCODE,
    Releases,
    Source,
    check_opencode,
    install_steps,
    opencode_beside,
    source_of,
)
from opencode_a2a.deploy.resources import DeployError
from tests.deploy.fake_host import FakeHost
from tests.running import ROOT


def a_wheel(folder: Path, requirements: str | None = "httpx==1 --hash=sha256:ab\n") -> Path:
    path = folder / "opencode_a2a-0.2.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr("opencode_a2a/__init__.py", "")
        if requirements is not None:
            archive.writestr("opencode_a2a/requirements/run.txt", requirements)
    return path


def steps_of(source: Source, tmp_path: Path) -> list[str]:
    opencode = tmp_path / "opencode"
    opencode.write_bytes(b"\x7fELF")
    return [str(each) for each in install_steps(source, python="python3", opencode=opencode)]


@pytest.mark.parametrize("kind", ["checkout", "wheel"])
def test_every_package_of_a_release_has_a_hash_and_none_is_looked_up_by_our_name(
    tmp_path: Path, kind: str
) -> None:
    source = source_of(str(ROOT if kind == "checkout" else a_wheel(tmp_path)), name=None)
    packages, own = (
        each for each in steps_of(source, tmp_path) if " install " in each and "pip" in each
    )
    assert "--require-hashes" in packages
    assert "--no-index" in own
    assert "--no-deps" in own
    if kind == "wheel":
        assert source.name == "0.2.0"
        assert "-r /opt/opencode-a2a/releases/0.2.0/requirements.txt" in packages
        assert "httpx==1 --hash=sha256:ab" in (source.requirements or "")
        assert f"#sha256={source.origin}" in own
    else:
        assert source.name.startswith("0.1.0-")
        assert f"-r {ROOT}/requirements/run.txt" in packages
        assert f"--no-build-isolation {ROOT}" in own


def test_a_release_can_have_a_name_of_its_own(tmp_path: Path) -> None:
    assert source_of(str(a_wheel(tmp_path)), name="tuesday").name == "tuesday"


def test_a_wheel_of_this_checkout_has_the_hashes_of_its_packages(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    pinned = (ROOT / "requirements" / "run.txt").read_text()
    assert source_of(str(wheel), name=None).requirements == pinned


def test_a_wheel_without_hashes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="no list of its packages with their hashes"):
        source_of(str(a_wheel(tmp_path, requirements=None)), name=None)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("nosuch", None),
        ("opencode_a2a-1-py3-none-any.whl", None),
        ("opencode-a2a", None),
        ("opencode-a2a==0.3.0", None),
        (str(ROOT), "../etc"),
    ],
)
def test_what_is_no_source_or_no_name_is_refused(given: str, name: str | None) -> None:
    with pytest.raises(DeployError):
        source_of(given, name=name)


def test_without_a_checkout_it_has_to_be_said_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable, "CHECKOUT", tmp_path)  # as in an installed program
    releases = Releases(tmp_path / "releases", tmp_path / "current")
    machine = Machine(FakeHost(), releases, systemd=tmp_path, lock_directory=tmp_path, user_id=0)
    for command in ("init", "upgrade"):
        with pytest.raises(CommandError, match="--from with a checkout"):
            deploy.run(parse(["deploy", command]), machine)


def test_what_is_installed_does_not_depend_on_the_current_directory(tmp_path: Path) -> None:
    steps = steps_of(source_of(str(a_wheel(tmp_path)), name=None), tmp_path)
    assert [each for each in steps if "python" in each and " -I -m " not in each] == []


def test_a_release_is_tried_before_it_is_declared_whole(tmp_path: Path) -> None:
    steps = steps_of(source_of(str(a_wheel(tmp_path)), name="1.0"), tmp_path)
    assert steps[0] == "> rm -rf /opt/opencode-a2a/releases/1.0"  # what an interrupted run has left
    assert "opencode_a2a.deploy.trial" in steps[-2]
    assert "release.json" in steps[-1]


def test_a_release_gets_the_opencode_of_its_checkout(tmp_path: Path) -> None:
    assert opencode_beside(str(tmp_path)) is None
    file = tmp_path / OPENCODE
    file.parent.mkdir(parents=True)
    file.touch()
    assert opencode_beside(str(tmp_path)) == str(file)
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
            json.dumps({"opencode": "a", "origin": name})
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
    assert releases.is_installed(Source("1.0", "1.0", (), ()))
    assert not releases.is_installed(Source("4.0", "4.0", (), ()))
    with pytest.raises(DeployError, match=r"a release 1\.0 already, from 1\.0"):
        releases.is_installed(Source("1.0", "4.0", (), ()))


def test_an_opencode_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="nosuch: No such file"):
        check_opencode(str(tmp_path / "nosuch"))
