"""Usage is summed exactly, in whatever order and groups."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.values import COST_DIGITS, Usage

BILLION = 10**COST_DIGITS
COSTS = st.lists(st.integers(0, 100 * BILLION), max_size=50)  # a step of a hundred dollars is a lot


def priced(billionths: int) -> Usage:
    return Usage(cost=billionths / BILLION)


def test_there_is_no_noise() -> None:
    assert (Usage(cost=0.1) + Usage(cost=0.2)).cost == 0.3


@given(COSTS, st.integers(0, 50))
def test_nothing_drifts_whatever_is_added_to_what(costs: list[int], cut: int) -> None:
    exact = sum(costs) / BILLION
    assert sum(map(priced, costs), Usage()).cost == exact
    assert sum(map(priced, reversed(costs)), Usage()).cost == exact
    halves = sum(map(priced, costs[:cut]), Usage()), sum(map(priced, costs[cut:]), Usage())
    assert (halves[0] + halves[1]).cost == exact
    written = Decimal(repr(halves[0].cost)).as_tuple().exponent
    assert isinstance(written, int)
    assert -written <= COST_DIGITS


@given(st.lists(st.integers(0, 1_000), max_size=200))
def test_many_small_steps_cost_what_they_cost_together(micros: list[int]) -> None:
    total = sum((Usage(cost=n / 1_000_000) for n in micros), Usage())
    assert Decimal(repr(total.cost)) == Decimal(sum(micros)) / 1_000_000


def test_what_peers_have_used_is_summed_by_their_names_and_apart_from_the_rest() -> None:
    one, two = Usage(1, 2, peers={"a": Usage(5), "b": Usage(1)}), Usage(3, peers={"a": Usage(6)})
    both = one + two
    assert both == Usage(4, 2, peers={"a": Usage(11), "b": Usage(1)})
    assert both.total_tokens == 6
