"""What a run does next, told as lists of what happens."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from opencode_a2a.domain.effects import (
    Abort,
    Aborted,
    AwaitOlderTasks,
    AwaitSlot,
    BudgetSpent,
    CancelRequested,
    ChangesRead,
    Deliver,
    Delivered,
    DiscardSession,
    Effect,
    EffectFailed,
    ExpireRequests,
    FindPrompt,
    Finish,
    Flush,
    Flushed,
    Happened,
    Heard,
    LeaseLost,
    Listen,
    NothingHeard,
    OlderTasksChecked,
    OpenSession,
    PromptExpected,
    PromptSearched,
    PromptSent,
    PromptStored,
    PromptWithdrawn,
    ReadChanges,
    Reconcile,
    RenewSession,
    RequestAnswered,
    RequestsExpired,
    SendPrompt,
    ServiceBroken,
    SessionDiscarded,
    SessionMissing,
    SessionOpened,
    SlotGranted,
    StoreContinuation,
    StoredRead,
    Subscribe,
    Subscribed,
    TaskNotStored,
    TaskQueued,
    Wait,
)
from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    Busy,
    CaughtUp,
    FilesChanged,
    Gap,
    Idle,
    InterruptAsked,
    MessageSeen,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    TextSnapshot,
)
from opencode_a2a.domain.exchange import (
    BEGIN_SECONDS,
    DROPPED,
    MOST_SENT,
    NOT_DECIDED,
    SESSION_DELETED,
    STOP_RETRY_SECONDS,
    RunLimits,
)
from opencode_a2a.domain.permissions import AllowRule
from opencode_a2a.domain.run import NOT_BEGUN, STOPPED, Run
from opencode_a2a.domain.turn import LOST
from opencode_a2a.domain.updates import (
    BlockText,
    Continued,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    MessageAdded,
    Progress,
    PromptDone,
    Queued,
    Started,
    Update,
)
from opencode_a2a.domain.values import (
    Failure,
    Isolation,
    Message,
    PermissionAsk,
    PermissionDecision,
    Problem,
    Prompt,
    Role,
    Selection,
    TaskState,
    Text,
    Usage,
    WorktreeRef,
)
from tests.domain.histories import History
from tests.domain.logs import folded

LIMITS = RunLimits(deadline=60, abort=10, quiet=15, retry=1, unreachable=30, answer=100)
SESSION = "ses_1"
FIRST, SECOND = Prompt("msg_1", ("hello",)), Prompt("msg_2", ("and this",))
AWAY = Problem(Failure.UPSTREAM_UNREACHABLE, "OpenCode cannot be reached.")
ASK = PermissionAsk("per_1", SESSION, "bash", ("ls",), always=("ls *",))


def message(prompt: Prompt, **end: bool | str) -> MessageSeen:
    completed, finish = bool(end.get("completed")), str(end["finish"]) if "finish" in end else None
    return MessageSeen(
        SESSION,
        f"answer-{prompt.message_id}",
        Speaker.AGENT,
        2,
        prompt.message_id,
        completed=completed,
        finish=finish,
    )


def begun(prompt: Prompt) -> list[AgentEvent]:
    return [MessageSeen(SESSION, prompt.message_id, Speaker.USER, 1), message(prompt)]


def answered(prompt: Prompt, text: str = "done") -> list[AgentEvent]:
    answer = message(prompt, completed=True, finish="stop")
    block = TextSnapshot(SESSION, answer.message_id, "prt_1", BlockKind.TEXT, text, ended=True)
    return [*begun(prompt), block, answer, Idle(SESSION)]


class Driver:
    """A run, a clock, and what was said."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run(LIMITS, fresh=True)
        self.now = 100.0
        self.updates: list[Update] = []

    def after(self, *happened: Happened, seconds: float = 0.0) -> Effect:
        """What is to be done once all this has happened."""
        self.now += seconds
        for each in happened:
            self.updates += self.run.feed(each, self.now)
        return self.run.next(self.now)

    def working(self, prompt: Prompt = FIRST) -> Driver:
        """… on the first prompt."""
        happened = (
            *(PromptExpected(0), PromptStored(0, prompt)),
            *(SessionOpened(SESSION, "title"), SlotGranted(), Flushed()),
        )
        assert self.after(*happened) == Subscribe()
        assert self.after(Subscribed()) == SendPrompt(prompt)
        assert isinstance(self.after(PromptSent()), Listen)
        return self

    def asking(self) -> Driver:
        """… and it waits for a person."""
        self.working()
        self.after(Heard([*begun(FIRST), InterruptAsked(SESSION, ASK)]))
        assert isinstance(self.updates[-1], InterruptOpened)
        return self


def end_of(effect: Effect) -> Ended:
    assert isinstance(effect, Finish)
    ended = effect.updates[-1]
    assert isinstance(ended, Ended)
    return ended


def state_of(effect: Effect) -> TaskState:
    return end_of(effect).state


def failed(effect: Effect, problem: Problem = AWAY, *, unreachable: bool = True) -> EffectFailed:
    return EffectFailed(effect, problem, unreachable=unreachable)


# -- the beginning


def test_a_task_of_an_old_context_waits_until_it_is_stored_and_until_its_turn() -> None:
    run = Driver(Run(LIMITS))
    assert run.after(PromptExpected(0)) == Wait()
    assert run.after(PromptStored(0, FIRST)) == AwaitOlderTasks()
    assert run.after(OlderTasksChecked(left=False)) == OpenSession()
    assert run.after(SessionOpened(SESSION, "title")) == AwaitSlot()
    assert run.updates == []
    assert run.after(SlotGranted(), Flushed()) == Subscribe()
    assert run.updates == [Started(SESSION, "title")]


