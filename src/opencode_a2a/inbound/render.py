"""From our types to A2A's: one renderer, three dialects.

A `Dialect` holds what differs between 1.0, 0.3 over JSON-RPC and 0.3 over REST;
everything else is the same code. An event is encoded once per dialect for all
readers that keep up, and kept with its log entry meanwhile.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import orjson

from ..domain.catalog import SessionMessage
from ..domain.events import BlockKind, SubAgent, ToolCall
from ..domain.phrases import asking, waiting
from ..domain.ports import TaskRow
from ..domain.replies import HITL
from ..domain.requests import details
from ..domain.task import Block, Task, TaskHead
from ..domain.updates import (
    BlockFile,
    BlockText,
    BlockTool,
    ChangesMade,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    LogEntry,
    MessageAdded,
    Progress,
    Started,
)
from ..domain.values import (
    COST_DIGITS,
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
    TaskState,
    Text,
    Usage,
    timestamp,
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one form of the protocol calls things."""

    name: str
    version: str
    tagged: bool  # objects say their `kind`
    states: Mapping[TaskState, str]
    roles: Mapping[Role, str]
    content: str  # the member of a message that holds its parts
    new_parts: bool  # 1.0 parts: raw, url, data; before that: file, data
    nested_data: bool = False


_PROTO_STATES = {s: f"TASK_STATE_{s.name}" for s in TaskState}
_PROTO_ROLES = {r: f"ROLE_{r.name}" for r in Role}

V1 = Dialect("1.0", "1.0", False, _PROTO_STATES, _PROTO_ROLES, "parts", True)
V03 = Dialect(
    "0.3", "0.3", True, {s: s.value for s in TaskState}, {r: r.value for r in Role}, "parts", False
)
V03_REST = Dialect(
    "0.3-rest",
    "0.3",
    False,
    _PROTO_STATES | {TaskState.CANCELED: "TASK_STATE_CANCELLED"},
    _PROTO_ROLES,
    "content",
    False,
    nested_data=True,
)

DATA, END = b"data: ", b"\n\n"  # of a Server-Sent Event
NAMES = {BlockKind.TEXT: "answer", BlockKind.REASONING: "reasoning"}


