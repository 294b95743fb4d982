"""Turns the parts of a message into what the agent gets.

Text stays text, data becomes labelled JSON text, and files become bytes: OpenCode
would read any `file://` path without asking, and fetches no `http://` one. So the
service reads every file itself, and OpenCode gets the bytes.
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
class ByteBudget:
    """How many bytes the parts of one message may still have."""

    left: int


@dataclass(frozen=True, slots=True)
class Inputs:
    files: Files
    part_bytes: int
    message_bytes: int

    def budget(self) -> ByteBudget:
        """For the parts of one message."""
        return ByteBudget(self.message_bytes)

    async def prepare(self, parts: tuple[Part, ...]) -> tuple[str | Attachment, ...]:
        """The parts as the agent gets them; refuses what the agent could not read."""
        budget = self.budget()
        return tuple(
            [
                await self.prepare_part(part, field=f"message.parts[{i}]", budget=budget)
                for i, part in enumerate(parts)
            ]
        )

    async def prepare_part(self, part: Part, *, field: str, budget: ByteBudget) -> str | Attachment:
        """One part, which the request has in `field`."""
        match part:
            case Text(text=text):
                self._check_size(len(text.encode()), field=field, budget=budget)
                return text
            case Data(value=value):
                text = json.dumps(value, ensure_ascii=False, indent=2)
                self._check_size(len(text.encode()), field=field, budget=budget)
                return f"Data (application/json):\n```json\n{text}\n```"
            case FileBytes(content=content, media_type=media_type, filename=name):
                try:
                    raw = _decode(content)
                except (binascii.Error, ValueError):
                    raise InvalidParams.at(field, "file bytes must be base64") from None
                self._check_size(len(raw), field=field, budget=budget)
                return _attachment(raw, media_type=media_type, filename=name, field=field)
            case FileUrl(url=url, media_type=media_type, filename=name):
                try:
                    fetched = await self.files.fetch(url, self.part_bytes)
                except Refused as exc:
                    raise InvalidParams.at(field, str(exc)) from exc
                name = name or url.rsplit("/", 1)[-1].partition("?")[0] or None
                media_type = media_type or fetched.media_type
                self._check_size(len(fetched.content), field=field, budget=budget)
                return _attachment(
                    fetched.content, media_type=media_type, filename=name, field=field
                )
            case _:
                assert_never(part)

    def _check_size(self, size: int, *, field: str, budget: ByteBudget) -> None:
        if size > self.part_bytes:
            raise InvalidParams.at(
                field,
                f"{size} bytes are more than the {self.part_bytes} allowed in one part "
                "(half of A2A_MAX_REQUEST_BODY_BYTES)",
            )
        budget.left -= size
        if budget.left < 0:
            raise InvalidParams.at(
                field,
                f"with it the parts have more than the {self.message_bytes} bytes allowed in one "
                "message (twice A2A_MAX_REQUEST_BODY_BYTES)",
            )


def _attachment(
    raw: bytes, *, media_type: str | None, filename: str | None, field: str
) -> Attachment:
    given = (media_type or "text/plain").partition(";")[0].strip().lower()
    if given in BINARY_TYPES:
        sent_as, raw = given, _without_second_base64(raw, SIGNATURES[given])
    elif given.startswith("text/") or given in TEXT_TYPES or given.endswith(("+json", "+xml")):
        sent_as = "text/plain"  # the only text type OpenCode does not drop
    else:
        raise ContentTypeNotSupported(
            f"{field}: {given} is not accepted. Accepted are text, JSON, PNG, JPEG, GIF, WebP "
            "images and PDF.",
            media_type=given,
            accepted=list(INPUT_MODES),
        )
    content = base64.b64encode(raw).decode()
    return Attachment(content=content, media_type=sent_as, filename=filename)


def _without_second_base64(raw: bytes, signature: bytes) -> bytes:
    """A picture or PDF without the second base64 that the Python SDK 0.3 puts around it.

    No picture or PDF consists of base64 characters alone, so this cannot be wrong. A text may.
    """
    try:
        inner = base64.b64decode(raw, validate=True)
    except ValueError:
        return raw
    return inner if inner.startswith(signature) else raw


def _decode(content: str) -> bytes:
    """ProtoJSON allows base64 in both alphabets, padded or not."""
    padding = "=" * (-len(content) % 4)
    return base64.b64decode(content.replace("-", "+").replace("_", "/") + padding, validate=True)