def test_the_start_is_stored_before_the_first_prompt_is_sent() -> None:
    """So a task without a stored start can be canceled without asking OpenCode."""
    run = Driver()
    run.after(PromptExpected(0), PromptStored(0, FIRST), SessionOpened(SESSION, "title"))
    assert run.after(SlotGranted()) == Flush()
    assert run.updates == [Started(SESSION, "title")]
    assert run.after(Flushed()) == Subscribe()
    assert run.after(Subscribed()) == SendPrompt(FIRST)
    canceled = Driver()
    canceled.after(PromptExpected(0), PromptStored(0, FIRST), SessionOpened(SESSION, "title"))
    assert canceled.after(SlotGranted()) == Flush()
    assert state_of(canceled.after(CancelRequested(), Flushed())) is TaskState.CANCELED


def test_the_session_of_a_new_context_is_opened_while_the_task_is_stored() -> None:
    run = Driver()
    assert run.after(PromptExpected(0)) == OpenSession()
    assert run.after(SessionOpened(SESSION, "title")) == Wait()
    assert run.after(PromptStored(0, FIRST)) == AwaitSlot()


def test_a_task_that_was_not_stored_leaves_no_session_behind() -> None:
    run = Driver()
    assert run.after(PromptExpected(0)) == OpenSession()
    assert run.after(TaskNotStored(), SessionOpened(SESSION, "title")) == DiscardSession()
    assert run.after(SessionDiscarded()) == Finish()
    old = Driver(Run(LIMITS))
    assert old.after(PromptExpected(0), TaskNotStored()) == Finish()


def test_an_unreachable_opencode_is_waited_for_and_then_fails_the_task() -> None:
    run = Driver(Run(LIMITS))
    run.after(PromptExpected(0), PromptStored(0, FIRST), OlderTasksChecked(left=False))
    effect, attempts = run.run.next(run.now), 0
    while not isinstance(effect, Finish):
        if isinstance(effect, Wait):
            assert effect.until is not None
            run.now = effect.until
            effect = run.run.next(run.now)
        else:
            assert effect == OpenSession()
            attempts += 1
            effect = run.after(failed(effect))
    assert end_of(effect).problem == AWAY
    assert 30 <= run.now - 100 <= 32
    assert attempts > 25


# -- the prompt


def test_the_whole_of_an_easy_task() -> None:
    run = Driver().working()
    effect = run.after(Heard(answered(FIRST)))
    assert state_of(effect) is TaskState.COMPLETED
    assert any(isinstance(update, BlockText) and update.text == "done" for update in run.updates)
    assert run.after(Heard(answered(FIRST, "more"))) == effect


def test_a_prompt_whose_answer_got_lost_is_searched_before_it_is_sent_again() -> None:
    run = Driver()
    run.after(
        PromptExpected(0),
        PromptStored(0, FIRST),
        SessionOpened(SESSION, ""),
        SlotGranted(),
        Flushed(),
    )
    sending = run.after(Subscribed())
    assert run.after(failed(sending)) == Wait(run.now + 1)
    assert run.after(seconds=1) == FindPrompt("msg_1")
    assert run.after(PromptSearched(found=False)) == SendPrompt(FIRST)
    assert run.after(failed(sending), seconds=1) == Wait(run.now + 1)
    assert run.after(seconds=1) == FindPrompt("msg_1")
    assert run.after(PromptSearched(found=True)) == Reconcile("msg_1")


def test_a_prompt_that_opencode_refuses_fails_the_task() -> None:
    run = Driver()
    run.after(
        PromptExpected(0),
        PromptStored(0, FIRST),
        SessionOpened(SESSION, ""),
        SlotGranted(),
        Flushed(),
    )
    sending = run.after(Subscribed())
    refused = Problem(Failure.UPSTREAM_HTTP_ERROR, "no")
    run.after(failed(sending, refused, unreachable=False), seconds=2)
    assert run.after(seconds=2) == FindPrompt("msg_1")
    assert end_of(run.after(PromptSearched(found=False))).problem == refused


AT_REST: tuple[AgentEvent, ...] = (Idle(SESSION), CaughtUp(SESSION, frozenset()))


def found_at_rest(driver: Driver, *stored: AgentEvent) -> Effect:
    """OpenCode is found idle again and again, without an answer."""
    read = StoredRead([*stored, *AT_REST])
    driver.after(Heard([Gap(SESSION)]), read)
    effect = driver.after(read, seconds=LIMITS.retry)
    return driver.after(read, seconds=BEGIN_SECONDS) if isinstance(effect, Listen) else effect


STORED = MessageSeen(SESSION, FIRST.message_id, Speaker.USER, 1)


@pytest.mark.parametrize("stored", [(), (STORED,)])
def test_a_prompt_that_opencode_does_not_begin_is_sent_again(stored: tuple[AgentEvent]) -> None:
    driver = Driver().working()
    assert found_at_rest(driver, *stored) == SendPrompt(FIRST, replaces=bool(stored))
    assert isinstance(driver.after(PromptSent()), Listen)
    assert state_of(driver.after(Heard(answered(FIRST)))) is TaskState.COMPLETED