@dataclass(frozen=True, slots=True)
class Renderer:
    dialect: Dialect
    stays_open: bool = False  # the stream goes on while a person thinks
    hitl: bool = False  # requests are told in kagent's human-in-the-loop form, too
    form: str = field(init=False)  # what two have in common that write the same
    last_form: str = field(init=False)  # … about the event with which a stream ends

    def __post_init__(self) -> None:
        form = self.dialect.name + "h" * self.hitl
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "last_form", form + ".")

    # -- whole tasks

    def task(
        self, task: Task, *, history_length: int | None = None, artifacts: bool = True
    ) -> Json:
        """A task as it is now; no `history_length` means all of it."""
        head = task.head
        body = self._task(head, task.state, task.status_at, self._status_message(task))
        if artifacts:
            shown = [self._artifact(head, block) for block in task.visible_blocks()]
            if task.changes:
                shown.append(self._changes(head, task.changes, task.changes_seq))
            body["artifacts"] = [artifact for artifact in shown if artifact["parts"]]
        kept = task.messages[-history_length:] if history_length else task.messages
        if kept and history_length != 0:
            body["history"] = [self.message(message, head) for message in kept]
        shared: Json = {}
        if task.session is not None:
            shared["session"] = _session(task.session.id, task.session.title)
        if task.usage is not None:
            shared["usage"] = _usage(task.usage)
        asked = [
            _interrupt(opened.interrupt, "asked", opened.expires_at)
            for opened in task.interrupts.values()
        ]
        if asked:
            shared["interrupt"] = asked[0]
        if len(asked) > 1:
            shared["interrupts"] = asked
        return body | _metadata(shared, task.ended)

    def row(self, row: TaskRow) -> Json:
        """A task as a list shows it: without its log."""
        message = self._note(row.head, row.state.value, row.message) if row.message else None
        shared = {"session": _session(row.session.id, row.session.title)} if row.session else {}
        body = self._task(row.head, row.state, row.status_at, message)
        return body | _metadata(shared, None)

    def value(self, value: TaskRow | SessionMessage) -> Json:
        """What a result of an extension holds of A2A's own."""
        match value:
            case TaskRow():
                return self.row(value)
            case SessionMessage():
                return self.message(value.message, value.head)
            case _:
                assert_never(value)

    def _task(self, head: TaskHead, state: TaskState, at: int, message: Json | None) -> Json:
        body: Json = {
            "id": head.id,
            "contextId": head.context_id,
            "status": self._status(state, at, message),
        }
        return {"kind": "task", **body} if self.dialect.tagged else body

    def _status_message(self, task: Task) -> Json | None:
        if task.ended is not None and task.ended.message:
            return self._note(task.head, task.state.value, task.ended.message)
        if task.interrupts:
            return self._ask(
                task.head,
                waiting(task.open_interrupts, task.unclear),
                task.last_seq,
                task.open_interrupts,
            )
        return None

    # -- events

    def event(
        self, head: TaskHead, entry: LogEntry, state: TaskState, last: bool = False
    ) -> bytes | None:
        """A committed entry as an event on the wire, or None when there is nothing to show.

        `state` is the task's there; `last` says that the stream ends with it.
        """
        form = self.last_form if last else self.form
        encoded = entry.encoded.get(form)
        if encoded is None:
            event = self._event(head, entry, state, last)
            encoded = entry.encoded[form] = b"" if event is None else _framed(entry.seq, event)
        return encoded or None

    def first(self, task: Task, history_length: int | None = None, gap: str | None = None) -> bytes:
        """The task itself as the first event of a stream; `gap` says what it could not follow."""
        body = self.task(task, history_length=history_length)
        if gap is not None:
            shared = body.setdefault("metadata", {}).setdefault("shared", {})
            shared["stream"] = {"replay": "snapshot", "reason": gap, "sequence": task.last_seq}
        return _framed(task.last_seq, body if self.dialect.tagged else {"task": body})

    def _event(self, head: TaskHead, entry: LogEntry, state: TaskState, last: bool) -> Json | None:
        update = entry.update
        match update:
            case MessageAdded() | InterruptAnswered():
                return None
            case BlockText():
                artifact = {
                    "artifactId": update.block_id,
                    "name": NAMES[update.kind],
                    "parts": [self.part(Text(update.text))],
                    "metadata": _stream(head, entry.seq, update.kind, update.message_id),
                }
                return self._artifact_event(head, artifact, update.append, update.last)
            case BlockTool():
                artifact = self._tool_artifact(
                    head, update.block_id, update.message_id, entry.seq, update.call
                )
                return self._artifact_event(head, artifact, False, update.call.over)
            case BlockFile(block_id=block_id, message_id=message_id, part=part):
                artifact = self._file_artifact(head, block_id, message_id, entry.seq, part)
                return (
                    self._artifact_event(head, artifact, False, True) if artifact["parts"] else None
                )
            case ChangesMade(files=files):
                artifact = self._changes(head, files, entry.seq)
                return self._artifact_event(head, artifact, False, True)
            case Started(session=session, title=title):
                shared: Json = {"session": _session(session, title)}
                return self._status_event(head, entry, state, last, None, shared)
            case Progress():
                return self._status_event(
                    head, entry, state, last, None, {"progress": _progress(update)}
                )
            case InterruptOpened(interrupt=interrupt):
                note = self._ask(head, asking(interrupt), entry.seq, [interrupt])
                shared = {"interrupt": _interrupt(interrupt, "asked", update.expires_at)}
                return self._status_event(head, entry, state, last, note, shared)
            case InterruptUnclear(interrupt=interrupt, note=unclear):
                note = self._ask(head, waiting([interrupt], unclear), entry.seq, [interrupt])
                shared = {"interrupt": _interrupt(interrupt, "asked", update.expires_at)}
                return self._status_event(head, entry, state, last, note, shared)
            case InterruptResolved(interrupt=interrupt, resolution=resolution):
                shared = {"interrupt": _interrupt(interrupt, "resolved", resolution=resolution)}
                return self._status_event(head, entry, state, last, None, shared)
            case Ended():
                told = update.message
                end = self._note(head, update.state.value, told) if told else None
                shared = {}
                if update.session:
                    shared["session"] = _session(update.session, update.title)
                if update.usage is not None:
                    shared["usage"] = _usage(update.usage)
                return self._status_event(head, entry, state, last, end, shared, update)
            case _:
                assert_never(update)

    def _status_event(
        self,
        head: TaskHead,
        entry: LogEntry,
        state: TaskState,
        last: bool,
        note: Json | None,
        shared: Json,
        ended: Ended | None = None,
    ) -> Json:
        shared = {**shared, "stream": {"event_id": f"{head.id}:{entry.seq}", "sequence": entry.seq}}
        body: Json = {
            "taskId": head.id,
            "contextId": head.context_id,
            "status": self._status(state, entry.at, note),
            **_metadata(shared, ended),
        }
        if self.dialect.version == "0.3":
            body["final"] = last
        return self._wrapped("status-update", "statusUpdate", body)

    def _artifact_event(self, head: TaskHead, artifact: Json, append: bool, last: bool) -> Json:
        body: Json = {"taskId": head.id, "contextId": head.context_id, "artifact": artifact}
        if append:
            body["append"] = True
        if last:
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
        if block.call is not None:
            return self._tool_artifact(head, block.id, block.message_id, block.seq, block.call)
        if block.file is not None:
            return self._file_artifact(head, block.id, block.message_id, block.seq, block.file)
        return {
            "artifactId": block.id,
            "name": NAMES[block.kind],
            "parts": [self.part(Text(block.text))],
            "metadata": _stream(head, block.seq, block.kind, block.message_id),
        }

    def _tool_artifact(
        self, head: TaskHead, block_id: str, message_id: str, seq: int, call: ToolCall
    ) -> Json:
        told: Part = Text(_tool_text(call))
        if head.modes.allows("application/json"):
            told = Data(_tool(call))
        return {
            "artifactId": block_id,
            "name": f"tool:{call.tool}",
            "parts": [self.part(told)],
            "metadata": _stream(head, seq, BlockKind.TOOL_CALL, message_id),
        }

    def _file_artifact(
        self, head: TaskHead, block_id: str, message_id: str, seq: int, file: Part
    ) -> Json:
        """A file cannot be told in another form: who does not accept it gets none."""
        accepted = head.modes.allows(file.media_type or "application/octet-stream")
        return {
            "artifactId": block_id,
            "name": f"file:{file.filename}" if file.filename else "file",
            "parts": [self.part(file)] if accepted else [],
            "metadata": _stream(head, seq, BlockKind.FILE, message_id),
        }

    def _changes(self, head: TaskHead, files: tuple[FileChange, ...], seq: int) -> Json:
        parts: list[Part] = []
        diff = "".join(file.patch for file in files)
        if diff and (head.modes.allows("text/x-diff") or head.modes.allows("text/plain")):
            parts.append(Text(diff, media_type="text/x-diff"))
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
        return {
            "artifactId": f"{head.id}:changes",
            "name": "changes",
            "parts": [self.part(part) for part in parts or [Text(diff)]],
            "metadata": {"shared": {"stream": {"event_id": f"{head.id}:{seq}", "sequence": seq}}},
        }

    def _note(self, head: TaskHead, about: str, text: str) -> Json:
        """Something the agent's side says in a status: a question, or how it ended."""
        return self.message(Message(f"{head.id}:{about}", Role.AGENT, (Text(text),)), head)

    def _ask(self, head: TaskHead, text: str, seq: int, asks: Sequence[Interrupt]) -> Json:
        """What the agent waits for, in a status."""
        message = Message(f"{head.id}:{seq}", Role.AGENT, (Text(text),))
        if self.hitl:
            message = replace(message, extensions=(HITL,), metadata={HITL: _hitl(text, asks)})
        return self.message(message, head)

    def _status(self, state: TaskState, at: int, message: Json | None) -> Json:
        status: Json = {"state": self.dialect.states[state], "timestamp": timestamp(at)}
        if message is not None:
            status["message"] = message
        return status


