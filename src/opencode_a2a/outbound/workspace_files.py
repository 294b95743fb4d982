"""Files between the agent's workspace and its peers: what may be sent, and where answers are put.

The workspace may hold anything, such as links that lead out of it, and the agent can change it at
any time. Nothing outside of it is read or written.
"""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .client import Peer
from .downloads import file_name, save_files, write_new
from .failures import PeerError
from .transcript import File, Json
from .workspace_reader import NotAFile, OutsideWorkspace, open_directory, read_file

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
        root = require_absolute(Path(self.directory))

        def check(real: Path) -> None:
            if not all(map(may_read, _names_of(real, root))):
                raise FileProblem(f"{path}: may not be read without permission.")

        try:
            _, content = read_file(root, path, limit, check=check)
        except OutsideWorkspace:
            raise FileProblem(f"{path}: is outside of the workspace.") from None
        except NotAFile:
            raise FileProblem(f"{path}: is not a file.") from None
        except (OSError, ValueError) as exc:
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
            # OpenCode names a directory by its real path. So a link in that path was put there
            # later, and is not followed.
            root = require_absolute(Path(self.directory))
            with open_directory(root) as workspace, suppress(FileExistsError):
                os.mkdir(FOLDER, 0o700, dir_fd=workspace)
            with open_directory(root / FOLDER) as folder:
                _ignore(folder)
                return f"{FOLDER}/{write_new(name, content, folder=folder)}"
        except NotADirectoryError:
            raise FileProblem(f"{FOLDER} is a link or a file: nothing is written there.") from None
        except OSError as exc:
            raise FileProblem(f"{FOLDER}: {exc.strerror or 'cannot be written'}.") from None


def require_absolute(directory: Path) -> Path:
    if not directory.is_absolute():
        raise FileProblem("It is not known in which directory the agent works.")
    return directory


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
