"""A tool asks just before it tells what it was called with: the turn waits for that, not long."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.events import (
    AgentEvent,
    Busy,
    CaughtUp,
    ChildStarted,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    Speaker,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.requests import EXPIRED
from opencode_a2a.domain.turn import STOPPED, UNANSWERED, Turn
from opencode_a2a.domain.updates import (
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    Progress,
    Update,
)
from opencode_a2a.domain.values import (
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    SubAgent,
    TaskState,
)
from tests.domain.logs import STEADY, folded

ROOT, CHILD = "ses_root", "ses_child"
ASK, ANSWER = "msg_10", "msg_20"
CALL = ToolCall("call_1", "bash", "running", subtitle="Lists", input={"command": "ls"})
BASH = PermissionAsk("per_1", ROOT, "bash", ("ls",), command="ls", call_id="call_1")
TOOL = PermissionAsk("per_1", ROOT, "mail_send", ("*",), call_id="call_1")
WHICH = QuestionAsk("que_1", ROOT, (Question("Pick", "Which?"),), call_id="call_1")

BEGUN: list[AgentEvent] = [
    MessageSeen(ROOT, ASK, Speaker.USER, 10),
    Busy(ROOT),
    MessageSeen(ROOT, ANSWER, Speaker.AGENT, 20, ASK),
]
Status = Literal["pending", "running", "completed", "error"]


def turn(*events: AgentEvent) -> Turn:
    found = Turn(ROOT, ASK)
    tell(found, *BEGUN, *events)
    return found


def tell(turn: Turn, *events: AgentEvent) -> list[Interrupt]:
    """What is asked because of these events."""
    return [u.interrupt for u in feed(turn, *events) if isinstance(u, InterruptOpened)]


def feed(turn: Turn, *events: AgentEvent) -> list[Update]:
    return [update for event in events for update in turn.feed(event)]


def call(status: Status = "running", session: str = ROOT, **more: object) -> ToolSnapshot:
    known = replace(CALL, status=status, **more)  # type: ignore[arg-type]
    return ToolSnapshot(session, ANSWER, "prt_1", known)


REFUSED = replace(call("error"), refused=True)


def asked(ask: Interrupt, session: str = ROOT) -> InterruptAsked:
    return InterruptAsked(session, replace(ask, session=session))


def test_a_request_waits_for_its_call_and_is_explained_by_it() -> None:
    known = turn(call("pending", input=None, subtitle=None))
    assert tell(known, asked(BASH)) == []
    assert (known.in_doubt, known.awaits_settlement) == (True, True), "so it is looked at soon"
    assert tell(known, call()) == [replace(BASH, title="Lists")]
    assert (known.in_doubt, known.awaits_settlement) == (False, False)
    assert tell(known, call(), asked(BASH)) == []


def test_a_request_whose_call_is_known_is_asked_at_once() -> None:
    assert tell(turn(call()), asked(BASH)) == [replace(BASH, title="Lists")]


def test_the_call_comes_before_what_it_asks() -> None:
    updates = feed(turn(), asked(BASH), call())
    assert [type(update).__name__ for update in updates] == ["BlockTool", "InterruptOpened"]


def test_arguments_are_shown_where_nothing_else_says_what_would_happen() -> None:
    [told] = tell(turn(call()), asked(TOOL))
    assert told == replace(TOOL, title="Lists", arguments={"command": "ls"})
    for shown in (
        replace(TOOL, command="ls"),
        replace(TOOL, filepath="a"),
        replace(TOOL, diff="+1"),
    ):
        [told] = tell(turn(call()), asked(shown))
        assert isinstance(told, PermissionAsk)
        assert told.arguments is None


def test_what_opencode_says_itself_is_not_overwritten() -> None:
    ask = replace(BASH, title="Its own")
    assert tell(turn(call()), asked(ask)) == [ask]


@pytest.mark.parametrize("ask", [replace(BASH, call_id=None), WHICH])
def test_what_no_call_explains_is_asked_at_once(ask: Interrupt) -> None:
    assert tell(turn(), asked(ask)) == [ask]


def test_another_call_does_not_help() -> None:
    known = turn()
    assert tell(known, asked(BASH), call(call_id="call_2")) == []
    assert tell(known, call()) == [replace(BASH, title="Lists")]


def test_one_call_can_ask_twice() -> None:
    known = turn()
    outside = replace(BASH, request_id="per_0", permission="external_directory")
    assert [a.request_id for a in tell(known, asked(outside), asked(BASH), call())] == [
        "per_0",
        "per_1",
    ]


def test_the_call_of_a_sub_agent_explains_what_it_asks() -> None:
    known = turn(ChildStarted(CHILD, ROOT, "explore"))
    assert tell(known, asked(TOOL, CHILD)) == []
    progress, *updates = feed(known, call(session=CHILD))
    assert isinstance(progress, Progress)
    assert (progress.type, progress.tool) == ("tool-call", "bash")
    explained = replace(
        TOOL,
        session=CHILD,
        title="Lists",
        arguments={"command": "ls"},
        subagent=SubAgent(CHILD, "explore"),
    )
    assert updates == [InterruptOpened(explained)], "and its tools are no blocks"


def test_a_look_opens_what_still_waits_for_its_call() -> None:
    for session in (ROOT, CHILD):
        known = turn(ChildStarted(CHILD, ROOT))
        who = SubAgent(CHILD) if session == CHILD else None
        ask = replace(BASH, session=session, subagent=who)
        assert tell(known, asked(BASH, session)) == []
        assert tell(known, CaughtUp(ROOT, frozenset({"per_1"}))) == [ask]
        assert tell(known, call(session=session)) == [], "and not again when the call comes late"


def test_a_look_does_not_open_what_is_settled_meanwhile() -> None:
    known = turn()
    assert tell(known, asked(BASH)) == []
    assert feed(known, InterruptClosed(ROOT, "per_1", "once")) == [], "nobody has seen it"
    assert feed(known, CaughtUp(ROOT)) == []
    known = turn()
    feed(known, asked(BASH))
    assert feed(known, CaughtUp(ROOT)) == []
    assert not known.in_doubt


def test_a_stranger_asks_in_vain() -> None:
    assert tell(turn(), asked(BASH, "ses_stranger"), call(session="ses_stranger")) == []


# -- how it was settled, when nobody heard


@pytest.mark.parametrize(
    ("ask", "then", "how"),
    [
        (BASH, call("completed"), "once"),
        (BASH, REFUSED, "reject"),
        (BASH, call("error"), "elsewhere"),
        (BASH, call("running"), "elsewhere"),
        (WHICH, call("completed"), "answered"),
        (WHICH, REFUSED, "rejected"),
        (WHICH, call("error"), "elsewhere"),
        (WHICH, call("running"), "elsewhere"),
    ],
)
def test_the_call_that_waited_tells_how_a_request_was_settled(
    ask: Interrupt, then: ToolSnapshot, how: str
) -> None:
    known = turn(call(), asked(ask), Gap(ROOT))
    updates = feed(known, then, CaughtUp(ROOT))
    assert [u.resolution for u in updates if isinstance(u, InterruptResolved)] == [how]


def test_a_decision_that_was_overtaken_is_corrected_by_the_call() -> None:
    known = turn(call(), asked(BASH))
    known.requests.answer(InterruptAnswered(BASH, PermissionDecision("once"), "once"))
    updates = feed(known, REFUSED, CaughtUp(ROOT))
    assert [u.resolution for u in updates if isinstance(u, InterruptResolved)] == ["reject"]


def test_a_decision_is_not_taken_back_by_a_call_that_failed_afterwards() -> None:
    known = turn(call(), asked(BASH))
    known.requests.answer(InterruptAnswered(BASH, PermissionDecision("once"), "once"))
    updates = feed(known, call("error"), CaughtUp(ROOT))
    assert [u.resolution for u in updates if isinstance(u, InterruptResolved)] == ["once"]


def test_what_sub_agents_put_out_is_not_kept() -> None:
    known = turn(ChildStarted(CHILD, ROOT))
    for number in range(4):
        before = replace(CALL, call_id=f"call_{number}", output="x" * 1_000_000)
        after = replace(before, status="completed", input={"content": "y" * 1_000_000})
        for each in (before, after):
            feed(known, ToolSnapshot(CHILD, "msg_of_child", f"prt_{number}", each))
    assert len(pickle.dumps(known.__dict__ | {"requests": None})) < 10_000


# -- how a run ends that was refused


STOPS: list[AgentEvent] = [
    replace(call("error"), stops=True),
    MessageSeen(ROOT, ANSWER, Speaker.AGENT, 20, ASK, completed=True, finish="tool-calls"),
    Idle(ROOT),
]


def test_a_refused_request_ends_as_canceled_and_an_unanswered_question_as_failed() -> None:
    known = turn(call(), asked(WHICH))
    feed(known, InterruptClosed(ROOT, "que_1", "rejected"), *STOPS)
    assert known.outcome is not None
    assert (known.outcome.state, known.outcome.message) == (TaskState.CANCELED, STOPPED)
    known = turn(call(), asked(WHICH))
    known.requests.answer(InterruptAnswered(WHICH, QuestionDecision(None), EXPIRED))
    feed(known, InterruptClosed(ROOT, "que_1", "rejected"), *STOPS)
    assert known.outcome is not None
    assert (known.outcome.state, known.outcome.problem) == (TaskState.FAILED, UNANSWERED)


def test_a_question_that_nobody_answered_is_not_the_reason_of_a_later_refusal() -> None:
    """A sub-agent's question expires, its parent goes on, asks something and is refused."""
    known = turn(ChildStarted(CHILD, ROOT), asked(replace(WHICH, call_id="call_of_child"), CHILD))
    [opened] = known.requests.open.values()
    known.requests.answer(InterruptAnswered(opened.interrupt, QuestionDecision(None), EXPIRED))
    feed(known, InterruptClosed(CHILD, "que_1", "rejected"), call(), asked(BASH))
    feed(known, InterruptClosed(ROOT, "per_1", "reject"), *STOPS)
    assert known.outcome is not None
    assert (known.outcome.state, known.outcome.message) == (TaskState.CANCELED, STOPPED)


