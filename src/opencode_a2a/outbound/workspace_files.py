"""Files between the agent's workspace and its peers: what may be sent, and where answers are put.

The workspace may hold anything, such as links that lead out of it. Nothing outside of it is read or
written.
"""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .client import Peer
from .downloads import file_name, save_files, write_file
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

    def _root(self) -> Path:
        if not self.directory:
            raise FileProblem("It is not known in which directory the agent works.")
        return Path(self.directory).resolve(strict=True)

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
            root = self._root()
            real = (root / path).resolve(strict=True)
            if not real.is_relative_to(root):
                raise FileProblem(f"{path}: is outside of the workspace.")
            if not all(map(may_read, (str(real), str(real.relative_to(root))))):
                raise FileProblem(f"{path}: may not be read without permission.")
            if not real.is_file():
                raise FileProblem(f"{path}: is not a file.")
            with real.open("rb") as file:
                content = file.read(limit + 1)
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "is no path"
            raise FileProblem(f"{path}: {reason or 'cannot be read'}.") from None
        if len(content) > limit:
            raise FileProblem(f"{path}: the files are larger than {MAX_SENT_BYTES} bytes.")
        return content

    def folder(self) -> Path:
        """The folder for what comes from peers, which is made if it is not there."""
        try:
            folder = self._root() / FOLDER
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.resolve() != folder:
                raise FileProblem(f"{FOLDER} is a link: nothing is written through it.")
            if not os.path.lexists(folder / ".gitignore"):
                write_file(folder, ".gitignore", b"*\n")
        except OSError as exc:
            raise FileProblem(f"{FOLDER}: {exc.strerror or 'cannot be written'}.") from None
        return folder

    async def keep_all(self, peer: Peer, files: Sequence[File]) -> list[str]:
        """Write the files of an answer; a line about each."""
        try:
            saved = await save_files(peer, files[:MAX_KEPT_FILES], self.folder())
        except FileProblem as exc:
            return [f"{len(files)} not kept. {exc}"]
        except OSError as exc:
            return [f"{len(files)} not kept. {FOLDER}: {exc.strerror}."]
        told = [
            f"{file_name(file)}: not kept. {found.message}"
            if isinstance(found, PeerError)
            else f"{FOLDER}/{found.name} ({found.stat().st_size} bytes)"
            for file, found in saved
        ]
        if len(files) > MAX_KEPT_FILES:
            told.append(f"{len(files) - MAX_KEPT_FILES} more were not kept")
        return told

    def keep(self, name: str, content: bytes) -> str:
        """Write a new file into the folder; its path in the workspace."""
        try:
            return f"{FOLDER}/{write_file(self.folder(), name, content).name}"
        except OSError as exc:
            raise FileProblem(f"{FOLDER}: {exc.strerror or 'cannot be written'}.") from None


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
