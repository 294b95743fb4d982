"""Requests of the agent, and the decisions of callers about them.

A caller decides with an ordinary message on the task, or by the id of the request.
The service stores a decision before it delivers it to the agent. So no accepted
answer is lost, and nobody has to answer twice.

The service remembers "always" for the caller's context, and answers later requests
itself: OpenCode would apply it to everybody who works in the same directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..domain.exchange import refuses
from ..domain.permissions import AllowRule, covers
from ..domain.ports import InterruptStore, Key, Pending, TaskLog
from ..domain.replies import NotUnderstood, check_answers, understand
from ..domain.requests import EXPIRED
from ..domain.task import Task, TaskHead
from ..domain.updates import (
    DecidedBy,
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
    TaskHandover,
)
from ..observe import audit
from ..observe.tasks import kind_of
from .limits import Limiter
from .runner import FLUSH_SECONDS
from .scheduler import Scheduler

NEW_TASK = (
    "The message was taken for an answer, because a task of its context waits for one. To start a "
    "new task instead, which begins when this one has ended, send it with "
    "metadata.opencode.newTask: true."
)
REPEATED = (
    "This was taken for an earlier answer with the same id and words, sent again: nothing was "
    "allowed or refused. Send your answer with a new messageId, or begin it with the id of the "
    "request ({request_id}: …)."
)


class Interrupts:
    def __init__(
        self,
        *,
        log: TaskLog,
        scheduler: Scheduler,
        store: InterruptStore,
        shares_always: Callable[[], bool] = lambda: False,
        limiter: Limiter | None = None,
    ) -> None:
        """`shares_always`: whether "always" is OpenCode's to remember, for every session."""
        self._limiter = limiter or Limiter()
        self._log = log
        self._scheduler = scheduler
        self._store = store
        self._shares_always = shares_always

    async def pending(self, caller: Caller) -> Sequence[Pending]:
        """The requests that this caller can decide now."""
        return await self._store.pending(caller.principal)

    async def waiting_tasks(self, caller: Caller, context_id: str) -> Sequence[str]:
        """The tasks of a context that wait for this caller."""
        return await self._store.waiting_tasks(caller.principal, context_id)

    async def reply(
        self, task: Task, message: Message, *, keys: Sequence[Key], by_context: bool = False
    ) -> bool:
        """Use a message as an answer. False when no request of the task is open (any more).

        `by_context`: the message does not name the task, so it may be meant for a new one.
        """
        task_id = task.head.id
        async with self._scheduler.deciding(task_id):
            task = await self._log.get(task.head.owner, task_id)  # others have decided meanwhile
            waiting = self._scheduler.open_requests(task)
            if not waiting:
                return False
            if not self._log.is_mine(task_id):
                raise TaskHandover
            _check_no_files(message, by_context=by_context)
            added = MessageAdded(message, None)
            interrupts = [opened.interrupt for opened in waiting.values()]
            try:
                decisions = understand(interrupts, message)
            except NotUnderstood as exc:
                about = waiting[exc.request_id]
                note = f"{exc.note} {NEW_TASK}" if by_context else exc.note
                unclear = InterruptUnclear(about.interrupt, note, expires_at=about.expires_at)
                await self._log.write(task_id, [added, unclear], keys=keys)
            else:
                await self._check_budget(task.head, decisions)
                await self._decide(task_id, waiting, decisions=decisions, added=added, keys=keys)
        return True

    async def on_repeated(self, task: Task, message: Message) -> None:
        """Say why an answer that was sent again does not count for what is asked now.

        It may be the same answer, whose response got lost, and must not allow anything else. Or its
        client uses an id twice, and the person would wait for nothing.
        """
        task_id = task.head.id
        async with self._scheduler.deciding(task_id):
            task = await self._log.get(task.head.owner, task_id)
            waiting = self._scheduler.open_requests(task)
            if task.unclear is not None or not _has_answered(task, message):
                return
            if waiting and self._log.is_mine(task_id):
                about = next(iter(waiting.values()))
                note = REPEATED.format(request_id=about.interrupt.request_id)
                unclear = InterruptUnclear(about.interrupt, note, expires_at=about.expires_at)
                await self._log.write(task_id, [unclear])

    async def decide(self, caller: Caller, request_id: str, decision: Decision) -> None:
        """Decide the request with this id."""
        found = await self._store.find(caller.principal, request_id)
        if found is None or found.resolution == EXPIRED:
            raise _not_open(found, request_id)
        _check(found.interrupt, decision)
        async with self._scheduler.deciding(found.task_id):
            task = await self._log.get_own(caller.principal, found.task_id)
            waiting = self._scheduler.open_requests(task)
            if request_id in waiting:
                if not self._log.is_mine(found.task_id):
                    raise TaskHandover
                await self._check_budget(task.head, {request_id: decision})
                if await self._decide(found.task_id, waiting, decisions={request_id: decision}):
                    return
        # Another decision may not be stored yet.
        await self._log.flushed(found.task_id, within=FLUSH_SECONDS)
        raise _not_open(await self._store.find(caller.principal, request_id), request_id)

    async def _check_budget(self, head: TaskHead, decisions: Mapping[str, Decision]) -> None:
        """With what is allowed the agent goes on, and spends; to refuse is always possible."""
        if not all(map(refuses, decisions.values())):
            await self._limiter.check_budget(head.owner, head.id)

    async def _decide(
        self,
        task_id: str,
        waiting: Mapping[str, InterruptOpened],
        decisions: Mapping[str, Decision],
        *,
        added: MessageAdded | None = None,
        keys: Sequence[Key] = (),
    ) -> bool:
        """Store the decisions, then deliver them. Whether they changed anything."""
        left = {request_id: opened.interrupt for request_id, opened in waiting.items()}
        answers: list[InterruptAnswered] = []
        by: DecidedBy = "method" if added is None else "message"
        for request_id, decision in decisions.items():
            if (ask := left.pop(request_id, None)) is None:
                continue  # an "always" of this loop has allowed it
            answers.append(self._answer(ask, decision, by=by, still_open=len(left)))
            if isinstance(ask, PermissionAsk) and answers[-1].grants:
                rules = [AllowRule(ask.permission, pattern) for pattern in answers[-1].grants]
                for other in [o for o in left.values() if _is_covered(rules, o)]:
                    del left[other.request_id]
                    allowed = self._answer(other, decision, by="rule", still_open=len(left))
                    answers.append(allowed)
        updates: list[Update] = [*answers] if added is None else [added, *answers]
        await self._log.write(task_id, updates, keys=keys)
        for answer in answers:
            _audit(task_id, answer)
        wanted = await self._scheduler.deliver(task_id, answers)
        return wanted or any(answer.grants for answer in answers)  # new rules hold in any case

    def _answer(
        self, ask: Interrupt, decision: Decision, *, by: DecidedBy, still_open: int
    ) -> InterruptAnswered:
        if not isinstance(decision, PermissionDecision):
            word = "answered" if decision.answers is not None else "rejected"
            return InterruptAnswered(ask, decision, resolution=word, still_open=still_open, by=by)
        grants: tuple[str, ...] = ()
        delivered = decision
        if decision.reply == "always" and not self._shares_always():
            delivered = PermissionDecision("once")
            grants = ask.always if isinstance(ask, PermissionAsk) else ()
        return InterruptAnswered(
            ask,
            delivered,
            resolution=decision.reply,
            still_open=still_open,
            grants=grants,
            by=by,
        )


