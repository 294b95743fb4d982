"""What the agent is waiting for, and how a caller decides it.

By an ordinary message on the task, whose words are understood here, or by the id
of the request. Either way the decision is committed before the agent hears of it,
so that an answer that was taken is never lost, and never asked for again.

"Always" is kept for this caller's context and answered in its name from then on:
OpenCode's own would hold for everybody who works in the same directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..domain.permissions import Grant, covers
from ..domain.ports import Asked, Key, Pending, TaskLog
from ..domain.replies import NotUnderstood, check_answers, understand
from ..domain.requests import EXPIRED
from ..domain.task import Task
from ..domain.updates import (
    InterruptAnswered,
    InterruptOpened,
    InterruptUnclear,
    MessageAdded,
    Update,
)
from ..domain.values import (
    Caller,
    Decision,
    FileBytes,
    FileUrl,
    Interrupt,
    Message,
    PermissionAsk,
    PermissionDecision,
    QuestionAsk,
)
from ..errors import (
    InterruptRequestExpired,
    InterruptRequestNotFound,
    InterruptTypeMismatch,
    InvalidParams,
    ServiceError,
)
from .turns import Turns, in_transit


class Interrupts:
    def __init__(
        self,
        log: TaskLog,
        turns: Turns,
        asked: Asked,
        always: Literal["context", "workspace"] = "context",
    ) -> None:
        self._log = log
        self._turns = turns
        self._asked = asked
        self._always = always

    async def pending(self, caller: Caller) -> Sequence[Pending]:
        """Everything this caller could decide now."""
        return await self._asked.pending(caller.principal)

    async def reply(self, task: Task, message: Message, keys: Sequence[Key]) -> bool:
        """Take a message for an answer. False when nothing is asked (any more)."""
        task_id = task.head.id
        async with self._turns.deciding(task_id):
            waiting = self._turns.waiting(task)
            if not waiting:
                return False
            if not self._log.holds(task_id):
                raise in_transit()
            _has_no_file(message)
            said = MessageAdded(message, None)
            asked = [opened.interrupt for opened in waiting.values()]
            try:
                decided = understand(asked, message)
            except NotUnderstood as exc:
                about = waiting[exc.request_id]
                unclear = InterruptUnclear(about.interrupt, exc.note, about.expires_at)
                await self._log.write(task_id, [said, unclear], keys)
            else:
                await self._decide(task_id, waiting, decided, [said], keys)
        return True

    async def decide(self, caller: Caller, request_id: str, decision: Decision) -> None:
        """Decide one request, known by its id."""
        found = await self._asked.find(caller.principal, request_id)
        if found is None or found.resolution == EXPIRED:
            raise _too_late(found, request_id)
        _check(found.interrupt, decision)
        async with self._turns.deciding(found.task_id):
            task = await self._log.get_own(caller.principal, found.task_id)
            waiting = self._turns.waiting(task)
            if request_id in waiting:
                if not self._log.holds(found.task_id):
                    raise in_transit()
                if await self._decide(found.task_id, waiting, {request_id: decision}, [], []):
                    return
        await self._log.flushed(found.task_id)  # what was faster may still be on its way there
        raise _too_late(await self._asked.find(caller.principal, request_id), request_id)

    async def _decide(
        self,
        task_id: str,
        waiting: Mapping[str, InterruptOpened],
        decided: Mapping[str, Decision],
        said: Sequence[Update],
        keys: Sequence[Key],
    ) -> bool:
        """Commit, then tell the agent. Whether that changed anything."""
        left = {request_id: opened.interrupt for request_id, opened in waiting.items()}
        answers: list[InterruptAnswered] = []
        for request_id, decision in decided.items():
            if (ask := left.pop(request_id, None)) is None:
                continue  # allowed by what was decided just before
            answers.append(self._answered(ask, decision, len(left)))
            if isinstance(ask, PermissionAsk) and answers[-1].grants:
                granted = [Grant(ask.permission, pattern) for pattern in answers[-1].grants]
                for other in [o for o in left.values() if _covered(granted, o)]:
                    del left[other.request_id]
                    answers.append(self._answered(other, decision, len(left)))
        await self._log.write(task_id, [*said, *answers], keys)
        heard = await self._turns.answered(task_id, answers)
        return heard or any(answer.grants for answer in answers)  # those hold from now on

    def _answered(self, ask: Interrupt, decision: Decision, still_open: int) -> InterruptAnswered:
        if not isinstance(decision, PermissionDecision):
            word = "answered" if decision.answers is not None else "rejected"
            return InterruptAnswered(ask, decision, word, still_open)
        grants: tuple[str, ...] = ()
        told = decision
        if decision.reply == "always" and self._always == "context":
            told = PermissionDecision("once")
            grants = ask.always if isinstance(ask, PermissionAsk) else ()
        return InterruptAnswered(ask, told, decision.reply, still_open, grants)


def _has_no_file(message: Message) -> None:
    """The agent takes words for an answer: a file would be lost."""
    for i, part in enumerate(message.parts):
        if isinstance(part, FileBytes | FileUrl):
            raise InvalidParams.at(
                f"message.parts[{i}]",
                "the agent waits for an answer, which cannot hold a file; answer first, then send "
                "the file in a message of its own",
            )


def _too_late(found: Pending | None, request_id: str) -> ServiceError:
    if found is not None and found.resolution == EXPIRED:
        return InterruptRequestExpired(request_id)
    return InterruptRequestNotFound(request_id)


def _covered(grants: Sequence[Grant], ask: Interrupt) -> bool:
    return isinstance(ask, PermissionAsk) and covers(grants, ask)


def _check(ask: Interrupt, decision: Decision) -> None:
    if isinstance(ask, PermissionAsk) is not isinstance(decision, PermissionDecision):
        expected = "permission" if isinstance(ask, PermissionAsk) else "question"
        raise InterruptTypeMismatch(
            f"This request is a {expected}: use the method for that.",
            request_id=ask.request_id,
            expected=expected,
        )
    answers = None if isinstance(decision, PermissionDecision) else decision.answers
    if isinstance(ask, QuestionAsk) and answers is not None:
        wrong = check_answers(ask, answers)
        if wrong is not None:
            raise InvalidParams.at("answers", wrong)
