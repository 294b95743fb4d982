"""Sentences for people: what the agent is waiting for, in words a chat client can show."""

from __future__ import annotations

from typing import assert_never

from .values import Interrupt, PermissionAsk, Question, QuestionAsk


def asking(interrupt: Interrupt) -> str:
    """What is asked, with everything needed to decide."""
    match interrupt:
        case PermissionAsk():
            return _permission(interrupt)
        case QuestionAsk(questions=questions):
            return "The agent asks:\n\n" + "\n\n".join(_question(q) for q in questions)
        case _:
            assert_never(interrupt)


def _permission(ask: PermissionAsk) -> str:
    what = f"The agent asks for permission: {ask.permission}"
    if ask.filepath:
        what += f" {ask.filepath}"
    elif ask.patterns and not ask.command:
        what += f" ({', '.join(ask.patterns)})"
    if ask.command:
        what += f"\n\n    {ask.command}"
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