def test_opencode_has_some_seconds_to_begin() -> None:
    driver = Driver().working()
    read = StoredRead([STORED, *AT_REST])
    driver.after(Heard([Gap(SESSION)]), read)
    driver.after(read, seconds=LIMITS.retry)
    assert isinstance(driver.after(read, seconds=BEGIN_SECONDS - 1), Listen)
    driver.after(StoredRead([*begun(FIRST), Busy(SESSION), CaughtUp(SESSION)]), seconds=1)
    assert state_of(driver.after(Heard(answered(FIRST)), seconds=9)) is TaskState.COMPLETED


def test_a_prompt_is_sent_only_a_few_times() -> None:
    driver = Driver().working()
    for _ in range(MOST_SENT - 1):
        assert found_at_rest(driver) == SendPrompt(FIRST)
        driver.after(PromptSent())
    found_at_rest(driver)
    assert isinstance(driver.after(NothingHeard()), Abort)
    ended = end_of(driver.after(Aborted(), StoredRead(AT_REST)))
    assert (ended.state, ended.problem) == (TaskState.FAILED, DROPPED)


@pytest.mark.parametrize(
    "stored",
    [
        begun(FIRST),  # the model may have been asked
        [STORED, MessageSeen(SESSION, "msg_9", Speaker.USER, 2)],  # OpenCode would answer that one
    ],
)
def test_a_prompt_that_may_have_been_begun_is_not_sent_again(stored: list[AgentEvent]) -> None:
    ended = end_of(found_at_rest(Driver().working(), *stored))
    assert (ended.state, ended.problem) == (TaskState.FAILED, LOST)


def test_a_prompt_that_opencode_cannot_begin_fails_with_the_reason() -> None:
    driver = Driver().working()
    problem = Problem(Failure.PROVIDER_ERROR, "There is no such agent.")
    driver.after(Heard([SessionErred(SESSION, problem)]))
    ended = end_of(found_at_rest(driver))
    assert (ended.state, ended.problem) == (TaskState.FAILED, problem)


def test_a_canceled_prompt_that_was_not_begun_ends_soon_and_is_not_sent_again() -> None:
    """OpenCode says after each abort that it is idle, which must not put off the reads."""
    driver = Driver().working()
    effect = driver.after(CancelRequested())
    until = driver.now + 3 * LIMITS.retry
    while not isinstance(effect, Finish):
        assert driver.now < until
        match effect:
            case Listen():
                effect = driver.after(NothingHeard(), seconds=0.1)
            case Abort():
                effect = driver.after(Aborted(), Heard([Idle(SESSION)]))
            case Reconcile():
                effect = driver.after(StoredRead(AT_REST))
            case _:
                raise AssertionError(effect)
    assert state_of(effect) is TaskState.CANCELED


def test_a_deleted_session_is_renewed_once_if_the_prompt_was_not_sent() -> None:
    run = Driver()
    run.after(
        PromptExpected(0),
        PromptStored(0, FIRST),
        SessionOpened(SESSION, ""),
        SlotGranted(),
        Flushed(),
    )
    sending = run.after(Subscribed())
    assert run.after(SessionMissing(sending)) == RenewSession()
    assert run.after(SessionOpened("ses_2", "new")) == Subscribe()
    assert run.updates[-1] == Started("ses_2", "new")
    assert run.after(Subscribed()) == sending
    again = run.after(SessionMissing(sending))
    assert not isinstance(again, RenewSession)


def test_a_session_that_is_deleted_during_the_work_is_aborted_once() -> None:
    run = Driver().working()
    missing = SessionMissing(Reconcile("msg_1"))
    assert isinstance(run.after(missing), Abort)
    assert end_of(run.after(Aborted())).problem == SESSION_DELETED


# -- the work


def test_silence_and_gaps_lead_to_what_is_stored() -> None:
    run = Driver().working()
    assert run.after(NothingHeard(), seconds=15) == Reconcile("msg_1")
    caught_up = CaughtUp(SESSION, frozenset())
    assert run.after(StoredRead([*begun(FIRST), caught_up])) == Listen(run.now + 15)
    assert run.after(Heard([Gap(SESSION)])) == Reconcile("msg_1")


def test_what_cannot_be_read_is_read_again_while_events_are_heard() -> None:
    run = Driver().working()
    reading = run.after(Heard([Gap(SESSION)]))
    assert run.after(failed(reading)) == Listen(run.now + 1)
    assert run.after(Heard(begun(FIRST))) == Listen(run.now + 1)
    assert run.after(NothingHeard(), seconds=1) == reading


def test_work_has_a_deadline_and_a_person_s_time_does_not_count() -> None:
    run = Driver().asking()
    run.after(NothingHeard(), seconds=90)
    answer = InterruptAnswered(ASK, PermissionDecision("once"), "once")
    assert run.after(RequestAnswered(answer)) == Deliver(ASK, answer.decision)
    run.after(Delivered(ASK, wanted=True), StoredRead([CaughtUp(SESSION, frozenset())]))
    effect = run.after(NothingHeard(), seconds=59)
    assert not isinstance(effect, Abort)
    run.after(NothingHeard(), seconds=2)
    assert isinstance(run.after(NothingHeard()), Abort)
    end = end_of(run.after(Aborted(), seconds=11))
    assert end.problem is not None
    assert end.problem.type is Failure.DEADLINE_EXCEEDED


