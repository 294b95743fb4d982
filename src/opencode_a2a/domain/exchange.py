"""One prompt and its answer: carried out once, listened to, and stopped when it must be.

A pure machine like `run.py`, of which it is a part: what happened goes in through `feed`, what to
do next comes out of `next`. `outcome` is set once the prompt is answered, or will not be.

* Before the prompt the exchange subscribes to events. The prompt is sent once: where it is not
  certain whether it has arrived, the exchange asks before it sends it again. It is also sent again,
  a few times, where OpenCode has taken it and rests without having asked the model.
* Events may be lost. What is stored is read after a gap, after silence, and soon after something
  says that the answer may be complete or a request settled.
* A decision about a request of the agent is delivered until the agent confirms it. A person has
  `answer` seconds to decide; then the request is refused.
* An exchange that is stopped is aborted again and again until OpenCode has ended it, for at most
  `abort` seconds, also where an attempt fails. Nothing is allowed meanwhile, because the agent
  would still do it.
* A person's time does not count as the agent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from .effects import (
    Abort,
    Aborted,
    Deliver,
    Delivered,
    Effect,
    EffectFailed,
    ExpireRequests,
    FindPrompt,
    Happened,
    Heard,
    Listen,
    NothingHeard,
    PromptSearched,
    PromptSent,
    Reconcile,
    RenewSession,
    RequestsExpired,
    SendPrompt,
    SessionMissing,
    SessionOpened,
    StoredRead,
    Subscribe,
    Subscribed,
    Wait,
)
from .events import AgentEvent, Gap, InterruptClosed
from .permissions import AllowRule, covers
from .requests import ELSEWHERE, EXPIRED
from .task import Task
from .turn import Outcome, Turn
from .updates import (
    DecisionRecord,
    InterruptAnswered,
    InterruptOpened,
    RequestRecord,
    Started,
    Update,
)
from .values import (
    Decision,
    Failure,
    PermissionAsk,
    PermissionDecision,
    Problem,
    Prompt,
    QuestionDecision,
    TaskState,
    in_brief,
)

ABORT_AGAIN_SECONDS = 0.2
END_SECONDS = 1.0  # that an answer may take to end by itself after what may be its last step
BEGIN_SECONDS = 5.0  # that OpenCode may need from a prompt to its first sign of work
MOST_SENT = 4  # times that a prompt is sent which OpenCode takes and does not begin
STOP_RETRY_SECONDS = 3.0  # while every attempt to stop the agent fails
NOT_DECIDED = "Nobody was there to decide in time. Go on without it, or say what you need."
SESSION_DELETED = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "The session of this task was deleted in OpenCode. Send the request again in the same context: "
    "it goes on there in a new session.",
)
DROPPED = Problem(
    Failure.UPSTREAM_INTERRUPTED,
    "OpenCode has taken this request several times, and never begun to answer it. Send it again "
    "later; if that goes on, restart OpenCode.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Seconds that a run may take for what, and what it may do by itself."""

    deadline: float = 1800.0  # work on one prompt
    abort: float = 10.0  # until an aborted run has ended
    quiet: float = 15.0  # without an event before what is stored is read
    retry: float = 1.0  # between two attempts, and before a doubt is looked into
    unreachable: float = 30.0  # OpenCode or the store may be away
    answer: float = 10_800.0  # a person may take to decide
    continues: bool = False  # once, where OpenCode has lost its work


class Patience:
    """How long OpenCode, or the store, is waited for when it cannot be reached."""

    def __init__(self, limits: RunLimits) -> None:
        self.retry_at = 0.0
        self._limits = limits
        self._failing_since: float | None = None

    def reached(self) -> None:
        self._failing_since = None

    def lost(self, now: float) -> bool:
        """An attempt has failed. Whether none has succeeded for too long."""
        self.retry_at = now + self._limits.retry
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since > self._limits.unreachable


