"""Whatever happens in whatever order, a task ends with what OpenCode has stored.

The machine plays both sides. A small OpenCode works on prompts and keeps what the real one
keeps; it is the truth. A small service hears it badly: events wait, come twice or are lost,
what is stored is read early or late, the service dies with half of what it said unwritten,
OpenCode dies with a run in the middle. The two parts under test are `Turn` and `Task`, driven
as `domain/exchange.py` drives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from opencode_a2a.domain.events import (
    AgentEvent,
    BlockKind,
    Busy,
    CaughtUp,
    ChildStarted,
    Compacting,
    Gap,
    Idle,
    InterruptAsked,
    InterruptClosed,
    MessageSeen,
    Retrying,
    SessionErred,
    Speaker,
    StepFinished,
    StepStarted,
    TextDelta,
    TextSnapshot,
    ToolCall,
    ToolSnapshot,
)
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.turn import Turn
from opencode_a2a.domain.updates import (
    BlockPhase,
    BlockText,
    Ended,
    LogEntry,
    MessageAdded,
    Progress,
    Started,
    Update,
    coalesce,
)
from opencode_a2a.domain.values import (
    TERMINAL_STATES,
    Failure,
    Message,
    PermissionAsk,
    Problem,
    Role,
    TaskState,
    Text,
    Usage,
)
from tests.domain.logs import HEAD, STEADY, visible

ROOT = "ses_root"
PROBLEM = Problem(Failure.PROVIDER_ERROR, "The model could not answer.")
SPENT = Usage(3, 1)
PROMPTS = 3
SECRET = "SECRET"  # no client may see it
MOVES = st.lists(st.integers(0, 9_999), max_size=10)  # what OpenCode does, each another choice
Time = tuple[Sequence[int], int, bool]  # what it does, how much of it is heard, whether written
TIMES = st.tuples(MOVES, st.sampled_from([99, 99, 99, 3, 0]), st.sampled_from([True, True, False]))

Part = TextSnapshot | ToolSnapshot | StepStarted | StepFinished


@dataclass
class Truth:
    """One prompt, and what has come of it."""

    said: dict[str, str] = field(default_factory=dict)  # all a part has said so far
    closed: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    outcome: TaskState | None = None
    is_lost: bool = False


class OpenCode:
    """Does as it is told, sends events about it, and keeps what the real one keeps."""

    def __init__(self) -> None:
        self.feed: deque[AgentEvent] = deque()  # sent, and not heard yet
        self.truths: dict[str, Truth] = {}
        self.messages: dict[str, MessageSeen] = {}
        self.parts: dict[str, Part] = {}
        self.births: list[tuple[str, ChildStarted]] = []  # each with the prompt it was born under
        self.child_parts: dict[str, Part] = {}
        self.requests: dict[str, InterruptAsked] = {}
        self.status: AgentEvent = Idle(ROOT)
        self.running: str | None = None  # the prompt it works on
        self.parent = ""
        self.answer: MessageSeen | None = None
        self.texts: dict[str, list[str]] = {}  # open, by part
        self.calls: dict[str, ToolCall] = {}
        self.late: list[AgentEvent] = []  # what follows an early idle
        self._made = 0

    def new(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._made:04}"

    @property
    def now(self) -> int:
        return 100 + self._made // 2  # some things happen within one millisecond

    @property
    def truth(self) -> Truth:
        assert self.running is not None
        return self.truths[self.running]

    def send(self, *events: AgentEvent) -> None:
        for event in events:
            self._keep(event)
            self.feed.append(event)

    def _keep(self, event: AgentEvent) -> None:
        match event:
            case MessageSeen(session=session) if session == ROOT:
                self.messages[event.message_id] = event
            case TextSnapshot() | ToolSnapshot() | StepStarted() | StepFinished() if (
                event.session == ROOT
            ):
                self.parts[event.part_id] = event
            case ChildStarted():
                assert self.running is not None
                self.births.append((self.running, event))
            case StepStarted() | StepFinished() | ToolSnapshot():
                self.child_parts[event.part_id] = event
            case InterruptAsked():
                self.requests[event.interrupt.request_id] = event
            case InterruptClosed():
                self.requests.pop(event.request_id)
            case Busy() | Idle() | Retrying() if event.session == ROOT:
                self.status = event
            case _:
                pass

    def read(self, since: str, status: AgentEvent) -> list[AgentEvent]:
        """What is stored from a message on; the status was asked for a little earlier."""
        told: list[AgentEvent] = []
        for message in self.messages.values():
            if message.message_id >= since:
                begun = replace(message, completed=False, finish=None, problem=None, aborted=False)
                own = [p for p in self.parts.values() if p.message_id == message.message_id]
                told += [begun, *own, message]
        births = [birth for prompt, birth in self.births if prompt >= since]
        children = {birth.session for birth in births}
        steps = [part for part in self.child_parts.values() if part.session in children]
        asked = list(self.requests.values())
        caught_up = CaughtUp(ROOT, frozenset(self.requests))
        return [*births, *told, *steps, status, *asked, caught_up]

    # -- its work

    def prompt(self, message_id: str) -> None:
        self.running = self.parent = message_id
        self.truths[message_id] = Truth()
        prompt = TextSnapshot(ROOT, message_id, self.new("prt"), BlockKind.TEXT, SECRET, ended=True)
        self.send(MessageSeen(ROOT, message_id, Speaker.USER, self.now), prompt, Busy(ROOT))

    def begin(self) -> None:
        self.answer = MessageSeen(ROOT, self.new("msg"), Speaker.AGENT, self.now, self.parent)
        step = StepStarted(ROOT, self.answer.message_id, self.new("prt"))
        self.send(self.answer, Busy(ROOT), step)

    def open_text(self, kind: BlockKind) -> None:
        part = self.new("prt")
        self.texts[part], self.truth.said[part] = [], ""
        self.send(self._text(part, kind, ""))

    def _text(self, part: str, kind: BlockKind, text: str, ended: bool = False) -> TextSnapshot:
        assert self.answer is not None
        return TextSnapshot(ROOT, self.answer.message_id, part, kind, text, ended)

    def say(self, part: str, piece: str) -> None:
        assert self.answer is not None
        self.texts[part].append(piece)
        self.truth.said[part] += piece
        self.send(TextDelta(ROOT, self.answer.message_id, part, piece))

    def close_text(self, part: str, edit: str | None = None) -> None:
        """A plugin may have changed the text in the end: `edit` is what it is then."""
        said = "".join(self.texts.pop(part))
        text = said if edit is None else edit
        self.truth.said[part] = text if text.startswith(said) else ""
        self.truth.closed[part] = text
        kept = self.parts[part]
        assert isinstance(kept, TextSnapshot)
        self.send(replace(kept, text=text, ended=True))

    def call_tool(self) -> None:
        part = self.new("prt")
        self._tool(part, ToolCall(part, "bash", "pending"))

    def _tool(self, part: str, call: ToolCall, stops: bool = False) -> None:
        assert self.answer is not None
        self.calls[part], self.truth.tools[part] = call, call.status
        self.send(ToolSnapshot(ROOT, self.answer.message_id, part, call, stops=stops))
        if call.over:
            del self.calls[part]

    def work_tool(self, part: str) -> None:
        title = f"{self.calls[part].title or ''}."
        self._tool(part, replace(self.calls[part], status="running", title=title))

    def end_tool(self, part: str, error: bool, stops: bool = False) -> None:
        call = replace(self.calls[part], status="error" if error else "completed")
        self._tool(part, call, stops)

    def ask(self) -> None:
        ask = PermissionAsk(self.new("per"), ROOT, "bash")
        self.send(InterruptAsked(ROOT, ask))

    def reply(self, request: str) -> None:
        self.send(InterruptClosed(ROOT, request, "once"))

    def retry(self) -> None:
        """The provider failed: what was open is left behind, in the store too."""
        self.texts.clear()
        self.send(Retrying(ROOT, 1, "again", next_at=int(self.new("")[1:])), Busy(ROOT))

    def sub_agent(self) -> None:
        self.truth.steps += 1
        child = self.new("ses")
        where = (child, self.new("msg"), self.new("prt"))
        tool = (child, where[1], self.new("prt"))
        running = ToolCall("call", "bash", "running", input={"command": SECRET})
        self.send(
            ChildStarted(child, ROOT, "general"),
            StepStarted(child, where[1], self.new("prt")),
            TextSnapshot(*where, BlockKind.TEXT, "", ended=False),
            TextDelta(*where, SECRET),
            SessionErred(child, PROBLEM),
            ToolSnapshot(*tool, running),
            TextSnapshot(*where, BlockKind.TEXT, SECRET, ended=True),
            ToolSnapshot(*tool, replace(running, status="completed", output=SECRET)),
            StepFinished(child, where[1], self.new("prt"), SPENT),
            Idle(child),
        )

    def compact(self) -> None:
        """Between two answers: a summary nobody may see, and a message to go on under."""
        request, summary = self.new("msg"), self.new("msg")
        begun = MessageSeen(ROOT, summary, Speaker.HOUSEKEEPING, self.now, request)
        where = (ROOT, summary, self.new("prt"))
        self.truth.steps += 1
        self.send(
            MessageSeen(ROOT, request, Speaker.USER, self.now),
            Compacting(ROOT, done=False, part_id=self.new("prt")),
            begun,
            StepStarted(ROOT, summary, self.new("prt")),
            TextSnapshot(*where, BlockKind.TEXT, "", ended=False),
            TextDelta(*where, SECRET),
            TextSnapshot(*where, BlockKind.TEXT, SECRET, ended=True),
            StepFinished(ROOT, summary, self.new("prt"), SPENT),
            replace(begun, completed=True, finish="stop"),
            Compacting(ROOT, done=True),
        )
        self.parent = self.new("msg")
        self.send(MessageSeen(ROOT, self.parent, Speaker.USER, self.now))

    def finish(self, finish: str, refused: bool = False) -> None:
        """The answer is complete; with `tool-calls` the run goes on, unless one was refused."""
        assert self.answer is not None
        refused = refused and bool(self.calls)
        for part in list(self.calls):
            self.end_tool(part, error=refused, stops=refused)
        for part in list(self.texts):
            self.close_text(part)
        self.truth.steps += 1
        step = StepFinished(ROOT, self.answer.message_id, self.new("prt"), SPENT)
        done = replace(self.answer, completed=True, finish=finish)
        self.send(step, replace(self.answer, finish=finish), done)
        self.answer = None
        if refused or finish != "tool-calls":
            outcomes = {"stop": TaskState.COMPLETED, "length": TaskState.FAILED}
            self._end(outcomes.get(finish, TaskState.CANCELED))
            self.send(done, Idle(ROOT), Idle(ROOT))

    def fail(self, aborted: bool) -> None:
        """Idle comes early here, and what it ends only a moment later."""
        assert self.answer is not None
        problem = None if aborted else PROBLEM
        for part in list(self.calls):
            self.end_tool(part, error=True)
        done = replace(self.answer, completed=True, problem=problem, aborted=aborted)
        self.send(*([] if problem is None else [SessionErred(ROOT, problem)]), Idle(ROOT))
        for request in list(self.requests):
            self.reply(request)
        for part in list(self.texts):
            self.close_text(part)
        self.answer, self.late = None, [done, Idle(ROOT)]
        self._end(TaskState.CANCELED if aborted else TaskState.FAILED)

    def catch_up(self) -> None:
        self.send(*self.late)
        self.late = []

    def die(self) -> None:
        """And come back. What was stored is there, what was running is not."""
        self.catch_up()
        self.status, self.answer = Idle(ROOT), None
        self.requests.clear()
        self.texts.clear()
        self.calls.clear()
        if self.running is not None:
            self.truth.is_lost = True
            self._end(TaskState.FAILED)

    def _end(self, outcome: TaskState) -> None:
        self.truth.outcome = outcome
        self.running = None


class Log:
    """What is committed, and nothing else; every piece must be fit for who has those before."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.task = Task(HEAD, status_at=HEAD.created_at)
        self._shown: dict[str, str] = {}
        self._closed: set[str] = set()

    def write(self, updates: Sequence[Update], said: dict[str, str]) -> None:
        for update in coalesce(updates):
            assert self.task.ended is None, "nothing is written after the end"
            self.entries.append(LogEntry(len(self.entries) + 1, 7, update))
            self.task.apply(self.entries[-1])
            if isinstance(update, BlockText):
                self._check(update, said)

    def _check(self, update: BlockText, said: dict[str, str]) -> None:
        block = update.block_id
        if update.append:
            assert block in self._shown, "the first piece of a block begins it"
            assert block not in self._closed, "a closed block is not continued"
        self._shown[block] = (self._shown[block] if update.append else "") + update.text
        if update.last:
            self._closed.add(block)
        else:
            self._closed.discard(block)
        if whole := said.get(update.part_id):
            assert whole.startswith(self._shown[block]), "no holes, whatever was lost"