def test_after_the_deadline_the_next_prompt_is_answered() -> None:
    run = Driver().working()
    run.after(PromptExpected(1), PromptStored(1, SECOND))
    run.after(NothingHeard(), seconds=61)
    run.after(NothingHeard())
    too_late = run.after(Aborted(), seconds=11)
    assert isinstance(too_late, Flush)
    report, done = too_late.updates
    assert isinstance(report, Progress)
    assert (report.type, report.status) == ("run", "failed")
    assert done == PromptDone("msg_1")
    assert run.after(Flushed()) == AwaitSlot(between_prompts=True)
    assert run.after(SlotGranted(), Flushed()) == Subscribe()
    assert run.after(Subscribed()) == SendPrompt(SECOND)


def test_a_task_stays_open_for_a_message_that_is_being_stored() -> None:
    run = Driver().working()
    run.after(PromptExpected(1))
    assert run.after(Heard(answered(FIRST))) == Wait()
    assert state_of(run.after(PromptWithdrawn(1))) is TaskState.COMPLETED


def test_a_failure_is_reported_to_who_sends_more_while_changes_are_read() -> None:
    run = Driver().working()
    changed = FilesChanged(SESSION, "answer-msg_1")
    error = Problem(Failure.UPSTREAM_HTTP_ERROR, "The provider refuses.")
    run.after(Heard([*begun(FIRST), changed, SessionErred(SESSION, error), Idle(SESSION)]))
    aborted = replace(message(FIRST, completed=True), problem=error)
    assert run.after(Heard([aborted])) == ReadChanges(("msg_1",))
    flush = run.after(PromptExpected(1), PromptStored(1, SECOND), ChangesRead(()))
    assert flush == Flush((Progress("run", "failed", message=error.message), PromptDone("msg_1")))
    run.after(Flushed(), SlotGranted())
    assert run.after(Subscribed()) == SendPrompt(SECOND)


# -- what a task waits for


def test_a_task_that_waits_says_for_what_and_each_thing_once() -> None:
    run = Driver(Run(LIMITS))
    run.after(PromptExpected(0), PromptStored(0, FIRST))
    run.after(TaskQueued("older"), TaskQueued("older"), OlderTasksChecked(left=True))
    run.after(TaskQueued("other"), OlderTasksChecked(left=False))
    run.after(SessionOpened(SESSION, ""), TaskQueued())
    assert run.updates == [Queued("older"), Queued("other"), Queued()]
    run.after(SlotGranted(), Flushed(), TaskQueued())
    assert run.updates[3:] == [Started(SESSION, "")], "a running task does not go back"
    again = Driver(Run(LIMITS, resumed=folded([Queued("older")]), prompts=[FIRST]))
    again.after(TaskQueued("older"))
    assert again.updates == []


# -- lost work

CONTINUING = replace(LIMITS, continues=True)
CHOSEN = replace(FIRST, selection=Selection(agent="plan"))
STORE = StoreContinuation(-1, CHOSEN.selection)
NEXT = Prompt("msg_9", ("continue",), CHOSEN.selection)


def lose(run: Driver, prompt: Prompt = FIRST) -> Effect:
    """OpenCode is found idle, twice, with an answer that it has begun and will not finish."""
    idle = [*begun(prompt), Idle(SESSION), CaughtUp(SESSION, frozenset())]
    run.after(Heard([Gap(SESSION)]), StoredRead(idle))
    return run.after(StoredRead(idle), seconds=1)


def lost(limits: RunLimits = CONTINUING) -> tuple[Driver, Effect]:
    run = Driver(Run(limits, fresh=True)).working(CHOSEN)
    return run, lose(run, CHOSEN)


def test_lost_work_fails_the_task_and_can_be_resumed() -> None:
    _, effect = lost(LIMITS)
    assert end_of(effect).problem == LOST
    assert LOST.resumable


def test_where_it_may_the_run_asks_the_agent_to_continue_once() -> None:
    run, effect = lost()
    assert effect == STORE
    assert run.after(PromptStored(-1, NEXT)) == Flush((PromptDone("msg_1"),))
    assert run.after(Flushed()) == AwaitSlot(between_prompts=True)
    assert run.after(SlotGranted(), Flushed()) == Subscribe()
    assert run.after(Subscribed()) == SendPrompt(NEXT)
    assert isinstance(run.after(PromptSent()), Listen)
    assert end_of(lose(run, NEXT)).problem == LOST
    assert not any(isinstance(update, Progress) for update in run.updates)


def test_what_a_caller_has_said_meanwhile_comes_instead_of_a_continuation() -> None:
    run = Driver(Run(CONTINUING, fresh=True)).working(CHOSEN)
    run.after(PromptExpected(1), PromptStored(1, SECOND))
    effect = lose(run, CHOSEN)
    assert effect == Flush((Progress("run", "failed", message=LOST.message), PromptDone("msg_1")))
    assert run.after(Flushed()) == AwaitSlot(between_prompts=True)
    run.after(SlotGranted())
    assert run.after(Subscribed()) == SendPrompt(SECOND)


def test_a_continuation_that_cannot_be_stored_is_not_sent() -> None:
    run, _ = lost()
    assert end_of(run.after(failed(STORE))).problem == LOST


def test_a_canceled_task_is_not_continued() -> None:
    run, _ = lost()
    assert state_of(run.after(CancelRequested())) is TaskState.CANCELED


