"""Reads a decision about the agent's requests from a person's message.

Only a plain answer counts, because a decision cannot be taken back: `consent.py` has the words.
To anything else the service replies that it has not understood, and which answers it would.

* text answers the first open request, or the one whose id it begins with; a line
  for each id answers several; without an id it allows only what was shown whole;
* a data part answers the request it names, or the first of its kind;
* a message in kagent's human-in-the-loop form names what it answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import consent, phrases
from .values import (
    Data,
    Decision,
    Interrupt,
    Message,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    Text,
)

HITL = "https://kagent.dev/extensions/hitl/v1"

DISMISS_WORDS = frozenset({"reject", "dismiss"})
_ADDRESS = re.compile(r"\s*((?:per|que)_\w+)\s*[:=,]?\s*(.*)", re.DOTALL)
_ID = re.compile(r"(?:per|que)_[A-Za-z0-9]{20,}")  # nobody writes that for anything else


class NotUnderstood(Exception):
    """The request stays open; the text says what was not understood."""

    def __init__(self, request_id: str, note: str) -> None:
        super().__init__(note)
        self.request_id = request_id
        self.note = note


def understand(waiting: Sequence[Interrupt], message: Message) -> dict[str, Decision]:
    """The decisions in a message, by request id. `waiting` are the open requests, oldest first."""
    known = {interrupt.request_id: interrupt for interrupt in waiting}
    payload = (message.metadata or {}).get(HITL) if HITL in message.extensions else None
    if isinstance(payload, Mapping):
        return _from_hitl(known, payload)
    text = "\n".join(part.text for part in message.parts if isinstance(part, Text)).strip()
    data = [part.value for part in message.parts if isinstance(part, Data)]
    if data:
        return _each_once(_from_data(known, value, text=text) for value in data)
    if not text:
        raise NotUnderstood(waiting[0].request_id, "The answer must be text or data.")
    lines = [_addressed(known, line) for line in text.splitlines() if line.strip()]
    if not all(lines):
        lines = [_addressed(known, text)]
    if not all(lines):
        decision = _from_text(waiting[0], text)
        _check_was_shown(waiting[0], decision)
        return {waiting[0].request_id: decision}
    return _each_once((line[0], _from_text(known[line[0]], line[1])) for line in lines if line)


def is_only_a_reply(message: Message) -> bool:
    """Whether a message can only be an answer, so that it is never used as a prompt."""
    if HITL in message.extensions and isinstance((message.metadata or {}).get(HITL), Mapping):
        return True
    data = [part.value for part in message.parts if isinstance(part, Data)]
    if data:
        return all(isinstance(value, dict) and _is_shaped_as_reply(value) for value in data)
    text = next((part.text for part in message.parts if isinstance(part, Text)), "")
    found = _ADDRESS.fullmatch(text)
    return found is not None and _ID.fullmatch(found[1]) is not None


def _is_shaped_as_reply(value: dict[str, Any]) -> bool:
    if "answers" in value:
        return value.keys() <= {"answers", "request_id"}
    return "reply" in value and value.keys() <= {"reply", "message", "request_id"}


def _addressed(known: Mapping[str, Interrupt], text: str) -> tuple[str, str] | None:
    """The id of the request that a text begins with, and the rest of the text."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not (found[1] in known or _ID.fullmatch(found[1])):
        return None
    if found[1] not in known:
        raise NotUnderstood(
            next(iter(known)), f"No request with the id {_short(found[1])} waits for an answer."
        )
    return found[1], found[2].strip()


def _each_once(decisions: Iterable[tuple[str, Decision]]) -> dict[str, Decision]:
    decided: dict[str, Decision] = {}
    for request_id, decision in decisions:
        if request_id in decided:
            raise NotUnderstood(
                request_id, f"{request_id} is answered twice. Name the request of each answer."
            )
        decided[request_id] = decision
    return decided


