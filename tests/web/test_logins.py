"""How fast somebody may guess: lists of logins in, lists of verdicts out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.web.logins import (
    DELAY_SECONDS,
    FORGET_SECONDS,
    FREE_FAILURES,
    MAX_ACCEPTED,
    MAX_ADDRESSES,
    MAX_WAITING,
    MAX_WAITING_PER_ADDRESS,
    LoginGuard,
    Verdict,
)

CHECK, WAIT, REFUSE = Verdict
RIGHT, OTHER, WRONG = b"right", b"other", b"wrong"


def storm(guard: LoginGuard, address: str = "here", now: float = 0) -> None:
    for _ in range(FREE_FAILURES):
        assert guard.verdict(address, WRONG, now) is CHECK
        guard.failed(address, now)


def test_a_right_guess_waits_as_long_as_a_wrong_one() -> None:
    guard = LoginGuard()
    storm(guard)
    assert guard.verdict("here", RIGHT, 0) is WAIT
    assert guard.verdict("here", WRONG, 0) is WAIT
    assert guard.verdict("there", WRONG, 0) is CHECK


def test_a_credential_that_was_accepted_from_there_before_does_not_wait() -> None:
    guard = LoginGuard()
    guard.accepted("here", RIGHT)
    guard.accepted("there", OTHER)
    storm(guard)
    assert guard.verdict("here", RIGHT, 0) is CHECK
    assert guard.verdict("here", OTHER, 0) is WAIT, "it was accepted from another address"


def test_a_credential_that_waited_and_was_right_does_not_wait_again() -> None:
    guard = LoginGuard()
    storm(guard)
    guard.waits("here")
    guard.waited("here")
    guard.accepted("here", RIGHT)
    assert guard.verdict("here", RIGHT, DELAY_SECONDS) is CHECK


def test_few_wait_at_a_time_and_all_others_are_refused_alike() -> None:
    guard = LoginGuard()
    guard.accepted("here", OTHER)
    storm(guard)
    for _ in range(MAX_WAITING_PER_ADDRESS):
        assert guard.verdict("here", WRONG, 0) is WAIT
        guard.waits("here")
    assert guard.verdict("here", WRONG, 0) is REFUSE
    assert guard.verdict("here", RIGHT, 0) is REFUSE
    assert guard.verdict("here", OTHER, 0) is CHECK
    guard.waited("here")
    assert guard.verdict("here", RIGHT, 0) is WAIT


def test_those_who_wait_are_bounded_over_all_addresses() -> None:
    guard = LoginGuard()
    addresses = [f"address {n}" for n in range(MAX_WAITING // MAX_WAITING_PER_ADDRESS)]
    for address in addresses:
        storm(guard, address)
        for _ in range(MAX_WAITING_PER_ADDRESS):
            guard.waits(address)
    storm(guard, "one more")
    assert guard.verdict("one more", RIGHT, 0) is REFUSE
    assert guard.verdict("without failures", RIGHT, 0) is CHECK
    guard.waited(addresses[0])
    assert guard.verdict("one more", RIGHT, 0) is WAIT


def test_a_storm_is_forgotten_after_a_while() -> None:
    guard = LoginGuard()
    storm(guard)
    for _ in range(100 * FREE_FAILURES):
        guard.failed("here", 0)
    assert guard.is_slowed("here", FORGET_SECONDS)
    assert not guard.is_slowed("here", FORGET_SECONDS + 0.1)
    storm_again = 2 * FORGET_SECONDS
    storm(guard, now=storm_again)
    assert guard.is_slowed("here", storm_again)


def test_somebody_who_is_wrong_now_and_then_is_never_slowed() -> None:
    """A client that polls with an old token must not slow down everybody behind its address."""
    guard, now = LoginGuard(), 0.0
    for _ in range(10 * FREE_FAILURES):
        assert guard.verdict("here", WRONG, now) is CHECK
        guard.failed("here", now)
        now += FORGET_SECONDS / FREE_FAILURES


def test_a_storm_is_told_once_until_all_of_it_is_forgotten() -> None:
    """A steady attack keeps the level around the limit, which it crosses again and again."""
    guard = LoginGuard()
    told = [guard.failed("here", 0) for _ in range(FREE_FAILURES)]
    assert told == [*[False] * (FREE_FAILURES - 1), True]
    now, crossed = 0.0, 0
    for _ in range(20):
        now += 1.5 * FORGET_SECONDS / FREE_FAILURES
        assert not guard.is_slowed("here", now)
        while not guard.is_slowed("here", now):
            assert not guard.failed("here", now)
        crossed += 1
    assert crossed == 20
    now += 2 * FORGET_SECONDS
    assert [guard.failed("here", now) for _ in range(FREE_FAILURES)] == told


def test_a_credential_of_another_scheme_is_another_one() -> None:
    guard = LoginGuard()
    guard.accepted("here", ("bearer", RIGHT))
    storm(guard)
    assert guard.verdict("here", ("bearer", RIGHT), 0) is CHECK
    assert guard.verdict("here", ("basic", RIGHT), 0) is WAIT


@pytest.mark.parametrize("seconds", [60, 600])
def test_the_number_of_answers_to_guesses_is_bounded(seconds: int) -> None:
    """An attacker who always guesses as often as possible, in parallel."""
    guard, answered, waiting = LoginGuard(), 0, list[float]()
    for tenth in range(10 * seconds):
        now = tenth / 10
        while waiting and waiting[0] <= now:
            waiting.pop(0)
            guard.waited("here")
            guard.failed("here", now)
            answered += 1
        while (verdict := guard.verdict("here", WRONG, now)) is CHECK:
            guard.failed("here", now)
            answered += 1
        while verdict is WAIT:
            guard.waits("here")
            waiting.append(now + DELAY_SECONDS)
            verdict = guard.verdict("here", WRONG, now)
    assert answered <= FREE_FAILURES + seconds * MAX_WAITING_PER_ADDRESS / DELAY_SECONDS


def test_memory_is_bounded_and_forgets_what_is_oldest() -> None:
    guard = LoginGuard()
    storm(guard, "persistent")
    guard.accepted("regular", RIGHT)
    for n in range(MAX_ADDRESSES - 1):
        guard.failed(f"address {n}", 0)
    for n in range(MAX_ACCEPTED - 1):
        guard.accepted(f"address {n}", RIGHT)
    guard.failed("persistent", 0)
    guard.accepted("regular", RIGHT)
    guard.failed("one more", 0)
    guard.accepted("one more", RIGHT)
    assert guard.is_slowed("persistent", 0), "it failed a moment ago"
    storm(guard, "regular")
    assert guard.verdict("regular", RIGHT, 0) is CHECK, "it was accepted a moment ago"
    for n in range(MAX_ADDRESSES):
        guard.failed(f"flood {n}", 0)
    assert not guard.is_slowed("persistent", 0)
    storm(guard, "regular")
    assert guard.verdict("regular", RIGHT, 0) is CHECK, "failures do not push out callers"


@dataclass(frozen=True)
class Login:
    address: str
    credential: bytes
    after: float  # seconds since the one before
    leaves: bool  # whether somebody who waited has done so


LOGINS = st.lists(
    st.builds(
        Login,
        st.sampled_from(["here", "there"]),
        st.sampled_from([RIGHT, OTHER, WRONG, b"", b"x"]),
        st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0, 30.0]),
        st.booleans(),
    ),
    max_size=150,
)


@given(LOGINS)
def test_no_verdict_tells_whether_a_credential_is_right_before_it_was_accepted_there(
    logins: list[Login],
) -> None:
    guard, now, accepted, waiting = LoginGuard(), 0.0, set[tuple[str, bytes]](), list[str]()
    storm(guard)
    for login in logins:
        now += login.after
        verdict = guard.verdict(login.address, login.credential, now)
        if (login.address, login.credential) in accepted:
            assert verdict is CHECK
        else:
            assert verdict is guard.verdict(login.address, b"never presented", now)
        if login.leaves and waiting:
            guard.waited(waiting.pop(0))
        if verdict is WAIT:
            guard.waits(login.address)
            waiting.append(login.address)
        elif verdict is CHECK and login.credential in (RIGHT, OTHER):
            guard.accepted(login.address, login.credential)
            accepted.add((login.address, login.credential))
        elif verdict is CHECK:
            guard.failed(login.address, now)