def test_a_continuation_that_was_stored_is_sent_by_the_next_process_unless_it_was_sent() -> None:
    added = MessageAdded(Message("msg_1", Role.USER, (Text("hello"),)), "msg_1")
    stored: list[Update] = [
        added,
        Started(SESSION, "title"),
        Continued(NEXT.message_id, NEXT.selection),
    ]
    for done in (True, False):
        task = folded([*stored, PromptDone("msg_1")] if done else stored)
        run = Driver(Run(CONTINUING, resumed=task, prompts=[FIRST, NEXT]))
        run.after(OlderTasksChecked(left=False))
        assert run.after(SessionOpened(SESSION, "title")) == Subscribe()
        assert run.after(Subscribed()) == FindPrompt("msg_9" if done else "msg_1")
        run.after(PromptSearched(found=True))
        effect = lose(run, NEXT if done else FIRST)
        if done:
            assert effect == ReadChanges(("msg_1",))
            assert end_of(run.after(ChangesRead(()))).problem == LOST
        else:
            assert isinstance(effect, Flush)
            run.after(Flushed(), SlotGranted())
            assert run.after(Subscribed()) == SendPrompt(NEXT)


# -- requests of the agent


def test_a_decision_is_delivered_until_it_is_confirmed() -> None:
    run = Driver().asking()
    answer = InterruptAnswered(ASK, PermissionDecision("once"), "once")
    delivering = run.after(RequestAnswered(answer))
    assert delivering == Deliver(ASK, answer.decision)
    assert isinstance(run.after(), Listen), "it is asked for once"
    assert isinstance(run.after(failed(delivering)), Listen)
    assert run.after(NothingHeard(), seconds=1) == Reconcile("msg_1")
    still_open = CaughtUp(SESSION, frozenset({"per_1"}))
    assert run.after(StoredRead([still_open])) == delivering
    assert isinstance(run.after(Delivered(ASK, wanted=True)), Listen)
    assert run.run.open_requests == {}


def test_what_a_rule_allows_is_answered_and_not_shown() -> None:
    run = Driver()
    rules = [AllowRule("bash", "ls *")]
    run.after(PromptExpected(0), PromptStored(0, FIRST), SessionOpened(SESSION, "", rules))
    assert run.after(SlotGranted(), Flushed()) == Subscribe()
    run.after(Subscribed(), PromptSent())
    effect = run.after(Heard([*begun(FIRST), InterruptAsked(SESSION, ASK)]))
    assert effect == Deliver(ASK, PermissionDecision("once"), by_rule=True)
    assert not any(isinstance(update, InterruptOpened) for update in run.updates)


def test_what_nobody_decides_is_refused_in_the_end() -> None:
    run = Driver().asking()
    run.after(StoredRead([CaughtUp(SESSION, frozenset({"per_1"}))]), seconds=100)
    assert run.after() == Listen(run.now + 15)  # the expiry was asked for before
    refusal = PermissionDecision("reject", NOT_DECIDED)
    assert run.after(RequestsExpired()) == Deliver(ASK, refusal, unstored=True)
    assert isinstance(update := run.updates[-1], InterruptAnswered)
    assert update.resolution == "expired"


def test_the_expiry_of_a_request_is_asked_for_in_time() -> None:
    run = Driver().asking()
    run.after(NothingHeard(), seconds=99)
    effect = run.after(StoredRead([CaughtUp(SESSION, frozenset({"per_1"}))]))
    assert effect == Listen(200.0)
    assert run.after(NothingHeard(), seconds=1) == ExpireRequests()


# -- cancellation


def test_a_cancel_before_the_prompt_ends_the_task_at_once() -> None:
    run = Driver(Run(LIMITS))
    run.after(PromptExpected(0), PromptStored(0, FIRST), OlderTasksChecked(left=False))
    assert state_of(run.after(CancelRequested())) is TaskState.CANCELED


def test_a_cancel_waits_for_the_prompt_and_aborts_until_the_run_has_ended() -> None:
    run = Driver()
    run.after(
        PromptExpected(0),
        PromptStored(0, FIRST),
        SessionOpened(SESSION, ""),
        SlotGranted(),
        Flushed(),
    )
    run.after(Subscribed())
    run.run.feed(CancelRequested(), run.now)  # while the prompt is being sent
    assert run.after(PromptSent()) == Listen(run.now)
    assert isinstance(run.after(NothingHeard()), Abort)
    assert isinstance(run.after(Aborted()), Listen)
    assert isinstance(run.after(NothingHeard(), seconds=0.2), Abort)
    aborted = MessageSeen(SESSION, "a", Speaker.AGENT, 2, "msg_1", completed=True, aborted=True)
    effect = run.after(Heard([*begun(FIRST)[:1], aborted, Idle(SESSION)]))
    assert state_of(effect) is TaskState.CANCELED


def test_what_was_done_before_it_could_be_stopped_is_done() -> None:
    run = Driver().working()
    assert run.after(CancelRequested()) == Listen(run.now)
    assert state_of(run.after(Heard(answered(FIRST)))) is TaskState.COMPLETED


@pytest.mark.parametrize("failure", [True, False])
def test_a_cancel_takes_a_bounded_time(failure: bool) -> None:
    run = Driver().working()
    run.after(CancelRequested())
    aborting = run.after(NothingHeard())
    assert isinstance(aborting, Abort)
    last = failed(aborting) if failure else Aborted()
    effect = run.after(last, seconds=10)
    assert state_of(effect) is TaskState.CANCELED


