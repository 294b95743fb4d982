"""The OpenCode executable: where it may be, and how to install one for this program alone.

The version that this release is tested with, and the hashes of its packages, are those of
`package.json` and `package-lock.json`: the package has links to those of the checkout, and a wheel
has copies.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..paths import lies_in, make_private_directory, program_path, state_home
from . import progress
from .failure import CommandError

NAME = "opencode"  # what OPENCODE_COMMAND is unless somebody sets it
BELOW = Path("node_modules", ".bin", NAME)
CHECKOUT = Path(__file__).parents[3]  # where this package is used from its sources
PACKAGES = Path(__file__).parents[1] / "npm"
LISTS = ("package.json", "package-lock.json")
LEFTOVER = re.compile(rf"{NAME}\.[0-9a-f]{{8}}")  # no root has a folder of such a name


def find(command: str, project: Path) -> str:
    """The executable to start: what was configured, or the first OpenCode outside the workspace.

    The agent, and whoever wrote a repository, can put a program anywhere in the workspace.
    """
    if command != NAME:
        return command
    for path in _candidates(project):
        if path.is_file() and os.access(path, os.X_OK) and not lies_in(path.parent, project):
            return str(path)
    raise CommandError(
        f"OpenCode was not found in PATH; what is inside {project} does not count. "
        f"`opencode-a2a up --install-opencode` installs version {tested_version()} for this "
        "program alone, and `npm install -g opencode-ai` installs it for you; if you have one "
        "elsewhere, set OPENCODE_COMMAND to its path."
    )


def _candidates(project: Path) -> Iterator[Path]:
    if found := shutil.which(NAME, path=program_path(outside=project)):
        yield Path(found)
    if (CHECKOUT / "pyproject.toml").is_file():
        yield CHECKOUT / BELOW
    yield _own_folder() / BELOW


def tested_version() -> str:
    versions: dict[str, dict[str, str]] = json.loads((PACKAGES / LISTS[0]).read_text())
    return versions["dependencies"]["opencode-ai"]


def install(project: Path) -> str:
    """Install the tested OpenCode into the state directory; the path of its executable.

    npm is not taken from the workspace `project`.
    """
    target = _own_folder()
    try:
        with _alone(target):
            for left in target.parent.iterdir():  # by one that was killed
                if LEFTOVER.fullmatch(left.name):
                    shutil.rmtree(left, ignore_errors=True)
            if _installed_version(target) != tested_version():
                _install(target, project)
    except OSError as exc:
        where = exc.filename or target.parent
        raise CommandError(f"cannot write to {where}: {exc.strerror}") from None
    return str(target / BELOW)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Wait for whoever else installs; the kernel releases the lock however a process ends."""
    make_private_directory(target.parent)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed_version(target: Path) -> str | None:
    if not os.access(target / BELOW, os.X_OK):
        return None
    try:
        about = json.loads((target / "node_modules" / "opencode-ai" / "package.json").read_text())
    except (OSError, ValueError):
        return None
    return str(about.get("version"))


def _install(target: Path, project: Path) -> None:
    npm = shutil.which("npm", path=program_path(outside=project))
    if npm is None:
        raise CommandError(
            "npm was not found, and OpenCode is installed with it. Install Node.js 20 or newer "
            "(https://nodejs.org, or your system's packages), then run the same command again."
        )
    fresh, old = (target.with_name(f"{NAME}.{secrets.token_hex(4)}") for _ in range(2))
    try:
        make_private_directory(fresh)
        for name in LISTS:
            shutil.copyfile(PACKAGES / name, fresh / name)
        command = [npm, "ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]
        label = f"OpenCode {tested_version()}"
        code = progress.run(label, [*command, "--prefix", str(fresh)], directory=fresh)
        if code != 0:
            raise CommandError(
                "npm could not install OpenCode; its own words are above. Nothing was changed."
            )
        with suppress(FileNotFoundError):  # the first time
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _own_folder() -> Path:
    try:
        return state_home() / NAME
    except RuntimeError as exc:
        raise CommandError(f"there is no directory to keep state in: {exc}") from None
