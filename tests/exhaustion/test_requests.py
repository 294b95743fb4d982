"""Requests that are too large, too slow, or no HTTP are refused in shape, and cost little."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import orjson
import pytest

from tests.api.forms import (
    FORMS,
    INVALID_REQUEST,
    PAYLOAD_TOO_LARGE,
    REQUEST_HEAD_TOO_LARGE,
    REQUEST_TIMEOUT,
    REST_1,
    UNAUTHENTICATED,
    Form,
)
from tests.exhaustion.attacks import WRONG, Answer, Socket, Stream, connect, head, peak_memory
from tests.running import Service, Upstream, service

ALIVE = b"GET /health HTTP/1.1\r\nHost: [::1]\r\n\r\n"
MANY_FIELDS = b"".join(b"X-%d: a\r\n" % n for n in range(129))
CHUNKED = b"POST / HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n"


@pytest.fixture(scope="module")
def hasty(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(fake, tmp_path_factory.mktemp("hasty")) as running:
        yield running


def start_of(form: Form) -> bytes:
    """The beginning of a request in a form, from which its shape can be told."""
    path = "/" if form.rpc else form.route("send").path
    version = b"".join(f"{name}: {value}\r\n".encode() for name, value in form.version.items())
    return f"POST {path} HTTP/1.1\r\nHost: [::1]\r\n".encode() + version


def as_response(answer: Answer) -> httpx.Response:
    return httpx.Response(answer.status, headers=answer.headers, content=answer.body)


async def refused_and_closed(socket: Socket) -> httpx.Response:
    """The last answer on a connection: it says that it is, and is."""
    answer = await socket.answer()
    assert answer.closes, answer
    assert await socket.closed() == b""
    return as_response(answer)


# -- the head


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "rest",
    [
        b"X-Long: " + b"a" * 33_000 + b"\r\n\r\n",
        b"X-Endless: " + b"a" * 33_000,
        b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(34)),
        MANY_FIELDS,
        MANY_FIELDS + b"\r\n",
    ],
    ids=["a long field", "an endless field", "long fields", "many fields", "a whole head"],
)
async def test_a_head_over_the_limit_is_refused(
    fake_service: Service, form: Form, rest: bytes
) -> None:
    async with connect(fake_service) as socket:
        await socket.send(start_of(form) + rest)
        refusal = form.refused(
            await refused_and_closed(socket), REQUEST_HEAD_TOO_LARGE, rpc_id=None
        )
    assert "32768 bytes" in refusal.message


async def test_a_path_over_the_limit_is_refused(fake_service: Service) -> None:
    async with connect(fake_service) as socket:
        await socket.send(b"GET /" + b"a" * 40_000)
        REST_1.refused(await refused_and_closed(socket), REQUEST_HEAD_TOO_LARGE)


async def test_a_head_below_the_limit_is_read_however_it_arrives(fake_service: Service) -> None:
    request = ALIVE[:-2] + b"X-Long: " + b"a" * 30_000 + b"\r\n\r\n"
    async with connect(fake_service) as socket:
        for _ in range(2):
            for part in (request[:10], request[10:20_000], request[20_000:]):
                await socket.send(part)
            assert (await socket.answer()).status == 200


async def test_headers_without_end_cost_no_memory(fake_service: Service) -> None:
    piece = b"".join(b"X-%06d: abcdefg\r\n" % n for n in range(52_632))  # 1 MB
    async with connect(fake_service) as socket:
        before = peak_memory(fake_service)
        await socket.send(ALIVE[:-2])
        try:
            for _ in range(16):
                await socket.send(piece)
        except ConnectionError:
            pass  # it was not patient enough to take them all
        assert peak_memory(fake_service) < before + 40
    async with connect(fake_service) as socket:
        await socket.send(ALIVE)
        assert (await socket.answer()).status == 200


async def test_half_a_head_is_given_up(hasty: Service) -> None:
    async with connect(hasty) as socket:
        await socket.send(start_of(REST_1) + b"X-Half: ")
        refusal = REST_1.refused(await refused_and_closed(socket), REQUEST_TIMEOUT)
    assert "head took too long" in refusal.message


async def test_half_a_head_on_a_used_connection_is_given_up_too(hasty: Service) -> None:
    async with connect(hasty) as socket:
        await socket.send(head(hasty, "GET /tasks"))
        assert (await socket.answer()).status == 200
        await socket.send(start_of(REST_1))
        REST_1.refused(await refused_and_closed(socket), REQUEST_TIMEOUT)


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n"], ids=["nothing", "empty lines"])
async def test_a_connection_on_which_nothing_is_said_is_closed_without_a_word(
    hasty: Service, sent: bytes
) -> None:
    async with connect(hasty) as socket:
        await socket.send(sent)
        assert await socket.closed() == b""


async def test_between_two_requests_there_is_more_time(hasty: Service) -> None:
    async with connect(hasty) as socket, connect(hasty) as silent:
        await socket.send(ALIVE)
        assert (await socket.answer()).status == 200
        await silent.closed()  # which was given as long as a head has
        await socket.send(ALIVE)
        assert (await socket.answer()).status == 200


# -- the body


async def test_half_a_body_is_given_up(hasty: Service) -> None:
    fields = ("Content-Type: application/json", "Content-Length: 1000")
    async with connect(hasty) as socket:
        await socket.send(head(hasty, "POST /message:send", *fields) + b"{")
        refusal = REST_1.refused(await refused_and_closed(socket), REQUEST_TIMEOUT)
    assert "body took too long" in refusal.message


async def test_a_body_that_keeps_coming_is_read_to_its_end(hasty: Service) -> None:
    """It takes three times as long as half a body has: what has arrived has earned the rest."""
    fields = ("Content-Type: application/json", "Content-Length: 81922", "A2A-Version: 1.0")
    async with connect(hasty) as socket:
        await socket.send(head(hasty, "POST /tasks/missing:cancel", *fields))
        for _ in range(10):
            await socket.send(b" " * 8_192)
            await asyncio.sleep(0.3)
        await socket.send(b"{}")
        answer = await socket.answer()
    assert (answer.status, answer.closes) == (404, False), answer.body


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
async def test_an_answer_before_the_body_closes_the_connection_and_is_read_all_the_same(
    fake_service: Service, form: Form
) -> None:
    """The client goes on sending, as one does that does not look for an answer yet."""
    login = f"Authorization: Bearer {fake_service.token}\r\nContent-Type: application/json\r\n"
    for fields, kind in ((WRONG, UNAUTHENTICATED), (login.encode(), PAYLOAD_TOO_LARGE)):
        async with connect(fake_service) as socket:
            await socket.send(start_of(form) + fields + b"Content-Length: 30000000\r\n\r\n")
            for _ in range(20):
                await socket.send(b" " * 100_000)
            form.refused(await refused_and_closed(socket), kind, rpc_id=None)


async def test_a_client_that_goes_on_sending_after_a_refusal_is_cut_off(
    fake_service: Service,
) -> None:
    async with connect(fake_service) as socket:
        await socket.send(start_of(REST_1) + WRONG + b"Content-Length: 999999999\r\n\r\n")
        assert (await socket.answer()).closes
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(60):
                while True:
                    await socket.send(b" " * 1_000)
                    await asyncio.sleep(0.02)


async def test_a_body_of_unknown_length_is_refused_where_it_passes_the_limit(
    fake_service: Service,
) -> None:
    fields = ("Content-Type: application/json", "Transfer-Encoding: chunked", "A2A-Version: 1.0")
    piece = b"%x\r\n%b\r\n" % (65_536, b" " * 65_536)
    async with connect(fake_service) as socket:
        await socket.send(head(fake_service, "POST /message:send", *fields) + 257 * piece)
        REST_1.refused(await refused_and_closed(socket), PAYLOAD_TOO_LARGE)


async def test_bodies_without_a_credential_are_not_kept(hasty: Service) -> None:
    """Each is within the limit; together they would be 128 MB."""
    body = b"{" + b" " * 8_000_000
    login = b"Content-Type: application/json\r\nContent-Length: 8000001\r\n\r\n"
    before = peak_memory(hasty)

    async def send_all(credential: bytes) -> None:
        async with connect(hasty) as socket:
            socket.writer.write(start_of(REST_1) + credential + login + body)
            assert (await socket.answer()).status == 401

    await asyncio.gather(*(send_all(each) for each in 8 * (WRONG, b"")))
    assert peak_memory(hasty) - before < 32


async def test_a_refused_request_whose_body_has_arrived_leaves_the_connection_open(
    fake_service: Service,
) -> None:
    async with connect(fake_service) as socket:
        for _ in range(2):
            await socket.send(start_of(REST_1) + WRONG + b"Content-Length: 2\r\n\r\n{}")
            answer = await socket.answer()
            assert (answer.status, answer.closes) == (401, False)


async def test_a_body_that_is_not_asked_for_is_not_sent(fake_service: Service) -> None:
    fields = ("Content-Type: application/json", "Expect: 100-continue", "A2A-Version: 1.0")
    body = b'{"id": "missing"}'
    async with connect(fake_service) as socket:
        await socket.send(
            start_of(REST_1) + WRONG + b"Content-Length: 9\r\nExpect: 100-continue\r\n"
        )
        await socket.send(b"\r\n")
        REST_1.refused(await refused_and_closed(socket), UNAUTHENTICATED)
    async with connect(fake_service) as socket:
        length = f"Content-Length: {len(body)}"
        await socket.send(head(fake_service, "POST /tasks/missing:cancel", *fields, length))
        assert (await socket.answer()).status == 100
        await socket.send(body)
        answer = await socket.answer()
        assert (answer.status, answer.closes) == (404, False)


# -- streams


async def test_no_deadline_touches_a_stream(hasty: Service) -> None:
    """Not even of a client that has sent the beginning of its next request already."""
    async with Stream(hasty).open() as stream, connect(hasty) as silent:
        await stream.socket.send(start_of(REST_1) + b"X-Half: ")
        await silent.closed()
        await stream.goes_on(60)  # three times as long as a request has


# -- what is not HTTP, or could be read in two ways


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 20,
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"CONNECT there:80 HTTP/1.1\r\nHost: there:80\r\n\r\n",
        b"POST / HTTP/1.1\nHost: [::1]\nContent-Length: 2\n\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n",
        *(
            CHUNKED + b"\r\n" + size + b"\r\nhello\r\n0\r\n\r\n"
            for size in (b"0x5", b"+5", b"-5", b" 5", b"5 ", b"zz", b"", b"f" * 17, b"5\n")
        ),
        CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n",
    ],
)
async def test_what_is_not_http_or_has_two_meanings_is_refused(
    fake_service: Service, request_: bytes
) -> None:
    """A second request right behind it must not be answered: who knows whose it is."""
    async with connect(fake_service) as socket:
        await socket.send(request_ + ALIVE)
        answer = await socket.answer()
        assert (answer.status, answer.closes) == (400, True)
        body = orjson.loads(answer.body)
        assert (body["id"], body["error"]["code"]) == (None, INVALID_REQUEST.code)
        assert await socket.closed() == b""


async def test_nonsense_behind_a_request_does_not_spoil_its_answer(fake_service: Service) -> None:
    async with connect(fake_service) as socket:
        await socket.send(ALIVE + ALIVE + b"NONSENSE\r\n\r\n" + ALIVE)
        for _ in range(2):
            answer = await socket.answer()
            assert (answer.status, orjson.loads(answer.body)) == (200, {"status": "ok"})
        assert await socket.closed() == b""


async def test_requests_that_nobody_waits_for_are_not_collected(fake_service: Service) -> None:
    """Thousands fit into one read, and a client that does not read stops their answers."""
    async with connect(fake_service) as socket:
        await socket.send(b"GET /tasks HTTP/1.1\r\n\r\n" * 10_000)
        answers = (await socket.closed()).count(b"HTTP/1.1 401 Unauthorized")
    assert 16 <= answers <= 1_000  # it may read them in several pieces


async def test_a_trailer_is_no_header(fake_service: Service) -> None:
    """Who may check a request on its way here has looked at its headers."""
    login = f"Authorization: Bearer {fake_service.token}\r\n".encode()
    request = b"POST /tasks/x:cancel HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with connect(fake_service) as socket:
        await socket.send(request + b"0\r\n" + login + b"\r\n")
        assert (await socket.answer()).status == 401
        await socket.send(request + b"0\r\n" + MANY_FIELDS)
        await socket.closed()


async def test_a_request_to_change_the_protocol_is_read_as_if_there_was_none(
    fake_service: Service,
) -> None:
    """As some clients send it with their first request. Its body is not the next request."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    body = orjson.dumps({"message": message})
    fields = ("A2A-Version: 1.0", "Content-Type: application/json", *upgrade)
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with connect(fake_service) as socket:
        for sent, length in (
            (body, f"Content-Length: {len(body)}"),
            (chunk, "Transfer-Encoding: chunked"),
        ):
            request = head(fake_service, "POST /message:send", *fields, length)
            for parts in ((request + sent,), (request, sent), (request[:40], request[40:] + sent)):
                for part in parts:
                    await socket.send(part)
                answer = await socket.answer()
                assert answer.status == 200, answer
                task = orjson.loads(answer.body)["task"]
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        await socket.send(head(fake_service, "GET /tasks", *upgrade))
        assert (await socket.answer()).status == 200
