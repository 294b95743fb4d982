"""The life of a request: asked, answered, confirmed; and every way it can end otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.events import InterruptClosed
from opencode_a2a.domain.requests import ELSEWHERE, EXPIRED, Requests, details
from opencode_a2a.domain.task import ENDED, Task
from opencode_a2a.domain.updates import (
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    Update,
    state_after,
)
from opencode_a2a.domain.values import (
    Choice,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    TaskState,
)
from tests.domain.logs import STEADY, folded

ASKING, WORKING = TaskState.INPUT_REQUIRED, TaskState.WORKING
ONE, TWO = (PermissionAsk(f"per_{n}", "ses", "bash", ("ls",)) for n in (1, 2))
WHICH = QuestionAsk("que_1", "ses", (Question("Pick", "Which?"),), call_id="call_1")
ONCE, NO = PermissionDecision("once"), PermissionDecision("reject")


def answer(ask: Interrupt, word: str = "once", still_open: int = 0) -> InterruptAnswered:
    decision = ONCE if isinstance(ask, PermissionAsk) else QuestionDecision((("A",),))
    return InterruptAnswered(ask, decision, word, still_open)


def asked(*asks: Interrupt) -> Requests:
    requests = Requests()
    requests.answer_by = 100
    for ask in asks:
        assert requests.ask(ask) == [InterruptOpened(ask, 100)]
    return requests


# -- asked, answered, confirmed


def test_a_request_is_open_then_owed_to_the_agent_then_over() -> None:
    requests = asked(ONE)
    assert (list(requests.open), requests.unsettled) == (["per_1"], False)
    requests.answer(answer(ONE))
    assert (list(requests.open), requests.unsettled) == ([], True)
    assert list(requests.decided()) == [(ONE, ONCE)]
    assert requests.close("per_1", "once") == [InterruptResolved(ONE, "once")]
    assert not requests.unsettled
    assert requests.close("per_1", "once") == [], "it is over only once"


def test_what_is_known_is_not_asked_again() -> None:
    requests = asked(ONE)
    assert requests.ask(ONE) == [], "while it is open"
    requests.answer(answer(ONE))
    assert requests.ask(ONE) == [], "while the agent has not confirmed it"
    requests.close("per_1", "once")
    assert requests.ask(ONE) == [], "by a look that began before it was settled"


def test_what_a_look_missed_can_be_asked_again() -> None:
    requests = asked(ONE)
    assert requests.keep([], lambda _: ELSEWHERE) == [InterruptResolved(ONE, ELSEWHERE)]
    assert requests.ask(ONE) == [InterruptOpened(ONE, 100)], "it cannot be left unseen for ever"


def test_only_what_is_open_can_be_answered() -> None:
    requests = asked(ONE)
    requests.answer(answer(ONE))
    requests.answer(InterruptAnswered(ONE, NO, "reject"))
    requests.answer(answer(TWO))
    assert list(requests.decided()) == [(ONE, ONCE)], "the first decision counts"


def test_each_end_says_how_many_are_left() -> None:
    requests = asked(ONE, TWO, WHICH)
    assert requests.close("per_2", "reject") == [InterruptResolved(TWO, "reject", still_open=2)]
    requests.answer(answer(ONE))
    assert requests.close("per_1", "once") == [InterruptResolved(ONE, "once", still_open=1)]
    assert requests.close("que_1", "answered") == [InterruptResolved(WHICH, "answered")]


def test_what_was_allowed_beforehand_is_told_to_the_agent_and_nobody_else() -> None:
    requests = asked(ONE)
    requests.allow("per_1")
    requests.allow("per_unknown")
    assert (list(requests.open), requests.unsettled) == ([], True)
    assert list(requests.decided()) == [(ONE, ONCE)]
    assert requests.ask(ONE) == []
    assert requests.close("per_1", "once") == []
    assert not requests.unsettled


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("once", "once", "once"),
        ("always", "once", "always"),  # we tell the agent once, and remember always
        ("once", "always", "once"),
        ("once", ELSEWHERE, "once"),
        ("always", ENDED, "always"),
        ("reject", "reject", "reject"),
        (EXPIRED, "reject", EXPIRED),
        (EXPIRED, "rejected", EXPIRED),
        ("once", "reject", "reject"),  # somebody else was faster
        ("always", "reject", "reject"),
        ("reject", "once", "once"),
        (EXPIRED, "always", "always"),
        ("answered", "answered", "answered"),
        ("answered", "rejected", "rejected"),
        ("rejected", "answered", "answered"),
        ("rejected", ELSEWHERE, "rejected"),
    ],
)
def test_the_word_at_the_end_is_what_really_happened(ours: str, theirs: str, told: str) -> None:
    requests = asked(ONE)
    requests.answer(InterruptAnswered(ONE, ONCE, ours))
    assert requests.close("per_1", theirs) == [InterruptResolved(ONE, told)]


# -- what a look and an end do


def test_a_look_closes_what_is_not_listed_any_more() -> None:
    requests = asked(ONE, TWO)
    third, fourth = (replace(ONE, request_id=f"per_{n}") for n in (3, 4))
    for ask in (third, fourth):
        requests.ask(ask)
    requests.answer(answer(TWO))
    requests.allow("per_3")
    told = requests.keep(["per_4"], lambda ask: "reject" if ask is ONE else ELSEWHERE)
    assert told == [
        InterruptResolved(ONE, "reject", still_open=1),
        InterruptResolved(TWO, "once", still_open=1),
    ]
    assert (list(requests.open), requests.unsettled) == (["per_4"], False)


def test_the_end_of_a_turn_closes_everything() -> None:
    requests = asked(ONE, TWO)
    requests.answer(answer(TWO))
    assert requests.end() == [InterruptResolved(ONE, ENDED), InterruptResolved(TWO, "once")]
    assert not (requests.open or requests.unsettled)


# -- deadlines


def test_what_is_open_too_long_has_expired() -> None:
    requests = Requests()
    for ask, requests.answer_by in ((ONE, 100), (TWO, 50), (WHICH, None)):
        requests.ask(ask)
    assert requests.next_deadline() == 50
    assert requests.expired(49) == []
    assert [opened.interrupt for opened in requests.expired(50)] == [TWO]
    assert [opened.interrupt for opened in requests.expired(1000)] == [ONE, TWO]
    requests.answer(InterruptAnswered(TWO, NO, EXPIRED))
    assert requests.next_deadline() == 100
    assert requests.expired(99) == [], "it expires once"
    requests.answer(InterruptAnswered(ONE, NO, EXPIRED))
    assert requests.next_deadline() is None
    assert not requests.unanswered


def test_an_expired_question_is_remembered_as_the_reason_of_what_follows() -> None:
    requests = asked(WHICH)
    requests.answer(InterruptAnswered(WHICH, QuestionDecision(None), "rejected"))
    assert not requests.unanswered
    requests = asked(WHICH)
    requests.answer(InterruptAnswered(WHICH, QuestionDecision(None), EXPIRED))
    requests.close("que_1", "rejected")
    assert requests.unanswered == {"call_1"}


# -- taken up from a log


def test_another_process_goes_on_where_the_log_ends() -> None:
    expired = InterruptAnswered(WHICH, QuestionDecision(None), EXPIRED, 1)
    log: list[Update] = [
        InterruptOpened(ONE, 100),
        InterruptOpened(TWO, 200),
        InterruptOpened(WHICH, 50),
        answer(TWO, "always", 2),
        InterruptUnclear(ONE, "What?"),
        expired,
    ]
    requests = Requests()
    requests.resume(folded(log))
    assert requests.open == {"per_1": InterruptOpened(ONE, 100)}, "with the deadline it had"
    assert list(requests.decided()) == [(TWO, ONCE), (WHICH, QuestionDecision(None))]
    assert requests.unanswered == {"call_1"}
    assert requests.ask(ONE) == requests.ask(TWO) == []
    assert requests.close("per_2", "once") == [InterruptResolved(TWO, "always", still_open=1)]


def test_what_is_resolved_is_not_resumed() -> None:
    requests = Requests()
    requests.resume(folded([InterruptOpened(ONE), InterruptResolved(ONE, "once")]))
    assert not (requests.open or requests.unsettled)


@STEADY
@given(st.data())
def test_log_and_registry_agree_whatever_happens(data: st.DataObject) -> None:
    """A process that reads the log knows what one knows that has written it."""
    asks: list[Interrupt] = [ONE, TWO, WHICH]
    words = st.sampled_from(get_args(InterruptClosed.__annotations__["resolution"]) or ["once"])
    requests, log = asked(), list[Update]()
    for _ in range(data.draw(st.integers(0, 12))):
        ask = data.draw(st.sampled_from(asks))
        match data.draw(st.sampled_from(["ask", "answer", "close", "look"])):
            case "ask":
                log += requests.ask(ask)
            case "answer" if ask.request_id in requests.open:
                log.append(answer(ask, still_open=len(requests.open) - 1))
                requests.answer(answer(ask))
            case "close":
                log += requests.close(ask.request_id, data.draw(words))
            case "look":
                listed = data.draw(st.sets(st.sampled_from([a.request_id for a in asks])))
                log += requests.keep(listed, lambda _: ELSEWHERE)
            case _:
                pass
        task = folded(log)
        assert task.interrupts == requests.open
        assert list(task.answered) == [ask.request_id for ask, _ in requests.decided()]
        if log:
            assert (task.state is ASKING) == bool(requests.open)


def test_a_task_says_what_is_not_understood_until_somebody_is() -> None:
    log: list[Update] = [InterruptOpened(ONE), InterruptUnclear(ONE, "What?")]
    assert (folded(log).unclear, folded(log).state) == ("What?", ASKING)
    assert folded([*log, answer(ONE)]).unclear is None
    assert folded([*log, InterruptResolved(ONE, ELSEWHERE)]).unclear is None


def test_the_state_follows_what_is_still_open() -> None:
    for still_open, state in ((0, WORKING), (1, ASKING)):
        assert state_after(answer(ONE, still_open=still_open)) is state
        assert state_after(InterruptResolved(ONE, "once", still_open)) is state
    assert state_after(InterruptUnclear(ONE, "What?")) is ASKING


def test_the_fold_of_a_task_that_has_not_begun_is_no_request() -> None:
    requests = Requests()
    requests.resume(Task(folded([]).head))
    assert requests.next_deadline() is None
    assert requests.expired(1 << 60) == []


# -- what a program is told


def test_the_details_hold_what_is_there_and_no_more() -> None:
    assert details(PermissionAsk("per_1", "ses", "mcp_tool")) == {
        "permission": "mcp_tool",
        "patterns": [],
    }
    ask = PermissionAsk(
        "per_1",
        "ses",
        "edit",
        ("a.py",),
        filepath="a.py",
        diff="+1",
        title="Edit",
        always=("*",),
        call_id="call_1",
        arguments={"x": 1},
    )
    assert details(ask) == {
        "permission": "edit",
        "patterns": ["a.py"],
        "title": "Edit",
        "filepath": "a.py",
        "diff": "+1",
        "arguments": {"x": 1},
        "always": ["*"],
    }
    question = Question("Pick", "Which?", (Choice("A", "first"),), multiple=True, custom=False)
    assert details(QuestionAsk("que_1", "ses", (question,))) == {
        "questions": [
            {
                "header": "Pick",
                "question": "Which?",
                "options": ({"label": "A", "description": "first"},),
                "multiple": True,
                "custom": False,
            }
        ]
    }
