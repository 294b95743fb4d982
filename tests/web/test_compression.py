"""What is compressed, and what must pass untouched."""

from __future__ import annotations

import gzip
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse

from opencode_a2a.web import compression
from opencode_a2a.web.compression import Compression, is_accepted
from tests.web.asking import Answers, ask

JSON = "application/json"
LONG = b'{"text": "' + b"again and " * 200 + b'"}'


@pytest.mark.parametrize("media_type", [JSON, "application/a2a+json", "text/html; charset=utf-8"])
async def test_a_long_answer_is_compressed(media_type: str) -> None:
    app = Compression(Answers(Response(LONG, media_type=media_type)))
    answer = await ask(app, accept_encoding="br, gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) < len(LONG) / 5
    assert answer.content == LONG


async def test_who_does_not_accept_it_gets_it_plain() -> None:
    answer = await ask(Compression(Answers(Response(LONG, media_type=JSON))), accept_encoding="br")
    assert answer.headers["content-length"] == str(len(LONG))
    assert answer.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    "response",
    [
        Response(b"{}", media_type=JSON),
        Response(LONG, media_type="image/png"),
        Response(LONG, media_type=JSON, headers={"content-encoding": "br"}),
        Response(status_code=204),
        Response(status_code=304),
    ],
)
async def test_what_would_gain_nothing_stays_as_it_is(response: Response) -> None:
    headers = dict(response.headers)
    answer = await ask(Compression(Answers(response)), accept_encoding="gzip")
    assert dict(answer.headers) == headers


async def test_pieces_are_passed_on_one_by_one() -> None:
    """Each is with the client before the next is made."""
    sent = list[bytes]()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            assert len(sent) == number
            yield LONG

    async def send(message: dict[str, object]) -> None:
        if message.get("body"):
            body = message["body"]
            assert isinstance(body, bytes)
            sent.append(body)

    async def receive() -> dict[str, object]:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "method": "GET", "headers": [(b"accept-encoding", b"gzip")]}
    app = Compression(Answers(StreamingResponse(pieces(), media_type=JSON)))
    await app({**scope, "asgi": {"spec_version": "2.4"}}, receive, send)  # type: ignore[arg-type]
    assert sent == [LONG, LONG, LONG]


async def test_a_large_answer_is_compressed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, compress = list[threading.Thread](), gzip.compress

    def watched(*body: Any, **options: Any) -> bytes:
        threads.append(threading.current_thread())
        return compress(*body, **options)

    monkeypatch.setattr(gzip, "compress", watched)
    for body in (LONG, b" " * (compression.INLINE_BYTES + 1)):
        app = Compression(Answers(Response(body, media_type=JSON)))
        assert (await ask(app, accept_encoding="gzip")).content == body
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("br, x-gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip; q=1.0", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("", False),
        ("gzipped", False),
    ],
)
def test_an_accept_encoding_is_understood(header: str, accepted: bool) -> None:
    assert is_accepted(header) is accepted
