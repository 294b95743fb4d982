"""What a peer waits for, as a request to our own caller, and the decision as an answer to the peer.

Services of this project say what they ask (`metadata.shared.interrupt`). Any other agent's question
is the text of its status, and every answer to it is text.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from ..domain.values import (
    Choice,
    Decision,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
)
from .failures import PeerProtocolError
from .transcript import Json, Request, Transcript, dicts

LARGEST = 65_536  # characters of a request; nothing of it is left out, since a person decides
UNSAID = "The peer waits for an answer, and does not say to what."


def interrupt_of(found: Transcript, *, peer: str, session: str) -> Interrupt:
    """The first thing that a peer waits for."""
    request = found.requests[0] if found.requests else None
    asks = json.dumps(request.details) if request is not None else found.status_text
    if len(asks) > LARGEST:
        raise PeerProtocolError("The peer asks more than can be shown to a person.")
    if request is not None and request.type == "permission":
        return _permission(request.details, peer=peer, session=session)
    asked = dicts(request.details.get("questions")) if request is not None else []
    questions = tuple(map(_question, asked)) or (Question(peer, found.status_text or UNSAID),)
    return QuestionAsk(_new_id("que"), session, questions, peer=peer)


def answer_to(request: Request | None, decision: Decision) -> Json | None:
    """The part of a message that tells a peer what was decided; None if no words can."""
    if request is not None and (
        isinstance(decision, PermissionDecision) or decision.answers is None
    ):
        reply: Json = {"request_id": request.id, "reply": "reject"}
        if isinstance(decision, PermissionDecision):
            # Here "always" is a rule of our caller's context. A peer is told for this once.
            reply["reply"] = "reject" if decision.reply == "reject" else "once"
            reply |= {"message": decision.message} if decision.message else {}
        return {"data": reply}
    if isinstance(decision, PermissionDecision) or decision.answers is None:
        return None
    if request is not None:
        answers = [list(answer) for answer in decision.answers]
        return {"data": {"request_id": request.id, "answers": answers}}
    return {"text": "\n".join(", ".join(answer) for answer in decision.answers)}


def _permission(details: Json, *, peer: str, session: str) -> PermissionAsk:
    arguments = details.get("arguments")
    return PermissionAsk(
        _new_id("per"),
        session,
        # A rule for what the agent itself may do must not allow it to a peer.
        permission=f"{peer}:{_text(details, 'permission') or 'permission'}",
        patterns=_texts(details.get("patterns")),
        command=_text(details, "command"),
        filepath=_text(details, "filepath"),
        diff=_text(details, "diff"),
        title=_text(details, "title"),
        always=_texts(details.get("always")),
        arguments=arguments if isinstance(arguments, dict) else None,
        peer=peer,
    )


def _question(asked: Json) -> Question:
    options = [
        Choice(label, _text(option, "description") or "")
        for option in dicts(asked.get("options"))
        if (label := _text(option, "label"))
    ]
    return Question(
        header=_text(asked, "header") or "",
        question=_text(asked, "question") or UNSAID,
        options=tuple(options),
        multiple=asked.get("multiple") is True,
        custom=asked.get("custom") is not False or not options,
    )


def _new_id(kind: str) -> str:
    """Of the form that OpenCode's ids have, by which callers name a request."""
    return f"{kind}_{uuid4().hex}"


def _text(found: Json, name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each for each in found if isinstance(each, str))
