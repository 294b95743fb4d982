"""What every client is asked to do, and when that counts as done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .declared import STEPS

Mark = Literal["yes", "partly", "no", "lacking"]

NOTE = {"filePath": "notes/interop.txt", "content": "written\n"}
# The agent thinks, reads and writes before it answers: none of that is the answer.
WORK = f'[[reason:3]] [[tool:read {{"filePath": "README.md"}}]] [[tool:write {json.dumps(NOTE)}]]'
ANSWER = "The file is written."
LONG_ANSWER = "This answer is long enough to come in several pieces, and they are joined as sent."
GRANTED = "granted by a person"
COMMAND = {"command": f"echo {GRANTED}", "description": "Says so"}


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    prompts: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()  # what the client should show after each prompt


@dataclass(frozen=True, slots=True)
class Verdict:
    mark: Mark
    note: str = ""


def steps(client: str, agent_name: str) -> tuple[Step, ...]:
    """The steps for a client. Its name in the prompts tells its sessions from those of others."""
    who = f"({client})"
    first, second = "The first answer.", "The second answer."
    planned = (
        Step("discover", answers=(agent_name,)),
        Step("ask", (f"{who} {WORK} [[text:{ANSWER}]]",), (ANSWER,)),
        Step("stream", (f"{who} {WORK} [[delay:60]] [[text:{LONG_ANSWER}]]",), (LONG_ANSWER,)),
        Step(
            "continue",
            (f"{who} one [[text:{first}]]", f"{who} two [[text:{second}]]"),
            (first, second),
        ),
        Step(
            "permission",
            (f"{who} [[tool:bash {json.dumps(COMMAND)}]]", "yes"),
            ("", f"TOOL RESULT: {GRANTED}"),
        ),
        Step("cancel", (f"{who} [[hangmid:3]]",)),
    )
    assert tuple(step.name for step in planned) == STEPS
    return planned


def judge(step: Step, outcome: Mapping[str, Any], sessions: Sequence[str]) -> Verdict:
    """Did the client do it? `sessions` are those in which OpenCode was given the prompts."""
    if "lacking" in outcome:
        return Verdict("lacking", str(outcome["lacking"]))
    if "error" in outcome:
        return Verdict("no", str(outcome["error"]))
    verdict = _judge_shown(step, outcome["shown"], sessions=sessions)
    if verdict.mark == "yes" and "remark" in outcome:
        return Verdict("partly", str(outcome["remark"]))
    return verdict


def _judge_shown(step: Step, shown: Any, *, sessions: Sequence[str]) -> Verdict:
    match step.name:
        case "stream":
            return _judge_stream(step, shown)
        case "continue":
            if len(sessions) != len(step.prompts) or len(set(sessions)) != 1:
                return Verdict("no", "the messages reach different sessions")
            return _judge_texts(shown, step.answers)
        case "permission":
            verdict = _judge_texts(shown[1:], step.answers[1:])
            if verdict.mark == "yes" and "permission" not in shown[0]:
                return Verdict("partly", "the answer counts, but the question is not shown")
            return verdict
        case "cancel":
            return Verdict("yes") if shown == "canceled" else Verdict("no", f"state: {shown}")
        case _:
            return _judge_texts([shown], step.answers)


def _judge_stream(step: Step, pieces: Sequence[str]) -> Verdict:
    verdict = _judge_texts(["".join(pieces)], step.answers)
    if verdict.mark == "yes" and len(pieces) < 2:
        return Verdict("partly", "the answer comes in one piece")
    return verdict


def _judge_texts(shown: Sequence[str], expected: Sequence[str]) -> Verdict:
    for text, answer in zip(shown, expected, strict=True):
        if text.strip() == answer:
            continue
        if answer in text:
            return Verdict("no", f"shows more than the answer: {_short(text)}")
        return Verdict("no", f"does not show the answer: {_short(text)}")
    return Verdict("yes")


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 100 else f"{text[:100]}…", ensure_ascii=False)
