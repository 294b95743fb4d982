"""From our types to A2A's: one renderer, three dialects.

A client that has activated stream hints sees every block, each with metadata that says what it is.
Any other client sees the agent's text and files only, because it would take every artifact for the
answer.

An event is encoded once per form for all readers that keep up, and kept with
its log entry meanwhile.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

import orjson

from ..contract.declare import Json
from ..domain.catalog import SessionMessage
from ..domain.events import BlockKind, ToolCall
from ..domain.phrases import (
    CONTINUE_PROMPT,
    CONTINUED_NOTE,
    RETOLD_NOTE,
    asking,
    decision_note,
    node_lost,
    queueing,
    request_note,
    waiting,
)
from ..domain.ports import TaskRow
from ..domain.replies import HITL
from ..domain.requests import details
from ..domain.task import Block, Task, TaskHead
from ..domain.updates import (
    BlockFile,
    BlockOutput,
    BlockPhase,
    BlockText,
    BlockTool,
    BlockUpdate,
    ChangesMade,
    Continued,
    DecisionRecord,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
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
    Update,
)
from ..domain.values import (
    COST_DIGITS,
    AnsweredBy,
    Data,
    FileBytes,
    FileChange,
    FileUrl,
    Interrupt,
    Message,
    Part,
    PermissionAsk,
    QuestionAsk,
    Role,
    SubAgent,
    TaskState,
    Text,
    Usage,
    WorktreeRef,
    timestamp,
)
from .dialect import Dialect

NAMES = {BlockKind.TEXT: "answer", BlockKind.REASONING: "reasoning"}
DIFF = "text/x-diff"


class _Source(NamedTuple):
    """The block that an artifact shows, as of an entry of the log."""

    head: TaskHead
    block_id: str
    message_id: str
    seq: int
    begins: bool = True  # the artifact is the whole block, or its beginning
    phase: str | None = None


class _Moment(NamedTuple):
    """An entry of the log, the state of the task there, and whether the stream ends with it."""

    head: TaskHead
    entry: LogEntry
    state: TaskState
    last: bool


@dataclass(frozen=True, slots=True)
class Renderer:
    dialect: Dialect
    hints: bool = False  # every block is shown, with metadata.shared.stream
    stays_open: bool = False  # the stream goes on while a person thinks
    hitl: bool = False  # interrupt requests also have kagent's human-in-the-loop form
    form: str = field(init=False)  # equal for renderers that encode an event alike
    last_form: str = field(init=False)  # the same, for the event with which a stream ends

    def __post_init__(self) -> None:
        form = self.dialect.name + "s" * self.hints + "h" * self.hitl
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "last_form", form + ".")

    # -- whole tasks

    def task(
        self, task: Task, *, history_length: int | None = None, artifacts: bool = True
    ) -> Json:
        """A task as it is now; no `history_length` means all of it."""
        head = task.head
        status = self._status(task.state, task.status_at, self._status_message(task))
        body = self._task(head, status)
        if artifacts:
            body["artifacts"] = self._artifacts(task)
        if history_length != 0 and (history := self._history(task)):
            body["history"] = history[-history_length:] if history_length else history
        shared: Json = {}
        if task.session is not None:
            shared["session"] = _session(task.session.id, task.session.title)
        if task.usage is not None:
            shared["usage"] = _usage(task.usage)
        interrupts = [
            _interrupt(opened.interrupt, "asked", opened.expires_at)
            for opened in task.interrupts.values()
        ]
        if interrupts:
            shared["interrupt"] = interrupts[0]
        if len(interrupts) > 1:
            shared["interrupts"] = interrupts
        opencode = self._end_marks(head, task.ended)
        if task.queued is not None:
            opencode |= _queue(task.queued)
        if task.lost is not None:
            opencode |= _node(task.lost)
        if task.retold:
            opencode["retold"] = True
        if task.session is not None:
            opencode |= _worktree(task.session.worktree)
        return body | _metadata(shared, opencode)

    def _history(self, task: Task) -> list[Json]:
        """The caller's messages; with hints also what the agent asked for, once it is settled.

        Other clients do not get that: several show every message of the agent as its answer.
        """
        head = task.head
        if not self.hints:
            return [self.message(message, head) for message in task.messages]
        history: list[Json] = []
        for entry in task.history:
            match entry.update:
                case MessageAdded(message=message, upstream_id=upstream_id):
                    history.append(self.message(_with_upstream_id(message, upstream_id), head))
                case RequestRecord(interrupt=ask) if ask.request_id not in task.interrupts:
                    mark = _interrupt(ask, "asked")
                    history.append(self._settled(head, request_note(ask), mark, seq=entry.seq))
                case DecisionRecord(interrupt=ask, resolution=resolution, by=by):
                    mark = _interrupt(ask, "resolved", resolution=resolution) | {"by": by}
                    text = decision_note(entry.update)
                    history.append(self._settled(head, text, mark, seq=entry.seq))
                case _:
                    pass
        return history

    def _settled(self, head: TaskHead, text: str, mark: Json, *, seq: int) -> Json:
        marked = {"shared": {"interrupt": mark}}
        message = Message(f"{head.id}:{seq}", Role.AGENT, (Text(text),), metadata=marked)
        return self.message(message, head)

    def _artifacts(self, task: Task) -> list[Json]:
        """What is shown of a task's output, in the order in which it began.

        The final answer comes last, because many clients take the last artifact for the answer.
        """
        head = task.head
        blocks = [block for block in task.visible_blocks() if self._shows_block(head, block)]
        texts = [block for block in blocks if block.kind is BlockKind.TEXT]
        completed = task.state is TaskState.COMPLETED
        answer = texts[-1] if texts and completed else None
        shown = [self._artifact(head, block) for block in blocks if block is not answer]
        if task.changes and self._shows_changes(head):
            shown.append(self._changes(head, task.changes, task.changes_seq))
        if answer is not None:
            shown.append(self._artifact(head, answer))
        return shown

    def _shows_block(self, head: TaskHead, block: Block) -> bool:
        if block.file is not None:
            return _accepts_file(head, block.file)
        return self.hints or block.kind is BlockKind.TEXT

    def _shows_changes(self, head: TaskHead) -> bool:
        return self.hints or DIFF in head.modes.accepted

    def summary(self, task: Task, *, names_owner: bool) -> bytes:
        """A task as a watch shows it: without its output and history."""
        body = self.task(task, history_length=0, artifacts=False)
        opencode: Json = _answered_by(task.answered_by)
        if names_owner:
            opencode["principal"] = task.head.owner
        if opencode:
            marks = body.setdefault("metadata", {}).setdefault("opencode", {})
            marks |= opencode
        return _one_line(body)

    def row(self, row: TaskRow) -> Json:
        """A task as a list shows it: without its log."""
        message = self._note(row.head, row.state.value, row.message) if row.message else None
        shared = {"session": _session(row.session.id, row.session.title)} if row.session else {}
        body = self._task(row.head, self._status(row.state, row.status_at, message))
        return body | _metadata(shared, {})

    def value(self, value: TaskRow | SessionMessage) -> Json:
        """What a result of an extension holds of A2A's own."""
        match value:
            case TaskRow():
                return self.row(value)
            case SessionMessage():
                return self.message(value.message, value.head)
            case _:
                assert_never(value)

    def _task(self, head: TaskHead, status: Json) -> Json:
        body: Json = {"id": head.id, "contextId": head.context_id, "status": status}
        return {"kind": "task", **body} if self.dialect.tagged else body

    def _status_message(self, task: Task) -> Json | None:
        if task.ended is not None and task.ended.message:
            return self._note(task.head, task.state.value, task.ended.message)
        if task.lost is not None and not task.interrupts:
            return self._note(task.head, task.state.value, node_lost(task.lost))
        if task.queued is not None:
            return self._note(task.head, task.state.value, queueing(task.queued))
        if task.interrupts:
            text = waiting(task.open_interrupts, task.unclear)
            return self._request(task.head, text, task.open_interrupts, seq=task.last_seq)
        return None

    # -- events

    def shows(self, head: TaskHead, update: Update) -> bool:
        """Whether the client gets an event for an update of the log."""
        match update:  # the most frequent first
            case BlockText(kind=kind):
                return self.hints or kind is BlockKind.TEXT
            case BlockTool() | BlockOutput() | BlockPhase() | Progress() | Continued():
                return self.hints
            case SessionTitled():
                return self.hints
            case BlockFile(part=part):
                return _accepts_file(head, part)
            case ChangesMade():
                return self._shows_changes(head)
            case Started() | Ended() | Queued() | NodeLost() | NodeReturned() | Retold():
                return True
            case MessageAdded() | InterruptAnswered() | RequestRecord() | DecisionRecord():
                return False
            case PromptDone():
                return False
            case PeerUsageAdded():  # shown with the rest, in the task and at the end
                return False
            case InterruptOpened() | InterruptUnclear() | InterruptResolved():
                return True
            case _:
                assert_never(update)

    def event(
        self, head: TaskHead, entry: LogEntry, state: TaskState, last: bool = False
    ) -> bytes | None:
        """A committed entry as an encoded event, or None when there is nothing to show.

        `state` is the task's there; `last` says that the stream ends with it.
        """
        form = self.last_form if last else self.form
        encoded = entry.encoded.get(form)
        if encoded is None:
            encoded = b""
            if self.shows(head, entry.update):
                event = _one_line(self._event(_Moment(head, entry, state, last=last)))
                encoded = memoryview(event).tobytes()  # what orjson returns keeps 4 kB reserved
            entry.encoded[form] = encoded
        return encoded or None

    def last_status(self, head: TaskHead, entry: LogEntry, state: TaskState) -> bytes:
        """The state by itself, where a stream ends after an entry that does not say it."""
        return _one_line(self._status_event(_Moment(head, entry, state, last=True), {}))

    def first(self, task: Task, history_length: int | None = None, gap: str | None = None) -> bytes:
        """The task itself as the first event of a stream; `gap` says what it could not follow."""
        body = self.task(task, history_length=history_length)
        if gap is not None:
            shared = body.setdefault("metadata", {}).setdefault("shared", {})
            shared["stream"] = {"replay": "snapshot", "reason": gap, "sequence": task.last_seq}
        return _one_line(body if self.dialect.tagged else {"task": body})

    def _event(self, moment: _Moment) -> Json:
        head, entry = moment.head, moment.entry
        update = entry.update
        match update:
            case BlockText() | BlockTool() | BlockOutput() | BlockFile() | BlockPhase():
                return self._block_event(moment, update)
            case ChangesMade(files=files):
                return self._artifact_event(head, self._changes(head, files, entry.seq))
            case Queued():
                message = self._note(head, moment.state.value, queueing(update))
                return self._status_event(moment, {}, message, opencode=_queue(update))
            case NodeLost() | NodeReturned() | Retold():
                return self._node_event(moment, update)
            case Started(session=session, title=title, worktree=worktree):
                shared = {"session": _session(session, title)}
                return self._status_event(moment, shared, opencode=_worktree(worktree))
            case SessionTitled(session=session, title=title):
                return self._status_event(moment, {"session": _session(session, title)})
            case Continued():
                progress = Progress("run", "continued", message=CONTINUED_NOTE)
                return self._status_event(moment, {"progress": _progress(progress)})
            case Progress():
                return self._status_event(moment, {"progress": _progress(update)})
            case InterruptOpened(interrupt=interrupt):
                message = self._request(head, asking(interrupt), [interrupt], seq=entry.seq)
                shared = {"interrupt": _interrupt(interrupt, "asked", update.expires_at)}
                return self._status_event(moment, shared, message)
            case InterruptUnclear(interrupt=interrupt, note=note):
                text = waiting([interrupt], note)
                message = self._request(head, text, [interrupt], seq=entry.seq)
                shared = {"interrupt": _interrupt(interrupt, "asked", update.expires_at)}
                return self._status_event(moment, shared, message)
            case InterruptResolved(interrupt=interrupt, resolution=resolution):
                shared = {"interrupt": _interrupt(interrupt, "resolved", resolution=resolution)}
                return self._status_event(moment, shared)
            case Ended():
                return self._end_event(moment, update)
            case (
                MessageAdded()
                | InterruptAnswered()
                | RequestRecord()
                | DecisionRecord()
                | PeerUsageAdded()
                | PromptDone()
            ):
                raise AssertionError("no client gets an event for it")
            case _:
                assert_never(update)

    def _end_event(self, moment: _Moment, update: Ended) -> Json:
        head, reason = moment.head, update.message
        note = self._note(head, update.state.value, reason) if reason else None
        shared = {}
        if update.session:
            shared["session"] = _session(update.session, update.title)
        if update.usage is not None:
            shared["usage"] = _usage(update.usage)
        return self._status_event(moment, shared, note, opencode=self._end_marks(head, update))

    def _block_event(self, moment: _Moment, update: BlockUpdate) -> Json:
        head = moment.head
        match update:
            case BlockText():
                source = _source(moment, update, begins=not update.append)
                artifact = self._text_artifact(source, update.kind, update.text)
                return self._artifact_event(
                    head, artifact, append=update.append, last_chunk=update.last
                )
            case BlockTool():
                artifact = self._tool_artifact(_source(moment, update), update.call)
                return self._artifact_event(head, artifact, last_chunk=update.call.over)
            case BlockOutput():
                artifact = self._output_artifact(moment, update)
                return self._artifact_event(head, artifact, append=True, last_chunk=False)
            case BlockFile():
                artifact = self._file_artifact(_source(moment, update), update.part)
                return self._artifact_event(head, artifact)
            case BlockPhase(block_id=block_id, phase=phase):
                # Not as an update of the artifact, whose last chunk may have been sent.
                progress = {"type": "phase", "status": phase, "artifact_id": block_id}
                return self._status_event(moment, {"progress": progress})
            case _:
                assert_never(update)

    def _status_event(
        self,
        moment: _Moment,
        shared: Json,
        message: Json | None = None,
        *,
        opencode: Json | None = None,
    ) -> Json:
        head, entry = moment.head, moment.entry
        if self.hints:
            shared = {**shared, "stream": _identity(head, entry.seq)}
        body: Json = {
            "taskId": head.id,
            "contextId": head.context_id,
            "status": self._status(moment.state, entry.at, message),
            **_metadata(shared, opencode or {}),
        }
        if self.dialect.version == "0.3":
            body["final"] = moment.last
        return self._wrapped("status-update", "statusUpdate", body)

    def _node_event(self, moment: _Moment, update: NodeLost | NodeReturned | Retold) -> Json:
        """A request of the agent stays what the task says while its node is away."""
        match update:
            case NodeLost():
                asks = moment.state is TaskState.INPUT_REQUIRED
                text, opencode = None if asks else node_lost(update), _node(update)
            case NodeReturned():
                text, opencode = None, {"node": {"state": "returned"}}
            case Retold():
                text, opencode = RETOLD_NOTE, {"retold": True}
            case _:
                assert_never(update)
        message = self._note(moment.head, moment.state.value, text) if text is not None else None
        return self._status_event(moment, {}, message, opencode=opencode)

    def _artifact_event(
        self, head: TaskHead, artifact: Json, *, append: bool = False, last_chunk: bool = True
    ) -> Json:
        body: Json = {"taskId": head.id, "contextId": head.context_id, "artifact": artifact}
        if append:
            body["append"] = True
        if last_chunk:
            body["lastChunk"] = True
        return self._wrapped("artifact-update", "artifactUpdate", body)

    def _wrapped(self, kind: str, member: str, body: Json) -> Json:
        return {"kind": kind, **body} if self.dialect.tagged else {member: body}

    # -- pieces

    def message(self, message: Message, head: TaskHead) -> Json:
        body: Json = {
            "messageId": message.message_id,
            "role": self.dialect.roles[message.role],
            self.dialect.content: [self.part(part) for part in message.parts],
            "contextId": head.context_id,
            "taskId": head.id,
        }
        if message.metadata:
            body["metadata"] = message.metadata
        if message.extensions:
            body["extensions"] = message.extensions
        if message.reference_task_ids:
            body["referenceTaskIds"] = message.reference_task_ids
        return {"kind": "message", **body} if self.dialect.tagged else body

    def part(self, part: Part) -> Json:
        body: Json = {"metadata": part.metadata} if part.metadata else {}
        match part:
            case Text(text=text):
                body["text"], kind = text, "text"
            case Data(value=value):
                kind = "data"
                if not self.dialect.new_parts and not isinstance(value, dict):
                    value = {"value": value}
                    body["metadata"] = {**(part.metadata or {}), "data_part_compat": True}
                body["data"] = {"data": value} if self.dialect.nested_data else value
            case FileBytes() | FileUrl():
                kind = "file"
                body |= self._file(part)
            case _:
                assert_never(part)
        if self.dialect.new_parts:
            if part.media_type:
                body["mediaType"] = part.media_type
            if part.filename:
                body["filename"] = part.filename
        return {"kind": kind, **body} if self.dialect.tagged else body

    def _file(self, part: FileBytes | FileUrl) -> Json:
        inline = isinstance(part, FileBytes)
        content = part.content if isinstance(part, FileBytes) else part.url
        if self.dialect.new_parts:
            return {"raw" if inline else "url": content}
        if self.dialect.nested_data:
            # Twice encoded, as Python servers of this line do: their clients fail on anything else.
            file: Json = (
                {"fileWithBytes": base64.b64encode(content.encode()).decode()}
                if inline
                else {"fileWithUri": content}
            )
        else:
            file = {"bytes" if inline else "uri": content}
        if part.media_type:
            file["mimeType"] = part.media_type
        if part.filename:
            file["name"] = part.filename
        return {"file": file}

    def _artifact(self, head: TaskHead, block: Block) -> Json:
        source = _Source(
            head, block.id, message_id=block.message_id, seq=block.seq, phase=block.phase
        )
        if block.call is not None:
            return self._tool_artifact(source, block.call)
        if block.file is not None:
            return self._file_artifact(source, block.file)
        return self._text_artifact(source, block.kind, block.text)

    def _text_artifact(self, source: _Source, kind: BlockKind, text: str) -> Json:
        return {
            "artifactId": source.block_id,
            "name": NAMES[kind],
            "parts": [self.part(Text(text))],
            **self._hints(source, kind),
        }

    def _tool_artifact(self, source: _Source, call: ToolCall) -> Json:
        json = source.head.modes.allows("application/json")
        return {
            "artifactId": source.block_id,
            "name": f"tool:{call.tool}",
            "parts": [self.part(Data(call.told()) if json else Text(_tool_text(call)))],
            **self._hints(source, BlockKind.TOOL_CALL),
        }

    def _output_artifact(self, moment: _Moment, update: BlockOutput) -> Json:
        """More output of a running call: a part of its own, to be appended to the others."""
        head, seq = moment.head, moment.entry.seq
        source = _Source(head, update.block_id, message_id="", seq=seq, begins=False)
        if head.modes.allows("application/json"):
            piece = ToolCall(update.call_id, update.tool, "running", output=update.output)
            part: Part = Data(piece.told() | {"output_start": update.start})
        else:
            part = Text(update.output if update.start else f"\n{update.output}")
        return {
            "artifactId": update.block_id,
            "name": f"tool:{update.tool}",
            "parts": [self.part(part)],
            **self._hints(source, BlockKind.TOOL_CALL),
        }

    def _file_artifact(self, source: _Source, file: Part) -> Json:
        return {
            "artifactId": source.block_id,
            "name": f"file:{file.filename}" if file.filename else "file",
            "parts": [self.part(file)],
            **self._hints(source, BlockKind.FILE),
        }

    def _hints(self, source: _Source, kind: BlockKind) -> Json:
        """What a block is. A piece that continues it does not repeat what stays the same."""
        if not self.hints:
            return {}
        stream: Json = {"block_type": kind.value}
        if source.begins:
            stream |= {"source": "opencode", "role": "agent", "message_id": source.message_id}
        if source.phase is not None:
            stream["phase"] = source.phase
        stream |= _identity(source.head, source.seq)
        return {"metadata": {"shared": {"stream": stream}}}

    def _changes(self, head: TaskHead, files: tuple[FileChange, ...], seq: int) -> Json:
        parts: list[Part] = []
        diff = "".join(file.patch for file in files)
        if diff and (head.modes.allows(DIFF) or head.modes.allows("text/plain")):
            parts.append(Text(diff, media_type=DIFF))
        if head.modes.allows("application/json"):
            listed = [
                {
                    "file": file.file,
                    "status": file.status,
                    "additions": file.additions,
                    "deletions": file.deletions,
                }
                for file in files
            ]
            parts.append(Data({"files": listed}))
        body: Json = {
            "artifactId": f"{head.id}:changes",
            "name": "changes",
            "parts": [self.part(part) for part in parts or [Text(diff)]],
        }
        if self.hints:
            body["metadata"] = {"shared": {"stream": _identity(head, seq)}}
        return body

    def _note(self, head: TaskHead, about: str, text: str) -> Json:
        """A message of the agent in a status, such as how the task ended."""
        return self.message(Message(f"{head.id}:{about}", Role.AGENT, (Text(text),)), head)

    def _end_marks(self, head: TaskHead, ended: Ended | None) -> Json:
        """What answered, why a task failed, and what to send to have the agent continue."""
        if ended is None:
            return {}
        marks = _answered_by(ended.answered_by)
        if ended.problem is None:
            return marks
        error: Json = {"type": ended.problem.type.value}
        if ended.problem.upstream_status is not None:
            error["upstream_status"] = ended.problem.upstream_status
        if ended.problem.renews_at is not None:
            error["renews_at"] = timestamp(ended.problem.renews_at)
        if not ended.problem.resumable:
            return marks | {"error": error}
        resume = Message(
            f"{head.id}:resume", Role.USER, (Text(CONTINUE_PROMPT),), reference_task_ids=(head.id,)
        )
        message = self.message(resume, head)
        del message["taskId"]  # this task has ended
        # Another task of the context may wait for an answer, and this is none.
        options = {"metadata": {"opencode": {"newTask": True}}}
        return marks | {"error": error, "resume": {"message": message, **options}}

    def _request(
        self, head: TaskHead, text: str, interrupts: Sequence[Interrupt], *, seq: int
    ) -> Json:
        """What the agent waits for, in a status."""
        message = Message(f"{head.id}:{seq}", Role.AGENT, (Text(text),))
        if self.hitl:
            message = replace(message, extensions=(HITL,), metadata={HITL: _hitl(text, interrupts)})
        return self.message(message, head)

    def _status(self, state: TaskState, at: int, message: Json | None) -> Json:
        status: Json = {"state": self.dialect.states[state], "timestamp": timestamp(at)}
        if message is not None:
            status["message"] = message
        return status


