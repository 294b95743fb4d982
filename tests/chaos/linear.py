"""Whether what clients saw of one task could have come from one task that does one thing at a time.

Every request has a moment at which it took effect, between its beginning and its answer, and a task
changes at these moments as the rules below say (linearizability, by the search of Wing and Gong). A
request that was not answered, or whose answer says that its outcome is unknown, took effect at some
moment after its beginning, or never. One whose answer says that nothing was changed is not here.

    submitted → working → completed          (a task that hangs never completes)
    working → input-required → (answered) → working …
    anything open → canceled, by a cancel    anything open → failed, if that is allowed

A cancel takes effect when the agent is asked to stop, and is answered when it has: one that comes
meanwhile has the same answer, one that comes later is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

ENDS = ("completed", "failed", "canceled")
Kind = Literal["get", "cancel", "answer"]
MAX_STEPS = 500_000  # of a search; no history of a campaign came near it


@dataclass(frozen=True, slots=True)
class Operation:
    """A request about a task. `ended` is infinite if nobody knows what came of it."""

    kind: Kind
    began: float
    ended: float = math.inf
    result: str = ""  # get: the state; cancel and answer: "done" or "refused"
    choice: str = ""  # answer: what was chosen; get: what the agent was told, where that shows

    @property
    def is_known(self) -> bool:
        return self.ended < math.inf


@dataclass(frozen=True, slots=True)
class Rules:
    asks: bool = False  # the agent asks once, and goes on when it is answered
    hangs: bool = False  # the agent never ends by itself
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class State:
    name: str = "submitted"
    choice: str = ""  # the answer that the agent was given
    stops: bool = False  # somebody has asked to cancel it
    lost: bool = False  # with its OpenCode: the agent waits no longer, and the task will fail

    def by_itself(self, rules: Rules) -> Iterator[State]:
        """What may happen to it without any request."""
        if self.name == "submitted":
            yield replace(self, name="working")
        if self.name == "working" and not self.lost:
            if rules.asks and not self.choice:
                yield replace(self, name="input-required")
            elif not rules.hangs:
                yield replace(self, name="completed")
        if self.name not in ENDS and self.stops:
            yield replace(self, name="canceled")
        if self.name not in ENDS and rules.may_fail:
            yield replace(self, name="failed")
        if self.name == "input-required" and rules.may_fail:
            yield replace(self, lost=True)
            yield replace(self, lost=True, name="working")

    def after(self, operation: Operation) -> State | None:
        """The state after a request, or None if it would have been answered otherwise."""
        done = operation.result != "refused"
        match operation.kind:
            case "get":
                fits = operation.result == self.name and operation.choice in ("", self.choice)
                return self if fits else None
            case "cancel" if done:
                return replace(self, stops=True) if self.name not in ENDS else None
            case "answer" if done:
                waits = self.name == "input-required" and not self.lost
                return replace(self, name="working", choice=operation.choice) if waits else None
            case "cancel":
                return self if self.name in ENDS else None
            case _:
                return self if self.name != "input-required" or self.lost else None


def is_linearizable(operations: Sequence[Operation], rules: Rules) -> bool:
    """Whether there is an order of all requests that explains every answer."""
    seen_canceled = [
        Operation("get", each.ended, each.ended, "canceled")
        for each in operations
        if each.kind == "cancel" and each.result == "done"
    ]
    ordered = sorted([*operations, *seen_canceled], key=lambda each: (each.began, each.ended))
    first = State()
    seen = {(0, first)}
    open_ = [(0, first)]  # the requests that have taken effect, as bits, and the state after them
    everything = sum(1 << i for i, each in enumerate(ordered) if each.is_known)
    while open_:
        taken, state = open_.pop()
        if taken & everything == everything:
            return True
        following = [(taken, each) for each in state.by_itself(rules)]
        following += [
            (taken | 1 << i, after)
            for i in _next(ordered, taken)
            if (after := state.after(ordered[i])) is not None
        ]
        for each in following:
            if each not in seen:
                seen.add(each)
                open_.append(each)
        if len(seen) > MAX_STEPS:
            raise RuntimeError(f"{len(ordered)} requests are too many to be judged")
    return False


def _next(ordered: Sequence[Operation], taken: int) -> Iterator[int]:
    """The requests that may take effect now: those that began before any other was answered."""
    left = [i for i in range(len(ordered)) if not taken >> i & 1]
    limit = min((ordered[i].ended for i in left), default=math.inf)
    for i in left:
        if ordered[i].began > limit:
            return
        yield i
