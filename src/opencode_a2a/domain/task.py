"""A task is the fold of its log: feed it the entries in order and ask it anything.

The fold keeps what a client may ask for (state, blocks, history, usage), in the
order it appeared. Text stays in pieces until somebody reads it, so applying an
entry costs the same at any length. First terminal state wins: entries after it
change nothing.

A snapshot shares its blocks with the task until one of the two changes a block:
`Task.epoch` counts snapshots, and a block of an older epoch is copied first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from .events import BlockKind, ToolCall
from .updates import (
    BlockFile,
    BlockOutput,
    BlockPhase,
    BlockText,
    BlockTool,
    BlockUpdate,
    ChangesMade,
    Continued,
    DecidedBy,
    DecisionRecord,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    InterruptUpdate,
    LogEntry,
    MessageAdded,
    NodeLost,
    NodeReturned,
    PeerUsageAdded,
    Progress,
    PromptDone,
    Queued,
    RequestRecord,
    Retold,
    SessionTitled,
    Started,
)
from .values import (
    AnsweredBy,
    CallPath,
    FileChange,
    Interrupt,
    Message,
    OutputModes,
    Part,
    SessionRef,
    TaskState,
    Usage,
    deepest,
    in_brief,
)

ENDED = "ended"  # how a request was settled that the end of its task has overtaken


@dataclass(frozen=True, slots=True)
class TaskHead:
    """What a task is from the first moment on, whatever becomes of it."""

    id: str
    context_id: str
    owner: str
    created_at: int
    modes: OutputModes = OutputModes()


@dataclass(slots=True)
class Block:
    """One piece of output: answer text, reasoning, a tool call, or a file."""

    id: str
    message_id: str
    kind: BlockKind
    seq: int
    pieces: list[str] = field(default_factory=list)
    part_id: str = ""
    tool: ToolCall | None = None  # the last whole call …
    output: list[str] = field(default_factory=list)  # … and what it has printed since
    file: Part | None = None
    last: bool = False
    phase: Literal["commentary", "answer"] | None = None  # of a text, once that is known
    phase_seq: int = 0
    epoch: int = field(default=0, compare=False, repr=False)

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    @property
    def call(self) -> ToolCall | None:
        """The tool call with all of its output."""
        if self.tool is not None and self.output:
            output = "".join([self.tool.output or "", *self.output])
            self.tool, self.output = replace(self.tool, output=output), []
        return self.tool


@dataclass(slots=True)
class Task:
    head: TaskHead
    state: TaskState = TaskState.SUBMITTED
    status_at: int = 0
    last_seq: int = 0
    # What the agent was asked, and what it asked for itself, which counts once it is settled.
    history: list[LogEntry] = field(default_factory=list)
    queued: Queued | None = None  # what the task waits for before it begins
    lost: NodeLost | None = None  # while no node can work on it
    retold: bool = False  # its session was told what was said in another one before
    blocks: dict[str, Block] = field(default_factory=dict)
    interrupts: dict[str, InterruptOpened] = field(default_factory=dict)
    answered: dict[str, InterruptAnswered] = field(default_factory=dict)  # not yet resolved
    unclear: str | None = None  # what was not understood of the last answer
    changes: tuple[FileChange, ...] = ()
    changes_seq: int = 0
    session: SessionRef | None = None
    usage: Usage | None = None
    steps: dict[str, Usage] = field(default_factory=dict)  # by upstream part
    reported: set[Progress] = field(default_factory=set)  # what is reported only once
    ended: Ended | None = None
    answered_by: AnsweredBy | None = field(default=None, compare=False)  # so far
    done_prompts: tuple[str, ...] = field(default=(), compare=False)  # all but the newest
    epoch: int = field(default=0, compare=False, repr=False)

    @classmethod
    def of(cls, head: TaskHead, entries: Iterable[LogEntry]) -> Task:
        task = cls(head, status_at=head.created_at)
        for entry in entries:
            task.apply(entry)
        return task

    def snapshot(self) -> Task:
        """The task as it is now. Neither it nor the task changes with the other."""
        self.epoch += 1
        return replace(
            self,
            history=self.history.copy(),
            blocks=self.blocks.copy(),
            interrupts=self.interrupts.copy(),
            answered=self.answered.copy(),
            steps=self.steps.copy(),
            reported=self.reported.copy(),
        )

    def summary(self) -> Task:
        """The task as it is now, without its output and history: its cost is always the same."""
        session = replace(self.session, worktree=None) if self.session is not None else None
        return Task(
            self.head,
            state=self.state,
            status_at=self.status_at,
            last_seq=self.last_seq,
            queued=self.queued,
            lost=self.lost,
            retold=self.retold,
            interrupts=self.interrupts.copy(),
            unclear=self.unclear,
            session=session,
            usage=self.usage,
            ended=self.ended,
            answered_by=self.answered_by,
        )

    @property
    def messages(self) -> list[Message]:
        return [e.update.message for e in self.history if isinstance(e.update, MessageAdded)]

    @property
    def path(self) -> CallPath:
        """The deepest call path of its messages, for the calls that the agent makes for it."""
        return deepest(e.update.path for e in self.history if isinstance(e.update, MessageAdded))

    @property
    def origin(self) -> CallPath:
        """The call path of its first message: all of the task belongs to that trace."""
        updates = (entry.update for entry in self.history)
        return next((each.path for each in updates if isinstance(each, MessageAdded)), CallPath())

    @property
    def open_interrupts(self) -> list[Interrupt]:
        return [opened.interrupt for opened in self.interrupts.values()]

    def apply(self, entry: LogEntry) -> None:
        if self.ended is not None:
            return
        self.last_seq = entry.seq
        update = entry.update
        if entry.state is not None:
            self.state, self.status_at = entry.state, entry.at
        match update:
            case BlockText() | BlockTool() | BlockOutput() | BlockFile() | BlockPhase():
                self._apply_to_block(update, entry.seq)
            case MessageAdded() | Continued() | RequestRecord() | DecisionRecord():
                self.history.append(entry)
            case Progress():
                self._add_progress(update)
            case PromptDone(upstream_id):
                self.done_prompts += (upstream_id,)
            case Ended():
                self._end(update)
            case Queued():
                self.queued = update
            case NodeLost() | NodeReturned():
                self.lost = update if isinstance(update, NodeLost) else None
            case Retold():
                self.retold = True
            case Started() | SessionTitled():
                self._apply_to_session(update)
            case InterruptOpened() | InterruptUnclear() | InterruptAnswered() | InterruptResolved():
                self._apply_to_request(update, entry)
            case PeerUsageAdded(peer=peer, usage=usage):
                self.usage = (self.usage or Usage()) + Usage(peers={peer: usage})
            case ChangesMade(files=files):
                self.changes, self.changes_seq = files, entry.seq
            case _:
                assert_never(update)

    def _add_progress(self, update: Progress) -> None:
        if update.answered_by is not None and update.subagent is None:
            self.answered_by = update.answered_by
        if update.usage is None:
            self.reported.add(update)
        else:
            self.usage = update.usage if self.usage is None else self.usage + update.usage
            self.steps[update.part_id or ""] = update.usage

    def _apply_to_session(self, update: Started | SessionTitled) -> None:
        match update:
            case Started(session=session, title=title, worktree=worktree):
                self.session = SessionRef(session, title, worktree=worktree)
                self.queued = None
            case SessionTitled(title=title):
                if self.session is not None:
                    self.session = replace(self.session, title=title)
            case _:
                assert_never(update)

    def _apply_to_block(self, update: BlockUpdate, seq: int) -> None:
        match update:
            case BlockText():
                block = self._block(update, update.kind)
                if not update.append:
                    block.pieces.clear()
                    block.phase = None
                block.pieces.append(update.text)
                block.part_id, block.last, block.seq = update.part_id, update.last, seq
            case BlockTool():
                block = self._block(update, BlockKind.TOOL_CALL)
                block.tool, block.last, block.seq = update.call, update.call.over, seq
                block.output.clear()
            case BlockFile():
                block = self._block(update, BlockKind.FILE)
                block.file, block.last, block.seq = update.part, True, seq
            case BlockOutput(block_id=block_id, output=output):
                if block_id in self.blocks:
                    block = self._unshared(block_id)
                    block.output.append(output)
                    block.seq = seq
            case BlockPhase(block_id=block_id, phase=phase):
                if block_id in self.blocks:
                    block = self._unshared(block_id)
                    block.phase, block.phase_seq = phase, seq
            case _:
                assert_never(update)

    def _apply_to_request(self, update: InterruptUpdate, entry: LogEntry) -> None:
        match update:
            case InterruptOpened(interrupt=interrupt):
                self.interrupts[interrupt.request_id] = update
                record = RequestRecord(in_brief(interrupt))
                self.history.append(LogEntry(entry.seq, entry.at, record))
            case InterruptUnclear(note=note):
                self.unclear = note
            case InterruptAnswered():
                self.answer(update)
                if update.by is not None and update.by != "message":
                    self.history.append(_decided(entry, update, by=update.by))
            case InterruptResolved(interrupt=interrupt):
                opened = self.interrupts.pop(interrupt.request_id, None)
                if opened is not None and update.resolution != ENDED:
                    self.history.append(_decided(entry, update, by="elsewhere"))
                self.answered.pop(interrupt.request_id, None)
                self.unclear = None
            case _:
                assert_never(update)

    def _end(self, update: Ended) -> None:
        self.ended, self.queued, self.lost = update, None, None
        self.answered_by = update.answered_by or self.answered_by
        self.usage = update.usage or self.usage
        self.interrupts.clear()
        self.answered.clear()
        self.unclear = None
        if update.session:
            worktree = self.session.worktree if self.session is not None else None
            self.session = SessionRef(update.session, update.title, worktree=worktree)

    def answer(self, update: InterruptAnswered) -> None:
        """A request is decided, and the agent has not confirmed it yet."""
        request_id = update.interrupt.request_id
        self.interrupts.pop(request_id, None)
        self.answered[request_id] = update
        self.unclear = None

    def _block(self, update: BlockText | BlockTool | BlockFile, kind: BlockKind) -> Block:
        """The block that an update changes, or begins."""
        block_id = update.block_id
        if block_id not in self.blocks:
            self.blocks[block_id] = Block(
                id=block_id,
                message_id=update.message_id,
                kind=kind,
                seq=self.last_seq,
                epoch=self.epoch,
            )
        return self._unshared(block_id)

    def _unshared(self, block_id: str) -> Block:
        """A block that may be changed: no snapshot has it, or it is copied now."""
        block = self.blocks[block_id]
        if block.epoch != self.epoch:
            block = replace(
                block, pieces=block.pieces.copy(), output=block.output.copy(), epoch=self.epoch
            )
            self.blocks[block_id] = block
        return block

    def visible_blocks(self) -> list[Block]:
        """The blocks with something in them: an emptied block shows nothing."""
        return [b for b in self.blocks.values() if b.tool or b.file or b.text]

    def compacted(self) -> list[LogEntry]:
        """The shortest log that folds to this task: whole blocks instead of deltas."""
        entries = list(self.history)
        if self.session is not None:
            session = self.session
            started = Started(session.id, session.title, worktree=session.worktree)
            entries.append(LogEntry(1, self.head.created_at, started))
        if self.retold:
            entries.append(LogEntry(1, self.head.created_at, Retold()))
        if self.ended is None:
            entries += [
                LogEntry(1, self.head.created_at, PromptDone(each)) for each in self.done_prompts
            ]
        for block in self.visible_blocks():
            update: BlockText | BlockTool | BlockFile
            if block.call is not None:
                update = BlockTool(block.id, block.message_id, block.call)
            elif block.file is not None:
                update = BlockFile(block.id, block.message_id, block.file)
            else:
                update = BlockText(
                    block_id=block.id,
                    message_id=block.message_id,
                    part_id=block.part_id,
                    kind=block.kind,
                    text=block.text,
                    append=False,
                    last=block.last,
                )
            entries.append(LogEntry(block.seq, self.status_at, update))
            if block.phase is not None:
                phase = BlockPhase(block.id, block.phase)
                entries.append(LogEntry(block.phase_seq, self.status_at, phase))
        if self.changes:
            entries.append(LogEntry(self.changes_seq, self.status_at, ChangesMade(self.changes)))
        if self.usage is not None and (self.ended is None or self.ended.usage is None):
            counted = Progress("step-finish", "completed", usage=self.usage)
            entries.append(LogEntry(self.last_seq, self.status_at, counted))
        if self.ended is not None:
            entries.append(LogEntry(self.last_seq, self.status_at, self.ended))
        return entries


def _decided(
    entry: LogEntry, update: InterruptAnswered | InterruptResolved, *, by: DecidedBy
) -> LogEntry:
    decided = DecisionRecord(
        interrupt=in_brief(update.interrupt),
        resolution=update.resolution,
        by=by,
        decision=update.decision if isinstance(update, InterruptAnswered) else None,
    )
    return LogEntry(entry.seq, entry.at, decided)
