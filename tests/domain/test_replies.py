"""What a person's words decide, and what they must never be taken for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opencode_a2a.domain.replies import HITL, NotUnderstood, check_answers, understand
from opencode_a2a.domain.values import (
    Choice,
    Data,
    Decision,
    FileUrl,
    Interrupt,
    Message,
    Part,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    Role,
    Text,
)
from tests.domain.logs import STEADY

PER, OTHER = "per_1e0f53f6c001Aa3bB4cC5dD6eE", "per_1e0f53f6c002Aa3bB4cC5dD6eE"
QUE, GONE = "que_1e0f53f6c003Aa3bB4cC5dD6eE", "per_1e0f53f6c009Aa3bB4cC5dD6eE"
COLOURS = (Choice("Red", "like a rose"), Choice("Blue", "like the sea"), Choice("No", "colour"))

PERMISSION = PermissionAsk(PER, "ses", "bash", ("ls",))
ANOTHER = PermissionAsk(OTHER, "ses", "bash", ("rm x",))
ONE = QuestionAsk(QUE, "ses", (Question("Colour", "Which?", COLOURS),))
STRICT = QuestionAsk(QUE, "ses", (Question("Colour", "Which?", COLOURS, custom=False),))
MANY = QuestionAsk(QUE, "ses", (Question("Colour", "Which?", COLOURS, multiple=True),))
OPEN = QuestionAsk(QUE, "ses", (Question("Name", "What name?"),))
THREE = QuestionAsk(QUE, "ses", (*ONE.questions, *MANY.questions, *OPEN.questions))

ONCE, FOR_GOOD = PermissionDecision("once"), PermissionDecision("always")
STOP, DISMISSED = PermissionDecision("reject"), QuestionDecision(None)


def no(reason: str) -> PermissionDecision:
    return PermissionDecision("reject", reason)


def answered(*answers: str | list[str]) -> QuestionDecision:
    return QuestionDecision(tuple((a,) if isinstance(a, str) else tuple(a) for a in answers))


def text(*texts: str) -> Message:
    return Message("m", Role.USER, tuple(map(Text, texts)))


def data(*values: Any, text: str = "") -> Message:
    parts: list[Part] = [Data(value) for value in values]
    parts += [Text(text)] if text else []
    return Message("m", Role.USER, tuple(parts))


def hitl(payload: Any, said: str = "see metadata", listed: bool = True) -> Message:
    extensions = (HITL,) if listed else ()
    return Message("m", Role.USER, (Text(said),), {HITL: payload}, extensions)


def not_understood(waiting: list[Interrupt], message: Message) -> NotUnderstood:
    with pytest.raises(NotUnderstood) as refusal:
        understand(waiting, message)
    assert refusal.value.request_id in {ask.request_id for ask in waiting}
    assert refusal.value.note.endswith(".")
    return refusal.value


# -- permissions, in words


def test_plain_words_decide_a_permission_and_others_do_not() -> None:
    assert understand([PERMISSION], text("Yes.")) == {PER: ONCE}
    assert understand([PERMISSION], text("Always!")) == {PER: FOR_GOOD}
    assert understand([PERMISSION], text("Nein!")) == {PER: STOP}
    assert understand([PERMISSION], text("No, use ls")) == {PER: no("use ls")}
    refusal = not_understood([PERMISSION], text("no problem, go ahead"))
    assert "Nothing was allowed or refused" in refusal.note


@STEADY
@given(st.text())
@example("9" * 5000)
@example("reject")
@example("no " * 5000)
def test_any_text_is_an_answer_or_not_understood(said: str) -> None:
    asks: list[Interrupt] = [PERMISSION, ONE, MANY, THREE, QuestionAsk(QUE, "ses", ())]
    for ask in asks:
        try:
            decided = understand([ask], text(said))
        except NotUnderstood:
            continue
        assert list(decided) == [ask.request_id]


def test_what_was_not_understood_is_repeated_in_short() -> None:
    refusal = not_understood([PERMISSION], text("because " * 40))
    assert "“because because" in refusal.note
    assert len(refusal.note) < 150


# -- questions, in words


@pytest.mark.parametrize(
    ("ask", "said", "decision"),
    [
        (ONE, "Red", answered("Red")),
        (ONE, " red. ", answered("Red")),
        (ONE, "2", answered("Blue")),
        (ONE, "2.", answered("Blue")),
        (ONE, "no", answered("No")),
        (ONE, "4", answered("4")),
        (ONE, "0", answered("0")),
        (ONE, "Green, like\ngrass", answered("Green, like\ngrass")),
        (ONE, "Red, Blue", answered("Red, Blue")),
        (ONE, "reject", DISMISSED),
        (ONE, "Dismiss.", DISMISSED),
        (ONE, "reject the premise", answered("reject the premise")),
        (STRICT, "blue", answered("Blue")),
        (MANY, "Red, 2", answered(["Red", "Blue"])),
        (MANY, "red; red\nBlue", answered(["Red", "Blue"])),
        (MANY, "1", answered("Red")),
        (MANY, "Red, or perhaps Green", answered("Red, or perhaps Green")),
        (OPEN, "Ada Lovelace", answered("Ada Lovelace")),
        (OPEN, "no", answered("no")),
        (OPEN, "1", answered("1")),
        (THREE, "1\n1, 2\nAda", answered("Red", ["Red", "Blue"], "Ada")),
        (THREE, "Green\n\nBlue\n\n  yes  ", answered("Green", "Blue", "yes")),
        (THREE, "reject", DISMISSED),
    ],
)
def test_words_about_a_question(ask: Interrupt, said: str, decision: Decision) -> None:
    assert understand([ask], text(said)) == {QUE: decision}


def test_an_option_that_is_called_reject_is_no_dismissal() -> None:
    choices = (Choice("Reject"), Choice("Accept"))
    ask = QuestionAsk(QUE, "ses", (Question("PR", "Merge?", choices),))
    assert understand([ask], text("reject")) == {QUE: answered("Reject")}
    second = QuestionAsk(QUE, "ses", (*OPEN.questions, *ask.questions))
    assert understand([second], text("Ada\nreject")) == {QUE: answered("Ada", "Reject")}


@pytest.mark.parametrize(
    ("ask", "said", "note"),
    [
        (STRICT, "Green", "must be answered with: Red, Blue, No"),
        (THREE, "Red", "3 questions, so the answer needs 3 lines, one for each; it has 1"),
        (THREE, "1\n2\n3\n4", "it has 4"),
    ],
)
def test_an_answer_that_does_not_fit_is_not_taken(ask: Interrupt, said: str, note: str) -> None:
    assert note in not_understood([ask], text(said)).note


def test_a_message_without_words_is_no_answer() -> None:
    picture = Message("m", Role.USER, (FileUrl("https://example.com/yes.png"),))
    assert "text or data" in not_understood([PERMISSION], picture).note
    not_understood([PERMISSION], text(" \n "))


HIDDEN = PermissionAsk(PER, "ses", "bash", command="echo " + "x" * 900 + "; rm -r ~")
BROAD = PermissionAsk(PER, "ses", "bash", command="ls", always=("ls *", "z" * 300))


def test_bare_words_do_not_allow_what_the_text_does_not_show_whole() -> None:
    for said in ("yes", "always", "once"):
        note = not_understood([HIDDEN, ANOTHER], text(said)).note
        assert "metadata.shared.interrupt.details" in note
        assert f"{PER}: yes" in note
        assert '{"reply": "once"}' in note
    assert understand([HIDDEN], text("no, list it")) == {PER: no("list it")}
    assert understand([HIDDEN], text(f"{PER}: yes")) == {PER: ONCE}
    assert understand([HIDDEN], data({"reply": "once"})) == {PER: ONCE}
    assert understand([HIDDEN, ANOTHER], text(f"{OTHER}: yes")) == {OTHER: ONCE}


def test_a_bare_always_does_not_allow_patterns_that_the_text_does_not_show() -> None:
    assert f"{PER}: always" in not_understood([BROAD], text("always")).note
    assert understand([BROAD], text("yes")) == {PER: ONCE}
    assert understand([BROAD], text(f"{PER}: always")) == {PER: FOR_GOOD}
    assert understand([BROAD], data({"reply": "always"})) == {PER: FOR_GOOD}


# -- which of several


def test_words_answer_the_oldest_unless_they_begin_with_an_id() -> None:
    waiting: list[Interrupt] = [PERMISSION, ONE, ANOTHER]
    assert understand(waiting, text("yes")) == {PER: ONCE}
    assert understand(waiting, text(f"{OTHER}: no, use ls")) == {OTHER: no("use ls")}
    assert understand(waiting, text(f"{OTHER} always")) == {OTHER: FOR_GOOD}
    assert understand(waiting, text(f" {QUE}\nGreen\nand blue")) == {
        QUE: answered("Green\nand blue")
    }


def test_a_line_for_each_id_answers_several() -> None:
    said = f"{OTHER}: yes\n\n{QUE} = 2\n{PER}, no"
    assert understand([PERMISSION, ONE, ANOTHER], text(said)) == {
        OTHER: ONCE,
        QUE: answered("Blue"),
        PER: STOP,
    }


@pytest.mark.parametrize(
    "said",
    [
        f"{PER}: no\n{PER}: yes",
        f"{PER}: yes\n{PER}: yes",
        f"{PER}: yes\n{GONE}: yes",
        f"{GONE}: yes",
        f"{GONE}: 1\nbecause",
        f"{PER}: yes\n{OTHER}: perhaps",
        f"{PER}: yes\nbut not the other",
        f"yes\n{OTHER}: no",
        f"{PER}:",
        PER,
    ],
)
def test_if_one_line_is_unclear_nothing_is_decided(said: str) -> None:
    not_understood([PERMISSION, ANOTHER], text(said))


def test_words_for_a_request_that_is_gone_are_no_answer_to_another() -> None:
    assert GONE in not_understood([OPEN], text(f"{GONE}: yes")).note
    assert understand([OPEN], text("per_user: string")) == {QUE: answered("per_user: string")}


# -- data


@pytest.mark.parametrize(
    ("waiting", "value", "decided"),
    [
        ([PERMISSION], {"reply": "once"}, {PER: ONCE}),
        ([PERMISSION], {"reply": "always"}, {PER: FOR_GOOD}),
        ([PERMISSION], {"reply": "reject"}, {PER: STOP}),
        ([PERMISSION], {"reply": "reject", "message": "why?"}, {PER: no("why?")}),
        ([PERMISSION], {"reply": "once", "message": "be quick"}, {PER: ONCE}),
        ([ONE, PERMISSION], {"reply": "once"}, {PER: ONCE}),
        ([PERMISSION, ANOTHER], {"reply": "once", "request_id": OTHER}, {OTHER: ONCE}),
        ([ONE], {"reply": "reject"}, {QUE: DISMISSED}),
        ([PERMISSION, ONE], {"reply": "reject"}, {PER: STOP}),
        ([PERMISSION, ONE], {"reply": "reject", "request_id": QUE}, {QUE: DISMISSED}),
        ([ONE], {"answers": [["Red"]]}, {QUE: answered("Red")}),
        ([ONE], {"answers": ["Green"]}, {QUE: answered("Green")}),
        ([PERMISSION, ONE], {"answers": [["Red"]]}, {QUE: answered("Red")}),
        (
            [THREE],
            {"answers": [["Red"], ["Red", "Blue"], ["Ada"]], "request_id": QUE},
            {QUE: answered("Red", ["Red", "Blue"], "Ada")},
        ),
    ],
)
def test_a_data_part(waiting: list[Interrupt], value: Any, decided: dict[str, Decision]) -> None:
    assert understand(waiting, data(value)) == decided


def test_the_text_beside_a_refusal_is_its_reason() -> None:
    assert understand([PERMISSION], data({"reply": "reject"}, text="wrong file")) == {
        PER: no("wrong file")
    }
    assert understand([PERMISSION], data({"reply": "once"}, text="fine")) == {PER: ONCE}


def test_several_data_parts_answer_several() -> None:
    both = data({"reply": "once", "request_id": OTHER}, {"answers": [["Red"]]})
    assert understand([PERMISSION, ONE, ANOTHER], both) == {OTHER: ONCE, QUE: answered("Red")}


@pytest.mark.parametrize(
    "values",
    [
        [{"reply": "reject"}, {"reply": "once"}],
        [{"reply": "once"}, {"reply": "once"}],
        [{"reply": "once", "request_id": GONE}],
        [{"reply": "once", "request_id": [PER]}],
        [{"reply": "once", "request_id": {}}],
        [{"reply": "once", "request_id": 1}],
        [{"reply": "yes"}],
        [{"reply": "Once"}],
        [{"reply": ["once"]}],
        [{"reply": True}],
        [{"reply": "once", "message": 1}],
        [{"reply": "once", "request_id": QUE}],
        [{"answers": [["Red"]], "request_id": PER}],
        [{"answers": "Red"}],
        [{"answers": [["Red"], ["Blue"]]}],
        [{"answers": [["Red", "Blue"]]}],
        [{"answers": [[]]}],
        [{"answers": [[" "]]}],
        [{"answers": []}],
        [{"answers": [[1]]}],
        [{"answers": [None]}],
        [{"answers": None}],
        [{"approved": True}],
        [{}],
        ["once"],
        [["once"]],
        [True],
        [None],
        [1],
        [{"reply": "once"}, "and more"],
    ],
)
def test_data_of_another_shape_decides_nothing(values: list[Any]) -> None:
    not_understood([PERMISSION, ONE, ANOTHER], data(*values))


def test_data_for_what_is_not_asked_says_what_is() -> None:
    assert "No question" in not_understood([PERMISSION], data({"answers": [["Red"]]})).note
    assert "No permission" in not_understood([ONE], data({"reply": "once"})).note


# -- kagent's form


def approval(*approvals: Any) -> dict[str, Any]:
    return {"type": "tool_approval_response", "approvals": [*approvals]}


def reply(request_id: Any = QUE, **more: Any) -> dict[str, Any]:
    return {"type": "ask_user_response", "id": request_id, **more}


@pytest.mark.parametrize(
    ("payload", "decided"),
    [
        (approval({"id": PER, "approved": True}), {PER: ONCE}),
        (approval({"id": PER, "approved": False}), {PER: STOP}),
        (
            approval({"id": PER, "approved": False, "rejection_reason": "why"}),
            {PER: no("why")},
        ),
        (approval({"id": PER, "approved": True, "rejection_reason": "x"}), {PER: ONCE}),
        (
            approval({"id": OTHER, "approved": True}, {"id": PER, "approved": False}),
            {OTHER: ONCE, PER: STOP},
        ),
        (reply(answers=[{"answer": ["Red"]}]), {QUE: answered("Red")}),
        (reply(answers=None), {QUE: DISMISSED}),
        (reply(), {QUE: DISMISSED}),
    ],
)
def test_kagents_form(payload: Any, decided: dict[str, Decision]) -> None:
    assert understand([PERMISSION, ANOTHER, ONE], hitl(payload)) == decided


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"type": "tool_approval_request", "tools": []},
        approval(),
        {"type": "tool_approval_response", "approvals": None},
        {"type": "tool_approval_response", "approvals": {"id": PER, "approved": True}},
        approval({"id": GONE, "approved": True}),
        approval({"id": PER, "approved": True}, {"id": PER, "approved": False}),
        approval({"id": PER, "approved": True}, {"id": GONE, "approved": True}),
        approval({"id": PER, "approved": "true"}),
        approval({"id": PER, "approved": 1}),
        approval({"id": PER}),
        approval({"approved": True}),
        approval({"id": [PER], "approved": True}),
        approval(PER),
        approval({"id": QUE, "approved": True}),
        reply(PER, answers=[{"answer": ["Red"]}]),
        reply(GONE, answers=[{"answer": ["Red"]}]),
        reply([QUE], answers=[{"answer": ["Red"]}]),
        reply(answers=[]),
        reply(answers=[{"answer": "Red"}]),
        reply(answers=[["Red"]]),
        reply(answers=["Red"]),
        reply(answers="Red"),
        reply(answers={"answer": ["Red"]}),
        reply(answers=5),
        reply(answers=True),
        reply(answers=[{"answer": [1]}]),
        reply(answers=[{"answer": ["Red"]}, {"answer": ["Blue"]}]),
    ],
)
def test_kagents_form_with_anything_wrong_decides_nothing(payload: Any) -> None:
    not_understood([PERMISSION, ANOTHER, ONE], hitl(payload))


def test_kagents_form_counts_only_where_the_message_says_that_it_uses_it() -> None:
    payload = approval({"id": PER, "approved": True})
    assert understand([PERMISSION], hitl(payload, said="no", listed=False)) == {PER: STOP}
    assert understand([PERMISSION], hitl("nonsense", said="no")) == {PER: STOP}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([PER, QUE]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "reply", "answers", "answer", "approved", "approvals", "request_id", "type"]
            ),
            inner | st.sampled_from(["tool_approval_response", "ask_user_response", "once"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@STEADY
@given(ANYTHING)
def test_any_json_is_a_decision_or_not_understood(value: Any) -> None:
    for message in (data(value), data(value, value), hitl(value)):
        try:
            decided = understand([PERMISSION, ONE], message)
        except NotUnderstood as exc:
            assert exc.request_id in (PER, QUE)
        else:
            assert decided.keys() <= {PER, QUE}
            assert decided


# -- answers by callback


@pytest.mark.parametrize(
    ("ask", "answers", "wrong"),
    [
        (ONE, [["Red"]], None),
        (ONE, [["my own"]], None),
        (MANY, [["Red", "Blue"]], None),
        (STRICT, [["Blue"]], None),
        (STRICT, [["blue"]], "Question 1 must be answered with: Red, Blue, No."),
        (ONE, [], "There are 1 questions and 0 answers."),
        (ONE, [["Red"], ["Blue"]], "There are 1 questions and 2 answers."),
        (ONE, [["Red", "Blue"]], "Question 1 takes one answer only."),
        (THREE, [["Red"], ["Red"], []], "Question 3 has no answer."),
        (THREE, [["Red"], [""], ["Ada"]], "Question 2 has no answer."),
    ],
)
def test_answers_must_fit_their_questions(
    ask: QuestionAsk, answers: list[list[str]], wrong: str | None
) -> None:
    assert check_answers(ask, answers) == wrong