# -- after a restart


def test_what_was_asked_is_not_asked_again_after_a_restart() -> None:
    before = turn()
    log = feed(before, asked(BASH), call())
    resumed = Turn(ROOT, ASK)
    resumed.resume(folded(log))
    assert tell(resumed, *BEGUN, call(), asked(BASH), CaughtUp(ROOT, frozenset({"per_1"}))) == []
    assert list(resumed.requests.open) == ["per_1"]


def test_what_was_held_at_a_kill_is_asked_by_the_next_process() -> None:
    log = feed(turn(), asked(BASH))
    resumed = Turn(ROOT, ASK)
    resumed.resume(folded(log))
    look = [*BEGUN, call(), asked(BASH), CaughtUp(ROOT, frozenset({"per_1"}))]
    assert tell(resumed, *look) == [replace(BASH, title="Lists")]


@STEADY
@given(st.data())
def test_every_request_is_asked_once_whatever_comes_when(data: st.DataObject) -> None:
    """Calls and asks in any order, told twice, looked at in between: each opens exactly once."""
    sessions = {"call_1": ROOT, "call_2": ROOT, "call_3": CHILD}
    strands: list[AgentEvent] = []
    for number, session in enumerate(sessions.values(), 1):
        ask = replace(BASH, request_id=f"per_{number}", call_id=f"call_{number}")
        running = ToolSnapshot(
            session, ANSWER, f"prt_{number}", replace(CALL, call_id=f"call_{number}")
        )
        strands += [asked(ask, session), running, asked(ask, session)]
    events = data.draw(st.permutations(strands))
    events = events[: data.draw(st.integers(0, len(events)))]
    heard = {e.interrupt.request_id for e in events if isinstance(e, InterruptAsked)}
    at = data.draw(st.integers(0, len(events)))
    seen_before = {e.interrupt.request_id for e in events[:at] if isinstance(e, InterruptAsked)}
    known = turn(ChildStarted(CHILD, ROOT))
    opened = tell(known, *events[:at], CaughtUp(ROOT, frozenset(seen_before)), *events[at:])
    opened += tell(known, CaughtUp(ROOT, frozenset(heard)))
    assert sorted(ask.request_id for ask in opened) == sorted(heard)
    assert set(known.requests.open) == heard
