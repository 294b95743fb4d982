"""Who is let in and whose task runs next, by lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opencode_a2a.domain.admission import Admission, Bound, Bounds, CallerBounds

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
        granted = admission.assign_slots()
        running += granted
        callers += [task.caller for task in granted]
    return "".join(callers)


# -- whose task runs next


def test_two_callers_take_turns_however_many_tasks_one_of_them_has() -> None:
    admission = Admission[Job](bounds())
    queue(admission, jobs("a", 200))
    running = admission.assign_slots()
    assert running[0].caller == "a"
    queue(admission, jobs("b", 3))
    assert served(admission, running, 8) == "bababaaa"


def test_a_caller_who_comes_to_a_full_house_gets_the_next_slots_until_both_have_equally_many() -> (
    None
):
    admission = Admission[Job](bounds(running=4))
    queue(admission, jobs("a", 200))
    running = admission.assign_slots()
    assert [task.caller for task in running] == ["a"] * 4
    queue(admission, jobs("b", 50))
    assert served(admission, running, 2) == "bb"
    assert Counter(task.caller for task in running) == {"a": 2, "b": 2}
    assert served(admission, running, 20).count("b") == 10


def test_a_newcomer_starts_at_once_while_one_caller_has_every_slot() -> None:
    admission = Admission[Job](bounds(running=4))
    of_a = jobs("a", 20)
    queue(admission, of_a)
    assert admission.assign_slots() == of_a[:4], "who is alone uses every slot"
    newcomers = list[Job]()
    for caller in "bcde":
        first, second = jobs(caller, 2)
        queue(admission, [first, second])
        assert admission.assign_slots() == [first], "one, and no more while all slots are taken"
        newcomers.append(first)
    queue(admission, jobs("f", 1))
    assert admission.assign_slots() == [], "twice as many as there are slots is the end"
    for task in of_a[:4]:
        admission.leave(task)
        assert admission.assign_slots() == [], "what runs beyond the slots comes off first"
    admission.leave(newcomers[0])
    assert [task.caller for task in admission.assign_slots()] == ["f"]


def test_with_one_slot_a_newcomer_waits_for_it() -> None:
    admission = Admission[Job](bounds())
    queue(admission, [*jobs("a", 1), *jobs("b", 1)])
    assert len(admission.assign_slots()) == 1


def test_nobody_starts_beyond_the_slots_where_everybody_has_one() -> None:
    admission = Admission[Job](bounds(running=2))
    queue(admission, [*jobs("a", 1), *jobs("b", 1), *jobs("c", 1)])
    assert [task.caller for task in admission.assign_slots()] == ["a", "b"]


def test_who_has_many_tasks_answered_at_once_keeps_nobody_out() -> None:
    for running in (1, 2):
        admission = Admission[Job](bounds(running=running))
        tasks = jobs("a", 50)
        for task in tasks:
            queue(admission, [task])
            assert admission.assign_slots() == [task]
            admission.rest(task)
        for task in tasks:
            admission.go_on(task)
        first, second = jobs("b", 2)
        queue(admission, [first, second])
        assert admission.assign_slots() == [first]
        admission.leave(first)
        assert admission.assign_slots() == [second]


def test_between_two_prompts_a_task_gives_way_to_callers_with_fewer_running() -> None:
    admission = Admission[Job](bounds())
    (first, younger), (other,) = jobs("a", 2), jobs("b", 1)
    queue(admission, [first])
    assert admission.assign_slots() == [first]
    queue(admission, [younger])
    assert not admission.give_way(first), "its caller's own tasks wait for its end"
    queue(admission, [other])
    assert admission.give_way(first)
    assert admission.assign_slots() == [other]
    assert admission.give_way(other)
    assert admission.assign_slots() == [first], "before what was sent later"


def test_a_task_does_not_give_way_to_who_has_as_much_or_could_not_run() -> None:
    admission = Admission[Job](bounds(running=2))
    of_a, of_b = jobs("a", 2), jobs("b", 2, context="talk")
    queue(admission, [*of_a, of_b[0]])
    assert admission.assign_slots() == [of_a[0], of_b[0]]
    assert not admission.give_way(of_b[0]), "each has one"
    admission.rest(of_b[0])
    assert admission.assign_slots() == [of_a[1]]
    queue(admission, [of_b[1]])  # its turn comes when the resting task of its context is over
    assert not admission.give_way(of_a[0])


def test_who_has_stopped_waiting_gets_no_slot() -> None:
    admission = Admission[Job](bounds())
    first, second, third = jobs("a", 3)
    queue(admission, [first, second, third])
    assert admission.assign_slots() == [first]
    admission.stop_waiting(second)
    admission.leave(first)
    assert admission.assign_slots() == [third]
    admission.leave(second)
    admission.leave(third)
    assert admission.waiting_of("a") == 0


def test_callers_who_come_and_go_do_not_keep_one_waiting_who_stays() -> None:
    admission = Admission[Job](bounds())
    queue(admission, jobs("a", 200))
    running = admission.assign_slots()
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
    assert admission.assign_slots() == [third]
    admission.wait(second)
    admission.wait(first)
    admission.leave(third)
    assert admission.assign_slots() == [first]


def test_tasks_of_one_context_run_one_at_a_time_and_others_pass_them() -> None:
    admission = Admission[Job](bounds(running=3))
    talk = jobs("a", 3, context="talk")
    other = Job("a", "other", 7)
    queue(admission, [*reversed(talk), other])
    assert admission.assign_slots() == [talk[0], other]
    assert admission.before(talk[2]) is talk[1]
    admission.rest(talk[0])  # a person thinks about it; the next must still wait for its end
    assert admission.assign_slots() == []
    admission.leave(talk[0])
    assert admission.assign_slots() == [talk[1]]


def test_a_task_that_waits_for_a_person_has_no_slot_and_gets_one_back_at_once() -> None:
    admission = Admission[Job](bounds())
    first, second, third = jobs("a", 3)
    queue(admission, [first, second, third])
    assert admission.assign_slots() == [first]
    admission.rest(first)
    assert admission.assign_slots() == [second]
    admission.go_on(first)  # two run now
    admission.leave(second)
    assert admission.assign_slots() == [], (
        "the slot that became free is that of the task that came back"
    )
    admission.leave(first)
    assert admission.assign_slots() == [third]


def test_a_task_that_was_running_elsewhere_runs_at_once() -> None:
    admission = Admission[Job](bounds())
    begun, other, third = jobs("a", 3)
    admission.enter(begun, running=True)
    queue(admission, [other])
    assert admission.assign_slots() == []
    admission.enter(third, running=True)
    admission.leave(begun)
    assert admission.assign_slots() == []
    admission.leave(third)
    assert admission.assign_slots() == [other]


def test_without_a_limit_everything_runs_and_nothing_is_refused() -> None:
    admission = Admission[Job](bounds(running=0, queued=0, per_caller=0))
    tasks = jobs("a", 50)
    queue(admission, tasks)
    assert admission.assign_slots() == tasks
    assert admission.bound_for("a") is None


# -- who is let in


def test_a_caller_who_is_alone_may_fill_the_queue_and_others_are_let_in_all_the_same() -> None:
    admission = Admission[Job](bounds(running=2, queued=10, per_caller=3))
    queue(admission, jobs("a", 12))
    admission.assign_slots()
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
    admission.assign_slots()
    assert admission.bound_for("a") is not None
    assert admission.bound_for("b") is not None


def test_without_a_queue_who_can_start_at_once_is_let_in() -> None:
    admission = Admission[Job](bounds(running=2, queued=0, per_caller=5))
    queue(admission, jobs("a", 2))
    admission.assign_slots()
    assert admission.bound_for("a") is Bound.QUEUE
    assert admission.bound_for("b") is None
    queue(admission, jobs("b", 1))
    assert [task.caller for task in admission.assign_slots()] == ["b"]
    assert admission.bound_for("b") is not None


def test_tasks_that_wait_for_people_are_bounded_and_nobody_takes_all_the_room() -> None:
    admission = Admission[Job](Bounds(running=9, queued=9, per_caller=2, resting=3))
    tasks = jobs("a", 3)
    queue(admission, tasks)
    admission.assign_slots()
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
        self.went_on: set[Job] = set()  # they run without having been given a slot
        self.passed_over = Counter[tuple[str, str]]()  # (who waited with nothing running, by whom)
        self.orders = 0

    @rule(caller=st.sampled_from("abcd"), context=st.integers(0, 2), ready=st.booleans())
    def send(self, caller: str, context: int, ready: bool) -> None:
        busy = len(self.tasks) - len(self.resting)
        own = sum(t.caller == caller for t in self.tasks if t not in self.resting)
        starts = own == 0 and self.newcomer_may_start()
        own -= sum(t.caller == caller for t in self.running)
        full = busy >= self.bounds.running + self.bounds.queued
        share = min(self.bounds.per_caller, self.bounds.queued)
        bound = self.admission.bound_for(caller)
        refused = full and own >= share and not starts
        assert (bound in (Bound.QUEUE, Bound.CALLER)) == refused
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

    @precondition(lambda self: bool(self.waiting))
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(task)
        self.admission.stop_waiting(task)
        self.hand_out()

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data())
    def prompt_again(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.running))
        counts = Counter(t.caller for t in self.running)
        others = [t for t in self.eligible() if counts[t.caller] < counts[task.caller]]
        gives_way = self.admission.give_way(task)
        assert gives_way == bool(others)
        if gives_way:
            self.running.remove(task)
            self.went_on.discard(task)
            self.waiting.append(task)
            granted = self.hand_out()
            assert not granted or granted[0] is not task, "it took the slot back"

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.running))
        self.running.remove(task)
        self.went_on.discard(task)
        self.resting.append(task)
        self.admission.rest(task)
        self.hand_out()

    @precondition(lambda self: bool(self.resting))
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.resting))
        self.resting.remove(task)
        self.running.append(task)
        self.went_on.add(task)
        self.admission.go_on(task)
        self.hand_out()

    @precondition(lambda self: bool(self.tasks))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        for group in (self.tasks, self.waiting, self.running, self.resting):
            if task in group:
                group.remove(task)
        self.went_on.discard(task)
        self.admission.leave(task)
        self.hand_out()

    def newcomer_may_start(self) -> bool:
        counts = Counter(t.caller for t in self.running)
        return max(counts.values(), default=0) >= 2 and len(counts) <= self.bounds.running

    def hand_out(self) -> list[Job]:
        before, granted = list(self.running), self.admission.assign_slots()
        for task in granted:
            counts = Counter(t.caller for t in self.running)
            newcomer = not counts[task.caller] and self.newcomer_may_start()
            assert newcomer or len(self.running) < self.bounds.running, "more than may run"
            assert task in self.waiting
            self.waiting.remove(task)
            for other in {t.caller for t in self.eligible()} - {task.caller}:
                assert counts[task.caller] <= counts[other], "who has more running was served first"
                if counts[other] == 0:
                    self.passed_over[other, task.caller] += 1
                    passes = self.passed_over[other, task.caller]
                    assert passes <= 1, f"{other} waited while {task.caller} was served {passes}×"
            self.running.append(task)
            self.forget_passes()
        self.forget_passes()
        assert before == self.running[: len(before)]
        return granted

    def forget_passes(self) -> None:
        """Only who waits with nothing running is passed over."""
        waiting = {t.caller for t in self.eligible()} - {t.caller for t in self.running}
        for key in [k for k in self.passed_over if k[0] not in waiting]:
            del self.passed_over[key]

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
    def a_newcomer_does_not_wait_for_who_has_several(self) -> None:
        at_work = {task.caller for task in self.running}
        newcomers = [task for task in self.eligible() if task.caller not in at_work]
        assert not newcomers or not self.newcomer_may_start()

    @invariant()
    def twice_as_many_as_there_are_slots_is_the_end(self) -> None:
        assert len({*self.running} - self.went_on) <= 2 * self.bounds.running

    @invariant()
    def a_context_has_one_task_at_work(self) -> None:
        at_work = Counter(task.context for task in [*self.running, *self.resting])
        assert all(count == 1 for count in at_work.values())

    @invariant()
    def the_order_of_a_context_is_kept(self) -> None:
        for task in [*self.running, *self.resting]:
            assert self.admission.before(task) is None


TestHouse = House.TestCase
TestHouse.settings = settings(stateful_step_count=40)


# -- callers with limits of their own


def test_a_caller_runs_no_more_tasks_than_its_own_limit_and_leaves_the_slots_to_others() -> None:
    own = {"a": CallerBounds(running=2)}
    admission = Admission[Job](bounds(running=4), lambda caller: own.get(caller, CallerBounds()))
    queue(admission, jobs("a", 5))
    assert [task.caller for task in admission.assign_slots()] == ["a", "a"]
    queue(admission, jobs("b", 5))
    assert [task.caller for task in admission.assign_slots()] == ["b", "b"]
    del own["a"]
    queue(admission, [])
    assert admission.assign_slots() == [], "all slots are taken"


def test_a_caller_at_its_limit_makes_nobody_give_way() -> None:
    admission = Admission[Job](
        bounds(running=3), lambda caller: CallerBounds(running=1 if caller == "a" else 0)
    )
    queue(admission, jobs("b", 2))
    running = admission.assign_slots()
    queue(admission, jobs("a", 2))
    assert [task.caller for task in admission.assign_slots()] == ["a"]
    assert not admission.give_way(running[0])


def test_a_caller_is_refused_when_it_has_as_many_as_may_run_and_wait() -> None:
    admission = Admission[Job](
        bounds(running=9), lambda caller: CallerBounds(running=1, queued=2 if caller == "a" else 0)
    )
    tasks = jobs("a", 3)
    for task in tasks:
        assert admission.bound_for("a") is None
        queue(admission, [task])
        admission.assign_slots()
    assert admission.bound_for("a") is Bound.OWN
    assert admission.bound_for("b") is None
    assert admission.rest(tasks[0])
    assert admission.bound_for("a") is None, "who waits for a person keeps nobody out"


def test_tasks_that_wait_for_the_callers_own_limit_alone_are_bounded_by_the_queue() -> None:
    admission = Admission[Job](
        Bounds(running=0, queued=3, per_caller=2, resting=9),
        lambda caller: CallerBounds(running=1 if caller == "a" else 0),
    )
    for task in jobs("a", 4):
        assert admission.bound_for("a") is None
        queue(admission, [task])
        admission.assign_slots()
    assert admission.bound_for("a") is Bound.OWN
    queue(admission, jobs("b", 9))
    assert admission.bound_for("b") is None, "its tasks do not wait"
