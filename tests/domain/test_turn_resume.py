"""A turn that is taken up by another process ends as if nothing had happened.

The run is cut anywhere, and anything said last may not have reached the log. All that is
left is the log; a new turn is given it, reads what OpenCode has stored, and goes on live
with what was sent since it listened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from opencode_a2a.domain.events import TextDelta
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import Progress, Update, coalesce
from opencode_a2a.domain.values import Usage
from tests.domain.logs import STEADY, folded
from tests.domain.test_turn_properties import (
    ASK,
    ROOT,
    SPENT,
    Heard,
    Run,
    check_every_step,
    runs,
    stored,
)


@dataclass(frozen=True)
class Death:
    """Where it comes, what was said and not committed, missed, stored but not yet heard."""

    at: int
    unsaid: int
    missed: int
    ahead: int


@st.composite
def deaths(draw: st.DrawFn, run: Run) -> list[Death]:
    """Anywhere, and often in the middle of a text."""
    size = len(run.events)
    talking = [n + 1 for n, event in enumerate(run.events) if isinstance(event, TextDelta)]
    anywhere = st.integers(1, size)
    death = st.builds(
        Death,
        st.sampled_from(talking) | anywhere if talking else anywhere,
        st.sampled_from([0, 0, 1, 3]),
        st.sampled_from([0, 1, 1, 3, 20]),
        st.sampled_from([0, 0, 1, 4, size]),
    )
    found = draw(st.lists(death, min_size=1, max_size=3))
    return sorted(found, key=lambda death: death.at)


def live_through(run: Run, lives: Sequence[Death]) -> tuple[Heard, list[Update], int]:
    """The last turn, all that is in the log, and how much of it is from before."""
    log: list[Update] = []
    heard, at, first = Heard(), 0, 0
    for death in lives:
        until = max(at, death.at)
        heard.feed(*run.events[at:until])
        said = heard.updates[: max(0, len(heard.updates) - death.unsaid)]
        log += coalesce(said)
        first, at = len(log), min(until + death.missed, len(run.events))
        heard = Heard(Turn(ROOT, ASK))
        heard.turn.resume(folded(log))
        assert heard.turn.stale
        heard.feed(*stored(run.events[: max(at + death.ahead, 1)]))
    heard.feed(*run.events[at:])
    if heard.turn.outcome is None:
        heard.feed(*stored(run.events))
    return heard, [*log, *heard.updates], first


@settings(STEADY, max_examples=300)
@given(st.data())
def test_a_run_that_is_taken_up_anywhere_ends_as_it_is_stored(data: st.DataObject) -> None:
    run = data.draw(runs())
    heard, log, _ = live_through(run, data.draw(deaths(run)))

    assert [outcome.state for outcome in heard.outcomes] == [run.outcome]
    task = folded(log)
    blocks = task.visible_blocks()
    shown = Counter(block.text for block in blocks if block.call is None)
    assert shown == Counter(text for text in run.stored.values() if text)
    tools = {block.id: block.call.status for block in blocks if block.call is not None}
    assert tools == run.tools
    assert heard.turn.usage == sum([SPENT] * run.steps, Usage())
    assert (task.usage or Usage()) == heard.turn.usage
    assert not heard.turn.requests.open
    assert not task.open_interrupts
    assert "SECRET" not in str(log)
    check_every_step(log, run)


@settings(STEADY, max_examples=150)
@given(st.data())
def test_what_is_told_once_is_not_told_again_after_taking_up(data: st.DataObject) -> None:
    run = data.draw(runs())
    _, log, _ = live_through(run, data.draw(deaths(run)))
    once = [
        update
        for update in log
        if isinstance(update, Progress) and (update.part_id or update.type == "retry")
    ]
    assert len(once) == len(set(once))


@STEADY
@given(runs())
def test_taking_up_what_is_over_says_nothing_new(run: Run) -> None:
    """The process died between the last word and the end of the task."""
    whole = Death(len(run.events), 0, 0, 0)
    heard, log, first = live_through(run, [whole])
    assert [outcome.state for outcome in heard.outcomes] == [run.outcome]
    assert log[first:] == []
