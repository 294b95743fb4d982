"""Sentences for people: what the agent is waiting for, in words a chat client can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import assert_never

from .updates import Queued
from .values import Interrupt, PermissionAsk, Question, QuestionAsk

LONGEST_STATUS = 2_000  # bytes of a text in a status: every look at the task brings it again
LEAST_REQUEST = 500  # bytes for each of several requests; where they do not fit, fewer are shown
LONGEST_NOTE = 300  # bytes about an answer that was not understood, or of a list of patterns
DETAILS = "metadata.shared.interrupt.details"
# What the agent is told when it is asked to continue.
CONTINUE = (
    "You were interrupted: the program that runs you was stopped in the middle of your work on the "
    "previous request. What a tool call or command did just before may be done, half done or not "
    "done at all, so look before you repeat anything. Then continue, and finish the request."
)
CONTINUES = "OpenCode was interrupted. The agent was told so, and asked to continue."


def queueing(queued: Queued) -> str:
    """What a task waits for before it begins."""
    if queued.behind is None:
        return "Waiting for a free slot: as many tasks are running as this service allows."
    return (
        f"Waiting until task {queued.behind} of this context has ended. If it is input-required, "
        "answer or cancel it."
    )


def asking(interrupt: Interrupt, room: int = LONGEST_STATUS) -> str:
    """What is asked, with everything needed to decide, and how to answer, in so many bytes.

    Where not everything fits, the text says so, and where the rest is.
    """
    how = _how(interrupt)
    return f"{_fitted(interrupt, room - _size(how) - 2)}\n\n{how}"


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
    shown, each = interrupts, LONGEST_STATUS
    if sum(_size(_named(ask, each)) for ask in shown) > room:
        shown = interrupts[: max(1, room // LEAST_REQUEST)]
        each = room // len(shown)
    requests = [_named(ask, each) for ask in shown]
    if left_out := len(interrupts) - len(shown):
        requests.append(f"{left_out} more are in metadata.shared.interrupts.")
    return note + "\n\n".join([first, *requests, last])


def _named(interrupt: Interrupt, room: int) -> str:
    name = f"[{interrupt.request_id}] "
    return name + asking(interrupt, room - _size(name) - 2)


def _shortened(text: str, room: int) -> str:
    """The text, or as much of its beginning as fits into so many bytes."""
    if _size(text) <= room:
        return text
    return text.encode()[: room - 3].decode(errors="ignore") + "…"


def _size(text: str) -> int:
    return len(text.encode())


def _fitted(interrupt: Interrupt, room: int) -> str:
    """What is asked. If it is too long: its beginning and its end, and where to find it whole."""
    whole = _what(interrupt)
    if _size(whole) <= room:
        return whole
    note = f"\n\n[… this is cut: {_extent(interrupt, whole)}, all of it in {DETAILS} …]\n\n"
    room = max(0, room - _size(note))
    raw, tail = whole.encode(), room // 4
    head = raw[: room - tail].decode(errors="ignore")
    return head + note + raw[len(raw) - tail :].decode(errors="ignore")


def _extent(interrupt: Interrupt, whole: str) -> str:
    if isinstance(interrupt, PermissionAsk) and interrupt.diff:
        lines = interrupt.diff.splitlines()
        added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        return f"{added} lines added and {removed} removed"
    return f"{len(whole)} characters"


def _what(interrupt: Interrupt) -> str:
    match interrupt:
        case PermissionAsk():
            return _permission(interrupt)
        case QuestionAsk(questions=questions):
            return "The agent asks:\n\n" + "\n\n".join(_question(q) for q in questions)
        case _:
            assert_never(interrupt)


def _how(interrupt: Interrupt) -> str:
    if isinstance(interrupt, PermissionAsk):
        patterns = _shortened(", ".join(interrupt.always), LONGEST_NOTE)
        also = f" (from now on also {patterns})" if patterns else ""
        return (
            f"Answer yes for this once, always{also}, or no. What follows a no is told to the "
            "agent, which then looks for another way; a bare no stops it."
        )
    if len(interrupt.questions) > 1:
        return "Answer with one line for each question, or with reject to stop the agent."
    (question,) = interrupt.questions or (Question("", ""),)
    if not question.options:
        return "Answer in your own words, or with reject to stop the agent."
    ways = "one or more of the options, separated by commas" if question.multiple else "an option"
    own = ", or in your own words" if question.custom else ""
    return f"Answer with {ways} (its name or its number){own}, or with reject to stop the agent."


def _permission(ask: PermissionAsk) -> str:
    what = f"The agent asks for permission: {ask.permission}"
    if ask.filepath:
        what += f" {ask.filepath}"
    elif ask.patterns and (not ask.command or ask.permission == "external_directory"):
        what += f" ({', '.join(ask.patterns)})"
    if ask.title:
        what += f"\n{ask.title}"
    if ask.command:
        what += f"\n\n    {ask.command}"
    if ask.arguments:
        what += f"\n\n{json.dumps(ask.arguments, ensure_ascii=False, indent=2)}"
    if ask.diff:
        what += f"\n\n{ask.diff}"
    return what


def _question(question: Question) -> str:
    lines = [question.question or question.header]
    for number, option in enumerate(question.options, 1):
        lines.append(
            f"{number}. {option.label}" + (f": {option.description}" * bool(option.description))
        )
    return "\n".join(lines)
