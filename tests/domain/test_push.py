"""When an event is tried again, and when a receiver is left alone."""

from __future__ import annotations

import pytest

from opencode_a2a.domain.push import (
    FAILURES_TO_OPEN,
    MAX_RETRY_AFTER_SECONDS,
    MAX_RETRY_SECONDS,
    Breaker,
    PushTarget,
    SendingShares,
    retry_seconds,
)


def test_pauses_double_up_to_a_limit_and_are_never_the_same_for_all() -> None:
    middle = [retry_seconds(n, jitter=0.5, retry_after=None) for n in (1, 2, 3, 4)]
    assert middle == [1, 2, 4, 8]
    assert retry_seconds(500, jitter=0.5, retry_after=None) == MAX_RETRY_SECONDS
    early, late = (retry_seconds(3, jitter=j, retry_after=None) for j in (0.0, 1.0))
    assert early < 4 < late


def test_a_receiver_says_how_long_to_wait_within_limits() -> None:
    assert retry_seconds(1, jitter=0, retry_after=120) == 120
    assert retry_seconds(1, jitter=0, retry_after=10**9) == MAX_RETRY_AFTER_SECONDS
    assert retry_seconds(9, jitter=0.5, retry_after=0.1) == 256


def failed(times: int, at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker.failed(at, jitter=0.5)
    return breaker


def test_a_receiver_that_fails_again_and_again_is_only_probed() -> None:
    assert failed(FAILURES_TO_OPEN - 1).admit(0)
    breaker = failed(FAILURES_TO_OPEN)
    assert not breaker.admit(0)
    first = breaker.closed_until
    assert breaker.admit(first), "one probe"
    assert not breaker.admit(first), "and no second one meanwhile"
    breaker.failed(first, jitter=0.5)
    assert breaker.closed_until - first > first, "a longer pause than before"


def test_one_success_lets_everybody_in_again() -> None:
    breaker = failed(FAILURES_TO_OPEN + 3)
    breaker.worked()
    assert breaker.admit(0)
    assert breaker.admit(0)


def test_pauses_of_a_receiver_end_within_a_minute() -> None:
    assert failed(FAILURES_TO_OPEN + 40).closed_until <= 60


def begin_as_many_as_possible(shares: SendingShares, owner: str) -> int:
    count = 0
    while shares.may_begin(owner):
        shares.begin(owner)
        count += 1
    return count


def test_an_owner_gets_as_much_as_is_left_for_the_others() -> None:
    shares = SendingShares(16)
    assert [begin_as_many_as_possible(shares, owner) for owner in "abcde"] == [8, 4, 2, 1, 1]
    assert not shares.may_begin("f")
    shares.end("a")
    assert shares.next_of("af") == "f", "who has nothing comes first"
    assert shares.next_of("ab") is None, "the last one is for somebody new"
    assert shares.next_of("") is None


@pytest.mark.parametrize("scheme", ["HMAC", "hmac-sha256"])
def test_a_key_is_used_instead_of_the_token(scheme: str) -> None:
    target = PushTarget("https://x", token="token", scheme=scheme, credentials="key")
    assert target.signing_secret == "key"
    assert PushTarget("https://x", token="token").signing_secret == "token"


def test_secrets_are_not_in_what_is_printed_of_a_target() -> None:
    target = PushTarget("https://x", token="tok-1", scheme="Bearer", credentials="cred-2")
    assert "tok-1" not in repr(target)
    assert "cred-2" not in repr(target)