@pytest.mark.parametrize("unreachable", [True, False])
@pytest.mark.parametrize("stopped_by", ["cancel", "deadline"])
def test_an_abort_that_fails_is_tried_again(unreachable: bool, stopped_by: str) -> None:
    run = Driver().working()
    if stopped_by == "cancel":
        run.after(CancelRequested())
    else:
        run.now += LIMITS.deadline
        run.after()
    aborting = run.after(NothingHeard())
    assert isinstance(aborting, Abort)
    for _ in range(3):
        effect = run.after(failed(aborting, unreachable=unreachable))
        assert effect == Listen(run.now + LIMITS.retry)
        assert run.after(NothingHeard(), seconds=LIMITS.retry) == aborting
    aborted = MessageSeen(SESSION, "a", Speaker.AGENT, 2, "msg_1", completed=True, aborted=True)
    effect = run.after(Heard([*begun(FIRST)[:1], aborted, Idle(SESSION)]))
    expected = TaskState.CANCELED if stopped_by == "cancel" else TaskState.FAILED
    assert state_of(effect) is expected


def test_an_attempt_that_succeeds_gives_an_abort_its_whole_time_again() -> None:
    run = Driver().working()
    began = run.now
    run.after(CancelRequested())
    aborting = run.after(NothingHeard())
    run.after(failed(aborting))
    run.after(Aborted(), seconds=LIMITS.retry)
    while run.now - began < LIMITS.abort - 2 * LIMITS.retry:
        run.after(NothingHeard(), seconds=STOP_RETRY_SECONDS - LIMITS.retry)
        assert isinstance(run.after(failed(aborting)), Listen), "there is time left"
        run.after(Aborted(), seconds=LIMITS.retry)


def test_a_search_that_fails_does_not_end_a_cancel() -> None:
    run = resumed()
    run.run.feed(CancelRequested(), run.now)
    assert run.after(Subscribed()) == FindPrompt("msg_1")
    assert run.after(failed(FindPrompt("msg_1"))) == Wait(run.now + LIMITS.retry)
    run.now += LIMITS.retry
    assert run.after() == FindPrompt("msg_1")
    assert run.after(PromptSearched(found=True)) == Listen(run.now)
    assert isinstance(run.after(NothingHeard()), Abort)


def test_nothing_is_allowed_once_a_run_is_being_stopped() -> None:
    run = Driver().asking()
    run.after(CancelRequested())
    run.after(RequestAnswered(InterruptAnswered(ASK, PermissionDecision("once"), "once")))
    assert not run.run.will_deliver("per_1")
    assert isinstance(run.after(NothingHeard()), Abort)


# -- other processes


def resumed(*more: Update, prompts: tuple[Prompt, ...] = (FIRST,)) -> Driver:
    """A task that another process had begun."""
    ids = [prompt.message_id for prompt in prompts]
    added = [MessageAdded(Message(name, Role.USER, (Text("hello"),)), name) for name in ids]
    task = folded([*added, Started(SESSION, "title"), *more])
    run = Driver(Run(LIMITS, resumed=task, prompts=prompts))
    assert run.after(OlderTasksChecked(left=False)) == OpenSession()
    run.after(SessionOpened(SESSION, "title"))
    return run


def test_a_task_is_taken_up_where_its_log_ends() -> None:
    run = resumed()
    assert run.after() == Subscribe()
    assert run.after(Subscribed()) == FindPrompt("msg_1")
    assert run.after(PromptSearched(found=True)) == Reconcile("msg_1")
    stored = [*answered(FIRST), CaughtUp(SESSION, frozenset())]
    assert state_of(run.after(StoredRead(stored))) is TaskState.COMPLETED


def test_of_several_prompts_the_first_that_is_not_done_is_taken_up() -> None:
    """The session may be another one than the first prompt was sent to."""
    third = Prompt("msg_3", ())
    run = resumed(PromptDone("msg_1"), prompts=(FIRST, SECOND, third))
    assert run.after() == Subscribe()
    assert run.after(Subscribed()) == FindPrompt("msg_2")
    assert run.after(PromptSearched(found=False)) == SendPrompt(SECOND)


def test_a_decision_about_a_task_that_was_taken_up_is_delivered_by_its_turn() -> None:
    run = resumed(InterruptOpened(ASK))
    answer = InterruptAnswered(ASK, PermissionDecision("once"), "once")
    assert run.after(RequestAnswered(answer), SlotGranted(), Flushed()) == Subscribe()
    assert run.after(Subscribed()) == FindPrompt("msg_1")
    assert run.run.open_requests == {}
    assert run.after(PromptSearched(found=True)) == Reconcile("msg_1")
    stored = [*begun(FIRST), CaughtUp(SESSION, frozenset({ASK.request_id}))]
    assert run.after(StoredRead(stored)) == Deliver(ASK, PermissionDecision("once"))


def test_a_cancel_of_a_task_that_was_taken_up_aborts_what_is_under_way() -> None:
    run = resumed()
    run.run.feed(CancelRequested(), run.now)
    assert run.after() == Subscribe()
    assert run.after(Subscribed()) == FindPrompt("msg_1")
    assert run.after(PromptSearched(found=True)) == Listen(run.now)
    assert isinstance(run.after(NothingHeard()), Abort)


def test_what_an_earlier_process_left_open_is_closed_at_the_end() -> None:
    block = BlockText("prt_1", "answer-msg_1", "prt_1", BlockKind.TEXT, "half", append=False)
    run = resumed(block)
    run.run.feed(CancelRequested(), run.now)
    assert run.after(failed(Subscribe())) == Wait(run.now + LIMITS.retry)
    run.now += LIMITS.abort
    effect = run.after()
    assert isinstance(effect, Finish)
    closing, ended = effect.updates
    assert isinstance(closing, BlockText)
    assert closing.last
    assert isinstance(ended, Ended)


