"""Who is calling, and how often somebody may guess."""

from __future__ import annotations

import base64
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from opencode_a2a.domain.values import Caller
from opencode_a2a.errors import RateLimited, ServiceError, Unauthenticated
from opencode_a2a.web.auth import (
    ADDRESSES,
    FAILURES,
    WINDOW,
    Authenticate,
    Credential,
    Credentials,
    Throttle,
)

ALICE, BOB = Caller("alice"), Caller("bob")
KNOWN = Credentials([Credential.bearer("tökén", ALICE), Credential.basic("bob", "pass:wörd", BOB)])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


# -- credentials


@pytest.mark.parametrize(
    ("header", "caller"),
    [
        ("Bearer tökén".encode(), ALICE),
        ("  bEaReR \t tökén ".encode(), ALICE),
        (basic("bob:pass:wörd"), BOB),
        ("Bearer bob:pass:wörd".encode(), None),
        (basic("tökén"), None),
        ("Basic tökén".encode(), None),
        ("tökén".encode(), None),
        (b"Bearer", None),
        (b"", None),
        (b"   ", None),
        (b"Bearer \xff\xff", None),
        (b"Basic \xff\xff", None),
        (b"Basic ====", None),
        (basic(":"), None),
        (b"Bearer" + b" " * 100_000 + b"x", None),
    ],
)
def test_a_header_stands_for_a_caller_or_nobody(header: bytes, caller: Caller | None) -> None:
    assert KNOWN.caller(header) == caller


def test_nobody_is_known_by_no_credential() -> None:
    assert Credentials([]).caller(b"Bearer ") is None
    assert Credentials([]).schemes == []


def test_a_credential_does_not_show_its_secret() -> None:
    assert "tökén" not in repr(KNOWN)
    assert "wörd" not in repr(KNOWN)


def test_the_challenge_names_every_way_to_log_in() -> None:
    assert KNOWN.challenge == 'Bearer realm="opencode-a2a", Basic realm="opencode-a2a"'


# -- the throttle


def test_failures_count_within_their_window() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FAILURES):
        assert not throttle.exceeded("a")
        throttle.failed("a")
    assert throttle.exceeded("a")
    assert not throttle.exceeded("b")
    clock.now += WINDOW - 0.1
    assert throttle.exceeded("a")
    clock.now += 0.1
    assert not throttle.exceeded("a")


def test_a_new_window_counts_from_one() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(FAILURES):
        throttle.failed("a")
    clock.now += WINDOW
    throttle.failed("a")
    assert not throttle.exceeded("a")
    for _ in range(FAILURES - 1):
        throttle.failed("a")
    assert throttle.exceeded("a")


def test_slow_guessing_is_not_stopped() -> None:
    """The window is fixed: what it bounds is the rate, not the sum."""
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(10 * FAILURES):
        throttle.failed("a")
        assert not throttle.exceeded("a")
        clock.now += WINDOW / (FAILURES - 1)


def test_memory_is_bounded_and_forgets_who_failed_longest_ago() -> None:
    throttle = Throttle(Clock())
    for _ in range(FAILURES):
        throttle.failed("persistent")
    for n in range(ADDRESSES - 1):
        throttle.failed(f"address {n}")
    assert throttle.exceeded("persistent")
    throttle.failed("persistent")
    throttle.failed("one more")
    assert throttle.exceeded("persistent"), "it failed a moment ago"
    for n in range(ADDRESSES):
        throttle.failed(f"flood {n}")
    assert not throttle.exceeded("persistent")


# -- the middleware


async def answered(
    headers: list[tuple[bytes, bytes]],
    path: str = "/",
    client: Any = ("1.2.3.4", 1),
    times: int = 1,
) -> tuple[Caller | None, list[ServiceError]]:
    """The caller a request got through as, and the refusals on the way."""
    through: list[Caller | None] = []
    refusals: list[ServiceError] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        through.append(scope["state"]["caller"])

    def refuse(scope: Scope, error: ServiceError) -> PlainTextResponse:
        refusals.append(error)
        return PlainTextResponse("no", error.http_status)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    guard = Authenticate(app, KNOWN, frozenset({"/public"}), refuse)
    for _ in range(times):
        scope = {"type": "http", "path": path, "headers": headers, "client": client}
        await guard(scope, receive, send)
    return (through[-1] if through else None), refusals


RIGHT = (b"authorization", "Bearer tökén".encode())
WRONG = (b"authorization", b"Bearer x")


async def test_a_known_caller_gets_through() -> None:
    assert await answered([RIGHT]) == (ALICE, [])


async def test_the_first_of_several_headers_counts() -> None:
    assert await answered([RIGHT, WRONG]) == (ALICE, [])
    _, (refusal,) = await answered([WRONG, RIGHT])
    assert isinstance(refusal, Unauthenticated)


async def test_an_open_path_knows_its_caller_if_there_is_one() -> None:
    assert await answered([RIGHT], "/public") == (ALICE, [])
    assert await answered([WRONG], "/public") == (None, [])
    assert await answered([], "/public") == (None, [])


@pytest.mark.parametrize("path", ["/public/", "/public/x", "//public", "/Public", "/"])
async def test_only_the_very_path_is_open(path: str) -> None:
    _, (refusal,) = await answered([], path)
    assert isinstance(refusal, Unauthenticated)


@pytest.mark.parametrize("client", [("1.2.3.4", 1), None])
async def test_guessing_is_slowed_down_wherever_it_comes_from(client: Any) -> None:
    _, refusals = await answered([WRONG], client=client, times=FAILURES + 2)
    assert [type(refusal) for refusal in refusals] == (
        [Unauthenticated] * FAILURES + [RateLimited] * 2
    )
    assert refusals[-1].retry_after == WINDOW


async def test_what_is_not_a_request_passes() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    def refuse(scope: Scope, error: ServiceError) -> PlainTextResponse:
        raise AssertionError(error)

    async def nothing(*_: object) -> Any:
        raise AssertionError("nobody listens")

    await Authenticate(app, KNOWN, frozenset(), refuse)({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]
