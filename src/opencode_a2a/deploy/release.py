"""Releases: each is a directory with the service and the OpenCode it works with.

Releases stand beside each other, so that the old one is there until the new one has shown that it
works, and afterwards to go back to.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .layout import RELEASES, Instance
from .things import DeployError, File, Make, Run, Step

PINS = ("requirements/run.txt", "requirements/build.txt")
NAME = re.compile(r"[\w][\w.+-]{0,80}")
OPENCODE = "node_modules/opencode-ai/bin/opencode.exe"  # where npm puts it, in a checkout
WHEEL = re.compile(r"opencode_a2a-([^-]+)-.*\.whl")
UNREACHABLE = ("/root/", "/home/", "/tmp/", "/run/user/")  # for the units


@dataclass(frozen=True, slots=True)
class Source:
    """Where a release comes from."""

    name: str  # of the release
    pip: tuple[tuple[str, ...], ...]  # arguments of `pip install`, one after the other


def source_of(given: str, *, name: str | None) -> Source:
    """A checkout, a wheel or `opencode-a2a==VERSION`. A checkout pins every package by its hash."""
    path = Path(given)
    if (path / "pyproject.toml").is_file():
        pinned = ["--require-hashes", "--only-binary", ":all:"]
        for file in PINS:
            pinned += ["-r", str(path.resolve() / file)]
        own = ("--no-deps", "--no-build-isolation", str(path.resolve()))
        return Source(_checked(name or _checkout_name(path)), (tuple(pinned), own))
    if wheel := WHEEL.fullmatch(path.name):
        if not path.is_file():
            raise DeployError(f"{given}: there is no such file.")
        return Source(_checked(name or wheel[1]), ((str(path.resolve()),),))
    if given.startswith("opencode-a2a=="):
        return Source(_checked(name or given.partition("==")[2]), ((given,),))
    raise DeployError(
        f"--from {given}: must be a checkout, a wheel (opencode_a2a-*.whl) or opencode-a2a==X."
    )


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise DeployError(f"{name!r} cannot be the name of a release.")
    return name


def _checkout_name(path: Path) -> str:
    """The version and the commit; with the time if there are changes that are not committed."""
    text = (path / "src" / "opencode_a2a" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "([^"]+)"', text)
    done = subprocess.run(
        ["git", "-C", str(path), "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = done.stdout.strip()
    if not commit or commit.endswith("-dirty"):
        commit = (commit.removesuffix("dirty") or "at-") + time.strftime("%Y%m%d-%H%M%S")
    return f"{version[1] if version else '0'}-{commit}"


def folder(release: str) -> Path:
    return Path(RELEASES, release)


def installed(release: str) -> str | None:
    """The digest of the release's OpenCode; None where the release is not there, or not whole."""
    try:
        return str(json.loads((folder(release) / "release.json").read_text())["opencode"])
    except (OSError, ValueError, KeyError):
        return None


def unused(instances: Iterable[Instance], *, current: str) -> list[str]:
    """The releases that no instance runs, goes back to, or would get if it were made now."""
    used = {current} | {
        name for each in instances for name in (each.release, each.previous) if name
    }
    return sorted(each.name for each in Path(RELEASES).iterdir() if each.name not in used)


def program(release: str) -> str:
    return str(folder(release) / "bin" / "opencode-a2a")


def install_steps(source: Source, *, python: str, opencode: Path) -> list[Step]:
    """The release is whole when its last file is there. A part of one is removed first."""
    target = folder(source.name)
    pip = (f"{target}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    about = json.dumps({"opencode": digest(opencode)}) + "\n"
    return [
        Run(("rm", "-rf", str(target))),
        Run((python, "-m", "venv", str(target))),
        *(Run((*pip, *arguments)) for arguments in source.pip),
        Run(("install", "-m", "755", str(opencode), f"{target}/bin/opencode")),
        trial_step(source.name),
        Make(File(f"{target}/release.json", about)),
    ]


def trial_step(release: str) -> Run:
    """Both programs of the release answer a question, as a user that exists only for this."""
    properties = ("DynamicUser=yes", "PrivateTmp=yes", "WorkingDirectory=/tmp")
    options = [word for each in properties for word in ("-p", each)]
    command = (f"{folder(release)}/bin/python", "-I", "-m", "opencode_a2a.deploy.trial")
    return Run(("systemd-run", "--pipe", "--wait", "--collect", "--quiet", *options, *command))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opencode_beside(given: str | None) -> str | None:
    """The OpenCode that `npm ci` has put into a checkout: the version it was tested with."""
    found = Path(given or "", OPENCODE)
    return str(found) if given and found.is_file() else None


def check_opencode(path: str) -> Path:
    """The program itself: what npm puts into PATH may be a link to it."""
    found = Path(path).resolve()
    with found.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise DeployError(
                f"{found} is no executable for Linux. Name OpenCode's own with --opencode; npm "
                f"installs it as {OPENCODE}."
            )
    return found


def check_python(given: str | None) -> str:
    """A Python that the units can reach, with what makes virtual environments."""
    python = given or next(
        (p for p in ("/usr/bin/python3", sys.executable) if _is_new_enough(p)), sys.executable
    )
    real = _say(python, "import os, sys; print(os.path.realpath(sys.executable))")
    if real.startswith(UNREACHABLE):
        raise DeployError(f"{real} is out of reach for the instances. Name another with --python.")
    if not _is_new_enough(python):
        raise DeployError(f"{python} is older than 3.11. Name another with --python.")
    if _say(python, "import ensurepip, venv; print(1)") != "1":
        raise DeployError(f"{python} cannot make virtual environments: install python3-venv.")
    return python


def _is_new_enough(python: str) -> bool:
    return _say(python, "import sys; print(sys.version_info >= (3, 11))") == "True"


def _say(python: str, code: str) -> str:
    try:
        done = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=False
        )
    except OSError as exc:
        raise DeployError(f"{python} cannot be run: {exc.strerror}.") from None
    return done.stdout.strip()