def test_a_task_that_another_process_has_is_left_alone() -> None:
    run = Driver().working()
    assert run.after(LeaseLost()) == Finish()


def test_a_fault_of_ours_stops_the_run_and_a_second_one_ends_it() -> None:
    broken = Problem(Failure.INTERNAL, "a fault")
    run = Driver().working()
    run.after(ServiceBroken(broken))
    effect = run.after(ServiceBroken(broken))
    assert end_of(effect).problem == broken


# -- whatever happens


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_a_task_ends_well_whatever_happens(first: int) -> None:
    """`python -m tests.domain.histories` tries as many as one likes."""
    for seed in range(first, first + 50):
        try:
            History(seed).play()
        except AssertionError as exc:
            raise AssertionError(f"history {seed}: {exc}") from exc


# -- what a review found


def test_a_prompt_that_never_gets_through_fails_the_task_although_opencode_answers_else() -> None:
    run = Driver()
    run.after(
        PromptExpected(0),
        PromptStored(0, FIRST),
        SessionOpened(SESSION, ""),
        SlotGranted(),
        Flushed(),
    )
    effect = run.after(Subscribed())
    while not isinstance(effect, Finish):
        assert run.now < 200, "it is tried for ever"
        match effect:
            case SendPrompt():
                effect = run.after(failed(effect), seconds=1)
            case FindPrompt():
                effect = run.after(PromptSearched(found=False))
            case _:
                effect = run.after(seconds=1)
    assert end_of(effect).problem == AWAY


def test_a_canceled_task_shows_what_it_has_changed() -> None:
    run = Driver().working()
    run.after(Heard([*begun(FIRST), FilesChanged(SESSION, "answer-msg_1")]), CancelRequested())
    assert isinstance(run.after(NothingHeard()), Abort)
    aborted = replace(message(FIRST), completed=True, aborted=True)
    assert run.after(Heard([aborted, Idle(SESSION)])) == ReadChanges(("msg_1",))
    assert state_of(run.after(ChangesRead(()))) is TaskState.CANCELED


def test_a_cancel_of_a_recovered_task_needs_no_slot_to_abort() -> None:
    opened = InterruptOpened(ASK)
    added = MessageAdded(Message("msg_1", Role.USER, (Text("hello"),)), "msg_1")
    task = folded([added, Started(SESSION, "title"), opened])
    run = Driver(Run(LIMITS, resumed=task, prompts=[FIRST]))
    run.after(OlderTasksChecked(left=False))
    assert run.after(SessionOpened(SESSION, "title")) == AwaitSlot()
    assert run.after(CancelRequested()) == Subscribe()


def test_what_closes_a_prompt_is_reported_once() -> None:
    run = Driver().working()
    run.after(PromptExpected(1), PromptStored(1, SECOND))
    run.after(NothingHeard(), seconds=61)
    run.after(NothingHeard())
    flush = run.after(Aborted(), seconds=11)
    assert isinstance(flush, Flush)
    assert flush.updates
    assert run.run.feed(PromptExpected(2), run.now) == []


def test_a_fault_of_ours_is_no_success_although_the_end_was_heard() -> None:
    run = Driver().working()
    run.after(ServiceBroken(Problem(Failure.INTERNAL, "a fault")))
    assert state_of(run.after(Heard(answered(FIRST)))) is TaskState.FAILED


def test_a_decision_before_there_is_a_turn_keeps_its_rule() -> None:
    run = Driver()
    run.after(PromptExpected(0), PromptStored(0, FIRST), SessionOpened(SESSION, ""))
    always = InterruptAnswered(ASK, PermissionDecision("once"), "always", grants=("ls *",))
    assert run.after(RequestAnswered(always)) == AwaitSlot()
    assert run.after(SlotGranted(), Flushed()) == Subscribe()
    run.after(Subscribed(), PromptSent())
    effect = run.after(Heard([*begun(FIRST), InterruptAsked(SESSION, ASK)]))
    assert effect == Deliver(ASK, PermissionDecision("once"), by_rule=True)


def test_a_long_wait_for_older_tasks_does_not_count_as_trouble() -> None:
    run = Driver(Run(LIMITS))
    waiting = run.after(PromptExpected(0), PromptStored(0, FIRST))
    run.after(failed(waiting))
    for _ in range(10):
        run.after(OlderTasksChecked(left=True), seconds=60)
    assert run.after(failed(waiting)) == Wait(run.now + 1)


# -- isolation


ISOLATION = Isolation("/root")
WORKTREE = WorktreeRef("a2a/fix-1f", "/trees/fix-1f", base="c0ffee", base_branch="main")
ISOLATED = replace(FIRST, selection=Selection(isolation=ISOLATION))


def test_the_worktree_of_a_context_is_made_for_a_stored_task_only() -> None:
    run = Driver(Run(LIMITS))
    assert run.after(PromptExpected(0)) == Wait()
    assert run.after(PromptStored(0, ISOLATED)) == AwaitOlderTasks()
    assert run.after(OlderTasksChecked(left=False)) == OpenSession(ISOLATION)
    opened = SessionOpened(SESSION, "title", worktree=WORKTREE)
    assert run.after(opened, SlotGranted(), Flushed()) == Subscribe()
    assert run.updates == [Started(SESSION, "title", worktree=WORKTREE)]


