"""Files between the agent's workspace and its peers: what may be sent, and where answers are put.

The workspace may hold anything, such as links that lead out of it, and the agent can change it at
any time. Nothing outside of it is read or written.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .client import Peer
from .downloads import DIRECTORY, file_name, save_files, write_new
from .failures import PeerError
from .transcript import File, Json

FOLDER = ".opencode-a2a"  # in the workspace; git ignores what is in it
MAX_SENT_BYTES = 8 * 1024 * 1024  # of all files of a message
MAX_KEPT_FILES = 100


class FileProblem(Exception):
    """A file that cannot be sent or kept; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    directory: str

    def parts(self, paths: Sequence[str], may_read: Callable[[str], bool]) -> list[Json]:
        """The files as parts of a message."""
        found, left = list[Json](), MAX_SENT_BYTES
        for path in paths:
            content = self._read(path, may_read, limit=left)
            left -= len(content)
            found.append(file_part(Path(path), content))
        return found

    def _read(self, path: str, may_read: Callable[[str], bool], *, limit: int) -> bytes:
        try:
            root = Path(self.directory)
            real = (root / path).resolve(strict=True)
            if not real.is_relative_to(root):
                raise FileProblem(f"{path}: is outside of the workspace.")
            if not all(map(may_read, _names_of(real, root))):
                raise FileProblem(f"{path}: may not be read without permission.")
            if real == root:
                raise FileProblem(f"{path}: is not a file.")
            with _opened(real.parent) as folder, _opened_file(real.name, folder) as file:
                content = file.read(limit + 1)
        except (OSError, ValueError, RuntimeError) as exc:  # Python 3.11 raises the last for a loop
            reason = exc.strerror if isinstance(exc, OSError) else "is no path"
            raise FileProblem(f"{path}: {reason or 'cannot be read'}.") from None
        if len(content) > limit:
            raise FileProblem(f"{path}: the files are larger than {MAX_SENT_BYTES} bytes.")
        return content

    async def keep_all(self, peer: Peer, files: Sequence[File]) -> list[str]:
        """Write the files of an answer; a line about each."""

        def keep(name: str, content: bytes) -> str:
            return f"{self.keep(name, content)} ({len(content)} bytes)"

        try:
            saved = await save_files(peer, files[:MAX_KEPT_FILES], keep)
        except FileProblem as exc:
            return [f"{len(files)} not kept. {exc}"]
        told = [
            f"{file_name(file)}: not kept. {found.message}"
            if isinstance(found, PeerError)
            else found
            for file, found in saved
        ]
        if len(files) > MAX_KEPT_FILES:
            told.append(f"{len(files) - MAX_KEPT_FILES} more were not kept")
        return told

    def keep(self, name: str, content: bytes) -> str:
        """Write a new file into the folder, which is made if need be; its path in the workspace."""
        try:
            root = Path(self.directory)
            with _opened(root) as workspace, suppress(FileExistsError):
                os.mkdir(FOLDER, 0o700, dir_fd=workspace)
            with _opened(root / FOLDER) as folder:
                _ignore(folder)
                return f"{FOLDER}/{write_new(name, content, folder=folder)}"
        except NotADirectoryError:
            raise FileProblem(f"{FOLDER} is a link or a file: nothing is written there.") from None
        except OSError as exc:
            raise FileProblem(f"{FOLDER}: {exc.strerror or 'cannot be written'}.") from None


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """A descriptor of a directory. No part of its path is a link, also if one is put there now.

    OpenCode names directories by their real paths, so one with a link in it was put there later.
    """
    if not directory.is_absolute():
        raise FileProblem("It is not known in which directory the agent works.")
    with ExitStack() as opened:
        at: int | None = None
        for part in directory.parts:
            at = os.open(part, DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            opened.callback(os.close, at)
        assert at is not None
        yield at


@contextmanager
def _opened_file(name: str, folder: int) -> Iterator[BinaryIO]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileProblem(f"{name}: is not a file.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _ignore(folder: int) -> None:
    """Have git ignore what is in the folder, unless somebody has written what git is to do."""
    try:
        os.stat(".gitignore", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        write_new(".gitignore", b"*\n", folder=folder)


def _names_of(file: Path, root: Path) -> list[str]:
    """What rules may call a file: rules are about the repository, of which `root` may be a part."""
    repositories = [each for each in (root, *root.parents) if os.path.lexists(each / ".git")]
    return [str(file), *(str(file.relative_to(each)) for each in (root, *repositories[:1]))]


def file_part(path: Path, content: bytes) -> Json:
    return {
        "raw": base64.b64encode(content).decode(),
        "filename": path.name,
        "mediaType": _media_type(path, content),
    }


def _media_type(path: Path, content: bytes) -> str:
    if known := mimetypes.guess_type(path.name)[0]:
        return known
    try:
        content.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"
