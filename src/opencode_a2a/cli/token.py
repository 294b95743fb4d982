"""The token that `up` makes for a workspace root and keeps in the state directory of that root."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from ..paths import folder_name, name_new_file, state_folder, state_home, tighten
from .failure import CommandError

FILE = "token"
BYTES = 24


def kept_token(root: Path) -> str:
    """The token of this root; made if there is none. OSError, RuntimeError: it cannot be kept."""
    file = state_folder(root) / FILE
    tighten(file)
    return _read(file) or _write(file, replace=False)


def find_token(directory: Path) -> str | None:
    """The token of the nearest workspace root that keeps one."""
    root = _root_of(directory)
    return _read(_file_of(root)) if root is not None else None


def _root_of(directory: Path) -> Path | None:
    """The nearest workspace root that keeps a token: the directory, or one above it."""
    return next((r for r in (directory, *directory.parents) if _file_of(r).exists()), None)


def _file_of(root: Path) -> Path:
    return state_home() / folder_name(root) / FILE


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _write(file: Path, *, replace: bool) -> str:
    """Write a new token, whole or not at all; without `replace` a token that is there stays."""
    token = secrets.token_urlsafe(BYTES)
    fresh = file.with_name(f"{FILE}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(token + "\n")
            out.flush()
            os.fsync(out.fileno())  # else a power cut may leave the name with an empty file
        if replace:
            fresh.replace(file)
        else:
            name_new_file(fresh, file)
    except FileExistsError:
        if found := _read(file):  # another process was first
            return found
        fresh.replace(file)  # a power cut has left an empty file
    finally:
        fresh.unlink(missing_ok=True)
    return token


def show(directory: Path, *, new: bool) -> Sequence[str]:
    """The command `token`: the lines to print."""
    try:
        root = _root_of(directory)
        token = None
        if root is not None:
            token = _write(_file_of(root), replace=True) if new else _read(_file_of(root))
    except OSError as exc:
        raise CommandError(f"{exc.filename}: {exc.strerror}") from None
    except RuntimeError as exc:
        raise CommandError(f"there is no directory to keep state in: {exc}") from None
    if token is None:
        raise CommandError(
            f"no token is kept for {directory}. `opencode-a2a up` makes one when it first starts "
            "there, unless A2A_BEARER_TOKEN or A2A_STATIC_AUTH_CREDENTIALS is set."
        )
    if new:  # beside the output, which is the token alone
        print(
            f"opencode-a2a: a new token for {root}. An `up` that runs there still takes the old "
            "one: restart `up`, or send it SIGHUP (`opencode-a2a status` has its process id).",
            file=sys.stderr,
        )
    return [token]