def test_the_next_process_asks_for_the_same_worktree() -> None:
    run = Driver(Run(LIMITS, resumed=folded([]), prompts=[ISOLATED]))
    assert run.run.next(run.now) == AwaitOlderTasks()
    assert run.after(OlderTasksChecked(left=False)) == OpenSession(ISOLATION)


def test_in_a_worktree_changes_are_read_whatever_the_agent_says_of_them() -> None:
    run = Driver(Run(LIMITS))
    run.after(PromptExpected(0), PromptStored(0, ISOLATED), OlderTasksChecked(left=False))
    run.after(SessionOpened(SESSION, "title", worktree=WORKTREE), SlotGranted(), Flushed())
    for happened in (Subscribed(), PromptSent()):
        run.after(happened)
    assert run.after(Heard(answered(FIRST))) == ReadChanges(())


def test_lost_work_in_a_worktree_is_continued_there_and_its_changes_are_read_at_the_end() -> None:
    run = Driver(Run(CONTINUING))
    run.after(PromptExpected(0), PromptStored(0, ISOLATED), OlderTasksChecked(left=False))
    run.after(SessionOpened(SESSION, "title", worktree=WORKTREE), SlotGranted(), Flushed())
    run.after(Subscribed())
    run.after(PromptSent())
    store = lose(run, ISOLATED)
    assert store == StoreContinuation(-1, Selection())  # only a first prompt asks for a worktree
    asked = replace(NEXT, selection=Selection())
    run.after(PromptStored(-1, asked), Flushed())
    run.after(Flushed(), SlotGranted())
    assert run.after(Subscribed()) == SendPrompt(asked)
    run.after(PromptSent())
    assert run.after(Heard(answered(asked))) == ReadChanges(())
    assert end_of(run.after(ChangesRead(()))).state is TaskState.COMPLETED
    assert [each for each in run.updates if isinstance(each, Started)] == [
        Started(SESSION, "title", worktree=WORKTREE)
    ]


# -- budgets

SPENT = BudgetSpent(Problem(Failure.BUDGET_EXCEEDED, "The limit tokens_per_day is reached."))


def spent(advice: str) -> Problem:
    return replace(SPENT.problem, message=f"{SPENT.problem.message} {advice}")


def step_end(*, last: bool) -> StepFinished:
    return StepFinished(SESSION, "answer-msg_1", "prt_9", Usage(1, 1), may_be_last=last)


def test_who_has_spent_its_budget_is_stopped_and_keeps_what_was_answered() -> None:
    run = Driver().working()
    block = TextSnapshot(SESSION, "answer-msg_1", "prt_1", BlockKind.TEXT, "so far", ended=True)
    run.after(Heard([*begun(FIRST), block, step_end(last=False)]))
    assert run.after(SPENT) == Listen(run.now), "what has arrived is heard first"
    assert run.after(NothingHeard()) == Abort(frozenset())
    aborted = replace(message(FIRST, completed=True), aborted=True)
    end = end_of(run.after(Aborted(), Heard([aborted, Idle(SESSION)])))
    assert (end.state, end.problem) == (TaskState.FAILED, spent(STOPPED))
    assert end.message == spent(STOPPED).message
    assert end.usage == Usage(1, 1)
    assert [u.text for u in run.updates if isinstance(u, BlockText)] == ["so far"]


def test_an_answer_whose_last_step_spends_the_budget_is_complete() -> None:
    run = Driver().working()
    run.after(Heard([*begun(FIRST), step_end(last=True)]))
    run.after(SPENT)
    assert isinstance(run.after(NothingHeard()), Listen)
    done = message(FIRST, completed=True, finish="stop")
    assert state_of(run.after(Heard([done, Idle(SESSION)]))) is TaskState.COMPLETED


def test_but_no_other_step_is_waited_for() -> None:
    run = Driver().working()
    run.after(Heard([*begun(FIRST), step_end(last=True)]), SPENT, NothingHeard())
    abort = Abort(frozenset())
    assert run.after(Heard([StepStarted(SESSION, "answer-msg_1", "prt_10")])) == abort
    late = Driver().working()
    late.after(Heard([*begun(FIRST), step_end(last=True)]), SPENT, NothingHeard())
    assert late.after(NothingHeard(), seconds=1.1) == abort


def test_a_task_that_waits_ends_at_once_when_the_budget_is_spent() -> None:
    run = Driver()
    run.after(PromptExpected(0), PromptStored(0, FIRST), SessionOpened(SESSION, "title"))
    assert end_of(run.after(SPENT)).problem == spent(NOT_BEGUN)


def test_a_task_of_an_earlier_process_is_stopped_where_opencode_works_on_it() -> None:
    task = folded([Started(SESSION, "title")])
    run = Driver(Run(LIMITS, resumed=task, prompts=[FIRST]))
    run.after(SPENT, OlderTasksChecked(left=False), SessionOpened(SESSION, "title"))
    assert run.after(Subscribed()) == FindPrompt(FIRST.message_id)
    run.after(PromptSearched(found=True), NothingHeard())
    assert run.after(NothingHeard()) == Abort(frozenset())


# -- what is left


def test_a_run_is_freed_without_the_garbage_collector() -> None:
    """Whose work would grow with every task."""
    run = Driver().asking()
    exchange = weakref.ref(run.run._exchange)
    gc.disable()
    try:
        del run
        assert exchange() is None
    finally:
        gc.enable()
