"""What a caller may use, and when it may go on."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.limits import (
    DAY_MS,
    MINUTE_MS,
    NANODOLLARS,
    Limits,
    RequestRate,
    Spent,
    StepUsage,
    StreamTime,
    affordable_tasks,
    budgets,
    check_budget,
    day_of,
    first_name,
    is_among,
)
from opencode_a2a.domain.values import Usage

TODAY = date(2026, 1, 31)
USED = Usage(1, 0)


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type,misc]


# -- tokens and money


@pytest.mark.parametrize(
    ("limit", "allowed", "renews_at"),
    [
        ("tokens_per_day", 100, ms(2026, 2, 1)),
        ("tokens_per_month", 100, ms(2026, 2, 1)),
        ("cost_per_day", 0.5, ms(2026, 2, 1)),
        ("cost_per_month", 0.5, ms(2026, 2, 1)),
    ],
)
def test_a_budget_is_reached_with_its_last_token_or_cent_and_names_itself(
    limit: str, allowed: float, renews_at: int
) -> None:
    limits, spent = Limits(**{limit: allowed}), Spent(TODAY)  # type: ignore[arg-type]
    spent.add(TODAY, tokens=99, cost=NANODOLLARS // 2 - 1)
    assert check_budget(limits, spent) is None
    spent.add(TODAY, tokens=1, cost=1)
    reached = check_budget(limits, spent)
    assert reached is not None
    assert (reached.limit, reached.allowed, reached.renews_at) == (limit, allowed, renews_at)
    assert f"The limit {limit} of this caller is reached" in str(reached)
    assert "It renews at 2026-02-01T00:00:00.000Z." in str(reached)


def test_of_two_budgets_that_are_reached_the_one_is_named_that_renews_last() -> None:
    spent = Spent(date(2026, 1, 10))
    spent.add(spent.day, tokens=100, cost=0)
    reached = check_budget(Limits(tokens_per_day=10, tokens_per_month=100), spent)
    assert reached is not None
    assert (reached.limit, reached.renews_at) == ("tokens_per_month", ms(2026, 2, 1))
    reached = check_budget(Limits(tokens_per_day=10, tokens_per_month=101), spent)
    assert reached is not None
    assert (reached.limit, reached.renews_at) == ("tokens_per_day", ms(2026, 1, 11))
    assert len(budgets(Limits(tokens_per_day=10, cost_per_month=1), spent)) == 2


def test_of_a_budget_one_step_is_kept_for_each_other_task() -> None:
    limits, spent = Limits(tokens_per_day=100, cost_per_month=1), Spent(TODAY)
    assert affordable_tasks(limits, spent) == 0, "nobody knows what a step uses"
    spent.add(TODAY, tokens=70, cost=0)
    spent.note_largest(tokens=10, cost=0)
    assert affordable_tasks(limits, spent) == 3
    assert check_budget(limits, spent, others=2) is None
    kept = check_budget(limits, spent, others=3)
    assert kept is not None
    assert not kept.is_reached
    assert "(70 of 100 are used) is kept for the steps that its other tasks are in" in str(kept)
    spent.note_largest(tokens=1, cost=NANODOLLARS)
    assert affordable_tasks(limits, spent) == 1, "the other budget has no more"
    assert affordable_tasks(Limits(), spent) == 0


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=80)


@given(st.integers(1, 120), STEPS)
def test_nobody_exceeds_a_budget_by_more_than_one_step(
    most: int, steps: list[tuple[int, int]]
) -> None:
    """Tasks begin and end steps in any order. One that is told to stop begins no other."""
    limits, spent, working = Limits(tokens_per_day=most), Spent(TODAY), list[int]()
    spent.note_largest(tokens=9, cost=0)
    used = 0
    for task, tokens in steps:
        if check_budget(limits, spent) is not None:
            break
        if task not in working:
            if len(working) < affordable_tasks(limits, spent):
                working.append(task)
            continue
        assert used < most, "the step before was the last"
        used += tokens
        spent.add(TODAY, tokens=tokens, cost=0)
        spent.note_largest(tokens=tokens, cost=0)
        if check_budget(limits, spent, others=len(working) - 1) is not None:
            working.remove(task)
        assert used < most or not working, "of what is in a step, all can end theirs"
    assert used < most + 9


def test_a_new_day_renews_the_day_and_a_new_month_both() -> None:
    spent = Spent(date(2026, 1, 30))
    spent.add(spent.day, tokens=5, cost=7)
    tomorrow = spent.on(TODAY)
    assert (tomorrow.tokens_today, tomorrow.tokens_this_month) == (0, 5)
    next_month = tomorrow.on(date(2026, 2, 1))
    assert (next_month.tokens_this_month, next_month.cost_this_month) == (0, 0)
    assert tomorrow.on(date(2026, 1, 1)) is tomorrow, "a clock that was set back renews nothing"


def test_a_step_counts_on_its_own_day_and_in_its_own_month() -> None:
    spent = Spent(date(2026, 2, 1))
    for day, tokens in ((TODAY, 1), (date(2026, 2, 1), 2), (date(2026, 2, 2), 4)):
        step = StepUsage("alice", "t", model="", at=ms(day.year, day.month, day.day), usage=USED)
        for _ in range(tokens):
            spent.add_step(step)
    assert (spent.tokens_today, spent.tokens_this_month) == (2, 6)


def test_nothing_is_limited_where_nobody_says_so() -> None:
    spent = Spent(TODAY)
    spent.add(TODAY, tokens=10**12, cost=10**15)
    assert check_budget(Limits(), spent) is None
    assert not Limits().has_budget
    assert not Limits().narrows


# -- requests


def test_a_minutes_requests_may_come_at_once_and_then_one_after_the_other() -> None:
    rate = RequestRate()
    assert [rate.take(3, 1_000) is None for _ in range(4)] == [True, True, True, False]
    reached = rate.take(3, 1_000)
    assert reached is not None
    assert reached.limit == "requests_per_minute"
    assert reached.renews_at is not None
    assert rate.take(3, reached.renews_at - 2) is not None
    assert rate.take(3, reached.renews_at) is None
    assert rate.take(3, reached.renews_at) is not None


@given(st.integers(1, 600), st.lists(st.integers(0, 5_000), max_size=200))
def test_no_minute_has_more_than_twice_its_requests(per_minute: int, pauses: list[int]) -> None:
    """A full minute's worth may be there already, and as many come in during the minute."""
    rate, now, taken = RequestRate(), 0, list[int]()
    for pause in pauses:
        now += pause
        if rate.take(per_minute, now) is None:
            taken.append(now)
    for at in taken:
        assert sum(at <= other < at + MINUTE_MS for other in taken) <= 2 * per_minute


