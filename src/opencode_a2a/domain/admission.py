"""Which tasks are admitted, and which runs next.

1. There are `running` slots; no slot is free while a task that may run waits for one.
2. A free slot goes to the caller with the fewest running tasks. Among callers with equally many
   they take turns, so that each is served once before any of them is served twice.
3. A caller with no running task starts one although all slots are taken, while another caller has
   two or more running and no more than `running` callers have any. So one caller alone may use
   every slot, and a newcomer does not wait for its tasks to end. At most twice `running` tasks run
   because of this, and a caller with running tasks gets no further slot until one is free.
4. Of one caller's tasks the one with the lowest `order` runs first. Tasks of one context run one at
   a time, in that order.
5. A task that waits for a person has no slot and counts neither as running nor as waiting. Once
   the person has decided, it runs at once: if no slot is free, the next one that becomes free is
   not given away. The same holds for a task that was running in another process.
6. Between two prompts a task gives its slot up if a caller with fewer running tasks waits for one.
7. A caller may have limits of its own: so many running tasks, or as many as its budget has a step
   for, beyond which its tasks wait although slots are free, and so many more that wait. Tasks that
   go on by rule 5 do so all the same.
8. While fewer than `running + queued` tasks are here, everybody is let in. After that only callers
   with fewer than `per_caller` waiting tasks are, so that nobody fills the queue for the others,
   and callers who have nothing here and start by rule 3. The number of tasks that wait for people
   is bounded in the same way.

Nothing here waits: callers report what happens, and `assign_slots` returns the tasks that may run.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar


class Entrant(Protocol):
    """A task that wants to run. Two are equal only if they are the same object."""

    @property
    def caller(self) -> str: ...

    @property
    def context(self) -> str: ...

    @property
    def order(self) -> Any:
        """The task with the lower value runs first."""
        ...


T = TypeVar("T", bound=Entrant)


@dataclass(frozen=True, slots=True)
class Bounds:
    running: int  # 0: no limit, and then no task is refused for being too many
    queued: int
    per_caller: int  # of `queued`
    resting: int


@dataclass(frozen=True, slots=True)
class CallerBounds:
    """What one caller may have here; 0 means no limit of its own."""

    running: int = 0
    queued: int = 0
    affordable: int = 0  # running tasks that its budget has a step for


class Bound(Enum):
    """Which bound keeps a new task out."""

    OWN = "own"  # the caller has as many tasks here as its own limits allow
    QUEUE = "queue"  # too many tasks of all callers wait, and this caller is the only one
    CALLER = "caller"  # too many tasks of all callers wait, and too many of them are this caller's
    RESTING = "resting"  # too many tasks wait for people


class Phase(Enum):
    PRESENT = "present"  # it prepares, or another task of its context is before it
    WAITING = "waiting"  # for a slot
    RUNNING = "running"
    RESTING = "resting"  # until a person decides


class Admission(Generic[T]):
    def __init__(
        self, bounds: Bounds, of_caller: Callable[[str], CallerBounds] = lambda _: CallerBounds()
    ) -> None:
        self._bounds = bounds
        self._of_caller = of_caller  # may say something else at another time
        self._phases: dict[T, Phase] = {}
        self._contexts: dict[tuple[str, str], list[T]] = {}  # in their order
        self._waiting: dict[str, list[T]] = {}  # by caller, whose turn comes first is first
        self._busy = Counter[str]()  # by caller: tasks that do not rest, and arriving ones
        self._running = Counter[str]()
        self._resting = Counter[str]()

    # -- being let in

    def bound_for(self, caller: str) -> Bound | None:
        """Why one more task of this caller cannot be let in."""
        bounds, own = self._bounds, self.waiting_of(caller)
        most = self._most_of(caller)
        if most and self._busy[caller] >= most:
            return Bound.OWN
        full = bounds.running and self._busy.total() >= bounds.running + bounds.queued
        starts = not self._busy[caller] and self._newcomer_may_start()
        if full and own >= min(bounds.per_caller, bounds.queued) and not starts:
            alone = own >= self._busy.total() - self._running.total()
            return Bound.QUEUE if alone else Bound.CALLER
        if self._resting.total() < bounds.resting:
            return None
        own = self._resting[caller]
        return Bound.RESTING if own >= min(bounds.per_caller, bounds.resting) else None

    def _most_of(self, caller: str) -> int:
        """How many tasks a caller may have here that do not rest; 0 means no limit."""
        own = self._of_caller(caller)
        bounds = self._bounds
        if bounds.running:
            return (own.running or bounds.running) + own.queued if own.queued else 0
        # Tasks wait only because of the caller's own limit, and no other bound holds for them.
        return own.running + (own.queued or bounds.queued) if own.running else 0

    def may_run(self, caller: str) -> bool:
        """Whether the caller's own limits let one more of its tasks run."""
        own = self._of_caller(caller)
        return all(self._running[caller] < most for most in (own.running, own.affordable) if most)

    def phase_of(self, task: T) -> Phase:
        return self._phases[task]

    def waiting_of(self, caller: str) -> int:
        """How many tasks of this caller are here and neither run nor wait for a person."""
        return self._busy[caller] - self._running[caller]

    def present_of(self, caller: str) -> int:
        """How many tasks of this caller are here and do not wait for a person."""
        return self._busy[caller]

    def arrive(self, caller: str) -> None:
        """Count a task that is being created."""
        self._busy[caller] += 1

    def arrived(self, caller: str) -> None:
        """Stop counting it: the task has entered, or will not."""
        _less(self._busy, caller)

    # -- the life of a task

    def enter(self, task: T, *, running: bool = False) -> None:
        self._phases[task] = Phase.PRESENT
        self._busy[task.caller] += 1
        tasks = self._contexts.setdefault((task.caller, task.context), [])
        insort(tasks, task, key=_order)
        if running:
            self._run(task)

    def before(self, task: T) -> T | None:
        """The task of the same context that is directly before it."""
        tasks = self._contexts[task.caller, task.context]
        position = tasks.index(task)
        return tasks[position - 1] if position else None

    def wait(self, task: T) -> None:
        """It can run as soon as it has a slot."""
        if self._phases[task] is Phase.PRESENT:
            self._phases[task] = Phase.WAITING
            insort(self._waiting.setdefault(task.caller, []), task, key=_order)

    def stop_waiting(self, task: T) -> None:
        """It will not run any more, and leaves soon."""
        if self._phases[task] is Phase.WAITING:
            self._withdraw(task)
            self._phases[task] = Phase.PRESENT

    def give_way(self, task: T) -> bool:
        """Between two prompts: whether it waits for a slot again, because others come first."""
        own = self._running[task.caller]
        served_less = [
            caller
            for caller in self._waiting
            if self._running[caller] < own and self.may_run(caller)
        ]
        if all(self._first(caller) is None for caller in served_less):
            return False
        self._withdraw(task)
        self._phases[task] = Phase.PRESENT
        self.wait(task)
        return True

    def rest(self, task: T) -> bool:
        """It waits for a person. Whether it did not before."""
        if self._phases[task] is Phase.RESTING:
            return False
        self._withdraw(task)
        self._phases[task] = Phase.RESTING
        _less(self._busy, task.caller)
        self._resting[task.caller] += 1
        return True

    def go_on(self, task: T) -> bool:
        """The person has decided. Whether it waited for that."""
        if self._phases[task] is not Phase.RESTING:
            return False
        _less(self._resting, task.caller)
        self._busy[task.caller] += 1
        self._run(task)
        return True

    def leave(self, task: T) -> None:
        """It is over."""
        self._withdraw(task)
        resting = self._phases.pop(task) is Phase.RESTING
        _less(self._resting if resting else self._busy, task.caller)
        tasks = self._contexts[task.caller, task.context]
        tasks.remove(task)
        if not tasks:
            del self._contexts[task.caller, task.context]

    def assign_slots(self) -> list[T]:
        """Give free slots to waiting tasks, and let newcomers start; the tasks that may run now."""
        granted: list[T] = []
        while (task := self._next()) is not None:
            self._withdraw(task)
            self._run(task)
            granted.append(task)
        return granted

    def _has_free_slot(self) -> bool:
        return not self._bounds.running or self._running.total() < self._bounds.running

    def _newcomer_may_start(self) -> bool:
        """Whether a caller with no running task need not wait for a free slot."""
        counts = self._running.values()
        return len(counts) <= self._bounds.running and any(count > 1 for count in counts)

    def _next(self) -> T | None:
        free = self._has_free_slot()
        if not free and not self._newcomer_may_start():
            return None
        callers = [
            caller
            for caller in self._waiting
            if (free or not self._running[caller]) and self.may_run(caller)
        ]
        ready = [task for caller in callers if (task := self._first(caller)) is not None]
        return min(ready, key=lambda task: self._running[task.caller], default=None)

    def _first(self, caller: str) -> T | None:
        """The task of this caller that runs next, if one may run."""
        return next((task for task in self._waiting[caller] if self.before(task) is None), None)

    def _run(self, task: T) -> None:
        self._phases[task] = Phase.RUNNING
        self._running[task.caller] += 1
        self._let_others_first(task.caller)

    def _let_others_first(self, caller: str) -> None:
        if caller in self._waiting:
            self._waiting[caller] = self._waiting.pop(caller)

    def _withdraw(self, task: T) -> None:
        """Take its slot away, or remove it from those that wait for one."""
        match self._phases[task]:
            case Phase.RUNNING:
                _less(self._running, task.caller)
                self._let_others_first(task.caller)
            case Phase.WAITING:
                self._waiting[task.caller].remove(task)
                if not self._waiting[task.caller]:
                    del self._waiting[task.caller]
            case _:
                pass


def _order(task: Entrant) -> Any:
    return task.order


def _less(counted: Counter[str], caller: str) -> None:
    counted[caller] -= 1
    if not counted[caller]:
        del counted[caller]  # else the counter would grow with every new caller
