"""How fast credentials can be guessed from an address: the rule, without a clock.

- While few logins fail, every credential is checked at once.
- After many failures from an address a credential from there is checked only after a delay, which
  is the same for a right and a wrong one. Few may wait at a time; the others are refused without a
  look at what they present.
- A credential that was accepted from this address before is checked at once. Whoever attacks from
  behind the same proxy or NAT cannot lock out the callers who share its address.

So guesses at a credential that is not in use from the address are bounded in number, and an answer
tells nothing before the delay has passed. Guesses at one that is in use from there are not slowed:
the right one passes at once, all others wait or are refused. Only its length protects that one, and
behind a proxy all callers have the proxy's address.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

FREE_FAILURES = 30  # failed logins of an address that have no consequence …
FORGET_SECONDS = 60.0  # … and how long it takes to forget as many
DELAY_SECONDS = 2.0
MAX_WAITING_PER_ADDRESS = 32
MAX_WAITING = 128
MAX_ADDRESSES = 10_000  # remembered at most, of failures
MAX_ACCEPTED = 10_000  # remembered at most, of accepted credentials by address


class Verdict(Enum):
    CHECK = "check"  # at once
    WAIT = "wait"  # check after DELAY_SECONDS
    REFUSE = "refuse"  # unseen


@dataclass(slots=True)
class _Failures:
    """A bucket that leaks: every failure fills it, time empties it."""

    level: float
    at: float
    is_reported: bool = False  # since the bucket was last empty

    def level_at(self, now: float) -> float:
        return max(0.0, self.level - (now - self.at) * FREE_FAILURES / FORGET_SECONDS)

    def add(self, now: float) -> None:
        # Bounded, so that the last failure is forgotten after two minutes at the latest.
        self.level, self.at = min(self.level_at(now) + 1, 2 * FREE_FAILURES), now


class LoginGuard:
    """Whoever presents a credential asks for a verdict, and says afterwards what came of it.

    A credential is its scheme and its digest: the same text means another thing in another scheme.
    """

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}
        self._accepted: dict[tuple[str, Hashable], None] = {}
        self._waiting: dict[str, int] = {}
        self._all_waiting = 0

    def verdict(self, address: str, credential: Hashable, now: float) -> Verdict:
        if not self.is_slowed(address, now) or (address, credential) in self._accepted:
            return Verdict.CHECK
        if (
            self._all_waiting >= MAX_WAITING
            or self._waiting.get(address, 0) >= MAX_WAITING_PER_ADDRESS
        ):
            return Verdict.REFUSE
        return Verdict.WAIT

    def is_slowed(self, address: str, now: float) -> bool:
        failures = self._failures.get(address)
        return failures is not None and failures.level_at(now) >= FREE_FAILURES

    def waits(self, address: str) -> None:
        self._waiting[address] = self._waiting.get(address, 0) + 1
        self._all_waiting += 1

    def waited(self, address: str) -> None:
        self._all_waiting -= 1
        self._waiting[address] -= 1
        if not self._waiting[address]:
            del self._waiting[address]

    def accepted(self, address: str, credential: Hashable) -> None:
        key = (address, credential)
        self._accepted.pop(key, None)  # to the end: what was not used longest is forgotten first
        self._accepted[key] = None
        if len(self._accepted) > MAX_ACCEPTED:
            del self._accepted[next(iter(self._accepted))]

    def failed(self, address: str, now: float) -> bool:
        """Whether the address is slowed for the first time since all its failures were forgotten.

        The level of a steady attack goes up and down around the limit; that is one event.
        """
        failures = self._failures.pop(address, None)
        if failures is None or not failures.level_at(now):
            failures = _Failures(0.0, now)
        failures.add(now)
        self._failures[address] = failures
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        begins = failures.level >= FREE_FAILURES and not failures.is_reported
        failures.is_reported |= begins
        return begins
