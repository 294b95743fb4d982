"""How it is found out which OpenCode answers, or that another program does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from opencode_a2a.domain.release import Release
from opencode_a2a.errors import UpstreamHttpError, UpstreamPayloadError
from opencode_a2a.opencode.http import Endpoint, Http

HEALTH, INFO = "/global/health", "/api/info"
Answers = Mapping[str, bytes]


def answer(status: int, body: str = "", media_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} Status\r\ncontent-type: {media_type}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


def version(number: str) -> bytes:
    return answer(200, f'{{"version": "{number}"}}')


PAGE = answer(200, "<!doctype html>", "text/html")  # of OpenCode 2, wherever it has no route


async def probe(answers: Answers) -> Release:
    async with serving(answers) as http:
        return await http.probe(30.0)


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[Http]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        writer.write(answers.get(path, PAGE))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Http.open(Endpoint(f"http://127.0.0.1:{port}")) as http:
            yield http


@pytest.mark.parametrize(
    ("answers", "release"),
    [
        ({HEALTH: version("1.18.33")}, Release("1.18.33")),
        ({HEALTH: version("local"), INFO: answer(500)}, Release("local")),
        ({INFO: version("2.0.15")}, Release("2.0.15", generation=2)),
        ({HEALTH: answer(404), INFO: version("2.1.4")}, Release("2.1.4", generation=2)),
        ({INFO: version("local")}, Release("local", generation=2)),
    ],
)
async def test_which_opencode_answers_is_known_by_its_routes(
    answers: Answers, release: Release
) -> None:
    assert await probe(answers) == release


@pytest.mark.parametrize(
    ("answers", "status", "says"),
    [
        ({HEALTH: answer(401)}, 401, "refused our credentials"),
        ({INFO: answer(401)}, 401, "refused our credentials"),
        ({HEALTH: answer(503)}, 503, "HTTP 503"),
        ({INFO: answer(503, '{"code": "service_starting"}')}, 503, "HTTP 503"),
    ],
)
async def test_an_opencode_that_cannot_be_used_now_says_why(
    answers: Answers, status: int, says: str
) -> None:
    with pytest.raises(UpstreamHttpError, match=says) as refused:
        await probe(answers)
    assert refused.value.facts["upstream_status"] == status


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, "is not OpenCode: .* 1.17, 1.18, and 2.x from 2.0.15 on"),
        ({INFO: answer(404)}, "is not OpenCode"),
        ({HEALTH: answer(200, "[]"), INFO: answer(200, "[]")}, "is not OpenCode"),
        (
            {HEALTH: version("1.16.2")},
            "OpenCode 1.16.2 is not supported: .* works with 1.17, 1.18, and 2.x",
        ),
        ({INFO: version("2.0.14")}, "OpenCode 2.0.14 is not supported"),
        ({INFO: version("3.0.0")}, "OpenCode 3.0.0 is not supported"),
    ],
)
async def test_what_is_no_supported_opencode_is_told_with_the_versions_that_are(
    answers: Answers, says: str
) -> None:
    with pytest.raises(UpstreamPayloadError, match=says):
        await probe(answers)