class _Stage(Enum):
    SUBSCRIBE = auto()
    FIND = auto()  # the prompt may have been sent
    SEND = auto()
    SENDING = auto()
    RENEW = auto()  # the session is gone, and the prompt was not sent
    WORK = auto()  # OpenCode has the prompt


@dataclass(slots=True)
class _Stop:
    """OpenCode is being made to stop."""

    outcome: Outcome  # of the exchange, once OpenCode has stopped
    began: float
    until: float
    abort_at: float
    ends_task: bool  # also if more prompts wait
    heard_all: bool = False  # that had arrived before: what is done need not be stopped
    aborted: bool = False
    is_fault: bool = False  # of ours: updates may have been lost
    failing_since: float | None = None  # no attempt has succeeded since then
    only_once: bool = False  # there is no session any more in which the end could be seen


class Exchange:
    def __init__(
        self,
        limits: RunLimits,
        prompt: Prompt,
        session_id: str,
        rules: list[AllowRule],
        *,
        title: str = "",
        resumed: Task | None = None,
    ) -> None:
        """`rules` may grow meanwhile. `resumed` is a task of an earlier process.

        That process may have sent the prompt.
        """
        self.prompt = prompt
        self.outcome: Outcome | None = None
        self.turn: Turn | None = None
        self._limits = limits
        self._session_id = session_id
        self._title = title
        self._rules = rules
        self._resumed = resumed
        self._maybe_sent = resumed is not None
        self._now = 0.0
        self._stage = _Stage.SUBSCRIBE
        self._patience = Patience(limits)
        self._renewed = False
        self._sent = 0  # how often OpenCode has taken the prompt
        self._replaces = False  # OpenCode has stored the prompt, and not begun
        self._at_rest_since: float | None = None  # OpenCode, without having begun
        self._read_at = 0.0  # when what is stored was read last
        self._stop: _Stop | None = None
        self._work_until = 0.0
        self._heard_at = 0.0  # when something was heard or read last
        self._unsettled_since: float | None = None
        self._undelivered: dict[str, Deliver] = {}  # by request, oldest first
        self._delivering: set[str] = set()  # requests whose delivery is under way
        self._expiring = False

    @property
    def give_up_at(self) -> float | None:
        """When an exchange that is being stopped is given up."""
        return self._stop.until if self._stop is not None else None

    @property
    def ends_task(self) -> bool:
        """Whether the task ends with this exchange, also if more prompts wait."""
        return self._stop is not None and self._stop.ends_task

    @property
    def may_be_running(self) -> bool:
        """Whether OpenCode may be at work on the prompt."""
        return self._maybe_sent or self._stage in (_Stage.SENDING, _Stage.WORK)

    def will_deliver(self, request_id: str) -> bool:
        """Whether a decision is on its way to the agent."""
        return request_id in self._undelivered or request_id in self._delivering

    def pass_time(self, now: float) -> None:
        if self.turn is not None and self.turn.requests.open:  # a person's time
            self._work_until += max(0.0, now - self._now)
        self._now = now

    # -- what happened

    def feed(self, happened: Happened) -> list[Update]:
        if self.turn is not None:
            self.turn.requests.answer_by = _milliseconds(self._now + self._limits.answer)
        updates = self._feed(happened)
        turn = self.turn
        if self.outcome is None and turn is not None:
            if turn.outcome is not None:
                self._end(turn.outcome)
            elif not turn.awaits_settlement:
                self._unsettled_since = None
            elif self._unsettled_since is None:
                self._unsettled_since = self._now
        return updates

    def _feed(self, happened: Happened) -> list[Update]:
        match happened:
            case Heard(events):
                self._heard_at = self._now
                updates = self._take_events(events)
                if self._stop is not None and not self._stop.aborted:
                    self._hurry(self._stop)
                return updates
            case NothingHeard():
                if self._stop is not None:
                    self._stop.heard_all = True
            case EffectFailed():
                self._on_failure(happened)
            case SessionMissing(effect):
                self._on_session_missing(effect)
            case RequestsExpired():
                return self._refuse_expired()
            case _:
                return self._on_reply(happened)
        return []

    def _on_reply(self, happened: Happened) -> list[Update]:
        """OpenCode has answered a request of ours."""
        # That a prompt is missing does not mean that it can be sent.
        if not isinstance(happened, PromptSearched) or happened.found:
            self._patience.reached()
            if self._stop is not None:
                self._stop.failing_since = None
        match happened:
            case Subscribed():
                self._begin_turn()
            case PromptSearched(found):
                self._stage = _Stage.SEND
                if found:
                    return self._begin_work()
            case PromptSent():
                self._sent += 1
                return self._begin_work()
            case SessionOpened(session_id, title, worktree=worktree):
                self._session_id, self._title, self._stage = session_id, title, _Stage.SUBSCRIBE
                return [Started(session_id, title, worktree=worktree)]
            case StoredRead(events):
                self._heard_at = self._read_at = self._now
                self._unsettled_since = None
                updates = self._take_events(events)
                for interrupt, decision in self.turn.requests.decided() if self.turn else ():
                    self._deliver(Deliver(interrupt, decision))
                if self.turn is not None:
                    updates += self._after_read(self.turn)
                return updates
            case Delivered(interrupt, wanted):
                self._delivering.discard(interrupt.request_id)
                if wanted and self.turn is not None:
                    closed = InterruptClosed(interrupt.session, interrupt.request_id, ELSEWHERE)
                    return self.turn.feed(closed)
            case Aborted() if self._stop is not None:
                self._stop.abort_at = self._now + ABORT_AGAIN_SECONDS
                if self._stop.only_once:
                    self._end(self._stop.outcome)
            case _:
                pass
        return []

    def _take_events(self, events: Sequence[AgentEvent]) -> list[Update]:
        """What follows from events. A request that a rule allows is answered, not shown."""
        if self.turn is None:
            return []
        updates = list[Update]()
        for event in events:
            for update in self.turn.feed(event):
                if isinstance(update, InterruptOpened):
                    updates += self._show_or_allow(update, self.turn)
                else:
                    updates.append(update)
        return updates

    def _show_or_allow(self, opened: InterruptOpened, turn: Turn) -> list[Update]:
        ask = opened.interrupt
        if not isinstance(ask, PermissionAsk) or not covers(self._rules, ask):
            return [opened]
        turn.requests.allow(ask.request_id)
        once = PermissionDecision("once")
        self._deliver(Deliver(ask, once, by_rule=True))
        brief = in_brief(ask)
        decided = DecisionRecord(brief, resolution="once", by="rule", decision=once)
        return [RequestRecord(brief), decided]

    def take_decision(self, answer: InterruptAnswered) -> None:
        """Somebody has decided about a request, and the log has it."""
        assert self.turn is not None, "until there is a turn, nobody is asked"
        self.turn.requests.answer(answer)
        self._deliver(Deliver(answer.interrupt, answer.decision))

    def _deliver(self, delivery: Deliver) -> None:
        """Next, unless OpenCode is being stopped: what is allowed then would still be done."""
        request_id = delivery.interrupt.request_id
        if request_id not in self._delivering and (
            self._stop is None or refuses(delivery.decision)
        ):
            self._undelivered.setdefault(request_id, delivery)

    def _refuse_expired(self) -> list[Update]:
        self._expiring = False
        refused = list[Update]()
        if self.turn is None:
            return refused
        requests = self.turn.requests
        for opened in requests.expired(_milliseconds(self._now)):
            refusal: Decision = QuestionDecision(None)
            if isinstance(opened.interrupt, PermissionAsk):
                refusal = PermissionDecision("reject", NOT_DECIDED)
            answer = InterruptAnswered(
                opened.interrupt,
                refusal,
                EXPIRED,
                still_open=len(requests.open) - 1,
                by="expiry",
            )
            requests.answer(answer)
            self._deliver(Deliver(opened.interrupt, refusal, unstored=True))
            refused.append(answer)
        return refused

    def _begin_turn(self) -> None:
        self.turn = Turn(self._session_id, self.prompt.message_id, title=self._title)
        # Not earlier: until there is a turn, a decision is only stored.
        if self._resumed is not None:
            self.turn.resume(self._resumed)
            self._resumed = None
        self._stage = _Stage.FIND if self._maybe_sent else _Stage.SEND

    def _begin_work(self) -> list[Update]:
        self._stage = _Stage.WORK
        self._work_until, self._heard_at = self._now + self._limits.deadline, self._now
        if self._maybe_sent and self.turn is not None:
            return self.turn.feed(Gap(self._session_id))
        return []

    def _after_read(self, turn: Turn) -> list[Update]:
        """If OpenCode has not begun for a while, send the prompt again, or give up."""
        if not turn.not_begun:
            self._at_rest_since = None
        elif self._stop is not None:
            return turn.close(self._stop.outcome)
        elif self._at_rest_since is None:
            self._at_rest_since = self._now
        elif self._now - self._at_rest_since >= BEGIN_SECONDS:
            self._at_rest_since = None
            if self._sent >= MOST_SENT:
                self.stop(failed(DROPPED), ends_task=False)
            else:
                self._stage, self._maybe_sent = _Stage.SEND, False
                self._replaces = turn.prompt_is_stored
                turn.begin_again()
        return []

    # -- trouble

    def _on_failure(self, failed: EffectFailed) -> None:
        match failed.effect:
            case Deliver(interrupt=interrupt):  # reading what is stored brings it back
                self._delivering.discard(interrupt.request_id)
            case Reconcile():
                self._heard_at = self._now
                if self._patience.lost(self._now):
                    self.fail(failed.problem)
            case effect:
                if isinstance(effect, SendPrompt):
                    self._stage, self._maybe_sent = _Stage.FIND, True
                lost = self._patience.lost(self._now)
                if self._stop is not None:
                    self._retry_stop(self._stop)
                elif lost or not failed.unreachable:
                    self.fail(failed.problem)

    def _hurry(self, stop: _Stop) -> None:
        """Abort at once if another step has begun, instead of the end that was waited for."""
        if self.turn is not None and not self.turn.awaits_end:
            stop.abort_at = self._now

    def _retry_stop(self, stop: _Stop) -> None:
        """The agent may be at work, so what has failed is tried again, for a while."""
        if stop.failing_since is None:
            stop.failing_since = self._now
        stop.abort_at = self._patience.retry_at
        if self._now - stop.failing_since >= STOP_RETRY_SECONDS:
            self._end(stop.outcome)

    def _on_session_missing(self, effect: Effect) -> None:
        if isinstance(effect, SendPrompt) and not self._maybe_sent and not self._renewed:
            self._stage, self._renewed, self.turn = _Stage.RENEW, True, None
            if self._stop is not None:
                self._end(self._stop.outcome)
            return
        self.fail(SESSION_DELETED)
        if self._stop is not None:  # to delete a session does not stop what runs in it
            self._stop.only_once = True

    def fail(self, problem: Problem, *, is_fault: bool = False) -> None:
        self.stop(failed(problem), ends_task=True)
        if self._stop is not None:
            self._stop.is_fault |= is_fault

    def stop(self, outcome: Outcome, *, ends_task: bool, after_step: bool = False) -> None:
        """Make OpenCode stop what it may be doing; the exchange is over when it has.

        `after_step`: an answer whose last step is done may still end by itself.
        """
        if self._stop is not None:
            self._stop.ends_task |= ends_task
            return
        abort_at, until = self._now, self._now + self._limits.abort
        if after_step and self.turn is not None and self.turn.awaits_end:
            abort_at = min(self._now + END_SECONDS, until)
        self._stop = _Stop(
            outcome=outcome,
            began=self._now,
            until=until,
            abort_at=abort_at,
            ends_task=ends_task,
        )
        pending = self._undelivered.items()
        self._undelivered = {key: each for key, each in pending if refuses(each.decision)}
        if not self.may_be_running:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        stop = self._stop
        done = outcome.state is TaskState.COMPLETED
        if stop is not None and done and not stop.aborted and not stop.is_fault:
            stop = None  # it was done before it could be stopped
        self.outcome = stop.outcome if stop is not None else outcome

    # -- what to do next

    def next(self) -> Effect | None:
        """What to do now; None when the exchange is over."""
        stop = self._stop
        if stop is not None and self.outcome is None and self._now >= stop.until:
            self._end(stop.outcome)
        if self.outcome is not None:
            return None
        for request_id in self._undelivered:
            self._delivering.add(request_id)
            return self._undelivered.pop(request_id)
        if self._stage is not _Stage.WORK and self._now < self._patience.retry_at:
            retry_at = self._patience.retry_at
            return Wait(retry_at if stop is None else min(retry_at, stop.until))
        match self._stage:
            case _Stage.RENEW:
                return RenewSession()
            case _Stage.SUBSCRIBE:
                return Subscribe()
            case _Stage.FIND:
                return FindPrompt(self.prompt.message_id)
            case _Stage.SEND:
                if stop is not None:  # OpenCode does not have the prompt
                    self._end(stop.outcome)
                    return None
                self._stage = _Stage.SENDING
                return SendPrompt(self.prompt, replaces=self._replaces)
            case _Stage.SENDING:  # the result has not arrived
                self._stage, self._maybe_sent = _Stage.FIND, True
                return FindPrompt(self.prompt.message_id)
            case _Stage.WORK:
                assert self.turn is not None
                return self._next_of_work(self.turn)
            case _:
                assert_never(self._stage)

    def _next_of_work(self, turn: Turn) -> Effect | None:
        stop = self._stop
        if stop is None and not turn.requests.open and self._now >= self._work_until:
            self.stop(self._too_late(), ends_task=False)
            return self.next()
        if stop is not None:
            if not stop.heard_all and not stop.only_once:
                return Listen(self._now)
            if self._now >= stop.abort_at:
                stop.aborted = True
                return Abort(frozenset(turn.family - {turn.session}))
        waits = bool(turn.requests.open)  # for a person
        if waits and not self._expiring and turn.requests.expired(_milliseconds(self._now)):
            self._expiring = True
            return ExpireRequests()
        reconcile_at = self._reconcile_at(turn)
        if self._now >= reconcile_at:
            return Reconcile(turn.message_id)
        if stop is None and not waits:  # by far the most frequent
            return Listen(min(reconcile_at, self._work_until))
        return Listen(min([reconcile_at, *self._deadlines(turn)]))

    def _reconcile_at(self, turn: Turn) -> float:
        """When to read what is stored."""
        limits = self._limits
        # While it is being stopped, OpenCode says after each abort that it is idle.
        since = self._heard_at if self._stop is None else max(self._read_at, self._stop.began)
        at = since + (limits.retry if turn.in_doubt else limits.quiet)
        if turn.needs_reconcile:
            at = self._now
        if self._unsettled_since is not None:
            at = min(at, self._unsettled_since + limits.retry)
        return max(at, self._patience.retry_at)

    def _deadlines(self, turn: Turn) -> list[float]:
        """What must not be missed while the agent is being stopped, or waits for a person."""
        deadlines = []
        if self._stop is not None:
            deadlines += [self._stop.until, self._stop.abort_at]
        if not self._expiring and (expiry := turn.requests.next_deadline()) is not None:
            deadlines.append(expiry / 1000)
        return deadlines

    def _too_late(self) -> Outcome:
        problem = Problem(
            Failure.DEADLINE_EXCEEDED,
            f"The agent did not finish within {self._limits.deadline:g} seconds of work and was "
            "stopped. OPENCODE_TIMEOUT_STREAM sets this limit.",
        )
        return failed(problem)


def failed(problem: Problem) -> Outcome:
    return Outcome(TaskState.FAILED, problem.message, problem)


def refuses(decision: Decision) -> bool:
    if isinstance(decision, PermissionDecision):
        return decision.reply == "reject"
    return decision.answers is None


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