def _framed(seq: int, event: Json) -> bytes:
    """A Server-Sent Event, which a client that comes back names by its number."""
    return b"id: %d\n%b%b%b" % (seq, DATA, orjson.dumps(event), END)


def _metadata(shared: Json, ended: Ended | None) -> Json:
    metadata: Json = {"shared": shared} if shared else {}
    if ended is not None and ended.problem is not None:
        error: Json = {"type": ended.problem.type.value}
        if ended.problem.upstream_status is not None:
            error["upstream_status"] = ended.problem.upstream_status
        metadata["opencode"] = {"error": error}
    return {"metadata": metadata} if metadata else {}


def _stream(head: TaskHead, seq: int, kind: BlockKind, message_id: str) -> Json:
    return {
        "shared": {
            "stream": {
                "block_type": kind.value,
                "source": "opencode",
                "role": "agent",
                "message_id": message_id,
                "event_id": f"{head.id}:{seq}",
                "sequence": seq,
            }
        }
    }


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
    if progress.subagent is not None:
        body["subagent"] = _subagent(progress.subagent)
    return body


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
    kind = "permission" if isinstance(interrupt, PermissionAsk) else "question"
    return body | {"type": kind, "details": details(interrupt)}


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


def _tool(call: ToolCall) -> Json:
    body: Json = {"call_id": call.call_id, "tool": call.tool, "status": call.status}
    for name in ("title", "subtitle", "input", "output", "error"):
        value = getattr(call, name)
        if value is not None:
            body[name] = value
    return body


def _tool_text(call: ToolCall) -> str:
    """A tool call for clients that take text only."""
    lines = [f"[{call.tool}] {call.status}" + (f": {call.title}" if call.title else "")]
    lines += [text for text in (call.output, call.error) if text]
    return "\n".join(lines)
