"""Who is let in and whose task runs next, by lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opencode_a2a.domain.admission import Admission, Bound, Bounds

MANY = 1_000


@dataclass(eq=False)
class Job:
    caller: str
    context: str
    order: int

    def __repr__(self) -> str:
        return f"{self.caller}{self.order}"


def bounds(running: int = 1, queued: int = MANY, per_caller: int = MANY) -> Bounds:
    return Bounds(running, queued, per_caller, resting=MANY)


def jobs(caller: str, count: int, context: str | None = None) -> list[Job]:
    """Tasks of one caller, each in a context of its own unless one is named."""
    return [Job(caller, context or f"{caller}/{i}", i) for i in range(count)]


def queue(admission: Admission[Job], tasks: Iterable[Job]) -> None:
    for task in tasks:
        admission.enter(task)
        admission.wait(task)


def served(admission: Admission[Job], running: list[Job], count: int) -> str:
    """Whose tasks get the next slots, when the task that has run longest ends each time."""
    callers = []
    for _ in range(count):
        admission.leave(running.pop(0))
        granted = admission.grant()
        running += granted
        callers += [task.caller for task in granted]
    return "".join(callers)


# -- whose task runs next


def test_two_callers_take_turns_however_many_tasks_one_of_them_has() -> None:
    admission = Admission[Job](bounds())
    queue(admission, jobs("a", 200))
    running = admission.grant()
    assert running[0].caller == "a"
    queue(admission, jobs("b", 3))
    assert served(admission, running, 8) == "bababaaa"


def test_a_caller_who_comes_to_a_full_house_gets_the_next_slots_until_both_have_equally_many() -> (
    None
):
    admission = Admission[Job](bounds(running=4))
    queue(admission, jobs("a", 200))
    running = admission.grant()
    assert [task.caller for task in running] == ["a"] * 4
    queue(admission, jobs("b", 50))
    assert served(admission, running, 2) == "bb"
    assert Counter(task.caller for task in running) == {"a": 2, "b": 2}
    assert served(admission, running, 20).count("b") == 10


def test_callers_who_come_and_go_do_not_keep_one_waiting_who_stays() -> None:
    admission = Admission[Job](bounds())
    queue(admission, jobs("a", 200))
    running = admission.grant()
    turns = ""
    for number in range(30):  # each of them has one task, and comes back when it is done
        queue(admission, [Job("bcdef"[number % 5], f"x/{number}", number)])
        if number >= 5:
            turns += served(admission, running, 1)
    assert turns.count("a") >= 25 // 6


def test_of_one_callers_tasks_the_oldest_runs_first_also_when_it_was_ready_later() -> None:
    admission = Admission[Job](bounds())
    first, second, third = jobs("a", 3)
    for task in (first, second, third):
        admission.enter(task)
    admission.wait(third)
    assert admission.grant() == [third]
    admission.wait(second)
    admission.wait(first)
    admission.leave(third)
    assert admission.grant() == [first]


def test_tasks_of_one_context_run_one_at_a_time_and_others_pass_them() -> None:
    admission = Admission[Job](bounds(running=3))
    talk = jobs("a", 3, context="talk")
    other = Job("a", "other", 7)
    queue(admission, [*reversed(talk), other])
    assert admission.grant() == [talk[0], other]
    assert admission.before(talk[2]) is talk[1]
    admission.rest(talk[0])  # a person thinks about it; the next must still wait for its end
    assert admission.grant() == []
    admission.leave(talk[0])
    assert admission.grant() == [talk[1]]


def test_a_task_that_waits_for_a_person_has_no_slot_and_gets_one_back_at_once() -> None:
    admission = Admission[Job](bounds())
    first, second, third = jobs("a", 3)
    queue(admission, [first, second, third])
    assert admission.grant() == [first]
    admission.rest(first)
    assert admission.grant() == [second]
    admission.go_on(first)  # two run now
    admission.leave(second)
    assert admission.grant() == [], "the slot that became free is that of the task that came back"
    admission.leave(first)
    assert admission.grant() == [third]


def test_a_task_that_was_running_elsewhere_runs_at_once() -> None:
    admission = Admission[Job](bounds())
    begun, other, third = jobs("a", 3)
    admission.enter(begun, running=True)
    queue(admission, [other])
    assert admission.grant() == []
    admission.enter(third, running=True)
    admission.leave(begun)
    assert admission.grant() == []
    admission.leave(third)
    assert admission.grant() == [other]


def test_without_a_limit_everything_runs_and_nothing_is_refused() -> None:
    admission = Admission[Job](bounds(running=0, queued=0, per_caller=0))
    tasks = jobs("a", 50)
    queue(admission, tasks)
    assert admission.grant() == tasks
    assert admission.bound_for("a") is None


# -- who is let in


def test_a_caller_who_is_alone_may_fill_the_queue_and_others_are_let_in_all_the_same() -> None:
    admission = Admission[Job](bounds(running=2, queued=10, per_caller=3))
    queue(admission, jobs("a", 12))
    admission.grant()
    assert admission.bound_for("a") is Bound.QUEUE
    for task in jobs("b", 3):
        assert admission.bound_for("b") is None
        queue(admission, [task])
    assert admission.bound_for("b") is Bound.CALLER
    assert admission.bound_for("a") is Bound.CALLER
    assert admission.bound_for("c") is None


def test_who_is_still_arriving_counts() -> None:
    admission = Admission[Job](bounds(running=1, queued=1, per_caller=1))
    admission.arrive("a")
    admission.arrive("a")
    assert admission.bound_for("a") is Bound.QUEUE
    admission.arrived("a")
    assert admission.bound_for("a") is None


def test_without_a_queue_nobody_waits() -> None:
    admission = Admission[Job](bounds(running=1, queued=0, per_caller=5))
    assert admission.bound_for("a") is None
    queue(admission, jobs("a", 1))
    admission.grant()
    assert admission.bound_for("a") is not None
    assert admission.bound_for("b") is not None


def test_tasks_that_wait_for_people_are_bounded_and_nobody_takes_all_the_room() -> None:
    admission = Admission[Job](Bounds(running=9, queued=9, per_caller=2, resting=3))
    tasks = jobs("a", 3)
    queue(admission, tasks)
    admission.grant()
    for task in tasks:
        assert admission.bound_for("a") is None
        admission.rest(task)
    assert admission.bound_for("a") is Bound.RESTING
    assert admission.bound_for("b") is None
    admission.leave(tasks[0])
    assert admission.bound_for("a") is None


# -- whatever happens


class House(RuleBasedStateMachine):
    """Callers come, their tasks wait, run, ask people, and end, in any order."""

    @initialize(running=st.integers(1, 4), queued=st.integers(0, 6), per_caller=st.integers(0, 4))
    def open(self, running: int, queued: int, per_caller: int) -> None:
        self.bounds = Bounds(running, queued, per_caller, resting=4)
        self.admission = Admission[Job](self.bounds)
        self.tasks: list[Job] = []
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.resting: list[Job] = []
        self.passed_over = Counter[tuple[str, str]]()  # (who waited with nothing running, by whom)
        self.orders = 0

    @rule(caller=st.sampled_from("abc"), context=st.integers(0, 2), ready=st.booleans())
    def send(self, caller: str, context: int, ready: bool) -> None:
        busy = len(self.tasks) - len(self.resting)
        own = sum(t.caller == caller for t in self.tasks if t not in self.resting)
        own -= sum(t.caller == caller for t in self.running)
        full = busy >= self.bounds.running + self.bounds.queued
        share = min(self.bounds.per_caller, self.bounds.queued)
        bound = self.admission.bound_for(caller)
        assert (bound in (Bound.QUEUE, Bound.CALLER)) == (full and own >= share)
        if bound is not None:
            return
        task = Job(caller, f"{caller}/{context}", self.orders)
        self.orders += 1
        self.tasks.append(task)
        self.admission.enter(task)
        if ready:
            self.make_ready(task)

    def make_ready(self, task: Job) -> None:
        self.waiting.append(task)
        self.admission.wait(task)
        self.hand_out()

    @precondition(lambda self: bool(self.preparing()))
    @rule(data=st.data())
    def become_ready(self, data: st.DataObject) -> None:
        self.make_ready(data.draw(st.sampled_from(self.preparing())))

    def preparing(self) -> list[Job]:
        return [t for t in self.tasks if t not in {*self.waiting, *self.running, *self.resting}]

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.running))
        self.running.remove(task)
        self.resting.append(task)
        self.admission.rest(task)
        self.hand_out()

    @precondition(lambda self: bool(self.resting))
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.resting))
        self.resting.remove(task)
        self.running.append(task)
        self.admission.go_on(task)
        self.hand_out()

    @precondition(lambda self: bool(self.tasks))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        for group in (self.tasks, self.waiting, self.running, self.resting):
            if task in group:
                group.remove(task)
        self.admission.leave(task)
        self.hand_out()

    def hand_out(self) -> None:
        before = list(self.running)
        for task in self.admission.grant():
            assert len(self.running) < self.bounds.running, "more than may run"
            assert task in self.waiting
            self.waiting.remove(task)
            counts = Counter(t.caller for t in self.running)
            for other in {t.caller for t in self.eligible()} - {task.caller}:
                assert counts[task.caller] <= counts[other], "who has more running was served first"
                self.passed_over[other, task.caller] += 1
                if counts[other] == 0:
                    passes = self.passed_over[other, task.caller]
                    assert passes <= 1, f"{other} waited while {task.caller} was served {passes}×"
            for key in [k for k in self.passed_over if k[0] == task.caller]:
                del self.passed_over[key]
            self.running.append(task)
        waiting = {t.caller for t in self.eligible()}
        for key in [k for k in self.passed_over if k[0] not in waiting]:
            del self.passed_over[key]
        assert before == self.running[: len(before)]

    def eligible(self) -> list[Job]:
        """Tasks that want a slot and have none of their context before them."""
        return [
            task
            for task in self.waiting
            if not any(t.context == task.context and t.order < task.order for t in self.tasks)
        ]

    @invariant()
    def no_slot_is_free_while_a_task_that_may_run_waits(self) -> None:
        assert len(self.running) >= self.bounds.running or not self.eligible()

    @invariant()
    def a_context_has_one_task_at_work(self) -> None:
        at_work = Counter(task.context for task in [*self.running, *self.resting])
        assert all(count == 1 for count in at_work.values())

    @invariant()
    def the_order_of_a_context_is_kept(self) -> None:
        for task in [*self.running, *self.resting]:
            assert self.admission.before(task) is None


TestHouse = House.TestCase
TestHouse.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
