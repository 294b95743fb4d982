"""Sentences for people: what the agent is waiting for, in words a chat client can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import assert_never

from .updates import Queued
from .values import Interrupt, PermissionAsk, Question, QuestionAsk

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


def asking(interrupt: Interrupt) -> str:
    """What is asked, with everything needed to decide, and how to answer."""
    return f"{_what(interrupt)}\n\n{_how(interrupt)}"


def waiting(interrupts: Sequence[Interrupt], unclear: str | None = None) -> str:
    """Everything that is asked at the moment, after what was not understood of an answer."""
    if len(interrupts) == 1:
        text = asking(interrupts[0])
    else:
        requests = [f"[{each.request_id}] {_what(each)}\n\n{_how(each)}" for each in interrupts]
        text = "\n\n".join(
            [
                f"The agent waits for {len(interrupts)} decisions.",
                *requests,
                "An answer counts for the first. To answer another, begin with its id: "
                f"{interrupts[-1].request_id}: …",
            ]
        )
    return f"{unclear}\n\n{text}" if unclear else text


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
        also = f" (from now on also {', '.join(interrupt.always)})" if interrupt.always else ""
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
