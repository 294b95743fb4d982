"""What a peer says, as it is to be shown: a pure reading of A2A events.

Events are those of A2A 1.0 in JSON, whatever line the peer speaks. An artifact may arrive in
pieces, be repeated in a snapshot after a break, or be replaced: only what is new is shown. Blocks
of this project's own services say what they are (`metadata.shared.stream`); those of any other
agent are its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from .failures import (
    AuthRequired,
    InputRequired,
    TaskCanceled,
    TaskFailed,
    TaskNotCompleted,
    TaskRejected,
)

Json = dict[str, Any]
Kind = Literal["answer", "reasoning", "tool", "changes"]

ENDS = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
PAUSES = ("INPUT_REQUIRED", "AUTH_REQUIRED")
_NOT_COMPLETED: dict[str, tuple[type[TaskNotCompleted], str]] = {
    "FAILED": (TaskFailed, "The task failed."),
    "REJECTED": (TaskRejected, "The peer rejected the task."),
    "CANCELED": (TaskCanceled, "The task was canceled."),
    "INPUT_REQUIRED": (InputRequired, "The peer waits for an answer."),
    "AUTH_REQUIRED": (AuthRequired, "The peer wants you to log in somewhere first."),
}


@dataclass(frozen=True, slots=True)
class Text:
    """More text of a block; `replaces` says that it stands instead of what was shown of it."""

    kind: Kind
    block: str
    text: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    call: str
    name: str
    status: str
    title: str = ""
    error: str = ""
    seconds: float | None = None  # how long it took, if the peer says so

    @property
    def over(self) -> bool:
        return self.status in ("completed", "error")


@dataclass(frozen=True, slots=True)
class Changes:
    diff: str


@dataclass(frozen=True, slots=True)
class File:
    name: str
    media_type: str
    url: str | None  # None: the content itself was sent
    base64: str = field(default="", repr=False)  # the content

    @property
    def size(self) -> int:
        """Of the content, in bytes."""
        return len(self.base64.rstrip("=")) * 3 // 4


@dataclass(frozen=True, slots=True)
class Data:
    """Structured data in an answer."""

    value: Any


@dataclass(frozen=True, slots=True)
class Note:
    """What the peer says about its work while it works."""

    text: str


@dataclass(frozen=True, slots=True)
class Todos:
    items: tuple[tuple[str, bool], ...]  # what, and whether it is done


Shown: TypeAlias = Text | Tool | Changes | File | Data | Note | Todos


@dataclass(frozen=True, slots=True)
class Request:
    """What one of our own services waits for."""

    id: str
    type: str  # permission or question
    details: Json = field(default_factory=dict)


@dataclass(slots=True)
class _Block:
    kind: Kind
    pieces: list[str] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)  # files and data
    tool: Tool | None = None

    @property
    def text(self) -> str:
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]


class Transcript:
    """Feed it every event of a task, also of several streams."""

    def __init__(self) -> None:
        self.task_id: str | None = None
        self.context_id: str | None = None
        self.state: str | None = None  # without its prefix, such as COMPLETED
        self.status_text = ""
        self.requests: tuple[Request, ...] = ()
        self.usage: Json | None = None
        self.session_id: str | None = None
        self.task: Json | None = None  # the last snapshot
        self.message: Json | None = None  # the answer of an agent that makes no task
        self._blocks: dict[str, _Block] = {}
        self._last_note = ""
        self._messages = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDS

    @property
    def paused(self) -> bool:
        return self.state in PAUSES

    @property
    def has_blocks(self) -> bool:
        """Whether there is anything besides states: artifacts, or a message instead of them."""
        return bool(self._blocks)

    @property
    def answer(self) -> str:
        """The text of the peer's answer so far."""
        texts = [block.text for block in self._blocks.values() if block.kind == "answer"]
        return "\n".join(text for text in texts if text)

    def check(self) -> None:
        """Raise unless the task has completed."""
        if self.state in _NOT_COMPLETED:
            kind, message = _NOT_COMPLETED[self.state]
            raise kind(self.status_text or message)

    def begin(self) -> None:
        """Another message was sent, so what the task waited for is no longer so."""
        self.state, self.status_text, self.requests = None, "", ()

    def feed(self, event: Json) -> list[Shown]:
        match event:
            case {"task": dict(task)}:
                return list(self._task(task))
            case {"message": dict(message)}:
                return list(self._message(message))
            case {"statusUpdate": dict(update)}:
                return list(self._status_update(update))
            case {"artifactUpdate": dict(update)}:
                self._ids(update.get("taskId"), update.get("contextId"))
                artifact = update.get("artifact", {})
                return list(self._artifact(artifact, append=bool(update.get("append"))))
            case _:
                return []

    def _ids(self, task_id: str | None, context_id: str | None) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id

    def _task(self, task: Json) -> Iterator[Shown]:
        self.task = task
        self._ids(task.get("id"), task.get("contextId"))
        for artifact in task.get("artifacts", []):
            yield from self._artifact(artifact, append=False)
        self._marks(task.get("metadata", {}))
        yield from self._status(task.get("status", {}), task.get("history", []))

    def _message(self, message: Json) -> Iterator[Shown]:
        """An agent may answer with a message instead of a task."""
        self._ids(message.get("taskId"), message.get("contextId"))
        self.message, self.state = message, "COMPLETED"
        self._messages += 1
        name = message.get("messageId") or f"message {self._messages}"
        parts = message.get("parts", [])
        yield from self._artifact({"artifactId": name, "parts": parts}, append=False)

    def _status_update(self, update: Json) -> Iterator[Shown]:
        self._ids(update.get("taskId"), update.get("contextId"))
        metadata = update.get("metadata", {})
        self._marks(metadata)
        progress = _at(metadata, "shared", "progress")
        if progress.get("type") == "todo":
            yield Todos(
                tuple(
                    (str(todo.get("content", "")), todo.get("status") == "completed")
                    for todo in dicts(progress.get("todos"))
                )
            )
        elif progress.get("type") == "retry":
            yield Note(f"The model's provider failed and is tried again: {progress.get('message')}")
        elif progress.get("type") == "tool-call" and progress.get("subagent"):
            name, status = str(progress.get("tool", "")), str(progress.get("status", ""))
            agent = _at(progress, "subagent").get("agent") or "sub-agent"
            title = f"{agent}: {progress.get('title') or name}"
            yield Tool(str(progress.get("call_id")), name, status, title=title)
        yield from self._status(update.get("status", {}), [])

    def _marks(self, metadata: Json) -> None:
        shared = _at(metadata, "shared")
        self.usage = _at(shared, "usage") or self.usage
        self.session_id = _at(shared, "session").get("id") or self.session_id
        found = dicts(shared.get("interrupts")) or dicts([shared.get("interrupt")])
        self.requests = tuple(
            Request(str(each.get("request_id")), str(each.get("type")), _at(each, "details"))
            for each in found
            if each.get("phase") == "asked"
        )

    def _status(self, status: Json, history: list[Json]) -> Iterator[Shown]:
        state = str(status.get("state", "")).removeprefix("TASK_STATE_")
        if not state:
            return
        self.state = state
        parts = _at(status, "message").get("parts", [])
        text = "".join(part.get("text", "") for part in parts)
        self.status_text = text
        if state == "COMPLETED":
            if not self.answer:
                said = parts or ([] if self._blocks else _last_words(history))
                if said:
                    words = {"artifactId": "status", "parts": said}
                    yield from self._artifact(words, append=False)
        elif text and text != self._last_note and not self.ended and not self.paused:
            yield Note(text)
        self._last_note = text

    def _artifact(self, artifact: Json, *, append: bool) -> Iterator[Shown]:
        name = str(artifact.get("artifactId", ""))
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block(_kind(artifact))
            append = False
        parts = artifact.get("parts", [])
        if block.kind == "tool":
            yield from _tool(block, parts)
            return
        text = "".join(part.get("text", "") for part in parts)
        if block.kind == "changes":
            if text and text != block.text:
                block.pieces = [text]
                yield Changes(text)
            return
        yield from _text(name, block, text, append=append)
        for position, part in enumerate(parts):
            yield from _other(block, position, part)


