"""What a client has in its hands, in a form two of them can be compared in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from a2a.types.a2a_pb2 import Artifact, Part, StreamResponse, Task, TaskState

from tests.e2e.protojson import to_json
from tests.features import tool_input, tool_name

PATIENCE = 30.0  # seconds a test waits for anything
BASH = tool_name("bash")  # what OpenCode calls its shell, as a tool and as a permission
SHELL = f"tool:{BASH}"  # the name of the artifact of a command
TASK = f"tool:{tool_name('task')}"  # … and of the call of a sub-agent


def state(task: Task) -> str:
    """`completed`, `input-required` …, whatever the line calls it."""
    name: str = TaskState.Name(task.status.state)
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


def says(task: Task) -> str:
    """The words of the status message; empty without one."""
    return "\n".join(part.text for part in task.status.message.parts)


def shared(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = to_json(task.metadata).get("shared", {})
    return found


def error(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = to_json(task.metadata)["opencode"]["error"]
    return found


def tool(name: str, status: str = "completed", **told: Any) -> tuple[str, dict[str, Any]]:
    """A tool call's artifact as `shown` shows it; name and arguments are those of 1.x."""
    called = tool_name(name)
    if "input" in told:
        told["input"] = tool_input(**told["input"])
    return f"tool:{called}", {"tool": called, "status": status, **told}


def shown(task: Task) -> list[tuple[str, Any]]:
    """Name and content of every artifact, in order. Ids and times of calls are left out."""
    return [(artifact.name, _content(artifact)) for artifact in task.artifacts]


def answer(task: Task) -> str:
    """The last text artifact: what a chat client would show as the answer."""
    texts = [content for name, content in shown(task) if name == "answer"]
    last: str = texts[-1]
    return last


def _content(artifact: Artifact) -> Any:
    contents: list[Any] = []
    for part in artifact.parts:
        if part.WhichOneof("content") == "text":
            contents.append(part.text)
            continue
        if part.WhichOneof("content") in ("raw", "url"):
            contents.append((part.raw or part.url, part.media_type, part.filename))
            continue
        data = to_json(part.data)
        if "call_id" in data:
            assert data.pop("call_id")
            began, ended = data.pop("started_at", ""), data.pop("ended_at", "")
            assert not ended or began <= ended  # a call that was cut off has no end
        contents.append(data)
    [content, *more] = contents
    return [content, *more] if more else content


def facts(task: Task) -> dict[str, Any]:
    """Everything two views of one finished task must agree on."""
    return {
        "id": task.id,
        "context": task.context_id,
        "state": state(task),
        "says": says(task),
        "artifacts": [(a.artifact_id, a.name, _content(a)) for a in task.artifacts],
        "metadata": to_json(task.metadata),
    }


def outcome(task: Task) -> dict[str, Any]:
    """What two tasks have in common when they went the same way."""
    metadata = to_json(task.metadata)
    return {
        "state": state(task),
        "says": says(task),
        "artifacts": shown(task),
        "usage": metadata.get("shared", {}).get("usage"),
        "error": metadata.get("opencode", {}).get("error"),
    }


