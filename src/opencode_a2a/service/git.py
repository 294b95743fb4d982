"""Worktrees and repositories, as git's own files describe them.

Every function here reads the disk: asynchronous code calls them in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

NOT_A_PATH = (OSError, RuntimeError, ValueError)  # no access, too long, a loop of links, a null


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
    markers = (text for file in files if (text := _read_text(file)))
    return {Path(marker).parent.resolve() for marker in markers if Path(marker).exists()}


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
    return (worktree / text.removeprefix("gitdir: ")).resolve()


def in_root(root: Path, directory: str) -> bool:
    """Whether a session in this directory can belong to a root.

    The directory lies inside the root, or in a worktree of the root's repository or of a
    repository inside the root. A directory that cannot be read does not belong to any root.
    """
    path = Path(directory)
    if not path.is_absolute():
        return False
    try:
        real = path.resolve()
        if real.is_relative_to(root):
            return True
        shared = repository(real)
        if shared is None or not (shared == repository(root) or shared.is_relative_to(root)):
            return False
        return _in_worktree(real, shared)
    except NOT_A_PATH:
        return False


def in_root_only(root: Path, directory: str) -> bool:
    """Like `in_root`, but False for a directory in a repository of its own below the root.

    Several roots once shared one database. A root such as a home directory contains nearly all of
    their directories, so a repository below it is as likely to be a root itself.
    """
    if not in_root(root, directory):
        return False
    try:
        real = Path(directory).resolve()
        below = takewhile(lambda each: each != root, (real, *real.parents))
        own = repository(root)
        if own is not None and _in_worktree(real, own):
            return True
        return not any((each / ".git").exists() for each in below)
    except NOT_A_PATH:
        return False


def _in_worktree(path: Path, shared: Path) -> bool:
    """Whether a directory lies in a linked worktree of a repository."""
    return any(_is_linked(each, shared) for each in (path, *path.parents))


def _shared_directory(directory: Path) -> Path | None:
    """What all worktrees of a repository share, if the directory is one or the main checkout."""
    marker = directory / ".git"
    if marker.is_dir():
        return marker.resolve()
    own = worktree_directory(directory)
    return own.parent.parent if own is not None else None


def _is_linked(directory: Path, shared: Path) -> bool:
    """Whether directory and repository name each other: anybody can write a `.git` file."""
    own = worktree_directory(directory)
    if directory.is_symlink() or own is None or own.parent != shared / "worktrees":
        return False
    back = _read_text(own / "gitdir")
    return back is not None and Path(back).resolve() == (directory / ".git").resolve()


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):  # no such file, a directory, or not text
        return None
