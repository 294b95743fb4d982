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
from zipfile import BadZipFile, ZipFile

from .layout import CURRENT, RELEASES, Instance
from .resources import Command, DeployError, File, Make, Step

PACKED_PINS = "opencode_a2a/requirements/run.txt"  # in a wheel
PINS = ("requirements/run.txt", "requirements/build.txt")
RELEASE_NAME = re.compile(r"[\w][\w.+-]{0,80}")
OPENCODE = "node_modules/opencode-ai/bin/opencode.exe"  # where npm puts it, in a checkout
WHEEL = re.compile(r"opencode_a2a-([^-]+)-.*\.whl")
UNREACHABLE = ("/root/", "/home/", "/tmp/", "/run/user/")  # for the units


@dataclass(frozen=True, slots=True)
class Source:
    """Where a release comes from."""

    name: str  # of the release
    origin: str  # tells it from others: a directory, or the digest of a wheel
    packages: tuple[str, ...]  # arguments of `pip install` for the packages it needs, with hashes
    own: tuple[str, ...]  # and for itself
    requirements: str | None = None  # to be written for them, into the directory of the release


def source_of(given: str, *, name: str | None) -> Source:
    """A checkout or a wheel, each with the hashes of every package that it needs.

    Never a name for pip to look up: `opencode-a2a` in the public index belongs to somebody else.
    """
    path = Path(given).resolve()
    if (path / "pyproject.toml").is_file():
        packages = tuple(word for file in PINS for word in ("-r", str(path / file)))
        own = ("--no-build-isolation", str(path))
        return Source(check_name(name or _checkout_name(path)), str(path), packages, own)
    if wheel := WHEEL.fullmatch(path.name):
        own_digest = digest(path) if path.is_file() else None
        if own_digest is None:
            raise DeployError(f"{given}: there is no such file.")
        exactly = f"{path.as_uri()}#sha256={own_digest}"
        requirements = _requirements_in(path)
        return Source(check_name(name or wheel[1]), own_digest, (), (exactly,), requirements)
    raise DeployError(
        f"--from {given}: must be a checkout of opencode-a2a, or a wheel built from one "
        "(opencode_a2a-*.whl)."
    )


def _requirements_in(wheel: Path) -> str:
    try:
        with ZipFile(wheel) as archive:
            return archive.read(PACKED_PINS).decode()
    except (KeyError, BadZipFile, UnicodeDecodeError):
        raise DeployError(
            f"{wheel} has no list of its packages with their hashes. Build the wheel from a newer "
            "checkout, or name a checkout with --from."
        ) from None


def check_name(name: str) -> str:
    if not RELEASE_NAME.fullmatch(name):
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


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases on this machine. Only reads; what changes is a step for somebody to perform."""

    path: Path = Path(RELEASES)
    current_link: Path = Path(CURRENT)

    def folder(self, release: str) -> Path:
        return self.path / release

    def program(self, release: str) -> str:
        return str(self.folder(release) / "bin" / "opencode-a2a")

    @property
    def own(self) -> str | None:
        """The release that this program belongs to."""
        prefix = Path(sys.prefix)
        return prefix.name if prefix.parent == self.path else None

    @property
    def current(self) -> str | None:
        """The release that new instances get."""
        try:
            return self.current_link.readlink().name
        except OSError:
            return None

    def opencode_of(self, release: str) -> str | None:
        """The digest of its OpenCode; None where the release is not there, or not whole."""
        return self._about(release).get("opencode")

    def is_installed(self, source: Source) -> bool:
        """Whether the release is there; `DeployError` where another one has its name."""
        about = self._about(source.name)
        if about.get("origin", source.origin) != source.origin:
            raise DeployError(
                f"there is a release {source.name} already, from {about['origin']}. Give this one "
                "another name with --release."
            )
        return bool(about)

    def unused(self, instances: Iterable[Instance], *, kept: Iterable[str | None]) -> list[str]:
        """The releases that no instance runs or goes back to, besides those that are kept."""
        used = {*kept, *(name for each in instances for name in (each.release, each.previous))}
        there = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(e.name for e in there if e.name not in used and self._about(e.name))

    def _about(self, release: str) -> dict[str, str]:
        """What was written down when the release was whole; nothing if it is not."""
        try:
            about = json.loads((self.folder(release) / "release.json").read_text())
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) and "opencode" in about else {}


def install_steps(source: Source, *, python: str, opencode: Path) -> list[Step]:
    """The release is whole when its last file is there. A part of one is removed first."""
    target = f"{RELEASES}/{source.name}"
    # Isolated (-I): a folder called `pip` or `venv` in the current directory is not taken for them.
    pip = (f"{target}/bin/python", "-I", "-m", "pip", "--disable-pip-version-check", "install")
    hashed = ("--quiet", "--require-hashes", "--only-binary", ":all:")
    packages, write = source.packages, list[Step]()
    if source.requirements is not None:
        list_of_packages = File(f"{target}/requirements.txt", source.requirements)
        packages, write = ("-r", list_of_packages.path), [Make(list_of_packages)]
    about = json.dumps({"opencode": digest(opencode), "origin": source.origin}) + "\n"
    return [
        Command(("rm", "-rf", target)),
        Command((python, "-I", "-m", "venv", target)),
        *write,
        Command((*pip, *hashed, *packages)),
        Command((*pip, "--quiet", "--no-index", "--no-deps", *source.own)),
        Command(("install", "-m", "755", str(opencode), f"{target}/bin/opencode")),
        _trial_step(target),
        Make(File(f"{target}/release.json", about)),
    ]


def _trial_step(release: str) -> Command:
    """Both programs of the release answer a question, as a user that exists only for this."""
    properties = ("DynamicUser=yes", "PrivateTmp=yes", "WorkingDirectory=/tmp")
    options = [word for each in properties for word in ("-p", each)]
    command = (f"{release}/bin/python", "-I", "-m", "opencode_a2a.deploy.trial")
    return Command(("systemd-run", "--pipe", "--wait", "--collect", "--quiet", *options, *command))


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
    try:
        with found.open("rb") as file:
            is_program = file.read(4) == b"\x7fELF"
    except OSError as exc:
        raise DeployError(f"--opencode {path}: {exc.strerror}.") from None
    if not is_program:
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
    real = _output(python, "import os, sys; print(os.path.realpath(sys.executable))")
    if real.startswith(UNREACHABLE):
        raise DeployError(f"{real} is out of reach for the instances. Name another with --python.")
    if not _is_new_enough(python):
        raise DeployError(f"{python} is older than 3.11. Name another with --python.")
    if _output(python, "import ensurepip, venv; print(1)") != "1":
        raise DeployError(f"{python} cannot make virtual environments: install python3-venv.")
    return python


def _is_new_enough(python: str) -> bool:
    return _output(python, "import sys; print(sys.version_info >= (3, 11))") == "True"


def _output(python: str, code: str) -> str:
    try:
        done = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=False
        )
    except OSError as exc:
        raise DeployError(f"{python} cannot be run: {exc.strerror}.") from None
    return done.stdout.strip()
