"""Reads files of a workspace.

A workspace may hold anything, such as links that lead out of it, and the agent can change it at any
time, also between a check and what follows. So what was checked is opened part by part, and no part
may be a link: then nothing outside of the workspace is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

# To open a directory in which something is looked up; Linux need not be able to list it.
DIRECTORY = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)


class OutsideWorkspace(Exception):
    pass


class NotAFile(Exception):
    """A directory, or a pipe that would never end."""


def read_file(
    root: Path, path: str, limit: int, *, check: Callable[[Path], None] = lambda real: None
) -> tuple[Path, bytes]:
    """A file below a root: where it really is, and as much of it as is allowed and a byte more.

    `check` may raise for where it really is. OutsideWorkspace, NotAFile, OSError; ValueError if
    this is no path.
    """
    real = Path(os.path.realpath(root / path))
    if not real.is_relative_to(root):
        raise OutsideWorkspace
    check(real)
    if real == root:
        raise NotAFile
    with open_directory(real.parent) as folder, open_regular_file(real.name, folder) as file:
        return real, file.read(limit + 1)


@contextmanager
def open_directory(directory: Path) -> Iterator[int]:
    """A descriptor of a directory. No part of its path is a link, also if one is put there now."""
    with ExitStack() as opened:
        at: int | None = None
        for part in directory.parts:
            at = os.open(part, DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            opened.callback(os.close, at)
        assert at is not None
        yield at


@contextmanager
def open_regular_file(name: str, folder: int) -> Iterator[BinaryIO]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)
