"""What clients of a cluster have seen, and whether one service could have shown them that.

Pure: a campaign records, `violations` judges. Times are those of one clock, that of the campaign. A
request that was answered at one moment and a request that began later are in this order; those that
overlap are in any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

ENDS = ("completed", "failed", "canceled")
LOST = "UPSTREAM_INTERRUPTED"  # what a task may fail with, when its OpenCode was lost


@dataclass(frozen=True, slots=True)
class Seen:
    """A task, as an answer showed it."""

    task: str
    state: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task was for."""

    key: str
    text: str | None = None  # of its answer; None where it is not known before
    cancels: bool = False  # somebody has asked to cancel it


@dataclass(frozen=True, slots=True)
class Final:
    state: str
    answer: str
    problem: str | None = None
    expected: str | None = None  # the answer that OpenCode gave, where that is known


@dataclass(slots=True)
class History:
    acknowledged: list[tuple[str, str]] = field(default_factory=list)  # key and task
    wanted: dict[str, Wanted] = field(default_factory=dict)  # by key
    seen: list[Seen] = field(default_factory=list)
    canceled: dict[str, float] = field(default_factory=dict)  # when that was acknowledged
    frames: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)  # by task and number
    streams: list[tuple[str, list[int]]] = field(default_factory=list)  # numbers, as they came
    finals: dict[str, Final] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)  # ids of messages that OpenCodes have got
    loses_opencode: bool = False

    def violations(self) -> Iterator[str]:
        yield from self._repeats()
        yield from self._order()
        yield from self._streams()
        yield from self._ends()

    def _repeats(self) -> Iterator[str]:
        tasks: dict[str, set[str]] = defaultdict(set)
        for key, task in self.acknowledged:
            tasks[key].add(task)
        yield from (f"{key} became {found}" for key, found in tasks.items() if len(found) > 1)
        twice = [message for message, count in Counter(self.prompts).items() if count > 1]
        yield from (f"prompt {message} was sent twice" for message in twice)

    def _order(self) -> Iterator[str]:
        """The first end of a task is its end, for everybody who asks later."""
        by_task: dict[str, list[Seen]] = defaultdict(list)
        for seen in self.seen:
            by_task[seen.task].append(seen)
        for task, answers in by_task.items():
            ends = [each for each in answers if each.state in ENDS]
            if len({each.state for each in ends}) > 1:
                yield f"{task} has ended as {sorted({each.state for each in ends})}"
            known = min((each.ended for each in ends), default=float("inf"))
            known = min(known, self.canceled.get(task, known))
            late = [each.state for each in answers if each.began > known]
            if any(state not in ENDS for state in late):
                yield f"{task} had ended, and was shown as {sorted(set(late))}"
            if task in self.canceled and any(state not in ("canceled",) for state in late):
                yield f"{task} was canceled, and was shown as {sorted(set(late))}"

    def _streams(self) -> Iterator[str]:
        for (task, number), bodies in self.frames.items():
            if len(bodies) > 1:
                yield f"event {number} of {task} has {len(bodies)} forms"
        for task, numbers in self.streams:
            if numbers != sorted(set(numbers)):
                yield f"a stream of {task} has the numbers {numbers[:50]}"

    def _ends(self) -> Iterator[str]:
        for key, task in sorted(set(self.acknowledged)):
            wanted, final = self.wanted[key], self.finals.get(task)
            if final is None or final.state not in ENDS:
                yield f"{task} has not ended: {final}"
            elif final.state == "failed" and not (self.loses_opencode and final.problem == LOST):
                yield f"{task} has failed: {final.problem}"
            elif final.state == "canceled" and not wanted.cancels:
                yield f"{task} was canceled by nobody"
            elif final.state == "completed" and final.expected not in (None, final.answer):
                yield f"{task} has answered {final.answer[:80]!r}, not {final.expected!r}"[:300]
