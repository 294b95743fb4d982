"""Histories of one task, made at random: `Run` against a small OpenCode, a log, and bad luck.

    python -m tests.domain.histories --count 100000 [--seed 1]

Each history ends with the task. What the run asks for is carried out or not, answered or not; the
agent works on meanwhile; callers send more, answer, cancel; the process dies anywhere and another
goes on from the log; the lease is lost; time passes. What must hold whatever happens is asserted.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from opencode_a2a.domain.effects import (
    Abort,
    Aborted,
    AwaitOlderTasks,
    AwaitSlot,
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
from opencode_a2a.domain.events import BlockKind, Gap, Idle, MessageSeen, Speaker
from opencode_a2a.domain.exchange import RunLimits, refuses
from opencode_a2a.domain.run import Run
from opencode_a2a.domain.updates import (
    BlockText,
    BlockTool,
    Continued,
    Ended,
    InterruptAnswered,
    MessageAdded,
    Update,
)
from opencode_a2a.domain.values import (
    Failure,
    Message,
    PermissionDecision,
    Problem,
    Prompt,
    Role,
    TaskState,
    Text,
)
from tests.domain.test_turn_machine import ROOT, Log, OpenCode

LIMITS = RunLimits(deadline=60, abort=3, quiet=5, retry=1, unreachable=6, answer=20)
AWAY = Problem(Failure.UPSTREAM_UNREACHABLE, "OpenCode cannot be reached.")
REFUSED = Problem(Failure.UPSTREAM_HTTP_ERROR, "OpenCode refuses.")
MAX_STEPS = 3_000


@dataclass(frozen=True)
class Luck:
    """How likely is what, each time."""

    lost_request: float  # it fails before it is carried out
    lost_answer: float  # it fails after
    lost_events: float
    refused: float
    death: float
    opencode_death: float
    not_begun: float  # OpenCode takes a prompt, stores it or not, and does nothing about it
    cancel: float
    lease_lost: float
    session_deleted: float
    more: float


class History:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        chance = self.dice.choice
        self.luck = Luck(
            lost_request=chance((0, 0.05, 0.3)),
            lost_answer=chance((0, 0.05, 0.2)),
            lost_events=chance((0, 0.05)),
            refused=chance((0, 0, 0.01)),
            death=chance((0, 0.01, 0.05)),
            opencode_death=chance((0, 0, 0.01)),
            not_begun=chance((0, 0, 0.3)),
            cancel=chance((0, 0, 0.01, 0.05)),
            lease_lost=chance((0, 0, 0.002)),
            session_deleted=chance((0, 0, 0.01, 0.1)),
            more=chance((0, 0, 0.02, 0.2)),
        )
        self.now = 1_000_000.0
        self.pace = chance(((0.0,), (0.0, 0.1), (0.0, 1.0, 12.0)))
        self.opencode = OpenCode()
        self.session_made = self.deleted = False
        self.log = Log()
        self.unwritten: list[Update] = []
        self.received: list[str] = []  # prompts, as OpenCode got them
        self.in_session: set[str] = set()  # those of the session that is there now
        self.aborted = False
        self.canceled = False
        self.gave_up = False  # a run could not be stopped in time
        self.finish: Finish | None = None
        self.pending: list[int] = []  # prompts that are being stored
        self.keys = 0
        fresh = self.dice.random() < 0.5
        self.limits = replace(LIMITS, continues=self.dice.random() < 0.5)
        self.run = Run(self.limits, fresh=fresh)
        self.expect_prompt()

    def lucky(self, chance: float) -> bool:
        return self.dice.random() >= chance

    # -- the log

    def append(self, updates: list[Update]) -> None:
        self.unwritten += updates
        if self.dice.random() < 0.5:
            self.flush()

    def flush(self) -> None:
        said = {
            part: text
            for truth in self.opencode.truths.values()
            for part, text in truth.said.items()
        }
        self.log.write(self.unwritten, said)
        self.unwritten = []

    def feed(self, happened: Happened) -> None:
        self.append(self.run.feed(happened, self.now))

    # -- callers

    def expect_prompt(self) -> None:
        self.feed(PromptExpected(self.keys))
        self.pending.append(self.keys)
        self.keys += 1

    def store_prompt(self) -> None:
        key = self.pending.pop(0)
        message = Message(f"m-{key}", Role.USER, (Text("hello"),))
        name = f"msg_0000_{key}" if not self.received else self.opencode.new("msg")
        self.flush()
        self.append([MessageAdded(message, name)])
        self.flush()
        self.feed(PromptStored(key, Prompt(name, ("hello",))))

    def callers_act(self) -> None:
        if self.pending and self.dice.random() < 0.3:
            if self.keys > 1 and self.dice.random() < 0.1:
                self.feed(PromptWithdrawn(self.pending.pop(0)))
            else:
                self.store_prompt()
        if (
            self.keys < 4
            and not self.pending
            and not self.run.closed
            and not self.lucky(self.luck.more)
        ):
            self.expect_prompt()
        if self.log.entries and not self.lucky(self.luck.cancel):
            self.canceled = True
            self.feed(CancelRequested())
        found = self.run.open_requests
        if found is None:  # before there is a turn, callers see what the log shows
            found = self.log.task.interrupts
        if found and not self.run.canceled and self.dice.random() < 0.2:
            opened = self.dice.choice(list(found.values()))
            reply = self.dice.choice(("once", "reject"))
            decision = PermissionDecision("once" if reply == "once" else "reject")
            grants = ("*",) if reply == "once" and self.dice.random() < 0.2 else ()
            answer = InterruptAnswered(opened.interrupt, decision, reply, len(found) - 1, grants)
            self.flush()
            self.append([answer])
            self.flush()
            self.feed(RequestAnswered(answer))

    # -- OpenCode

    def opencode_works(self) -> None:
        code, dice = self.opencode, self.dice
        if code.late:
            code.catch_up()
        elif code.running is None or (code.requests and dice.random() < 0.9):
            return
        elif code.answer is None:
            code.begin()
        else:
            moves: list[Callable[[], None]] = [
                lambda: code.open_text(dice.choice((BlockKind.TEXT, BlockKind.REASONING))),
                code.call_tool,
                code.ask,
                code.sub_agent,
            ]
            if dice.random() < 0.3:
                ends = ("stop", "stop", "stop", "tool-calls", "tool-calls", "length")
                moves.append(lambda: code.finish(dice.choice(ends)))
            if dice.random() < 0.03:
                moves = [lambda: code.fail(aborted=False)]
            for part in code.texts:
                moves += [partial(code.say, part, "word ")] * 3 + [partial(code.close_text, part)]
            moves += [partial(code.end_tool, part, error=False) for part in code.calls]
            dice.choice(moves)()
        if not self.lucky(self.luck.opencode_death):
            code.die()
        if not self.lucky(self.luck.lost_events):
            code.feed.clear()
            code.feed.append(Gap(ROOT))

    # -- effects

    def perform(self, effect: Effect) -> Happened | None:
        touches = (
            OpenSession,
            Subscribe,
            FindPrompt,
            SendPrompt,
            Reconcile,
            Deliver,
            Abort,
            ReadChanges,
            StoreContinuation,
        )
        if isinstance(effect, touches):
            if not self.lucky(self.luck.refused) and isinstance(effect, SendPrompt | OpenSession):
                return EffectFailed(effect, REFUSED, unreachable=False)
            if not self.lucky(self.luck.lost_request):
                self.now += self.dice.choice((0.0, 0.5, 2.0))
                return EffectFailed(effect, AWAY, unreachable=True)
        happened = self.carry_out(effect)
        if isinstance(effect, touches) and not self.lucky(self.luck.lost_answer):
            return EffectFailed(effect, AWAY, unreachable=True)
        return happened

    def carry_out(self, effect: Effect) -> Happened | None:
        code = self.opencode
        match effect:
            case Wait(until):
                if until is not None:
                    self.now = max(self.now, until)
                elif self.pending:
                    self.store_prompt()
                return None
            case AwaitOlderTasks():
                self.feed(TaskQueued(self.dice.choice(("older", "other"))))
                return OlderTasksChecked(left=self.dice.random() < 0.2)
            case OpenSession() | RenewSession():
                if isinstance(effect, RenewSession) or not self.session_made:
                    self.session_made, self.deleted = True, False
                    self.in_session.clear()
                return SessionOpened(ROOT, "title")
            case DiscardSession():
                return SessionDiscarded()
            case AwaitSlot():
                self.feed(TaskQueued())
                return SlotGranted()
            case Subscribe():
                code.feed.clear()
                return Subscribed()
            case FindPrompt(message_id):
                return PromptSearched(not self.deleted and message_id in self.in_session)
            case SendPrompt(prompt):
                return self.send(effect, prompt)
            case StoreContinuation(key, selection):
                prompt = Prompt(self.opencode.new("msg"), ("continue",), selection)
                self.append([Continued(prompt.message_id, selection)])
                self.flush()
                return PromptStored(key, prompt)
            case Listen(until):
                return self.listen(until)
            case Reconcile(message_id):
                if self.deleted:
                    return SessionMissing(effect)
                return StoredRead(code.read(message_id, code.status))
            case Deliver(interrupt=interrupt, decision=decision):
                return self.settle(effect, interrupt.request_id, allowed=not refuses(decision))
            case ExpireRequests():
                return RequestsExpired()
            case Abort():
                self.aborted = True
                if code.answer is not None:
                    code.fail(aborted=True)
                elif code.running is not None:
                    code.begin()
                    code.fail(aborted=True)
                return Aborted()
            case Flush(updates):
                self.unwritten += updates
                self.flush()
                return Flushed()
            case ReadChanges():
                return ChangesRead(())
            case Finish():
                raise AssertionError("it was finished")

    def send(self, effect: SendPrompt, prompt: Prompt) -> Happened:
        if self.deleted:
            return SessionMissing(effect)
        name, code = prompt.message_id, self.opencode
        assert name not in self.answered, "a prompt that the model has heard is not sent again"
        assert code.running is None or self.received, "one prompt at a time"
        assert not self.run.canceled or not self.canceled or self.run.give_up_at is not None
        if not self.lucky(self.luck.not_begun):
            if self.dice.random() < 0.5:
                self.received.append(name)
                self.in_session.add(name)
                code.send(MessageSeen(ROOT, name, Speaker.USER, code.now))
            return PromptSent()
        self.received.append(name)
        self.in_session.add(name)
        self.aborted = False  # that was for the prompt before
        if code.running is None:
            code.prompt(name)
        return PromptSent()

    @property
    def answered(self) -> set[str | None]:
        """The prompts to which OpenCode has an answer, if only a begun one."""
        return {message.parent_id for message in self.opencode.messages.values()}

    def listen(self, until: float) -> Happened:
        assert until >= self.now, "nobody listens until a time that has passed"
        events = []
        for _ in range(self.dice.randint(0, 6)):
            if self.opencode.feed:
                events.append(self.opencode.feed.popleft())
        if events:
            self.now += self.dice.random() / 10
            return Heard(events)
        self.now = max(self.now, until if self.dice.random() < 0.5 else min(until, self.now + 0.3))
        return NothingHeard()

    def settle(self, effect: Deliver, request_id: str, *, allowed: bool) -> Happened:
        wanted = request_id in self.opencode.requests
        assert not (allowed and self.aborted and wanted), "nothing is allowed after an abort"
        if wanted:
            self.opencode.reply(request_id)
        return Delivered(effect.interrupt, wanted)

    # -- bad luck

    def die(self) -> None:
        """The process dies with what it has not written; the next one goes on from the log."""
        self.unwritten = []
        for _ in range(self.dice.randint(0, 20)):
            self.opencode_works()
        if not self.log.entries or self.log.task.ended is not None:
            return
        self.pending = []
        task = self.log.task
        asked = [e.update for e in task.history if isinstance(e.update, MessageAdded | Continued)]
        prompts = [Prompt(added.upstream_id, ()) for added in asked if added.upstream_id]
        self.run = Run(self.limits, resumed=task.snapshot(), prompts=prompts)
        self.canceled = self.aborted = False

    def play(self) -> None:
        for _ in range(MAX_STEPS):
            self.now += self.dice.choice(self.pace)
            until = self.run.give_up_at
            self.gave_up |= until is not None and self.now >= until
            self.callers_act()
            for _ in range(self.dice.randint(0, 2)):
                self.opencode_works()
            if not self.log.entries and self.dice.random() < 0.01:
                self.feed(TaskNotStored())
                self.pending = []
            if not self.lucky(self.luck.death) and self.log.entries:
                self.die()
            if not self.lucky(self.luck.session_deleted):
                self.deleted = True
                self.opencode.die()
            if self.run.working and not self.lucky(self.luck.lease_lost):
                self.feed(LeaseLost())
            effect = self.run.next(self.now)
            if isinstance(effect, Finish):
                self.finish = effect
                break
            happened = self.perform(effect)
            if happened is not None:
                self.feed(happened)
        assert self.finish is not None, "nothing stays working for ever"
        self.unwritten += self.finish.updates
        self.flush()
        self.check_end(self.finish)

    def check_end(self, finish: Finish) -> None:
        assert self.run.feed(Heard([Idle(ROOT)]), self.now) == [], "nothing follows the end"
        assert self.run.next(self.now) == finish
        if not finish.updates:
            return  # the task is another process's, or does not exist
        task = self.log.task
        assert isinstance(finish.updates[-1], Ended)
        assert task.ended is not None
        left_running = task.ended.state is TaskState.CANCELED and self.opencode.running is not None
        assert not left_running or self.gave_up, "while there is time, a canceled run is stopped"
        assert not task.open_interrupts, "every request is settled"
        for block in task.visible_blocks():
            assert block.last or block.file, f"every block is closed: {block}"
        ended = [e for e in self.log.entries if isinstance(e.update, Ended)]
        assert len(ended) == 1
        continued = [e for e in self.log.entries if isinstance(e.update, Continued)]
        assert len(continued) <= self.limits.continues, "a task is continued at most once"
        assert all(not isinstance(e.update, BlockText | BlockTool) for e in self.log.entries[-1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        try:
            History(seed).play()
        except BaseException:
            sys.stderr.write(f"history {seed}:\n")
            raise
    sys.stdout.write(f"{options.count} histories in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