def check_answers(ask: QuestionAsk, answers: Sequence[Sequence[str]]) -> str | None:
    """What is wrong with the answers to these questions, or None."""
    if len(answers) != len(ask.questions):
        return f"There are {len(ask.questions)} questions and {len(answers)} answers."
    for number, (question, answer) in enumerate(zip(ask.questions, answers, strict=True), 1):
        labels = [option.label for option in question.options]
        if not answer or not all(word.strip() for word in answer):
            return f"Question {number} has no answer."
        if len(answer) > 1 and not question.multiple:
            return f"Question {number} takes one answer only."
        if not question.custom and not set(answer) <= set(labels):
            return f"Question {number} must be answered with: {', '.join(labels)}."
    return None


# -- words


def _from_text(ask: Interrupt, text: str) -> Decision:
    if isinstance(ask, PermissionAsk):
        return _permission_from_text(ask, text)
    if text.strip(" .!").lower() in DISMISS_WORDS and not any(
        _option(q, text) for q in ask.questions
    ):
        return QuestionDecision(None)
    if len(ask.questions) == 1:
        return _checked(ask, [_answer_from_text(ask.questions[0], text)])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != len(ask.questions):
        raise NotUnderstood(
            ask.request_id,
            f"There are {len(ask.questions)} questions, so the answer needs "
            f"{len(ask.questions)} lines, one for each; it has {len(lines)}.",
        )
    pairs = zip(ask.questions, lines, strict=True)
    return _checked(ask, [_answer_from_text(question, line) for question, line in pairs])


def _permission_from_text(ask: PermissionAsk, text: str) -> Decision:
    decision = consent.read(text)
    if decision is None:
        raise NotUnderstood(
            ask.request_id,
            f"“{_short(text)}” is neither yes, always nor no. Nothing was allowed or refused.",
        )
    return decision


def _check_was_shown(ask: Interrupt, decision: Decision) -> None:
    """Bare words allow only what the text of the request has shown whole.

    Otherwise the agent could have a person allow what nobody has seen.
    """
    if not isinstance(ask, PermissionAsk) or not isinstance(decision, PermissionDecision):
        return
    name, reply = ask.request_id, decision.reply
    if reply != "reject" and not phrases.is_shown_whole(ask):
        raise NotUnderstood(
            name,
            "Nothing was allowed: the text of this request does not show all of it. Read "
            f"{phrases.DETAILS}, then answer “{name}: yes”, or with the data "
            '{"reply": "once"}.',
        )
    if reply == "always" and not phrases.is_always_shown_whole(ask):
        raise NotUnderstood(
            name,
            "Nothing was allowed: the text of this request does not show all that always would "
            f"allow. Read {phrases.DETAILS}.always, then answer “{name}: always”. For this "
            "once, answer yes.",
        )


def _answer_from_text(question: Question, text: str) -> list[str]:
    whole = _option(question, text)
    if whole is not None:
        return [whole]
    if question.multiple and question.options:
        pieces = [piece.strip() for piece in re.split(r"[,;\n]", text) if piece.strip()]
        found = [_option(question, piece) for piece in pieces]
        if pieces and all(label is not None for label in found):
            return list(dict.fromkeys(label for label in found if label is not None))
    return [text]


def _option(question: Question, text: str) -> str | None:
    """The option that a text names, by its label or its number."""
    named = text.strip().rstrip(".")
    for option in question.options:
        if option.label.lower() == named.lower():
            return option.label
    if named.isdecimal() and len(named) < 4 and 0 < int(named) <= len(question.options):
        return question.options[int(named) - 1].label
    return None


def _checked(ask: QuestionAsk, answers: Sequence[Sequence[str]]) -> QuestionDecision:
    wrong = check_answers(ask, answers)
    if wrong is not None:
        raise NotUnderstood(ask.request_id, wrong)
    return QuestionDecision(tuple(tuple(answer) for answer in answers))


# -- data


