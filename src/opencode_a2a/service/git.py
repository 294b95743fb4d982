"""Worktrees and repositories, as git's own files describe them.

Every function here reads the disk: asynchronous code calls them in a thread.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

NOT_A_PATH = (OSError, RuntimeError, ValueError)  # no access, too long, a loop of links, a null
MAX_TEXT_BYTES = 65_536  # of a file with a path or the name of a branch
BEGUN = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
MERGE_STATE = (
    *BEGUN,
    "MERGE_MSG",
    "MERGE_MODE",
    "MERGE_RR",
    "SQUASH_MSG",
)
LOCK = "locked"  # in the directory of a worktree that is not complete


@dataclass(frozen=True, slots=True)
class Place:
    """A repository, seen from one of its working trees, or from a bare one."""

    top: Path | None  # of the working tree
    own: Path  # where git keeps what belongs to this working tree
    shared: Path  # what all working trees share


def locate(near: Path) -> Place | None:
    """The repository and the working tree around a directory.

    None where there is none, in a submodule, and where a `.git` file names a directory that does
    not name it back: anybody can write such a file.
    """
    for at in (near, *near.parents):
        marker = at / ".git"
        if marker.is_dir():
            return Place(at, marker.resolve(), marker.resolve())
        own = worktree_directory(at)
        if own is not None:
            shared = own.parent.parent
            return Place(at, own, shared) if _is_linked(at, shared) else None
        if _is_bare(at):
            return Place(None, at.resolve(), at.resolve())
    return None


def copy_index(source: Path, target: Path) -> None:
    """Copy the index, with its time: by it git knows which files may have changed unseen since."""
    found = source.stat()
    target.write_bytes(read_file(source))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def named_directory(near: Path) -> Path | None:
    """What the nearest `.git` file around a directory names."""
    return next((own for at in (near, *near.parents) if (own := worktree_directory(at))), None)


def head(place: Place) -> str | None:
    """What `HEAD` of a working tree says: a branch (`ref: refs/heads/main`), or a commit."""
    return _read_text(place.own / "HEAD")


def gone(top: Path, names: Iterable[str]) -> list[str]:
    """Those of the files that a working tree does not have, or has only behind a link."""
    real = top.resolve()

    def is_there(name: str) -> bool:
        path = real / name
        return os.path.lexists(path) and path.parent.resolve() == path.parent

    return [name for name in names if not is_there(name)]


def symbolic_link(place: Place) -> Path | None:
    """A link in the place of something by which `checked_out` recognises a working tree."""
    paths = [place.shared / "HEAD", *place.shared.glob("worktrees/*/HEAD")]
    if place.top is not None:
        paths.append(place.top / ".git")
    return next((path for path in paths if path.is_symlink()), None)


def is_away(shared: Path) -> bool:
    """Whether a repository that is not bare has its main working tree somewhere else."""
    return shared.name != ".git" and (shared / "index").exists()


def checked_out(shared: Path) -> Iterator[tuple[Path, str]]:
    """The working trees of a repository, and what the `HEAD` of each says."""
    if shared.name == ".git" and (text := _read_text(shared / "HEAD")):
        yield shared.parent, text
    for own in shared.glob("worktrees/*"):
        marker, text = _read_text(own / "gitdir"), _read_text(own / "HEAD")
        if marker and text and _resolve(own / marker, strict=True):
            yield (own / marker).parent, text


def register(shared: Path, directory: Path, branch: str) -> Place:
    """Begin a linked worktree as `git worktree add` does; it has no files yet and is locked."""
    marker = directory / ".git"
    for old in shared.glob("worktrees/*"):  # of one at this path that somebody has deleted
        if not marker.exists() and _read_text(old / "gitdir") == str(marker):
            shutil.rmtree(old)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} exists and is not empty")
    own = _make_numbered(shared / "worktrees" / directory.name)
    try:
        (own / LOCK).write_text("opencode-a2a makes it\n")
        (own / "gitdir").write_text(f"{marker}\n")
        (own / "commondir").write_text("../..\n")
        (own / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
        marker.write_text(f"gitdir: {own}\n")
    except OSError:  # half of it would never be pruned, as it is locked
        shutil.rmtree(own, ignore_errors=True)
        raise
    return Place(directory, own, shared)


def unlock(place: Place) -> None:
    (place.own / LOCK).unlink()


def merge_heads(place: Place) -> list[str]:
    """What a merge that somebody has begun in a working tree merges into it."""
    return (_read_text(place.own / "MERGE_HEAD") or "").split()


def has_begun(place: Place) -> bool:
    """Whether somebody is in the middle of a merge, cherry-pick or revert in a working tree."""
    return any((place.own / name).exists() for name in BEGUN)


def remember(place: Place, commit: str) -> None:
    """For `git reset ORIG_HEAD`: what was checked out before a merge."""
    file = place.own / "ORIG_HEAD"
    file.unlink(missing_ok=True)  # it may be a link
    file.write_text(f"{commit}\n")


def forget_merge(place: Place) -> None:
    """What git removes after the commit that ends a merge, cherry-pick or revert."""
    for name in MERGE_STATE:
        (place.own / name).unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Remove a linked worktree with its files. Other directories are left alone."""
    place = locate(directory)
    if place is None or place.top != directory or place.own == place.shared:
        raise FileNotFoundError(f"{directory} is not a linked worktree")
    shutil.rmtree(directory)
    shutil.rmtree(place.own)
    with suppress(OSError):
        place.own.parent.rmdir()  # if it was the last one, as git does