def _audit(task_id: str, answer: InterruptAnswered) -> None:
    ask = answer.interrupt
    audit.record(
        f"{kind_of(ask)}.answer",
        outcome=answer.resolution,
        task=task_id,
        request_id=ask.request_id,
        permission=ask.permission if isinstance(ask, PermissionAsk) else None,
        by_rule=answer.by == "rule" or None,
    )


def _has_answered(task: Task, message: Message) -> bool:
    """Whether a message with this id was an answer, and no prompt."""
    added = [e.update for e in task.history if isinstance(e.update, MessageAdded)]
    return any(
        each.upstream_id is None and each.message.message_id == message.message_id for each in added
    )


def _check_no_files(message: Message, *, by_context: bool) -> None:
    """OpenCode takes only text as an answer: a file would be lost."""
    advice = f" {NEW_TASK}" if by_context else ""
    for i, part in enumerate(message.parts):
        if isinstance(part, FileBytes | FileUrl):
            raise InvalidParams.at(
                f"message.parts[{i}]",
                "the agent waits for an answer, which cannot hold a file; answer first, then send "
                f"the file in a message of its own.{advice}",
            )


def _not_open(found: Pending | None, request_id: str) -> ServiceError:
    if found is not None and found.resolution == EXPIRED:
        return InterruptRequestExpired(request_id)
    return InterruptRequestNotFound(request_id)


def _is_covered(rules: Sequence[AllowRule], ask: Interrupt) -> bool:
    return isinstance(ask, PermissionAsk) and covers(rules, ask)


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
