"""Which connections may stay, and for how long: names in, names out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from opencode_a2a.web.connections import (
    ANSWER_HEAD_START,
    BODY_BYTES_PER_SECOND,
    CLOSING_SECONDS,
    LINGER_SECONDS,
    UNKNOWN_ANSWER_SECONDS,
    ConnectionLimits,
    Connections,
    Phase,
    network_of,
)

LIMITS = ConnectionLimits(
    total=6, unknown=4, unknown_per_address=2, head_seconds=10, body_seconds=20
)
HEAD, BODY, ANSWER, IDLE, CLOSING, LINGER = Phase


def opened(connections: Connections[str], names: str, address: str = "") -> list[str | None]:
    """Open connections in this order; an address is its connection's name unless one is given."""
    return [connections.opened(name, address or name, now=0) for name in names]


def test_connections_within_the_limits_close_nobody() -> None:
    connections = Connections[str](LIMITS)
    assert opened(connections, "abcd") == [None] * 4
    assert (len(connections), connections.unknown) == (4, 4)


def test_a_new_connection_closes_the_one_of_its_address_that_has_waited_longest() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "ab", "here")
    opened(connections, "x", "there")
    assert opened(connections, "cde", "here") == ["a", "b", "c"]
    assert len(connections) == 3


def test_over_the_total_of_unknown_ones_the_longest_waiting_of_all_is_closed() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "abcd")
    assert opened(connections, "ef") == ["a", "b"]
    connections.moved("c", IDLE, 1)  # it was answered meanwhile, and waits only since then
    assert opened(connections, "g") == ["d"]


def test_an_answer_gets_a_second_more_than_who_waits_for_its_client() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "ab")
    for name, second in (("c", 0.5), ("d", 1.5)):
        connections.opened(name, name, second)
    connections.moved("a", ANSWER, 0)
    assert connections.opened("e", "e", 2) == "b"
    assert connections.opened("f", "f", 2) == "c"
    assert connections.opened("g", "g", 2) == "a", "it has been answered since long before d came"
    assert connections.opened("h", "h", 2) == "d"


def test_who_is_answered_and_does_not_read_keeps_no_newcomer_from_sending_its_request() -> None:
    """Not even if all the others of its address are such clients, and more newcomers follow."""
    limits = replace(LIMITS, total=100, unknown=100, unknown_per_address=50)
    connections = Connections[str](limits)
    slow = [f"slow {n}" for n in range(50)]
    for name in slow:
        connections.opened(name, "here", 0)
        connections.moved(name, ANSWER, 0)
    assert connections.opened("newcomer", "here", 5) == "slow 0"
    closed = [connections.opened(f"other {n}", "here", 5.01) for n in range(49)]
    assert closed == slow[1:]


def test_many_newcomers_close_nobody_whose_answer_has_just_begun() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "ab", "here")
    connections.moved("a", ANSWER, 0)
    names = "bcdefghijklmnopqrstuvwxyz"
    closed = [connections.opened(name, "here", 0.9) for name in names[1:]]
    assert "".join(map(str, closed)) == names[:-1]


def test_known_callers_do_not_count_as_unknown_nor_against_their_address() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "ab", "proxy")
    for name in "ab":
        connections.became_known(name)
    assert opened(connections, "cd", "proxy") == [None, None]
    assert (len(connections), connections.unknown) == (4, 2)
    assert opened(connections, "e", "proxy") == ["c"]


def test_when_all_is_full_unknown_connections_go_first_then_unused_known_ones() -> None:
    connections = Connections[str](LIMITS)
    for name in "abcdef":
        opened(connections, name)
        if name != "c":
            connections.became_known(name)
    for name in "abf":
        connections.moved(name, ANSWER, 1)
    connections.moved("d", BODY, 1)
    connections.moved("e", IDLE, 1)
    assert opened(connections, "g") == ["c"]
    connections.became_known("g")
    connections.moved("g", ANSWER, 2)
    assert opened(connections, "h") == ["e"]


def test_a_known_callers_request_is_never_closed_for_a_new_connection() -> None:
    connections = Connections[str](LIMITS)
    for name, phase in zip("abcdef", [ANSWER, BODY] * 3, strict=True):
        opened(connections, name)
        connections.became_known(name)
        connections.moved(name, phase, 1)
    assert opened(connections, "xyz") == ["x", "y", "z"], "only the new one itself"
    assert (len(connections), connections.unknown) == (6, 0)
    connections.closed("a")
    assert opened(connections, "x") == [None]


def test_what_is_told_about_a_closed_connection_is_ignored() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "a")
    connections.closed("a")
    connections.closed("a")
    connections.moved("a", BODY, 1)
    connections.received("a", 5)
    connections.became_known("a")
    assert (len(connections), connections.unknown) == (0, 0)
    assert connections.overdue(1e9) == []