def _from_data(known: Mapping[str, Interrupt], value: Any, text: str) -> tuple[str, Decision]:
    first = next(iter(known))
    if not isinstance(value, dict):
        raise NotUnderstood(first, _DATA_HELP)
    named = value.get("request_id")
    if named is not None and not (isinstance(named, str) and named in known):
        raise NotUnderstood(
            first, f"No request with the id {_short(str(named))} waits for an answer."
        )
    if "answers" in value:
        ask = known[named] if named else _first(known, QuestionAsk)
        if not isinstance(ask, QuestionAsk):
            raise NotUnderstood(ask.request_id, "This is a permission: it takes a reply.")
        answers = value["answers"]
        if not isinstance(answers, list) or not all(map(_is_words, answers)):
            raise NotUnderstood(ask.request_id, _DATA_HELP)
        return ask.request_id, _checked(ask, [[a] if isinstance(a, str) else a for a in answers])
    match value.get("reply"), value.get("message"):
        case ("once" | "always" | "reject") as reply, (str() | None) as message:
            ask = known[named] if named else _first(known, PermissionAsk, anyway=reply == "reject")
            if isinstance(ask, PermissionAsk):
                reason = (message or text or None) if reply == "reject" else None
                return ask.request_id, PermissionDecision(reply, reason)
            if reply == "reject":
                return ask.request_id, QuestionDecision(None)
            raise NotUnderstood(ask.request_id, "This is a question: it takes answers.")
        case _:
            raise NotUnderstood(first, _DATA_HELP)


_DATA_HELP = (
    'Data must look like {"reply": "once"}, with once, always or reject and optionally a message, '
    'or like {"answers": [["A"], ["free text"]]}, one list for each question.'
)


def _first(
    known: Mapping[str, Interrupt], kind: type[Interrupt], *, anyway: bool = False
) -> Interrupt:
    asks = list(known.values())
    of_kind = [ask for ask in asks if isinstance(ask, kind)]
    if not of_kind and not anyway:
        wanted = "permission" if kind is PermissionAsk else "question"
        raise NotUnderstood(asks[0].request_id, f"No {wanted} is waiting. {_DATA_HELP}")
    return (of_kind or asks)[0]


def _is_words(answer: Any) -> bool:
    return isinstance(answer, str) or (
        isinstance(answer, list) and all(isinstance(word, str) for word in answer)
    )


def _from_hitl(known: Mapping[str, Interrupt], payload: Mapping[str, Any]) -> dict[str, Decision]:
    first = next(iter(known))
    match payload:
        case {"type": "tool_approval_response", "approvals": list(approvals)}:
            pass
        case {"type": "ask_user_response", "id": str(request_id), "answers": answers}:
            approvals = [{"id": request_id, "answers": answers}]
        case {"type": "ask_user_response", "id": str(request_id)}:
            approvals = [{"id": request_id, "answers": None}]
        case _:
            raise NotUnderstood(first, "This is no tool_approval_response or ask_user_response.")
    decided: dict[str, Decision] = {}
    for approval in approvals:
        match approval:
            case {"id": str(request_id)} if request_id not in known or request_id in decided:
                raise NotUnderstood(
                    first, f"No request with the id {_short(request_id)} waits for an answer."
                )
            case {"id": str(request_id), "approved": bool(approved)}:
                ask = known[request_id]
                if not isinstance(ask, PermissionAsk):
                    raise NotUnderstood(request_id, "This is a question: it takes answers.")
                reason = approval.get("rejection_reason")
                reason = reason if isinstance(reason, str) and reason and not approved else None
                decided[request_id] = PermissionDecision("once" if approved else "reject", reason)
            case {"id": str(request_id), "answers": answers}:
                ask = known[request_id]
                if not isinstance(ask, QuestionAsk):
                    raise NotUnderstood(request_id, "This is a permission: it takes an approval.")
                decided[request_id] = _hitl_answers(ask, answers)
            case _:
                raise NotUnderstood(first, 'An approval needs an "id" and "approved".')
    if not decided:
        raise NotUnderstood(first, "The response decides nothing.")
    return decided


def _hitl_answers(ask: QuestionAsk, answers: Any) -> QuestionDecision:
    if answers is None:
        return QuestionDecision(None)
    given = answers if isinstance(answers, list) else []
    words = [a.get("answer") if isinstance(a, dict) else None for a in given]
    if not words or not all(isinstance(each, list) and _is_words(each) for each in words):
        raise NotUnderstood(ask.request_id, 'Each answer must be {"answer": ["…"]}.')
    return _checked(ask, [each for each in words if each is not None])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