def _with_upstream_id(message: Message, upstream_id: str | None) -> Message:
    """The message with its id in OpenCode, by which its session can be forked or reverted."""
    if upstream_id is None:
        return message
    metadata = dict(message.metadata or {})
    opencode = metadata.get("opencode")
    own = opencode if isinstance(opencode, dict) else {}
    return replace(message, metadata={**metadata, "opencode": {**own, "message_id": upstream_id}})


def _one_line(event: Json) -> bytes:
    """An event as JSON on what every client takes for one line.

    JSON may hold U+0085, U+2028 and U+2029 as they are. Clients that read a stream with httpx take
    them for the end of a line.
    """
    encoded = orjson.dumps(event)
    if b"\xe2\x80" in encoded or b"\xc2\x85" in encoded:
        for character in ("\x85", "\u2028", "\u2029"):
            encoded = encoded.replace(character.encode(), b"\\u%04x" % ord(character))
    return encoded


def _metadata(shared: Json, opencode: Json) -> Json:
    given = {"shared": shared, "opencode": opencode}
    metadata = {name: marks for name, marks in given.items() if marks}
    return {"metadata": metadata} if metadata else {}


def _queue(queued: Queued) -> Json:
    if queued.behind is None:
        return {"queue": {"reason": "slot"}}
    return {"queue": {"reason": "context", "task_id": queued.behind}}


