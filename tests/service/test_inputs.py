"""How much a message may hold."""

from __future__ import annotations

import base64

import pytest

from opencode_a2a.domain.ports import Fetched
from opencode_a2a.domain.values import Attachment, Data, FileBytes, FileUrl, Part, Text
from opencode_a2a.errors import InvalidParams
from opencode_a2a.service.inputs import Inputs


class Files:
    """Every URL holds as many bytes as its last part says."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def fetch(self, url: str, limit: int) -> Fetched:
        self.fetched.append(url)
        return Fetched(b"x" * int(url.rsplit("/", 1)[-1]), "text/plain")


def raw(size: int) -> FileBytes:
    return FileBytes(base64.b64encode(b"x" * size).decode(), "text/plain")


PARTS = [
    Text("x" * 11),
    Text("ö" * 6),
    Data("x" * 10),
    raw(11),
    FileUrl("https://example.com/11"),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
async def test_a_part_that_is_too_large_is_named(part: Part) -> None:
    inputs = Inputs(Files(), part_bytes=10, message_bytes=100)
    with pytest.raises(InvalidParams) as refused:
        await inputs.prepare((Text("hello"), part))
    assert str(refused.value).startswith("message.parts[1]: ")
    assert "half of A2A_MAX_REQUEST_BODY_BYTES" in str(refused.value)


async def test_what_a_message_may_hold_is_counted_over_its_parts() -> None:
    files = Files()
    inputs = Inputs(files, part_bytes=10, message_bytes=25)
    parts = (Text("x" * 10), FileUrl("https://example.com/10"), raw(5))
    prepared = await inputs.prepare(parts)
    assert [type(each) for each in prepared] == [str, Attachment, Attachment]
    with pytest.raises(InvalidParams) as refused:
        await inputs.prepare((*[FileUrl("https://example.com/10")] * 9,))
    assert str(refused.value).startswith("message.parts[2]: ")
    assert "twice A2A_MAX_REQUEST_BODY_BYTES" in str(refused.value)
    assert len(files.fetched) == 1 + 3, "nothing is fetched beyond that"


PICTURES = {
    "image/png": b"\x89PNG\r\n\x1a\n picture",
    "image/jpeg": b"\xff\xd8\xff\xe0 picture",
    "image/gif": b"GIF89a picture;",
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "application/pdf": b"%PDF-1.7 page",
}


async def attached(content: bytes, media_type: str) -> bytes:
    """What the agent gets of a file that holds `content`."""
    inputs = Inputs(Files(), part_bytes=1000, message_bytes=1000)
    file = FileBytes(base64.b64encode(content).decode(), media_type)
    (found,) = await inputs.prepare((file,))
    assert isinstance(found, Attachment)
    return base64.b64decode(found.content)


@pytest.mark.parametrize("media_type", PICTURES)
async def test_a_picture_that_was_encoded_twice_is_a_picture(media_type: str) -> None:
    picture = PICTURES[media_type]
    assert await attached(picture, media_type) == picture
    assert await attached(base64.b64encode(picture), media_type) == picture
    for other in (b"", b"data", base64.b64encode(b"some text")):
        assert await attached(other, media_type) == other


@pytest.mark.parametrize("media_type", ["text/plain", "application/json", "text/markdown"])
@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)
async def test_a_text_in_base64_stays_what_it_is(picture: bytes, media_type: str) -> None:
    for text in (b"data", base64.b64encode(b"some text"), base64.b64encode(picture)):
        assert await attached(text, media_type) == text
