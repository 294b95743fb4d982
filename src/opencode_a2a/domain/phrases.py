"""Sentences for people: what the agent is waiting for, in words a chat client can show."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from .updates import DecisionRecord, NodeLost, Queued
from .values import (
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Question,
    QuestionAsk,
    QuestionDecision,
    timestamp,
)

LONGEST_STATUS = 2_000  # bytes of a text in a status: every look at the task brings it again
# Bytes of what is allowed, such as a command. A longer one is cut, so bare words do not allow it.
LONGEST_ACTION = 800
LEAST_REQUEST = 500  # bytes for each of several requests; where they do not fit, fewer are shown
LONGEST_NOTE = 300  # bytes about an answer that was not understood, or of a list of patterns
LONGEST_TITLE = 200  # bytes; the model writes it
MOST_BLANKS = 40  # in a row: more would push what follows out of sight
# Characters that control or format (Unicode's Cc, Cf, Zl and Zp), and letters that are not seen.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f"
    r"\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e007f]"
)
DETAILS = "metadata.shared.interrupt.details"
# What the agent is told when it is asked to continue.
CONTINUE_PROMPT = (
    "You were interrupted: the program that runs you was stopped in the middle of your work on the "
    "previous request. What a tool call or command did just before may be done, half done or not "
    "done at all, so look before you repeat anything. Then continue, and finish the request."
)
CONTINUED_NOTE = "OpenCode was interrupted. The agent was told so, and asked to continue."


RETOLD_NOTE = (
    "The session of this conversation is lost with its node. It goes on in a new one, which is "
    "told what was said before, but not what tools have returned."
)


def node_lost(lost: NodeLost) -> str:
    """Why nothing happens, and until when that is so."""
    return (
        "The node that has this task is not running, so the task waits. It goes on when the node "
        f"is back; if that is not so by {timestamp(lost.until)}, the task fails."
    )


def queueing(queued: Queued) -> str:
    """What a task waits for before it begins."""
    if queued.behind is None:
        return "Waiting for a free slot: as many tasks are running as this service allows."
    return (
        f"Waiting until task {queued.behind} of this context has ended. If it is input-required, "
        "answer or cancel it."
    )


def is_shown_whole(ask: PermissionAsk) -> bool:
    """Whether everybody who sees the text of a request sees all that would be done."""
    return _size(_action(ask)) <= LONGEST_ACTION


def is_always_shown_whole(ask: PermissionAsk) -> bool:
    """Whether everybody who sees the text of a request sees all that "always" would allow."""
    return _size(_always(ask)) <= LONGEST_NOTE


def asking(interrupt: Interrupt, room: int = LONGEST_STATUS) -> str:
    """What is asked, with everything needed to decide, and how to answer, in so many bytes.

    What would be done comes first, and what the model says about it later. Where not everything
    fits, the text says so, and where the rest is.
    """
    how = _how(interrupt)
    return f"{_fitted(interrupt, room - _size(how) - 2)}\n\n{how}"


def request_note(interrupt: Interrupt) -> str:
    """What was asked, once it is settled."""
    return _fitted(interrupt, LONGEST_STATUS)


def decision_note(settled: DecisionRecord) -> str:
    """What became of a request, and who decided it."""
    if settled.by == "expiry":
        return "Refused: nobody answered in time."
    who = {"rule": "by a rule of this context", "elsewhere": "outside this service"}.get(
        settled.by, "by the caller"
    )
    decision = settled.decision
    match settled.resolution:
        case "once":
            return f"Allowed once, {who}."
        case "always":
            return f"Allowed from now on, {who}."
        case "reject" if isinstance(decision, PermissionDecision) and decision.message:
            return _shortened(f"Refused {who}: {decision.message}", LONGEST_STATUS)
        case "reject":
            return f"Refused {who}."
        case "rejected":
            return f"Dismissed {who}."
        case "answered" if isinstance(decision, QuestionDecision) and decision.answers:
            answers = "\n".join(", ".join(answer) for answer in decision.answers)
            return _shortened(f"Answered {who}: {answers}", LONGEST_STATUS)
        case _:
            return f"Settled {who}."


def waiting(interrupts: Sequence[Interrupt], unclear: str | None = None) -> str:
    """Everything that is asked at the moment, after what was not understood of an answer."""
    note = f"{_shortened(unclear, LONGEST_NOTE)}\n\n" if unclear else ""
    room = LONGEST_STATUS - _size(note)
    if len(interrupts) == 1:
        return note + asking(interrupts[0], room)
    first = f"The agent waits for {len(interrupts)} decisions."
    last = (
        "An answer counts for the first. To answer another, begin with its id: "
        f"{interrupts[-1].request_id}: …"
    )
    room -= _size(first) + _size(last) + 100  # for the ends of paragraphs, and for what is left out
    requests = [_named(ask, LONGEST_STATUS) for ask in interrupts]
    if sum(map(_size, requests)) > room:
        requests = [_named(interrupts[0], max(room // 2, _least_room(interrupts[0])))]
        room -= _size(requests[0])
        others = interrupts[1 : 1 + max(0, room // LEAST_REQUEST)]
        requests += [_named(ask, room // len(others)) for ask in others]
    if left_out := len(interrupts) - len(requests):
        requests.append(f"{left_out} more are in metadata.shared.interrupts.")
    return note + "\n\n".join([first, *requests, last])


def _named(interrupt: Interrupt, room: int) -> str:
    name = _name(interrupt)
    return name + asking(interrupt, room - _size(name) - 2)


def _name(interrupt: Interrupt) -> str:
    return f"[{interrupt.request_id}] "


def _least_room(interrupt: Interrupt) -> int:
    """What a request needs so that all that would be done is shown, if that is possible at all."""
    if not isinstance(interrupt, PermissionAsk) or not is_shown_whole(interrupt):
        return 0
    texts = (_name(interrupt), _action(interrupt), _how(interrupt), _cut_note(interrupt))
    return sum(map(_size, texts)) + 10


def _shortened(text: str, room: int) -> str:
    """The text, or as much of its beginning as fits into so many bytes."""
    if _size(text) <= room:
        return text
    return text.encode()[: room - 3].decode(errors="ignore") + "…"


def _size(text: str) -> int:
    return len(text.encode())


@lru_cache(4)  # one text is needed several times, and may be long
def _visible(text: str) -> str:
    """The text, with a sign for whatever would hide a part of it, or disguise it."""
    text = re.sub(r"\n(?:[^\S\n]*\n){3,}", _empty_lines, text)
    text = re.sub(rf"[^\S\n]{{{MOST_BLANKS + 1},}}", lambda run: f"[{len(run[0])} spaces]", text)
    return _HIDDEN.sub(lambda char: f"\\u{ord(char[0]):04x}", text)


def _empty_lines(run: re.Match[str]) -> str:
    return f"\n[{run[0].count(chr(10)) - 1} empty lines]\n"


def _in_one_line(text: str) -> str:
    return _visible(text.replace("\n", "⏎"))


def _fitted(interrupt: Interrupt, room: int) -> str:
    """What is asked. If it is too long: its beginning and its end, and where to find it whole."""
    if not isinstance(interrupt, PermissionAsk):
        return _cut(_questions(interrupt), room, _cut_note(interrupt))
    action, rest = _action(interrupt), _rest(interrupt)
    note = _cut_note(interrupt)
    if not is_shown_whole(interrupt):
        warning = (
            "This request is too long to be shown here, and what is missing may matter. Read all "
            f"of it in {DETAILS} before you decide.\n\n"
        )
        return warning + _cut(action, room - _size(warning), note)
    if not rest or _size(action) + _size(rest) + 2 <= room:
        return f"{action}\n\n{rest}" if rest else action
    left = room - _size(action) - 2
    if left < _size(note):
        return _cut(action, room, note)  # one of several, which bare words do not answer
    return f"{action}\n\n{_cut(rest, left, note)}"


def _cut(text: str, room: int, note: str) -> str:
    if _size(text) <= room:
        return text
    room = max(0, room - _size(note))
    raw, tail = text.encode(), room // 4
    head = raw[: room - tail].decode(errors="ignore")
    return head + note + raw[len(raw) - tail :].decode(errors="ignore")


def _cut_note(interrupt: Interrupt) -> str:
    return f"\n\n[… this is cut: {_extent(interrupt)}, all of it in {DETAILS} …]\n\n"


def _extent(interrupt: Interrupt) -> str:
    if not isinstance(interrupt, PermissionAsk):
        return f"{len(_questions(interrupt))} characters"
    if not interrupt.diff:
        return f"{len(_action(interrupt))} characters"
    lines = interrupt.diff.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"{added} lines added and {removed} removed"


def _who(interrupt: Interrupt) -> str:
    if interrupt.peer is not None:
        return f"The peer {_in_one_line(interrupt.peer)}, which the agent has called,"
    if interrupt.subagent is None:
        return "The agent"
    name = interrupt.subagent.agent
    return f"The sub-agent {name}" if name else "A sub-agent"


def _how(interrupt: Interrupt) -> str:
    if isinstance(interrupt, PermissionAsk):
        return _how_to_permit(interrupt)
    if len(interrupt.questions) > 1:
        return "Answer with one line for each question, or with reject to stop the agent."
    (question,) = interrupt.questions or (Question("", ""),)
    if not question.options:
        return "Answer in your own words, or with reject to stop the agent."
    ways = "one or more of the options, separated by commas" if question.multiple else "an option"
    own = ", or in your own words" if question.custom else ""
    return f"Answer with {ways} (its name or its number){own}, or with reject to stop the agent."


def _how_to_permit(ask: PermissionAsk) -> str:
    no = (
        "What follows “no, ” is told to the agent, which then looks for another way; a bare no "
        "stops it."
    )
    also = _always(ask)
    if not is_shown_whole(ask):
        return (
            "Answer no. Or, when you have read all of it, begin with the id "
            f'({ask.request_id}: yes), or send the data {{"reply": "once"}}. {no}'
        )
    if not is_always_shown_whole(ask):
        also = (
            f"from now on more than can be shown here: read {DETAILS}.always, then begin with the "
            f"id: {ask.request_id}: always"
        )
    elif also:
        also = f"from now on also {also}"
    return f"Answer yes for this once, always{f' ({also})' if also else ''}, or no. {no}"


def _always(ask: PermissionAsk) -> str:
    return ", ".join(map(_in_one_line, ask.always))


def _action(ask: PermissionAsk) -> str:
    """What the agent would do."""
    what = f"{_who(ask)} asks for permission: {_in_one_line(ask.permission)}"
    if ask.filepath:
        what += f" {_in_one_line(ask.filepath)}"
    elif ask.patterns and (not ask.command or ask.permission == "external_directory"):
        what += f" ({', '.join(map(_in_one_line, ask.patterns))})"
    if ask.command:  # each line is indented, so that none is taken for one of ours
        what += "\n\n    " + _visible(ask.command).replace("\n", "\n    ")
    if ask.arguments:
        what += "\n\n" + _visible(json.dumps(ask.arguments, ensure_ascii=False, indent=2))
    return what


def _rest(ask: PermissionAsk) -> str:
    """What the model says about it, and what a file would become."""
    title = _shortened(_in_one_line(" ".join((ask.title or "").split())), LONGEST_TITLE)
    parts = [f"The agent says: {title}" if title else "", _visible(ask.diff or "")]
    return "\n\n".join(part for part in parts if part)


def _questions(ask: QuestionAsk) -> str:
    return f"{_who(ask)} asks:\n\n" + "\n\n".join(map(_question, ask.questions))


def _question(question: Question) -> str:
    lines = [question.question or question.header]
    for number, option in enumerate(question.options, 1):
        lines.append(
            f"{number}. {option.label}" + (f": {option.description}" * bool(option.description))
        )
    return "\n".join(lines)