def _node(lost: NodeLost) -> Json:
    return {"node": {"state": "lost", "opencode": lost.opencode, "until": timestamp(lost.until)}}


def _worktree(worktree: WorktreeRef | None) -> Json:
    if worktree is None:
        return {}
    mark: Json = {
        "branch": worktree.branch,
        "directory": worktree.directory,
        "base": worktree.base,
    }
    if worktree.base_branch:
        mark["base_branch"] = worktree.base_branch
    return {"worktree": mark}


def _source(
    moment: _Moment, update: BlockText | BlockTool | BlockFile, *, begins: bool = True
) -> _Source:
    return _Source(
        moment.head,
        update.block_id,
        message_id=update.message_id,
        seq=moment.entry.seq,
        begins=begins,
    )


def _identity(head: TaskHead, seq: int) -> Json:
    return {"event_id": f"{head.id}:{seq}", "sequence": seq}


def _accepts_file(head: TaskHead, file: Part) -> bool:
    """A file has no other form: a client that does not accept its type does not get it."""
    return head.modes.allows(file.media_type or "application/octet-stream")


def _answered_by(by: AnsweredBy | None) -> Json:
    """The model and the agent, as a request names them."""
    if by is None:
        return {}
    marks: Json = {"model": {"providerID": by.model.provider, "modelID": by.model.model}}
    if by.agent:
        marks["agent"] = by.agent
    if by.variant:
        marks["variant"] = by.variant
    return marks


