"""Files that an agent hands over, written to a directory: what is there already stays."""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

from .client import Peer
from .failures import AnswerTooLarge, PeerError, PeerProtocolError
from .transcript import File
from .workspace_reader import DIRECTORY

T = TypeVar("T")

MAX_STEM, MAX_SUFFIX = 100, 20  # characters of a name


async def save_files(
    peer: Peer, files: Sequence[File], write: Callable[[str, bytes], T]
) -> list[tuple[File, T | PeerError]]:
    """Write files, as many as an answer may be large; what came of each, or why it is not there.

    `write` gets a plain name and the content, in a thread. What it raises ends all.
    """
    saved: list[tuple[File, T | PeerError]] = []
    left = peer.limits.response_bytes
    for file in files:
        try:
            content = await _content(peer, file, left)
        except PeerError as exc:
            saved.append((file, exc))
        else:
            left -= len(content)
            saved.append((file, await asyncio.to_thread(write, file_name(file), content)))
    return saved


async def _content(peer: Peer, file: File, max_bytes: int) -> bytes:
    if file.url is not None:
        return await peer.download(file.url, max_bytes)
    if file.size > max_bytes:
        raise AnswerTooLarge(
            "The files are too large together.",
            hint="This is the most that an answer may have.",
        )
    try:
        return await asyncio.to_thread(base64.b64decode, file.base64)
    except (binascii.Error, ValueError):
        raise PeerProtocolError("Its content is not base64.") from None


def write_file(folder: Path, name: str, content: bytes) -> Path:
    """Write a new file into a directory, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, DIRECTORY)
    try:
        return folder / write_new(name, content, folder=descriptor)
    finally:
        os.close(descriptor)


def write_new(name: str, content: bytes, *, folder: int) -> str:
    """Write a new file; its name. One that is there already, or a link, is left alone."""
    for free in _names(name):
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            descriptor = os.open(free, flags, 0o666, dir_fd=folder)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        return free
    raise AssertionError("there is always another number")


def _names(name: str) -> Iterator[str]:
    yield name
    stem, suffix = Path(name).stem, Path(name).suffix
    for number in count(2):
        yield f"{stem}-{number}{suffix}"


def file_name(file: File) -> str:
    """A name in one directory, whatever the agent says: no path, nothing hidden, nothing odd."""
    given = re.split(r"[/\\]", file.name or (file.url or "").partition("?")[0])[-1]
    name = Path(re.sub(r"[^\w. ()+-]", "_", given).strip(" .-") or "file")
    suffix = name.suffix or mimetypes.guess_extension(file.media_type) or ""
    return f"{name.stem[:MAX_STEM]}{suffix[:MAX_SUFFIX]}"