def test_a_clock_that_is_set_back_keeps_nobody_out_for_longer_than_a_share() -> None:
    rate, hour = RequestRate(), 60 * MINUTE_MS
    assert rate.take(2, hour) is None
    reached = rate.take(2, 0)
    assert reached is not None
    assert reached.renews_at == MINUTE_MS // 2 + 1
    assert rate.take(2, reached.renews_at) is None


# -- streams


def test_open_streams_use_the_time_together_and_midnight_renews_it() -> None:
    midnight = ms(2026, 2, 1)
    noon = midnight - DAY_MS // 2
    streams = StreamTime(TODAY)
    streams.opened |= {1: noon, 2: noon}
    assert streams.used(noon + MINUTE_MS) == 2 * MINUTE_MS
    assert streams.left(10, noon + MINUTE_MS) == 4 * MINUTE_MS
    assert streams.check(10, noon + 4 * MINUTE_MS) is None
    reached = streams.check(10, noon + 5 * MINUTE_MS)
    assert reached is not None
    assert (reached.limit, reached.renews_at) == ("stream_minutes_per_day", midnight)
    tomorrow = streams.on(day_of(midnight))
    assert tomorrow.used(midnight + MINUTE_MS) == 2 * MINUTE_MS


def test_a_clock_that_is_set_back_gives_no_time_to_streams() -> None:
    noon = ms(2026, 1, 31, 12)
    streams = StreamTime(TODAY, closed=MINUTE_MS)
    streams.opened |= {1: noon}
    assert streams.used(noon - MINUTE_MS) == MINUTE_MS
    streams.close(1, noon - MINUTE_MS)
    assert streams.closed == MINUTE_MS


# -- names


def test_an_empty_list_allows_all_and_a_star_stands_for_anything() -> None:
    assert is_among("demo/demo", ())
    assert is_among("demo/demo", ("other/one", "demo/*"))
    assert not is_among("demo/demo", ("demo", "dem?/x"))
    assert first_name(("demo/*", "demo/demo")) == "demo/demo"
    assert first_name(("demo/*",)) is None
