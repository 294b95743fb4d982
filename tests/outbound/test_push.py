"""Where notifications may go, by address, and what is said when one does not arrive."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from opencode_a2a.domain.ports import Refused
from opencode_a2a.domain.push import Notification, PushConfig, PushTarget
from opencode_a2a.domain.task import TaskHead
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.push import SigningKeys, Webhooks, new_key, signature
from opencode_a2a.outbound.retry_after import retry_after
from tests.receivers import receiver

HEAD = TaskHead("task", "context", "alice", 1_000)


def config(url: str) -> PushConfig:
    return PushConfig(HEAD, "c", target=PushTarget(url), created_at=1_000)


async def opened(egress: Egress) -> AsyncIterator[Webhooks]:
    keys = await SigningKeys.load(new_key)
    async with Webhooks.open(egress, keys, issuer="https://agent", seconds=10) as webhooks:
        yield webhooks


@pytest.fixture
async def public() -> AsyncIterator[Webhooks]:
    async for webhooks in opened(Egress(private_setting="A2A_PUSH_PRIVATE_HOSTS")):
        yield webhooks


@pytest.fixture
async def local() -> AsyncIterator[Webhooks]:
    async for webhooks in opened(Egress(named_hosts=frozenset({"127.0.0.1"}))):
        yield webhooks


SENT = Notification("task:1", b"{}", attempt=1)


async def test_a_name_with_a_private_address_is_refused_at_registration_and_when_sending(
    public: Webhooks,
) -> None:
    with receiver() as webhook:
        url = webhook.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(Refused, match="A2A_PUSH_PRIVATE_HOSTS"):
            await public.check(url, owner="alice")
        answer = await public.post(config(url), SENT)
        assert answer.error is not None
        assert "not allowed" in answer.error
        assert not answer.unwell, "no reason to keep others away from this origin"
        assert webhook.received == []


@pytest.mark.parametrize(
    "authority",
    ["a.example:+80", "a.example: 80", "a.example:٨٠", "a..example", f"{'a' * 64}.example"],
)
async def test_an_address_that_no_connection_could_use_is_refused(
    public: Webhooks, authority: str
) -> None:
    with pytest.raises(Refused):
        await public.check(f"https://{authority}/", owner="alice")


async def test_a_name_server_that_hangs_delays_nobody_else(
    public: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *args: Any, **named: Any) -> Any:
        if host.endswith("hangs.example"):
            answered.wait(60)
            raise socket.gaierror
        return real(host, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    hanging = [
        asyncio.create_task(public.check(f"https://{n}.{n % 9}-hangs.example/", owner="alice"))
        for n in range(64)
    ]
    try:
        await asyncio.sleep(0)  # all of them have asked
        async with asyncio.timeout(30):
            await asyncio.to_thread(int)
            with pytest.raises(Refused):
                await public.check("https://localhost/", owner="bob")
    finally:
        answered.set()
        for each in hanging:
            each.cancel()


async def test_nobody_there_and_a_broken_answer_are_problems_of_the_receiver(
    local: Webhooks,
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        free = closed.getsockname()[1]
    answer = await local.post(config(f"http://127.0.0.1:{free}/secret-path"), SENT)
    assert answer.unwell
    assert "secret-path" not in (answer.error or "")
    with receiver(lambda _: None) as webhook:
        answer = await local.post(config(webhook.url), SENT)
    assert answer.unwell


async def test_an_answer_of_any_size_is_left_unread(local: Webhooks) -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        answer = await local.post(config(f"http://127.0.0.1:{port}/"), SENT)
        assert answer.error is None
        server.close()


async def test_a_receiver_says_when_to_come_back(local: Webhooks) -> None:
    with receiver(lambda _: (429, {"retry-after": "7"})) as webhook:
        answer = await local.post(config(webhook.url), SENT)
    assert (answer.error, answer.retry_after, answer.unwell) == ("HTTP 429", 7.0, False)


def test_a_year_that_no_clock_has_is_no_time_to_come_back() -> None:
    assert retry_after("Mon, 01 Jan 99999999999999999999 00:00:00 GMT") is None


@pytest.mark.parametrize(
    "text", ["no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
async def test_a_key_that_cannot_be_read_is_an_error_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="private key"):
        await SigningKeys.load(lambda: text)


@pytest.mark.parametrize(("status", "away"), [(500, False), (404, False), (502, True), (503, True)])
async def test_what_a_status_says_about_the_receiver(
    local: Webhooks, status: int, away: bool
) -> None:
    with receiver(lambda _: (status, {})) as webhook:
        answer = await local.post(config(webhook.url), SENT)
    assert (answer.error, answer.unwell) == (f"HTTP {status}", away)


async def test_the_answer_to_a_challenge_may_come_in_pieces(local: Webhooks) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert "accept-encoding: identity" in request.lower(), "nothing is decompressed"
        token = request.split("validationToken=")[1].split()[0].encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(token)
        for piece in (head, token[:5], token[5:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)  # so that they arrive apart; together it is right, too
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    server = await asyncio.start_server(slowly, "127.0.0.1", 0)
    async with asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        await local.challenge(f"http://127.0.0.1:{port}/", owner="alice")
        await over.wait()
        server.close()


async def test_the_first_of_several_keys_signs_and_all_are_published() -> None:
    first, second = new_key(), new_key()
    one = await SigningKeys.load(lambda: first)
    both = await SigningKeys.load(lambda: first + second)
    published = both.published()["keys"]
    assert len(published) == 2
    assert published[0] == one.published()["keys"][0]


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # The example of the specification's libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1614265330, body=body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    raw = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert signature(raw.decode("latin-1"), "x", timestamp=1, body=b"") != found
