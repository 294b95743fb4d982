"""The OpenCode executable: where it may be, and how to install one for this program alone.

The version that this release is tested with, and the hashes of its packages, are those of
`package.json` and `package-lock.json`: the package has links to those of the checkout, and a wheel
has copies.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..paths import make_private_directory, state_home
from . import progress
from .failure import CommandError

NAME = "opencode"  # what OPENCODE_COMMAND is unless somebody sets it
BELOW = Path("node_modules", ".bin", NAME)
CHECKOUT = Path(__file__).parents[3]  # where this package is used from its sources
PACKAGES = Path(__file__).parents[1] / "npm"
LISTS = ("package.json", "package-lock.json")


def find(command: str) -> str:
    """The executable to start: what was configured, or the first OpenCode that is found."""
    if command != NAME:
        return command
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise CommandError(
        "OpenCode was not found: not in PATH, nor in node_modules of this directory. "
        f"`opencode-a2a up --install-opencode` installs version {tested_version()} for this "
        "program alone, and `npm install -g opencode-ai` installs it for you; if you have one "
        "elsewhere, set OPENCODE_COMMAND to its path."
    )


def _candidates() -> Iterator[Path]:
    if found := shutil.which(NAME):
        yield Path(found).absolute()
    yield Path.cwd() / BELOW
    if (CHECKOUT / "pyproject.toml").is_file():
        yield CHECKOUT / BELOW
    yield _own_folder() / BELOW


def tested_version() -> str:
    versions: dict[str, dict[str, str]] = json.loads((PACKAGES / LISTS[0]).read_text())
    return versions["dependencies"]["opencode-ai"]


def install() -> str:
    """Install the tested OpenCode into the state directory; the path of its executable."""
    npm = shutil.which("npm")
    if npm is None:
        raise CommandError(
            "npm was not found, and OpenCode is installed with it. Install Node.js 20 or newer "
            "(https://nodejs.org, or your system's packages), then run the same command again."
        )
    target = _own_folder()
    fresh = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
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
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    except OSError as exc:
        raise CommandError(f"cannot write to {exc.filename}: {exc.strerror}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return str(target / BELOW)


def _own_folder() -> Path:
    try:
        return state_home() / NAME
    except RuntimeError as exc:
        raise CommandError(f"there is no directory to keep state in: {exc}") from None
