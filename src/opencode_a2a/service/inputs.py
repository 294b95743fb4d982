"""From what a caller sent to what the agent is asked.

Text stays text, data becomes labelled JSON text, and files become bytes: OpenCode
would read any `file://` path without asking and fetches no `http://` one, so a
file reaches it only in the form of an attachment that we have made.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import assert_never

from ..domain.ports import Files, Refused
from ..domain.values import Attachment, Data, FileBytes, FileUrl, Part, Text
from ..errors import ContentTypeNotSupported, InvalidParams

SIGNATURES = {  # what a file of this type begins with
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF-",
}
BINARY_TYPES = tuple(SIGNATURES)
TEXT_TYPES = (
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
    "application/typescript",
    "application/x-sh",
    "application/sql",
    "application/x-ndjson",
    "application/graphql",
)
INPUT_MODES = ("text/plain", "text/*", "application/json", *BINARY_TYPES)
OUTPUT_MODES = ("text/plain", "application/json", "text/x-diff", *BINARY_TYPES)


@dataclass(slots=True)
class Room:
    """What the parts of one message may still take together."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Inputs:
    files: Files
    part_bytes: int
    message_bytes: int

    def room(self) -> Room:
        return Room(self.message_bytes)

    async def prepare(self, parts: tuple[Part, ...]) -> tuple[str | Attachment, ...]:
        """The agent's side of a message; refuses what the agent could not read."""
        room = self.room()
        named = [(f"message.parts[{i}]", part) for i, part in enumerate(parts)]
        return tuple([await self.prepare_at(where, part, room) for where, part in named])

    async def prepare_at(self, where: str, part: Part, room: Room) -> str | Attachment:
        """One part, known to its sender as `where`."""
        match part:
            case Text(text=text):
                self._bounded(where, len(text.encode()), room)
                return text
            case Data(value=value):
                text = json.dumps(value, ensure_ascii=False, indent=2)
                self._bounded(where, len(text.encode()), room)
                return f"Data (application/json):\n```json\n{text}\n```"
            case FileBytes(content=content, media_type=media_type, filename=name):
                try:
                    raw = _decoded(content)
                except (binascii.Error, ValueError):
                    raise InvalidParams.at(where, "file bytes must be base64") from None
                return self._attached(where, raw, media_type, name, room)
            case FileUrl(url=url, media_type=media_type, filename=name):
                try:
                    fetched = await self.files.fetch(url, self.part_bytes)
                except Refused as exc:
                    raise InvalidParams.at(where, str(exc)) from exc
                name = name or url.rsplit("/", 1)[-1].partition("?")[0] or None
                media_type = media_type or fetched.media_type
                return self._attached(where, fetched.content, media_type, name, room)
            case _:
                assert_never(part)

    def _attached(
        self, where: str, raw: bytes, media_type: str | None, name: str | None, room: Room
    ) -> Attachment:
        self._bounded(where, len(raw), room)
        given = (media_type or "text/plain").partition(";")[0].strip().lower()
        if given in BINARY_TYPES:
            sent_as, raw = given, _unwrapped(raw, SIGNATURES[given])
        elif given.startswith("text/") or given in TEXT_TYPES or given.endswith(("+json", "+xml")):
            sent_as = "text/plain"  # the only text type OpenCode does not drop
        else:
            raise ContentTypeNotSupported(
                f"{where}: {given} is not accepted. Accepted are text, JSON, PNG, JPEG, GIF, WebP "
                "images and PDF.",
                media_type=given,
                accepted=list(INPUT_MODES),
            )
        return Attachment(base64.b64encode(raw).decode(), sent_as, name)

    def _bounded(self, where: str, size: int, room: Room) -> None:
        if size > self.part_bytes:
            raise InvalidParams.at(
                where,
                f"{size} bytes are more than the {self.part_bytes} allowed in one part "
                "(A2A_MAX_PART_BYTES)",
            )
        room.bytes -= size
        if room.bytes < 0:
            raise InvalidParams.at(
                where,
                f"with it the parts have more than the {self.message_bytes} bytes allowed in one "
                "message (A2A_MAX_MESSAGE_BYTES)",
            )


def _unwrapped(raw: bytes, signature: bytes) -> bytes:
    """A picture or PDF without the second base64 that the Python SDK 0.3 puts around it.

    That is certain, because no such file consists of base64 characters alone. A text may.
    """
    try:
        inner = base64.b64decode(raw, validate=True)
    except ValueError:
        return raw
    return inner if inner.startswith(signature) else raw


def _decoded(content: str) -> bytes:
    """ProtoJSON takes base64 in both alphabets, padded or not."""
    padding = "=" * (-len(content) % 4)
    return base64.b64decode(content.replace("-", "+").replace("_", "/") + padding, validate=True)