def _session(session_id: str, title: str) -> Json:
    return {"id": session_id, "title": title} if title else {"id": session_id}


def _usage(usage: Usage) -> Json:
    body: Json = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.reasoning_tokens:
        body["reasoning_tokens"] = usage.reasoning_tokens
    if usage.cache_read_tokens or usage.cache_write_tokens:
        body["cache_tokens"] = {
            "read_tokens": usage.cache_read_tokens,
            "write_tokens": usage.cache_write_tokens,
        }
    if usage.cost:
        body["cost"] = round(usage.cost, COST_DIGITS)
    if usage.unreported_steps:
        body["unreported_steps"] = usage.unreported_steps
    if usage.peers:
        body["peers"] = {name: _usage(each) for name, each in usage.peers.items()}
    return body


def _progress(progress: Progress) -> Json:
    body: Json = {"type": progress.type, "status": progress.status}
    if progress.attempt is not None:
        body["attempt"] = progress.attempt
    if progress.next_at is not None:
        body["next"] = timestamp(progress.next_at)
    if progress.message:
        body["message"] = progress.message
    if progress.todos is not None:
        body["todos"] = progress.todos
    for name in ("message_id", "tool", "call_id", "title"):
        if (value := getattr(progress, name)) is not None:
            body[name] = value
    for name in ("started_at", "ended_at"):
        if (moment := getattr(progress, name)) is not None:
            body[name] = timestamp(moment)
    if progress.subagent is not None:
        body["subagent"] = _subagent(progress.subagent)
    if progress.usage is not None:
        body["usage"] = _usage(progress.usage)
    return body | _answered_by(progress.answered_by)


