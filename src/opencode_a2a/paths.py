"""What a directory is to git, where state is kept, and files that are nobody else's business."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def inside_git(path: Path) -> bool:
    """Whether a resolved path is, or lies in, the directory git keeps a repository in.

    That is `.git` and, under any name, a bare repository or what a `.git` file points to. A
    working tree may lie inside a bare repository, as `git worktree add` makes them there. What
    cannot be looked at is taken for one: nobody can work there.
    """
    if any(part.casefold() == ".git" for part in path.parts):
        return True
    for each in (path, *path.parents):
        try:
            if (each / ".git").exists():
                return False
            bare = (each / "HEAD").is_file(), (each / "objects").is_dir(), (each / "refs").is_dir()
        except OSError:
            return True
        if all(bare):
            return True
    return False


SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def program_path(path: str | None = None, *, outside: Path | None = None) -> str:
    """`PATH` (or this one) without what whoever writes in a workspace could choose.

    Relative and empty entries go, because the current directory often is the workspace; and those
    that lie in the workspace `outside` of which programs must be, as `npx` and direnv add them.
    Never empty: to search an empty `PATH` is to search the current directory.
    """
    entries = map(Path, (os.environ.get("PATH", os.defpath) if path is None else path).split(":"))
    absolute = (entry for entry in entries if entry.is_absolute())
    kept = (str(each) for each in absolute if outside is None or not lies_in(each, outside))
    return ":".join(kept) or SYSTEM_PATH


def lies_in(path: Path, workspace: Path) -> bool:
    """Whether a workspace contains a path. Not if it contains the whole home of the user as well.

    Then everything that this user has installed lies there.
    """
    root = workspace.resolve()
    try:
        if Path.home().resolve().is_relative_to(root):
            return False
    except RuntimeError:  # there is no home directory
        pass
    return path.resolve().is_relative_to(root)


def state_home() -> Path:
    """The directory for everything this program keeps. RuntimeError: there is no home directory."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "opencode-a2a"


def cache_home() -> Path:
    """The directory for what can be had again. RuntimeError: there is no home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opencode-a2a"


def folder_name(root: Path) -> str:
    """A name that a person recognises, and that no other root has: `my-project-1f3a9c2b`."""
    name = re.sub(r"[^\w.-]+", "-", root.name)[:60].strip("-.") or "root"
    return f"{name}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def state_folder(root: Path) -> Path:
    """The directory for the data of a workspace root, for this user only; made if there is none."""
    folder = state_home() / folder_name(root)
    make_private_directory(folder)
    for each in (folder, folder.parent):
        tighten(each)
    return folder


def make_private_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, for this user only."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would make those above for everybody


def make_private_file(path: str) -> None:
    """Make an empty file for this user only, if there is none and it can be made."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def write_private_file(
    path: Path,
    text: str,
    *,
    durable: bool = False,
    owner: tuple[int, int] | None = None,
    mode: int = 0o600,
) -> None:
    """Replace a file at once, for this user only; make its directory if there is none.

    `durable`: it outlives a power cut right after. `owner`: give it to this user and group, with
    the rights `mode`.
    """
    make_private_directory(path.parent)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            out.write(text)
            if owner is not None:
                os.fchown(out.fileno(), *owner)
                os.fchmod(out.fileno(), mode)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        fresh.replace(path)
        if durable:
            _sync(path.parent)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def name_new_file(fresh: Path, file: Path) -> None:
    """Give a complete file its name. FileExistsError: another process has given it to one before.

    `fresh` may be there afterwards, and is the caller's to remove.
    """
    try:
        file.hardlink_to(fresh)
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # a rename would replace what another has just made
            if file.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file)) from None
            fresh.rename(file)
        finally:
            os.close(folder)


def _sync(folder: Path) -> None:
    """Write the names in a directory to the disk: until then, the file from before may be back."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_newest_files(folder: Path, most: int) -> None:
    """Remove the files of a directory that were written longest ago."""
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
    for file in files[: max(len(files) - most, 0)]:
        file.unlink(missing_ok=True)


def tighten(path: Path) -> bool:
    """Take a file or directory of this user away from everybody else. Whether that was needed."""
    try:
        found = path.stat()
        if found.st_uid != os.geteuid() or not stat.S_IMODE(found.st_mode) & 0o077:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
    except OSError:  # it is not there, or not ours
        return False
    return True
