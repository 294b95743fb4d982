"""What clients of a cluster have seen, and whether one service could have shown them that.

Pure: a campaign records, `violations` judges. Times are those of one clock, that of the campaign.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.linear import ENDS, Operation, Rules, is_linearizable

LOST = ("UPSTREAM_INTERRUPTED", "UPSTREAM_UNREACHABLE")  # what a task may fail with, if its
# OpenCode was lost while it was open


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task was for."""

    tag: str  # stands in its prompt; empty where prompts are not counted
    began: float = 0.0  # when it was sent for the first time
    asks: bool = False  # the agent asks for a permission
    cancels: bool = False  # somebody asks to cancel it; the agent never ends by itself


@dataclass(frozen=True, slots=True)
class Final:
    state: str
    answer: str
    problem: str | None = None
    expected: str | None = None  # the answer that OpenCode gives, where that is known
    at: float = 0.0  # when this was known
    message: str = ""  # of its last status


@dataclass(slots=True)
class Loss:
    """An OpenCode was killed, and was there again later."""

    began: float
    until: float = math.inf


@dataclass(slots=True)
class History:
    acknowledged: list[tuple[str, str]] = field(default_factory=list)  # key and task
    wanted: dict[str, Wanted] = field(default_factory=dict)  # by key
    operations: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    frames: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)  # by task and number
    streams: list[tuple[str, list[int]]] = field(default_factory=list)  # numbers, as they came
    finals: dict[str, Final] = field(default_factory=dict)
    heard: Counter[str] = field(default_factory=Counter)  # by tag: how often the model was asked
    stored: set[str] = field(default_factory=set)  # all tasks in the database
    entries: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # there: number, kind
    losses: list[Loss] = field(default_factory=list)
    is_whole: bool = True  # what the database and the models have is known

    def violations(self) -> Iterator[str]:
        yield from self._repeats()
        yield from self._orders()
        yield from self._streams()
        yield from self._rows()
        yield from self._ends()

    def _repeats(self) -> Iterator[str]:
        tasks: dict[str, set[str]] = defaultdict(set)
        for key, task in self.acknowledged:
            tasks[key].add(task)
        yield from (f"{key} became {found}" for key, found in tasks.items() if len(found) > 1)
        for tag, count in self.heard.items():
            if count > 1:
                yield f"the prompt {tag} was executed {count} times"

    def _orders(self) -> Iterator[str]:
        wanted = {task: self.wanted[key] for key, task in self.acknowledged}
        for task, operations in self.operations.items():
            if task not in wanted:
                yield f"{task} was acknowledged to nobody"
                continue
            this = wanted[task]
            rules = Rules(asks=this.asks, hangs=this.cancels, may_fail=self._lost_in(task))
            if not is_linearizable(operations, rules):
                yield f"{task} could not have shown this: {_shown(operations)}"

    def _lost_in(self, task: str) -> bool:
        """Whether an OpenCode was away in the time of a task."""
        keys = [key for key, each in self.acknowledged if each == task]
        final = self.finals.get(task)
        until = final.at if final is not None else float("inf")
        began = min(self.wanted[key].began for key in keys)
        return any(loss.until >= began and loss.began <= until for loss in self.losses)

    def _streams(self) -> Iterator[str]:
        numbers_of: dict[str, set[int]] = defaultdict(set)
        for (task, number), bodies in self.frames.items():
            numbers_of[task].add(number)
            if len(bodies) > 1:
                yield f"event {number} of {task} has {len(bodies)} forms"
        for task, numbers in self.streams:
            if numbers != sorted(set(numbers)):
                yield f"a stream of {task} has the numbers {numbers[:50]}"
            elif numbers:
                between = {n for n in numbers_of[task] if numbers[0] < n <= numbers[-1]}
                if missing := between - set(numbers):
                    yield f"a stream of {task} lacks {sorted(missing)[:20]}"

    def _rows(self) -> Iterator[str]:
        known = {task for _, task in self.acknowledged}
        for task in sorted(self.stored - known) if self.is_whole else ():
            yield f"{task} is stored, and was acknowledged to nobody"
        for task, entries in self.entries.items():
            numbers = [number for number, _ in entries]
            ends = [number for number, kind in entries if kind == "Ended"]
            if numbers != list(range(1, len(numbers) + 1)) or ends != [len(numbers)]:
                yield f"{task} has the entries {numbers[:50]}, and ends at {ends}"

    def _ends(self) -> Iterator[str]:
        for key, task in sorted(set(self.acknowledged)):
            wanted, final = self.wanted[key], self.finals.get(task)
            if final is None or final.state not in ENDS:
                yield f"{task} has not ended: {final}"
            elif final.state == "failed" and not (self._lost_in(task) and final.problem in LOST):
                yield f"{task} has failed: {final.problem} {final.message}"
            elif final.state == "canceled" and not wanted.cancels:
                yield f"{task} was canceled by nobody: {final.message}"
            elif final.state == "completed":
                if final.expected not in (None, final.answer):
                    yield f"{task} has answered {final.answer[:80]!r}, not {final.expected!r}"[:300]
                if wanted.tag and self.is_whole and (times := self.heard[wanted.tag]) != 1:
                    yield f"{task} has completed, and the model was asked {times} times"


def _shown(operations: list[Operation]) -> str:
    first = min(each.began for each in operations)
    told = [
        f"{each.kind}{' ' + each.choice if each.choice else ''} "
        f"{each.began - first:.2f}–{each.ended - first:.2f}: {each.result or '?'}"
        for each in sorted(operations, key=lambda each: each.began)
    ]
    return "; ".join(told[-40:])
