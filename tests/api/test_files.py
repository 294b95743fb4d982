"""The bytes of a file arrive as they were sent, whatever they look like."""

from __future__ import annotations

import base64

import httpx
import pytest

from tests.api.forms import INVALID_PARAMS, REST_03, RPC_1, Form, Json

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def kept(client: httpx.Client, task: Json) -> bytes:
    """The content of the file of a task's first message, as 1.0 shows it."""
    part = RPC_1.get(client, task["id"])["history"][0]["parts"][1]
    return base64.b64decode(part["raw"], validate=True)


@pytest.mark.parametrize("media_type", ["text/plain", "application/json", "image/png", None])
@pytest.mark.parametrize(
    "content",
    [
        b"aGVsbG8gd29ybGQ=",  # base64 of words
        b"data",  # a word that is base64, too
        b"MTIzNDU2Nzg5MA==",
        base64.b64encode(b"aGVsbG8="),
        b"remember the milk",
        b"",
    ],
)
def test_a_file_that_looks_like_base64_is_kept_as_it_is(
    client: httpx.Client, form: Form, content: bytes, media_type: str | None
) -> None:
    about = {"media_type": media_type} if media_type else {}
    task = form.send(client, "look:", form.file(raw=encoded(content), **about))
    assert kept(client, task) == content


# What the Python SDK writes when its 1.x speaks 0.3 over REST: the names of the protobuf, in which
# the file is base64 already, so that ProtoJSON encodes it once more.


def from_python(content: str, media_type: str = "text/plain") -> Json:
    part = {"file": {"file_with_bytes": content, "mime_type": media_type, "name": "f"}}
    message: Json = {"message_id": "m", "role": "ROLE_USER", "content": [{"text": "hi"}, part]}
    return {"request": message, "configuration": {"blocking": True}}


@pytest.mark.parametrize(
    "content", [b"hello", b"aGVsbG8gd29ybGQ=", base64.b64encode(b"aGVsbG8="), PNG, b"\x00\xff", b""]
)
def test_what_the_python_client_encodes_twice_is_decoded_once(
    client: httpx.Client, content: bytes
) -> None:
    media_type = "image/png" if content == PNG else "text/plain"
    twice = encoded(encoded(content).encode())
    task = REST_03.sent(REST_03.call(client, "send", from_python(twice, media_type)))
    assert kept(client, task) == content


@pytest.mark.parametrize("content", ["!", encoded(b"hello world"), encoded(b"\xff\xfe"), "YQ"])
def test_under_that_name_nothing_else_is_taken(client: httpx.Client, content: str) -> None:
    response = REST_03.call(client, "send", from_python(content))
    refusal = REST_03.refused(response, INVALID_PARAMS)
    ((field, problem),) = refusal.fields.items()
    assert field == "message.content[1].file.file_with_bytes"
    assert "fileWithBytes" in problem  # what to write instead


def test_a_file_of_several_megabytes_can_be_sent_with_the_message(
    client: httpx.Client, form: Form
) -> None:
    """The largest that one part may have (half of a request), in base64."""
    largest = b"%PDF-1.7\n".ljust(8_388_608, b"\xff")
    raw = encoded(largest)
    task = form.send(client, "look:", form.file(raw=raw, media_type="application/pdf"))
    assert task["status"]["state"] == form.state("completed")
    assert kept(client, task) == largest


def test_a_file_over_the_limit_of_a_part_is_refused_for_that(
    client: httpx.Client, form: Form
) -> None:
    """And not because the request is too large: that would not say which part it is."""
    too_large = encoded(b"x" * 8_388_609)
    message = form.sending("look:", form.file(raw=too_large, media_type="text/plain"))
    refusal = form.refused(form.call(client, "send", message), INVALID_PARAMS)
    assert "A2A_MAX_REQUEST_BODY_BYTES" in "".join(refusal.fields.values())