def _subagent(subagent: SubAgent) -> Json:
    body: Json = {"session_id": subagent.session}
    if subagent.agent is not None:
        body["agent"] = subagent.agent
    if subagent.call_id is not None:
        body["call_id"] = subagent.call_id
    return body


def _interrupt(
    interrupt: Interrupt, phase: str, expires_at: int | None = None, resolution: str | None = None
) -> Json:
    body: Json = {"request_id": interrupt.request_id, "phase": phase}
    if resolution is not None:
        body["resolution"] = resolution
    if expires_at is not None:
        body["expires_at"] = timestamp(expires_at)
    if interrupt.subagent is not None:
        body["subagent"] = _subagent(interrupt.subagent)
    kind = "permission" if isinstance(interrupt, PermissionAsk) else "question"
    return body | {"type": kind, "details": details(interrupt, settled=phase == "resolved")}


def _hitl(hint: str, asks: Sequence[Interrupt]) -> Json:
    """The request in kagent's form: all permissions at once, or one set of questions."""
    first = asks[0]
    if isinstance(first, QuestionAsk):
        questions = [
            {
                "question": question.question,
                "choices": [option.label for option in question.options],
                "multiple": question.multiple,
            }
            for question in first.questions
        ]
        return {"type": "ask_user_request", "id": first.request_id, "questions": questions}
    tools = [
        {
            "id": ask.request_id,
            "call_id": ask.call_id or ask.request_id,
            "name": ask.permission,
            "args": details(ask),
        }
        for ask in asks
        if isinstance(ask, PermissionAsk)
    ]
    return {"type": "tool_approval_request", "hint": hint, "tools": tools}


def _tool_text(call: ToolCall) -> str:
    """A tool call for clients that take text only."""
    lines = [f"[{call.tool}] {call.status}" + (f": {call.title}" if call.title else "")]
    lines += [text for text in (call.output, call.error) if text]
    return "\n".join(lines)