def _make_numbered(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)  # its own error is not that a name is taken
    for number in count():
        made = path.with_name(f"{path.name}{number or ''}")
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            continue
        return made
    raise AssertionError


def repository(near: Path) -> Path | None:
    """The git directory that all worktrees of the repository around a directory share."""
    return next((found for at in (near, *near.parents) if (found := _shared_directory(at))), None)


def linked_worktrees(directories: Iterable[str], near: Path) -> list[str]:
    """Those of the directories that are linked worktrees of the repository around `near`."""
    shared = repository(near)
    if shared is None:
        return []
    return [directory for directory in directories if _is_linked(Path(directory), shared)]


def registered_worktrees(near: Path) -> set[Path]:
    """The linked worktrees that git has registered for the repository around a directory."""
    shared = repository(near)
    files = shared.glob("worktrees/*/gitdir") if shared is not None else ()
    markers = (file.parent / text for file in files if (text := _read_text(file)))
    found = (_resolve(marker.parent) for marker in markers if _resolve(marker, strict=True))
    return {directory for directory in found if directory is not None}


def is_registered(worktree: str, near: Path) -> bool:
    return Path(worktree).resolve() in registered_worktrees(near)


def in_linked_worktree(directory: Path) -> bool:
    """Whether a directory lies in a linked worktree, rather than in a main checkout."""
    shared = repository(directory)
    return shared is not None and _in_worktree(directory, shared)


def worktree_directory(worktree: Path) -> Path | None:
    """The directory in which git keeps its files about a linked worktree."""
    text = _read_text(worktree / ".git")
    if text is None or not text.startswith("gitdir: "):
        return None
    return _resolve(worktree / text.removeprefix("gitdir: "))


def _in_worktree(path: Path, shared: Path) -> bool:
    """Whether a directory lies in a linked worktree of a repository."""
    return any(_is_linked(each, shared) for each in (path, *path.parents))


def _shared_directory(directory: Path) -> Path | None:
    """What all worktrees of a repository share, if the directory is one or the main checkout."""
    marker = directory / ".git"
    if marker.is_dir():
        return marker.resolve()
    own = worktree_directory(directory)
    if own is not None:
        return own.parent.parent
    return directory.resolve() if _is_bare(directory) else None


def _is_bare(directory: Path) -> bool:
    """Whether a directory itself is a repository."""
    return all((directory / name).exists() for name in ("HEAD", "objects", "refs"))


def _is_linked(directory: Path, shared: Path) -> bool:
    """Whether directory and repository name each other: anybody can write a `.git` file."""
    own = worktree_directory(directory)
    if directory.is_symlink() or own is None or own.parent != shared / "worktrees":
        return False
    back = _read_text(own / "gitdir")
    there = _resolve(own / back) if back is not None else None
    return there is not None and there == _resolve(directory / ".git")


def read_file(file: Path, *, limit: int | None = None) -> bytes:
    """What a regular file holds. OSError for anything else: a pipe would hold up who reads it."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{file} is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(limit)
    finally:
        os.close(descriptor)


def _resolve(path: Path, *, strict: bool = False) -> Path | None:
    """A path without links; None for what no path can be, and, if strict, for what is not there."""
    try:
        return path.resolve(strict)
    except NOT_A_PATH:
        return None


def readable(text: str) -> str:
    """A name or text of git for people and JSON: git takes any bytes, which Python keeps so."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _read_text(file: Path) -> str | None:
    try:
        return read_file(file, limit=MAX_TEXT_BYTES).decode().strip()
    except (OSError, ValueError):  # no such file, a directory, or not text
        return None
