"""One task's work as a pure machine: what happened goes in, what to do next comes out.

    Run.feed(happened, now)  ->  updates for the log
    Run.next(now)            ->  one effect to perform

It never waits and performs no I/O. Time is an argument and a failure is an input, so that every
rule about retries, deadlines, cancellation and recovery is tested with a list of inputs. One prompt
and its answer is an `Exchange`. What the agent's events mean is decided in `turn.py`, who may run
in `admission.py`; `service/runner.py` performs the effects.

* A task waits until it is stored, until older tasks of its context have ended, and for a slot.
* Its prompts are answered one after the other. More may be added while one is being answered.
  Between two prompts the task lets callers who have fewer running tasks go first.
* Before the next prompt is sent, the log has the end of the one before (`PromptDone`). So a task of
  an earlier process goes on with the first of its prompts that is not done: it is the only one that
  OpenCode may have.
* Where OpenCode has lost its work on the last prompt, and `continues` is set, the agent is asked to
  continue: once for each task, by a new prompt that is stored before it is sent.
* The log has the start of a task before its first prompt is sent. So a task that has not begun can
  be canceled without asking OpenCode, and be taken up by a node with another OpenCode.
* What is unreachable is waited for; a cancel ends that at once, unless OpenCode may be at work.
* The last updates close what is still open. Nothing follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from .effects import (
    AwaitOlderTasks,
    AwaitSlot,
    BudgetSpent,
    CancelRequested,
    ChangesRead,
    Deliver,
    DiscardSession,
    Effect,
    EffectFailed,
    Finish,
    Flush,
    Flushed,
    FromOthers,
    Happened,
    Heard,
    LeaseLost,
    OlderTasksChecked,
    OpenSession,
    PromptExpected,
    PromptStored,
    PromptWithdrawn,
    ReadChanges,
    RequestAnswered,
    ServiceBroken,
    SessionDiscarded,
    SessionMissing,
    SessionOpened,
    SlotGranted,
    StoreContinuation,
    TaskNotStored,
    TaskQueued,
    Wait,
)
from .exchange import SESSION_DELETED, Exchange, Patience, RunLimits, failed
from .permissions import AllowRule
from .task import Task
from .turn import Outcome, Turn
from .updates import (
    ChangesMade,
    Continued,
    Ended,
    InterruptOpened,
    Progress,
    PromptDone,
    Queued,
    Started,
    Update,
)
from .values import (
    AnsweredBy,
    PermissionAsk,
    Problem,
    Prompt,
    Selection,
    TaskState,
    Usage,
    WorktreeRef,
)

CANCELED = Outcome(TaskState.CANCELED, "Canceled by the caller.")
# After the sentence that says which budget is used up, and until when.
STOPPED = (
    "The task was stopped, and what it has answered so far is kept: send what is left to do in the "
    "same context then."
)
NOT_BEGUN = "The task was not begun: send it again then."


class Run:
    def __init__(
        self,
        limits: RunLimits,
        *,
        fresh: bool = False,
        resumed: Task | None = None,
        prompts: Sequence[Prompt] = (),
    ) -> None:
        """`fresh`: the context is new, so nothing else can be going on in it.

        `resumed` is a task that an earlier process has begun, with the prompts it had. The run
        keeps the object, and adds the decisions that come before a turn takes it up.
        """
        self._limits = limits
        self.fresh = fresh
        self._resumed = resumed
        done = resumed.done_prompts if resumed is not None else ()
        self._prompts: dict[int, Prompt | None] = {
            key: prompt
            for key, prompt in enumerate(prompts, -len(prompts))
            if prompt.message_id not in done
        }
        self._selection = prompts[0].selection if prompts else None  # of the first prompt
        self._now = 0.0
        self._patience = Patience(limits)
        self._is_oldest = fresh  # no older task of the context is left
        self._has_started = resumed is not None and resumed.session is not None
        self._has_slot = resumed is not None and resumed.state is TaskState.WORKING
        self._task_exists = True
        self._broken = False
        self._cancel_until: float | None = None
        self._canceled_as = CANCELED  # how a task ends that is stopped from outside
        self._session_id: str | None = None
        self._title = ""
        self._worktree: WorktreeRef | None = None
        self._rules: list[AllowRule] = []
        self._exchange: Exchange | None = None
        self._outcome: Outcome | None = None  # of the newest prompt
        self._usage: Usage | None = None
        self._answered_by: AnsweredBy | None = None
        self._changed = [*done]  # messages in answer to which files may have changed
        self._unread_changes = False
        self._must_flush = False
        self._answered_id: str | None = None  # the newest prompt, until the log has that it is done
        self._closing: list[Update] = []  # of an exchange that is over: not yet in the log
        self._may_give_way = False
        self._queued = resumed.queued if resumed is not None else None  # as callers were told
        self._may_continue = limits.continues and not _was_continued(resumed)
        self._continuation_key = -len(prompts) - 1  # no other prompt has it
        self._continuation: Selection | None = None  # what to ask with, once it can be stored
        self._finish: Finish | None = None

    # -- what others may ask

    @property
    def closed(self) -> bool:
        """The last updates are decided, and nothing more is asked of the agent."""
        return self._finish is not None

    @property
    def working(self) -> bool:
        """A prompt is being answered."""
        return self._exchange is not None and self._finish is None

    @property
    def task_exists(self) -> bool:
        """Whether the task was stored, as far as is known."""
        return self._task_exists

    @property
    def canceled(self) -> bool:
        """Whether the task is being stopped from outside: by its caller, or for its budget."""
        return self._cancel_until is not None

    @property
    def waiting_prompts(self) -> int:
        return len(self._prompts)

    @property
    def give_up_at(self) -> float | None:
        """When the effect that is being performed is to be left, if it is to be."""
        found = self._exchange.give_up_at if self._exchange is not None else None
        return self._cancel_until if found is None else found

    @property
    def open_requests(self) -> dict[str, InterruptOpened] | None:
        """What the agent waits for; None while only the log knows."""
        turn = self._exchange.turn if self._exchange is not None else None
        return turn.requests.open if turn is not None else None

    def will_deliver(self, request_id: str) -> bool:
        """Whether a decision is on its way to the agent."""
        return self._exchange is not None and self._exchange.will_deliver(request_id)

    # -- what happened

    def feed(self, happened: Happened, now: float) -> list[Update]:
        if self._finish is not None:
            return []
        self._pass_time(now)
        if isinstance(happened, Heard):  # by far the most frequent
            updates = self._exchange.feed(happened) if self._exchange is not None else []
        elif isinstance(happened, FromOthers):
            updates = self._feed(happened)
        else:
            updates = self._feed_result(happened)
        if self._exchange is not None and self._exchange.outcome is not None:
            self._take_outcome(self._exchange, self._exchange.outcome)
        if self._closing:
            updates += self._closing
            self._closing = []
        return updates

    def _feed(self, happened: FromOthers) -> list[Update]:
        """What others did."""
        match happened:
            case PromptExpected(key):
                self._prompts[key] = None
            case PromptStored(key, prompt):
                self._prompts[key] = prompt
            case PromptWithdrawn(key):
                del self._prompts[key]
            case TaskNotStored():
                self._task_exists = False
            case CancelRequested():
                self._cancel(CANCELED)
            case BudgetSpent(problem):
                advice = STOPPED if self._has_started else NOT_BEGUN
                problem = replace(problem, message=f"{problem.message} {advice}")
                self._cancel(failed(problem), after_step=True)
            case LeaseLost():
                self._finish = Finish()
            case ServiceBroken(problem):
                self._on_fault(problem)
            case TaskQueued(behind):
                return self._on_queued(Queued(behind))
            case RequestAnswered(answer):
                if self._exchange is not None and self._exchange.turn is not None:
                    self._exchange.take_decision(answer)
                elif self._resumed is not None:
                    self._resumed.answer(answer)  # the turn takes it up from there
                if isinstance(ask := answer.interrupt, PermissionAsk):
                    self._rules += [AllowRule(ask.permission, pattern) for pattern in answer.grants]
            case _:
                assert_never(happened)
        return []

    def _on_queued(self, queued: Queued) -> list[Update]:
        """Callers are told what a task waits for until it begins, and each thing once."""
        if self._has_started or queued == self._queued or not self._task_exists:
            return []
        self._queued = queued
        return [queued]

    def _feed_result(self, happened: Happened) -> list[Update]:
        """What came of an effect."""
        if isinstance(happened, SessionOpened):
            self._session_id, self._title = happened.session_id, happened.title
            self._worktree = happened.worktree
            self._rules += happened.rules
        if self._exchange is not None:
            return self._exchange.feed(happened)
        match happened:
            case EffectFailed():
                self._on_failure(happened)
                return []
            case SessionDiscarded():
                self._finish = Finish()
            case SessionMissing():
                self._fail(SESSION_DELETED)
            case OlderTasksChecked(left):
                self._is_oldest = not left
            case SlotGranted():
                self._has_slot, self._may_give_way = True, False
                if not self._has_started and self._session_id is not None:
                    self._has_started = True
                    self._must_flush = True
                    return [Started(self._session_id, self._title, worktree=self._worktree)]
            case Flushed():
                self._must_flush = False
            case ChangesRead(files):
                self._unread_changes = False
                return [ChangesMade(tuple(files))] if files else []
            case _:
                pass
        self._patience.reached()
        return []

    def _on_failure(self, failure: EffectFailed) -> None:
        match failure.effect:
            case ReadChanges():
                self._unread_changes = False
            case StoreContinuation(key):
                del self._prompts[key]  # the caller can still ask for it
            case Deliver():
                pass  # of an exchange that is over
            case _:
                too_long = self._patience.lost(self._now)
                # A canceled task may be at work: it is looked for while there is time.
                if not self.canceled and (too_long or not failure.unreachable):
                    self._fail(failure.problem)

    def _on_fault(self, problem: Problem) -> None:
        if self._broken:  # also while the run was being stopped
            self._end_task(failed(problem))
        else:
            self._broken = True
            self._fail(problem, is_fault=True)

    def _fail(self, problem: Problem, *, is_fault: bool = False) -> None:
        if self._exchange is not None:
            self._exchange.fail(problem, is_fault=is_fault)
        elif self._task_exists:
            self._end_task(self._canceled_as if self.canceled else failed(problem))

    def _cancel(self, outcome: Outcome, *, after_step: bool = False) -> None:
        if self.canceled:
            return
        self._canceled_as = outcome
        self._cancel_until = self._now + self._limits.abort
        may_run = self._has_started and self._resumed is not None  # of an earlier process
        if self._exchange is not None:
            self._exchange.stop(outcome, ends_task=True, after_step=after_step)
        elif not may_run and (
            self._prompts or self._continuation is not None or self._outcome is None
        ):
            self._end_task(outcome)

    # -- the end

    def _take_outcome(self, exchange: Exchange, outcome: Outcome) -> None:
        """Take in the outcome of an exchange that is over."""
        if self._finish is not None:
            return
        turn = exchange.turn
        self._exchange, self._outcome = None, outcome
        self._answered_id = exchange.prompt.message_id
        if turn is not None:
            self._resumed = None  # the turn has taken up what was open
            self._closing += turn.close(outcome)
            self._usage = turn.usage if self._usage is None else self._usage + turn.usage
            self._title = turn.title or self._title
            self._answered_by = turn.answered_by or self._answered_by
            if turn.files_changed:
                self._changed.append(exchange.prompt.message_id)
        if self.canceled and self._prompts:
            self._end_task(self._canceled_as)
        elif exchange.ends_task and outcome.state is TaskState.FAILED:
            self._end_task(outcome)
        else:
            # Git tells what differs from the base, whoever has changed it and how.
            self._unread_changes = bool(self._changed) or self._worktree is not None
            self._may_give_way = True
            lost = outcome.problem is not None and outcome.problem.resumable
            if lost and self._may_continue and not self._prompts:
                self._may_continue = False
                self._continuation = replace(exchange.prompt.selection, isolation=None)

    def _prompt_done(self, answered_id: str, *, continues: bool) -> list[Update]:
        """What the log must have before the next prompt is sent.

        A prompt that did not end well is reported: the end of the task tells of the last one only.
        A continuation reports itself.
        """
        done: list[Update] = [PromptDone(answered_id)]
        outcome = self._outcome
        if outcome is not None and outcome.state is not TaskState.COMPLETED and not continues:
            done.insert(0, Progress("run", outcome.state.value, message=outcome.message))
        return done

    def _end_task(self, outcome: Outcome) -> None:
        if self._resumed is not None:  # no turn has taken up what the earlier process left open
            left = Turn(self._session_id or "", "")
            left.resume(self._resumed)
            self._closing += left.close(outcome)
        ended = Ended(
            state=outcome.state,
            message=outcome.message,
            problem=outcome.problem,
            usage=self._usage,
            session=self._session_id if self._has_started else None,
            title=self._title if self._has_started else "",
            answered_by=self._answered_by,
        )
        self._finish = Finish((*self._closing, ended))
        self._closing = []

    # -- what to do next

    def next(self, now: float) -> Effect:
        """What to do now. A prompt, a delivery and an expiry are asked for once."""
        self._pass_time(now)
        while self._finish is None:
            exchange = self._exchange
            effect = exchange.next() if exchange is not None else self._next_step()
            if effect is not None:
                return effect
            if exchange is not None and exchange.outcome is not None:
                self._take_outcome(exchange, exchange.outcome)
        return self._finish

    def _next_step(self) -> Effect | None:
        """What to do between exchanges; None when one begins, or all is done."""
        if not self._task_exists:
            if self.fresh:
                return DiscardSession()
            self._finish = Finish()
            return None
        if self._cancel_until is not None and self._now >= self._cancel_until:
            self._end_task(self._canceled_as)
            return None
        if self._now < self._patience.retry_at:
            retry_at = self._patience.retry_at
            return Wait(min(retry_at, self._cancel_until or retry_at))
        return self._next_preparation() or self._next_prompt()

    def _next_preparation(self) -> Effect | None:
        first = next(iter(self._prompts.values()), None)
        first_prompt_stored = self._outcome is not None or first is not None or not self._prompts
        if not first_prompt_stored and not self.fresh:
            return Wait()
        if not self._is_oldest:
            return AwaitOlderTasks()
        if self._session_id is None:
            selection = self._selection or (first.selection if first else Selection())
            return OpenSession(selection.isolation, selection.directory)
        if not first_prompt_stored:
            return Wait()
        if not self._has_slot and not self.canceled:
            return AwaitSlot()
        return None

    def _next_prompt(self) -> Effect | None:
        if self._must_flush:
            return Flush()
        if self._continuation is not None:
            return self._next_continuation(self._continuation)
        if not self._prompts:
            if self._unread_changes:
                return ReadChanges(tuple(self._changed))
            self._end_task(self._outcome or self._canceled_as)
            return None
        key, prompt = next(iter(self._prompts.items()))
        if prompt is None:
            return Wait()
        if self._answered_id is not None:
            continues = key == self._continuation_key
            done = self._prompt_done(self._answered_id, continues=continues)
            self._answered_id, self._must_flush = None, True
            closing, self._closing = self._closing, []
            return Flush((*closing, *done))
        if self._may_give_way:
            return AwaitSlot(between_prompts=True)
        del self._prompts[key]
        assert self._session_id is not None
        self._exchange = Exchange(
            limits=self._limits,
            prompt=prompt,
            session_id=self._session_id,
            rules=self._rules,
            title=self._title,
            resumed=self._resumed,
        )
        self._exchange.pass_time(self._now)
        if self.canceled:
            self._exchange.stop(self._canceled_as, ends_task=True)
        return None

    def _next_continuation(self, selection: Selection) -> Effect | None:
        self._continuation = None
        if self._prompts:  # the caller has said meanwhile what to do next
            return self._next_prompt()
        self._prompts[self._continuation_key] = None
        return StoreContinuation(self._continuation_key, selection)

    def _pass_time(self, now: float) -> None:
        self._now = now
        if self._exchange is not None:
            self._exchange.pass_time(now)


def _was_continued(task: Task | None) -> bool:
    return task is not None and any(isinstance(e.update, Continued) for e in task.history)
