"""The token that `up` makes for a workspace root and keeps in the state directory of that root."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from ..paths import folder_name, state_folder, state_home, tighten
from .failure import CommandError

FILE = "token"
BYTES = 24


def kept_token(root: Path) -> str:
    """The token of this root; made if there is none. OSError, RuntimeError: it cannot be kept."""
    file = state_folder(root) / FILE
    tighten(file)
    return _read(file) or _write(file, replace=False)


def new_token(root: Path) -> str:
    """Another token instead of the one that is kept."""
    return _write(state_folder(root) / FILE, replace=True)


def find_token(directory: Path) -> str | None:
    """The token of the nearest workspace root that has one: the directory, or one above it."""
    home = state_home()
    for root in (directory, *directory.parents):
        if token := _read(home / folder_name(root) / FILE):
            return token
    return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write(file: Path, *, replace: bool) -> str:
    """Write a new token, whole or not at all; without `replace` one that is there stays."""
    token = secrets.token_urlsafe(BYTES)
    fresh = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(token + "\n")
        if replace:
            fresh.replace(file)
        else:
            file.hardlink_to(fresh)
    except FileExistsError:  # another process was first
        return _read(file) or token
    finally:
        fresh.unlink(missing_ok=True)
    return token


def show(directory: Path, *, new: bool) -> Sequence[str]:
    """The command `token`: the lines to print."""
    try:
        token = new_token(directory) if new else find_token(directory)
    except OSError as exc:
        raise CommandError(f"{exc.filename}: {exc.strerror}") from None
    except RuntimeError as exc:
        raise CommandError(f"there is no directory to keep state in: {exc}") from None
    if token is None:
        raise CommandError(
            f"no token is kept for {directory}. `opencode-a2a up` makes one when it first starts "
            "there, unless A2A_BEARER_TOKEN or A2A_STATIC_AUTH_CREDENTIALS is set."
        )
    return [token]
