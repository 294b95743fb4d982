"""What the agent waits for a person to decide, from being asked to being settled.

A request is open until somebody answers; answered until the agent confirms it,
which may take a while when the agent is away; and then resolved. One that is
allowed beforehand is never shown: it is answered as soon as it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from typing import Any, Final

from .task import ENDED, Task
from .updates import InterruptAnswered, InterruptOpened, InterruptResolved, Update
from .values import Decision, Interrupt, PermissionDecision, QuestionAsk

ELSEWHERE: Final = "elsewhere"  # it was settled, and no event said how
EXPIRED = "expired"

_YES = frozenset({"once", "always"})
_NO = frozenset({"reject", "rejected", EXPIRED})


class Requests:
    def __init__(self) -> None:
        self.answer_by: int | None = None  # until when what is asked now must be answered
        self.open: dict[str, InterruptOpened] = {}
        self._answered: dict[str, InterruptAnswered] = {}
        self._allowed: dict[str, Interrupt] = {}
        self._over: set[str] = set()  # the agent said so: a look that began earlier may not know
        self.unanswered: set[str | None] = set()  # calls that asked what nobody answered in time

    def resume(self, task: Task) -> None:
        self.open = dict(task.interrupts)
        self._answered = dict(task.answered)
        self.unanswered = set().union(*map(_unanswered, task.answered.values()))

    @property
    def unsettled(self) -> bool:
        """Something is decided and not confirmed."""
        return bool(self._answered or self._allowed)

    def decided(self) -> Iterator[tuple[Interrupt, Decision]]:
        """The decisions that must still be delivered to the agent."""
        for answered in list(self._answered.values()):
            yield answered.interrupt, answered.decision
        for interrupt in list(self._allowed.values()):
            yield interrupt, PermissionDecision("once")

    def expired(self, now: int) -> list[InterruptOpened]:
        return [o for o in self.open.values() if o.expires_at is not None and o.expires_at <= now]

    def next_deadline(self) -> int | None:
        return min((o.expires_at for o in self.open.values() if o.expires_at), default=None)

    def ask(self, interrupt: Interrupt) -> list[Update]:
        request_id = interrupt.request_id
        known = (self.open, self._answered, self._allowed, self._over)
        if any(request_id in each for each in known):
            return []
        opened = self.open[request_id] = InterruptOpened(interrupt, self.answer_by)
        return [opened]

    def allow(self, request_id: str) -> None:
        """Nobody needs to be asked after all."""
        opened = self.open.pop(request_id, None)
        if opened is not None:
            self._allowed[request_id] = opened.interrupt

    def answer(self, answered: InterruptAnswered) -> None:
        request_id = answered.interrupt.request_id
        if self.open.pop(request_id, None) is not None:
            self._answered[request_id] = answered
            self.unanswered |= _unanswered(answered)

    def close(self, request_id: str, how: str) -> list[Update]:
        """The agent says that a request is settled."""
        self._over.add(request_id)
        return self._gone(request_id, how)

    def _gone(self, request_id: str, how: str) -> list[Update]:
        if self._allowed.pop(request_id, None) is not None:
            return []
        answered, opened = self._answered.pop(request_id, None), self.open.pop(request_id, None)
        if answered is not None:
            interrupt, how = answered.interrupt, _agreed(answered.resolution, how)
        elif opened is not None:
            interrupt = opened.interrupt
        else:
            return []
        return [InterruptResolved(interrupt, how, still_open=len(self.open))]

    def keep(self, listed: Collection[str], how: Callable[[Interrupt], str]) -> list[Update]:
        """Only what is listed is still waited for."""
        known = {
            **{request_id: opened.interrupt for request_id, opened in self.open.items()},
            **{request_id: each.interrupt for request_id, each in self._answered.items()},
            **self._allowed,
        }
        gone = [each for request_id, each in known.items() if request_id not in listed]
        return [update for each in gone for update in self._gone(each.request_id, how(each))]

    def end(self) -> list[Update]:
        return self.keep((), lambda _: ENDED)


def details(interrupt: Interrupt, *, settled: bool = False) -> dict[str, Any]:
    """What a program needs to show a request and to offer the ways to answer it.

    Of one that is `settled`, what tells it from others: the rest may be long, and was shown.
    """
    peer: dict[str, Any] = {"peer": interrupt.peer} if interrupt.peer is not None else {}
    if isinstance(interrupt, QuestionAsk):
        return peer | {"questions": [asdict(question) for question in interrupt.questions]}
    shown = peer | {
        "permission": interrupt.permission,
        "patterns": list(interrupt.patterns),
    }
    lengthy = () if settled else ("diff", "arguments")
    for name in ("title", "command", "filepath", *lengthy):
        if value := getattr(interrupt, name):
            shown[name] = value
    if interrupt.always:
        shown["always"] = list(interrupt.always)
    return shown


def _agreed(ours: str, theirs: str) -> str:
    """Our resolution, if OpenCode reports one that fits: it knows fewer than we do.

    Its `once` may be our `always`, and its `reject` our `expired`.
    """
    same = theirs in (ELSEWHERE, ENDED, ours) or {ours, theirs} <= _YES or {ours, theirs} <= _NO
    return ours if same else theirs


def _unanswered(answered: InterruptAnswered) -> set[str | None]:
    ask = answered.interrupt
    expired = answered.resolution == EXPIRED and isinstance(ask, QuestionAsk)
    return {ask.call_id} if expired else set()