@pytest.mark.parametrize(
    ("phase", "seconds", "known_seconds"),
    [
        (HEAD, LIMITS.head_seconds, LIMITS.head_seconds),
        (BODY, LIMITS.body_seconds, LIMITS.body_seconds),
        (LINGER, LINGER_SECONDS, LINGER_SECONDS),
        (ANSWER, UNKNOWN_ANSWER_SECONDS, None),
        (CLOSING, UNKNOWN_ANSWER_SECONDS, CLOSING_SECONDS),
        (IDLE, None, None),  # the server has a timer for each
    ],
)
def test_every_phase_has_its_deadline_but_for_what_known_callers_are_answered(
    phase: Phase, seconds: float | None, known_seconds: float | None
) -> None:
    for is_known, limit in ((False, seconds), (True, known_seconds)):
        connections = Connections[str](LIMITS)
        opened(connections, "a")
        if is_known:
            connections.became_known("a")
        connections.moved("a", phase, 100)
        if limit is None:
            assert connections.overdue(1e9) == []
        else:
            assert connections.overdue(100 + limit - 0.1) == []
            assert connections.overdue(100 + limit) == [("a", phase)]


def test_a_body_that_keeps_coming_is_never_late_and_one_that_stops_is() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "a")
    connections.moved("a", BODY, 0)
    for second in range(1, 3_600):
        connections.received("a", BODY_BYTES_PER_SECOND)
        assert connections.overdue(second) == []
    assert connections.overdue(3_599 + LIMITS.body_seconds - 0.1) == []
    assert connections.overdue(3_599 + LIMITS.body_seconds) == [("a", BODY)]


def test_the_next_body_begins_with_nothing_received() -> None:
    connections = Connections[str](LIMITS)
    opened(connections, "a")
    connections.moved("a", BODY, 0)
    connections.received("a", 1_000_000)
    connections.moved("a", ANSWER, 1)
    connections.moved("a", BODY, 2)
    assert connections.overdue(2 + LIMITS.body_seconds) == [("a", BODY)]


@pytest.mark.parametrize(
    ("total", "per_address", "expected"),
    [
        (8_192, 1_024, (8_192, 2_048, 1_024)),
        (768, 1_024, (768, 384, 384)),
        (16, 5, (16, 8, 5)),
        (1, 9, (1, 1, 1)),
    ],
)
def test_unknown_connections_get_half_of_the_total_and_no_more_than_enough(
    total: int, per_address: int, expected: tuple[int, int, int]
) -> None:
    limits = ConnectionLimits.of(
        total=total, per_address=per_address, head_seconds=1, body_seconds=2
    )
    assert (limits.total, limits.unknown, limits.unknown_per_address) == expected


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_is_what_one_customer_has(host: str, network: str) -> None:
    assert network_of(host) == network


@dataclass(frozen=True)
class Described:
    """A connection of the machine below, in plain words."""

    name: int
    address: str
    since: float
    phase: Phase = HEAD
    is_known: bool = False

    @property
    def may_be_closed(self) -> bool:
        return not self.is_known or self.phase in (HEAD, IDLE, LINGER)

    @property
    def order(self) -> tuple[float, bool]:
        """Who comes first is closed first; of two that are equal, who came first."""
        is_answered = self.phase is ANSWER
        since = self.since + ANSWER_HEAD_START if is_answered else self.since
        return (0 if self.is_known else since), is_answered


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the promises at the head of the module hold.

    `open` is in the order in which the connections began to wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connections = Connections[int](LIMITS)
        self.open: list[Described] = []
        self.count = 0
        self.now = 0.0

    def unknown(self) -> list[Described]:
        return [each for each in self.open if not each.is_known]

    def pick(self, data: st.DataObject) -> Described:
        found = data.draw(st.sampled_from(self.open))
        self.open.remove(found)
        return found

    @rule(seconds=st.sampled_from((0.25, 0.5, 1.0, 2.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(address=st.sampled_from("xyz"))
    def connect(self, address: str) -> None:
        self.count += 1
        here = [each for each in self.unknown() if each.address == address]
        full = len(self.open) >= LIMITS.total
        choices = list[Described]()
        if len(here) >= LIMITS.unknown_per_address:
            choices = here
        elif full or len(self.unknown()) >= LIMITS.unknown:
            choices = self.unknown() or [each for each in self.open if each.may_be_closed]
        expected = min(choices, key=lambda each: each.order, default=None)
        closed = self.connections.opened(self.count, address, self.now)
        if expected is not None:
            assert closed == expected.name
            self.open.remove(expected)
        else:
            assert closed == (self.count if full else None)
        if closed != self.count:
            self.open.append(Described(self.count, address, self.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), phase=st.sampled_from(Phase))
    def move(self, data: st.DataObject, phase: Phase) -> None:
        self.open.append(replace(self.pick(data), phase=phase, since=self.now))
        self.connections.moved(self.open[-1].name, phase, self.now)

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def log_in(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.unknown()))
        self.open.remove(found)
        self.open.append(replace(found, is_known=True))
        self.connections.became_known(found.name)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.connections.closed(self.pick(data).name)

    @invariant()
    def nothing_is_over_its_limit(self) -> None:
        unknown = self.unknown()
        assert len(self.connections) == len(self.open) <= LIMITS.total
        assert self.connections.unknown == len(unknown) <= LIMITS.unknown
        for address in "xyz":
            here = [each for each in unknown if each.address == address]
            assert len(here) <= LIMITS.unknown_per_address


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=30)