class Stream:
    """Events as they arrive, and the task a plain client makes of them."""

    def __init__(self, events: AsyncIterator[StreamResponse]) -> None:
        self._arriving = events
        self.events: list[StreamResponse] = []
        self.task = Task()
        self._open: dict[str, bool] = {}
        self._sequence = -1

    async def next(self) -> StreamResponse | None:
        """The next event, or None at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            event = await anext(self._arriving, None)
        if event is not None:
            self._apply(event)
            self.events.append(event)
        return event

    async def until(self, wanted: Callable[[StreamResponse], object]) -> StreamResponse:
        """Read on to the first event that is wanted, which must come."""
        while event := await self.next():
            if wanted(event):
                return event
        raise AssertionError(f"the stream ended in {state(self.task)} without what was wanted")

    async def rest(self) -> Task:
        """Read to the end; the task as it is then."""
        while await self.next() is not None:
            pass
        assert self.events, "a stream must say something"
        return self.task

    @property
    def progress(self) -> list[dict[str, Any]]:
        """The signs of life, in order, without the steps that every answer has."""
        return [p for p in self.all_progress if not p["type"].startswith("step-")]

    @property
    def all_progress(self) -> list[dict[str, Any]]:
        """Without what is said of texts: that is no progress of the work."""
        told = (_shared(event).get("progress") for event in self.events)
        return [progress for progress in told if progress and progress["type"] != "phase"]

    def _apply(self, event: StreamResponse) -> None:
        kind = event.WhichOneof("payload")
        if not self.events:
            assert kind == "task", "a stream begins with its task"
        match kind:
            case "task":
                self.task.CopyFrom(event.task)
            case "status_update":
                update = event.status_update
                assert (update.task_id, update.context_id) == (self.task.id, self.task.context_id)
                self.task.status.CopyFrom(update.status)
                if state(self.task) == "completed":
                    self._answer_last()
                self._remember(event)
                self._in_order(event)
            case "artifact_update":
                chunk = event.artifact_update
                assert (chunk.task_id, chunk.context_id) == (self.task.id, self.task.context_id)
                self._add(chunk.artifact, chunk.append, chunk.last_chunk)
                self._in_order(event)
            case _:
                raise AssertionError(f"unexpected in a stream: {kind}")

    def _add(self, chunk: Artifact, append: bool, last: bool) -> None:
        known = {artifact.artifact_id: artifact for artifact in self.task.artifacts}
        kept = known.get(chunk.artifact_id)
        if append:
            assert kept is not None, "only what exists can be appended to"
            assert self._open.get(chunk.artifact_id, True), "a last chunk is the last"
            assert kept.name == chunk.name
            _extend(kept.parts[0], chunk.parts[0])
            told = to_json(kept.metadata) or {"shared": {"stream": {}}}
            told["shared"]["stream"] |= to_json(chunk.metadata).get("shared", {}).get("stream", {})
            kept.metadata.update(told if chunk.HasField("metadata") else {})
        elif kept is not None:
            kept.CopyFrom(chunk)
        else:
            self.task.artifacts.append(chunk)
        self._open[chunk.artifact_id] = not last
        emptied = [i for i, a in enumerate(self.task.artifacts) if _content(a) == ""]
        for index in reversed(emptied):
            del self.task.artifacts[index]

    def _answer_last(self) -> None:
        """The final answer is the last artifact of a completed task."""
        texts = [i for i, a in enumerate(self.task.artifacts) if a.name == "answer"]
        if texts:
            answer = self.task.artifacts.pop(texts[-1])
            self.task.artifacts.append(answer)

    def _remember(self, event: StreamResponse) -> None:
        """What a status event says about the task as a whole."""
        told = to_json(event.status_update.metadata)
        kept = to_json(self.task.metadata)
        whole = {k: v for k, v in told.get("shared", {}).items() if k in ("session", "usage")}
        kept["shared"] = kept.get("shared", {}) | whole
        if "opencode" in told:
            kept["opencode"] = told["opencode"]
        self.task.metadata.Clear()
        self.task.metadata.update(kept)

    def _in_order(self, event: StreamResponse) -> None:
        marks = _shared(event).get("stream")
        if marks is not None:  # without stream hints only the frames have numbers
            assert marks["sequence"] > self._sequence, "events are numbered upwards"
            self._sequence = marks["sequence"]

    def complete(self) -> bool:
        """Whether every artifact that was begun was also ended."""
        return not any(self._open.values())


def _extend(kept: Part, piece: Part) -> None:
    """Add a piece to a part: text, or what a tool call has printed since."""
    if piece.WhichOneof("content") == "text":
        kept.text += piece.text
        return
    call, more = to_json(kept.data), to_json(piece.data)
    assert more["output_start"] == len(call.get("output", ""))
    call["output"] = call.get("output", "") + more["output"]
    kept.data.struct_value.update(call)


def _shared(event: StreamResponse) -> dict[str, Any]:
    match event.WhichOneof("payload"):
        case "status_update":
            metadata = event.status_update.metadata
        case "artifact_update":
            metadata = event.artifact_update.artifact.metadata
        case _:
            return {}
    found: dict[str, Any] = to_json(metadata).get("shared", {})
    return found


def reaches(wanted: str) -> Callable[[StreamResponse], bool]:
    """For `Stream.until`: a status event with this state."""

    def matches(event: StreamResponse) -> bool:
        return event.HasField("status_update") and wanted == state(
            Task(status=event.status_update.status)
        )

    return matches


def shows(name: str, content: str = "") -> Callable[[StreamResponse], bool]:
    """For `Stream.until`: an event about an artifact of this name, with this in it."""

    def matches(event: StreamResponse) -> bool:
        artifact = event.artifact_update.artifact
        return artifact.name == name and content in str(_content(artifact))

    return matches


def progresses(kind: str) -> Callable[[StreamResponse], bool]:
    return lambda event: _shared(event).get("progress", {}).get("type") == kind
