"""Files that an agent hands over, written to a directory of the person's choice."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from .client import Peer
from .failures import AnswerTooLarge, PeerError, PeerProtocolError
from .transcript import File

MAX_STEM, MAX_SUFFIX = 100, 20  # characters of a name


async def save_files(
    peer: Peer, files: Sequence[File], folder: Path
) -> list[tuple[File, Path | PeerError]]:
    """Write files, as many as an answer may be large; where each is, or why it is not there.

    OSError: the directory cannot be written to.
    """
    saved: list[tuple[File, Path | PeerError]] = []
    left = peer.limits.response_bytes
    for file in files:
        try:
            content = await _content(peer, file, left)
        except PeerError as exc:
            saved.append((file, exc))
        else:
            left -= len(content)
            saved.append((file, write_file(folder, file_name(file), content)))
    return saved


async def _content(peer: Peer, file: File, max_bytes: int) -> bytes:
    if file.url is not None:
        return await peer.download(file.url, max_bytes)
    try:
        content = base64.b64decode(file.base64)
    except (binascii.Error, ValueError):
        raise PeerProtocolError("Its content is not base64.") from None
    if len(content) > max_bytes:
        raise AnswerTooLarge(
            "The files are too large together.",
            hint="A2A_CLIENT_MAX_RESPONSE_BYTES sets how large they may be.",
        )
    return content


def write_file(folder: Path, name: str, content: bytes) -> Path:
    """Write a new file; one that is there already, or a link, is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in _paths(folder, name):
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        return path
    raise AssertionError("there is always another number")


def _paths(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    stem, suffix = Path(name).stem, Path(name).suffix
    for number in count(2):
        yield folder / f"{stem}-{number}{suffix}"


def file_name(file: File) -> str:
    """A name in one directory, whatever the agent says: no path, nothing hidden, nothing odd."""
    given = re.split(r"[/\\]", file.name or (file.url or "").partition("?")[0])[-1]
    name = Path(re.sub(r"[^\w. ()+-]", "_", given).strip(" .-") or "file")
    suffix = name.suffix or mimetypes.guess_extension(file.media_type) or ""
    return f"{name.stem[:MAX_STEM]}{suffix[:MAX_SUFFIX]}"