class Turns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.opencode = OpenCode()
        self.log = Log()
        self.unwritten: list[Update] = []
        self.prompts: list[str] = []  # of the task, asked or waiting
        self.looked_at_late = False
        self.last_heard: AgentEvent | None = None
        self.add_message()
        self.unwritten.append(Started(ROOT))
        self.turn = Turn(ROOT, self.prompts[0])
        self.opencode.prompt(self.prompts[0])

    # -- OpenCode works, whatever else happens

    def work(self, moves: Sequence[int]) -> None:
        for number in moves:
            if possible := self.moves():
                choice, which = divmod(number, len(possible))
                possible[which](choice)

    def moves(self) -> list[Callable[[int], None]]:
        """What it can do now, the usual more often."""
        opencode = self.opencode
        if opencode.late:
            return [self.what_was_late_comes, lambda _: None, lambda _: None]
        if opencode.running is None:
            return []
        if opencode.requests:
            return [self.somebody_replies, lambda _: None, lambda _: None]
        if opencode.answer is None:
            can_compact = opencode.parent == opencode.running
            return [lambda _: opencode.begin()] * 3 + [lambda _: opencode.compact()] * can_compact
        moves: list[Callable[[int], None]] = []
        moves += [self.a_text_opens] * (5 if len(opencode.texts) < 2 else 0)
        moves += ([self.it_says] * 9 + [self.a_text_closes] * 2) * bool(opencode.texts)
        moves += [lambda _: opencode.call_tool()] * (not opencode.calls)
        moves += ([self.a_tool_works] * 2 + [lambda _: opencode.ask()]) * bool(opencode.calls)
        moves += [lambda _: opencode.retry(), lambda _: opencode.sub_agent()]
        return [*moves, self.an_answer_ends]

    def a_text_opens(self, choice: int) -> None:
        self.opencode.open_text(BlockKind.TEXT if choice % 3 else BlockKind.REASONING)

    def it_says(self, choice: int) -> None:
        part = _one_of(self.opencode.texts, choice)
        for piece in ("a", "bc ", " d")[choice % 3 :]:
            self.opencode.say(part, piece)

    def a_text_closes(self, choice: int) -> None:
        part = _one_of(self.opencode.texts, choice)
        said = "".join(self.opencode.texts[part])
        edits = [None, None, None, f"{said}and more", said.strip() or "something else"]
        self.opencode.close_text(part, edits[choice % 5])

    def a_tool_works(self, choice: int) -> None:
        part = _one_of(self.opencode.calls, choice)
        if choice % 2:
            self.opencode.work_tool(part)
        else:
            self.opencode.end_tool(part, error=choice % 4 == 0)

    def somebody_replies(self, choice: int) -> None:
        self.opencode.reply(_one_of(self.opencode.requests, choice))

    def an_answer_ends(self, choice: int) -> None:
        opencode = self.opencode
        match choice % 24:
            case 0:
                opencode.finish("stop")
            case 1:
                opencode.finish("length")
            case 2:
                opencode.finish("tool-calls", refused=True)
            case 3:
                opencode.fail(aborted=False)
            case 4:
                opencode.fail(aborted=True)
            case _:
                opencode.finish("tool-calls")

    def what_was_late_comes(self, _: int = 0) -> None:
        self.opencode.catch_up()
        self.looked_at_late = False

    # -- the service hears it well, or badly

    @property
    def over(self) -> bool:
        ended = any(isinstance(update, Ended) for update in self.unwritten)
        return ended or self.log.task.ended is not None

    def live(self, time: Time) -> None:
        """OpenCode works, the service hears of it and writes down what follows, mostly."""
        moves, heard, written = time
        self.work(moves)
        for _ in range(heard):
            if self.opencode.feed:
                self.hear(self.opencode.feed.popleft())
        if written:
            self.write()

    @rule(time=TIMES)
    def all_is_well(self, time: Time) -> None:
        self.live(time)

    @rule(time=TIMES)
    def something_is_heard_twice(self, time: Time) -> None:
        self.live(time)
        if not isinstance(self.last_heard, TextDelta | Compacting | CaughtUp | None):
            self.hear(self.last_heard)

    @rule(time=TIMES, meanwhile=MOVES, missed=st.sampled_from([99, 99, 5, 2, 1, 0]))
    def the_connection_breaks(self, time: Time, meanwhile: Sequence[int], missed: int) -> None:
        self.live(time)
        self.work(meanwhile)
        for _ in range(min(missed, len(self.opencode.feed))):
            self.opencode.feed.popleft()
        self.opencode.feed.appendleft(Gap(ROOT))

    @precondition(lambda self: not self.over)
    @rule(time=TIMES, meanwhile=MOVES)
    def it_looks(self, time: Time, meanwhile: Sequence[int]) -> None:
        """It asks for the status first, and for the messages a little later."""
        self.live(time)
        if self.opencode.late:
            if self.looked_at_late:  # two looks are further apart than an early idle and its end
                self.what_was_late_comes()
            self.looked_at_late = True
        status = self.opencode.status
        self.work(meanwhile)
        turn = self.turn
        for event in self.opencode.read(turn.message_id, status):
            if self.turn is turn:  # the run may end in the middle of it
                self.hear(event)

    @rule(time=TIMES, sure=st.integers(0, 3))
    def opencode_dies(self, time: Time, sure: int) -> None:
        self.live(time)
        if sure == 0:
            self.what_was_late_comes()
            self.opencode.die()
            self.opencode.feed = deque([Gap(ROOT)])

    @precondition(lambda self: not self.over and len(self.prompts) < PROMPTS)
    @rule(time=TIMES)
    def another_message_comes(self, time: Time) -> None:
        self.live(time)
        if not self.over:
            self.add_message()

    def add_message(self) -> None:
        self.prompts.append(self.opencode.new("msg"))
        message = Message("m", Role.USER, (Text("hello"),))
        self.unwritten.append(MessageAdded(message, self.prompts[-1]))
        self.write()

    @precondition(lambda self: self.log.task.ended is None)
    @rule(time=TIMES, meanwhile=MOVES)
    def the_service_dies(self, time: Time, meanwhile: Sequence[int]) -> None:
        """What it had not written was never said; the next one goes on from the log."""
        self.live(time)
        self.work(meanwhile)
        if self.log.task.ended is None:
            self.unwritten, self.last_heard = [], None
            self.opencode.feed.clear()
            self.turn = self.taken_up()

    def hear(self, event: AgentEvent) -> None:
        self.last_heard = event
        turn, was_over = self.turn, self.turn.outcome is not None
        limit = 1
        if isinstance(event, MessageSeen | CaughtUp | Idle):  # a beginning, or an end of much
            limit = 1 + len(turn.requests.open) + sum(len(t.said) for t in self.truths())
            limit += sum(len(t.tools) for t in self.truths())
        updates = turn.feed(event)
        assert sum(not isinstance(update, BlockPhase) for update in updates) <= limit
        assert not (was_over and updates), "something was said after the end"
        self.unwritten += updates
        if turn.outcome is not None and not was_over:
            self.run_is_over()

    def run_is_over(self) -> None:
        outcome = self.turn.outcome
        assert outcome is not None
        waiting = [prompt for prompt in self.prompts if prompt not in self.opencode.truths]
        if not waiting:
            self.unwritten.append(Ended(outcome.state, outcome.message, outcome.problem))
            return
        if outcome.state is not TaskState.COMPLETED:
            self.unwritten.append(Progress("run", outcome.state.value, message=outcome.message))
        self.write()
        # It listens anew, and hears at most the last words of the run before.
        late = [e for e in self.opencode.feed if isinstance(e, Idle | MessageSeen)]
        self.opencode.feed = deque(late)
        self.turn = Turn(ROOT, waiting[0])
        self.opencode.prompt(waiting[0])

    def write(self) -> None:
        said = {part: text for truth in self.truths() for part, text in truth.said.items()}
        self.log.write(self.unwritten, said)
        self.unwritten = []

    def taken_up(self) -> Turn:
        asked = [prompt for prompt in self.prompts if prompt in self.opencode.truths]
        turn = Turn(ROOT, asked[-1])
        turn.resume(Task.of(HEAD, [e for e in self.log.entries if not _ends(e)]))
        return turn

    def truths(self) -> list[Truth]:
        return list(self.opencode.truths.values())

    # -- what must hold

    @invariant()
    def the_state_tells_whether_it_waits_for_a_person(self) -> None:
        task = self.log.task
        if task.state not in TERMINAL_STATES:
            waits = task.state is TaskState.INPUT_REQUIRED
            assert waits == bool(task.open_interrupts)
        heard_all = (
            not self.opencode.feed and not self.opencode.late and not self.turn.needs_reconcile
        )
        if heard_all and not self.over and not self.unwritten:
            assert {ask.request_id for ask in task.open_interrupts} == set(self.opencode.requests)

    def teardown(self) -> None:
        self.let_it_end()
        self.write()
        task = self.log.task
        last = self.truths()[-1]
        assert task.ended is not None
        assert task.state is last.outcome
        assert visible(Task.of(HEAD, self.log.entries)) == visible(task)
        self.check_output(task)
        told = [entry.update for entry in self.log.entries]
        assert SECRET not in str(told)
        once = [u for u in told if isinstance(u, Progress) and (u.part_id or u.type == "retry")]
        assert len(once) == len(set(once)), "told once, whoever tells it"
        phased: set[str] = set()
        for update in told:
            if isinstance(update, BlockText) and not update.append:
                phased.discard(update.block_id)
            elif isinstance(update, BlockPhase):
                assert update.block_id not in phased, "what a text is does not change"
                phased.add(update.block_id)
        self.check_that_nothing_is_new_to_the_next()
        state = task.state
        task.apply(LogEntry(len(told) + 1, 9, Ended(TaskState.CANCELED)))
        assert (task.state, task.last_seq) == (state, len(told)), "the first end wins"

    def let_it_end(self) -> None:
        """OpenCode ends what it has begun; the service looks when it is in doubt, as it does."""
        opencode = self.opencode
        for _ in range(3 * PROMPTS):
            if opencode.running is not None:
                for request in list(opencode.requests):
                    opencode.reply(request)
                if opencode.answer is None:
                    opencode.begin()
                opencode.finish("stop")
            opencode.catch_up()
            while opencode.feed:
                self.hear(opencode.feed.popleft())
            if self.over:
                return
            if opencode.running is None:
                assert self.turn.in_doubt, "it would wait for long"
                self.it_looks(([], 0, True), [])
        raise AssertionError("it never ends")

    def check_output(self, task: Task) -> None:
        texts = {b.part_id: b.text for b in task.visible_blocks() if b.call is None}
        tools = {b.id: b.call.status for b in task.visible_blocks() if b.call is not None}
        for truth in self.truths():
            closed = {part: text for part, text in truth.closed.items() if text}
            shown = {part: texts.pop(part) for part in truth.said if part in texts}
            left_open = {part: text for part, text in shown.items() if part not in closed}
            assert {part: text for part, text in shown.items() if part in closed} == closed
            assert truth.is_lost or not left_open
            assert all(truth.said[part].startswith(text) for part, text in left_open.items())
            for part, status in truth.tools.items():
                over = status in ("completed", "error")
                assert tools.pop(part) == (status if over else "error")
        assert (texts, tools) == ({}, {}), "nobody said that"
        assert all(block.last for block in task.visible_blocks())
        spent = sum((SPENT for t in self.truths() for _ in range(t.steps)), Usage())
        assert (task.usage or Usage()) == spent

    def check_that_nothing_is_new_to_the_next(self) -> None:
        """The process may die between the last word and the end of the task."""
        turn, opencode = self.taken_up(), self.opencode
        for _ in range(2):
            for event in opencode.read(turn.message_id, opencode.status):
                assert turn.feed(event) == []
        assert turn.outcome is not None
        assert turn.outcome.state is self.truths()[-1].outcome


def _one_of(several: Iterable[str], choice: int) -> str:
    found = list(several)
    return found[choice % len(found)]


def _ends(entry: LogEntry) -> bool:
    return isinstance(entry.update, Ended)


TestTurns = Turns.TestCase
TestTurns.settings = settings(STEADY, stateful_step_count=30)