def _kind(artifact: Json) -> Kind:
    declared = _at(artifact, "metadata", "shared", "stream").get("block_type")
    if declared == "tool_call":
        return "tool"
    if declared == "reasoning":
        return "reasoning"
    if any(part.get("mediaType") == "text/x-diff" for part in artifact.get("parts", [])):
        return "changes"
    return "answer"


def _text(name: str, block: _Block, text: str, *, append: bool) -> Iterator[Shown]:
    if append:
        block.pieces.append(text)
        if text:
            yield Text(block.kind, name, text)
        return
    before = block.text
    block.pieces = [text]
    if text.startswith(before):
        if len(text) > len(before):
            yield Text(block.kind, name, text[len(before) :])
    elif text:
        yield Text(block.kind, name, text, replaces=True)


def _tool(block: _Block, parts: list[Json]) -> Iterator[Shown]:
    for part in parts:
        call = part.get("data")
        if not isinstance(call, dict):
            continue
        made = Tool(
            str(call.get("call_id", "")),
            str(call.get("tool", "")),
            str(call.get("status", "")),
            title=str(call.get("title") or call.get("subtitle") or ""),
            error=str(call.get("error") or ""),
            seconds=_seconds_between(call.get("started_at"), call.get("ended_at")),
        )
        if "output_start" in call or made == block.tool:  # more output of the same
            continue
        block.tool = made
        yield made


def _seconds_between(began: Any, ended: Any) -> float | None:
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):  # not said, or in a form of its own
        return None


def _other(block: _Block, position: int, part: Json) -> Iterator[Shown]:
    if "data" in part:
        key = f"data {position} {part['data']}"
        found: Shown = Data(part["data"])
    elif "raw" in part or "url" in part:
        url, content = part.get("url"), str(part.get("raw", ""))
        name, media_type = str(part.get("filename", "")), str(part.get("mediaType", ""))
        key = f"file {position} {url} {len(content)}"
        found = File(name, media_type, url, content)
    else:
        return
    if key not in block.shown:
        block.shown.add(key)
        yield found


def _last_words(history: list[Json]) -> list[Json]:
    """What the agent said last: some put their answer nowhere else."""
    said = [message for message in history if message.get("role") == "ROLE_AGENT"]
    parts: list[Json] = said[-1].get("parts", []) if said else []
    return parts


def _at(value: Any, *names: str) -> Json:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def dicts(value: Any) -> list[Json]:
    """The objects in a list: metadata of other agents may be anything."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
