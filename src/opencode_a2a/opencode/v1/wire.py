"""The slice of OpenCode's wire format this service reads, and its translation.

Models ignore fields we do not use. An event of an unknown `type` is normal
(OpenCode has dozens, and new ones every month) and translates to nothing; an
event of a known `type` with a broken body raises, because that is a contract
change we want to see. Text deltas, nine tenths of all traffic, take a short way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from sys import intern
from typing import Any, Literal, TypeAlias

from pydantic import Field

from ...domain import events as ev
from ...domain.catalog import Mention, PromptPart, Subtask
from ...domain.values import (
    AnsweredBy,
    Attachment,
    Failure,
    ModelRef,
    Part,
    PermissionAsk,
    PermissionRule,
    Problem,
    Question,
    QuestionAsk,
    SubAgent,
    TodoItem,
)
from .. import answers
from ..answers import (
    FILTERED,
    Tokens,
    Wire,
    data_url,
    deep,
    file_part,
    reader,
    scrub,
    text_in,
    usage,
)
from ..api import without_none
from ..ids import part_id, prompt_id
from ..rules import NAMES_1, renamed

REFUSALS = ("The user rejected permission", "The user dismissed this question")
INTERRUPTED = "All fibers interrupted"  # what OpenCode says where it has interrupted itself
OUTPUT_WINDOW = 30_000  # characters that OpenCode tells of a running tool: its latest, …
OUTPUT_CUT = "...\n\n"  # … after this
# What OpenCode calls a session until a model has made a title for it.
UNTITLED = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT|$")


class ErrorInfo(Wire):
    name: str = "UnknownError"
    message: str = deep("data", "message", default="")
    status: int | None = deep("data", "statusCode")


class ModelName(Wire):
    provider: str = Field(alias="providerID")
    model: str = Field(alias="modelID")


class MessageInfo(Wire):
    id: str
    session: str = Field(alias="sessionID")
    role: Literal["user", "assistant"]
    parent: str | None = Field(default=None, alias="parentID")
    created: int = deep("time", "created", default=0)
    completed: int | None = deep("time", "completed")
    finish: str | None = None
    error: ErrorInfo | None = None
    summary: Any = None
    agent: str | None = None
    model: ModelName | None = None  # of a user's message
    provider_id: str | None = Field(default=None, alias="providerID")  # these three: an answer's
    model_id: str | None = Field(default=None, alias="modelID")
    variant: str | None = None


class FileInfo(Wire):
    mime: str = ""
    url: str = ""
    filename: str | None = None


class ToolState(Wire):
    status: Literal["pending", "running", "completed", "error"]
    title: str | None = None
    input: dict[str, Any] = Field(default={})
    output: str | None = None
    error: str | None = None
    metadata: dict[str, Any] = Field(default={})
    started: int | None = deep("time", "start")
    ended: int | None = deep("time", "end")
    attachments: list[FileInfo] = Field(default=[])


class PartInfo(FileInfo):
    """Every part we read, in one model: which fields are set follows from `type`."""

    id: str
    type: str
    session: str = Field(alias="sessionID")
    message: str = Field(alias="messageID")
    text: str = ""
    synthetic: bool = False
    ignored: bool = False
    ended: int | None = deep("time", "end")
    call_id: str = Field(default="", alias="callID")
    tool: str = ""
    state: ToolState | None = None
    tokens: Tokens | None = None  # only few parts have any
    cost: float = 0.0
    reason: str | None = None  # why a step has ended
    name: str = ""  # of an agent; what follows: of work for a sub-agent
    prompt: str = ""
    description: str = ""
    agent: str = ""


class Message(Wire):
    info: MessageInfo
    parts: list[PartInfo] = Field(default=[])


class SessionInfo(Wire):
    id: str
    parent: str | None = Field(default=None, alias="parentID")
    title: str = ""
    directory: str = ""
    agent: str | None = None
    created: int = deep("time", "created", default=0)


class Status(Wire):
    type: Literal["idle", "busy", "retry"]
    attempt: int = 0
    message: str = ""
    next: int = 0


class PermissionInfo(Wire):
    id: str
    session: str = Field(alias="sessionID")
    permission: str
    patterns: tuple[str, ...] = ()
    metadata: dict[str, Any] = Field(default={})
    always: tuple[str, ...] = ()
    call_id: str | None = deep("tool", "callID")


class QuestionInfo(Wire):
    id: str
    session: str = Field(alias="sessionID")
    questions: tuple[Question, ...] = ()
    call_id: str | None = deep("tool", "callID")


def rules_to_wire(rules: Sequence[PermissionRule]) -> list[dict[str, Any]]:
    return [asdict(rule) for rule in renamed(rules, NAMES_1)]


def model(chosen: ModelRef | None) -> dict[str, str] | None:
    return {"providerID": chosen.provider, "modelID": chosen.model} if chosen else None


def prompt_parts(message_id: str, parts: Sequence[PromptPart]) -> list[dict[str, Any]]:
    return [{"id": part_id(message_id, i), **prompt_part(part)} for i, part in enumerate(parts)]


def prompt_part(part: PromptPart) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Attachment():
            file = {"type": "file", "mime": part.media_type, "url": data_url(part)}
            return file | ({"filename": part.filename} if part.filename else {})
        case Mention(agent=agent):
            return {"type": "agent", "name": agent}
        case Subtask():
            work = asdict(part) | {"model": model(part.model)}
            return {"type": "subtask"} | without_none(work)


Reader: TypeAlias = Callable[[dict[str, Any]], Sequence[ev.AgentEvent]]
EVENT_ROUTE: tuple[str, ...] = ("global", "event")


def payload(raw: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = raw["payload"]
    return found


def session_of(raw: Mapping[str, Any]) -> str | None:
    """The session an event belongs to, or None for process-wide events."""
    if raw["type"] == "sync":
        return None
    session = raw["properties"].get("sessionID")
    return session if isinstance(session, str) else None


def parent_of(raw: Mapping[str, Any]) -> str | None:
    """The parent of the session that an event says was created."""
    parent = raw["properties"].get("info", {}).get("parentID")
    return parent if isinstance(parent, str) else None


def number_of(_: Mapping[str, Any]) -> None:
    """Events have no numbers."""


def translate(raw: Mapping[str, Any], _: object = None) -> Sequence[ev.AgentEvent]:
    reader = _READERS.get(raw["type"])
    return reader(raw["properties"]) if reader is not None else ()


def message_events(info: MessageInfo) -> list[ev.AgentEvent]:
    speaker = ev.Speaker.USER
    if info.role == "assistant":
        speaker = ev.Speaker.HOUSEKEEPING if info.summary is True else ev.Speaker.AGENT
    aborted = info.error is not None and info.error.name == "MessageAbortedError"
    return [
        ev.MessageSeen(
            session=intern(info.session),
            message_id=intern(prompt_id(info.id)),
            speaker=speaker,
            created=info.created,
            parent_id=intern(prompt_id(info.parent)) if info.parent else None,
            completed=info.completed is not None,
            finish=info.finish,
            problem=problem(info.error) if info.error is not None and not aborted else None,
            aborted=aborted,
            answered_by=_answered_by(info) if speaker is not ev.Speaker.USER else None,
        )
    ]


def events_of(message: Message) -> list[ev.AgentEvent]:
    """A stored message as it is now, and its parts."""
    parts = (event for part in message.parts for event in part_events(part))
    return [*message_events(message.info), *parts]


def stored_events(message: Message) -> list[ev.AgentEvent]:
    """The events that would have led to a stored message: its start, its parts, its end."""
    begun = {"completed": None, "finish": None, "error": None}
    now, *parts = events_of(message)
    return [*message_events(message.info.model_copy(update=begun)), *parts, now]


def _answered_by(info: MessageInfo) -> AnsweredBy | None:
    if not info.provider_id or not info.model_id:
        return None
    model = ModelRef(info.provider_id, info.model_id)
    return AnsweredBy(model, agent=info.agent, variant=info.variant)


def part_events(part: PartInfo) -> list[ev.AgentEvent]:
    # Many events have the same ids, which live as long as the task: keep one copy of each.
    where = (intern(part.session), intern(part.message), intern(part.id))
    match part.type:
        case "text" | "reasoning" if not part.synthetic and not part.ignored:
            kind, ended = ev.BlockKind(part.type), part.ended is not None
            return [ev.TextSnapshot(*where, kind=kind, text=part.text, ended=ended)]
        case "tool" if part.state is not None:
            session, message, part_id = where
            files = enumerate(part.state.attachments, 1)
            return [
                _tool_snapshot(part, part.state),
                *(
                    ev.FileSnapshot(session, message, f"{part_id}-file-{n}", part=_file(info))
                    for n, info in files
                ),
            ]
        case "file":
            return [ev.FileSnapshot(*where, _file(part))]
        case "step-start":
            return [ev.StepStarted(*where)]
        case "step-finish":
            last = part.reason not in (None, "tool-calls")
            return [ev.StepFinished(*where, usage(part.tokens, part.cost), may_be_last=last)]
        case "patch":
            return [ev.FilesChanged(part.session, part.message)]
        case "compaction":
            return [ev.Compacting(part.session, done=False, part_id=part.id)]
        case _:
            return []


def _file(info: FileInfo) -> Part:
    return file_part(info.url, media_type=info.mime, name=info.filename)


def _tool_snapshot(part: PartInfo, state: ToolState) -> ev.ToolSnapshot:
    output = state.output
    if output is None and isinstance(printed := state.metadata.get("output"), str):
        output = printed.removeprefix(OUTPUT_CUT) if len(printed) >= OUTPUT_WINDOW else printed
    error = state.error or ""
    call = ev.ToolCall(
        call_id=part.call_id,
        tool=part.tool,
        status=state.status,
        title=state.title or None,
        subtitle=text_in(state.input, "description"),
        input=state.input or None,
        output=output,
        error=state.error,
        started_at=state.started,
        ended_at=state.ended,
    )
    refused = state.status == "error" and error.startswith(REFUSALS)
    # After a refusal with feedback the model looks for another way.
    stops = refused and "with the following feedback" not in error
    return ev.ToolSnapshot(
        *(intern(part.session), intern(part.message), intern(part.id)),
        call=call,
        child=_child(part, state),
        stops=stops or (state.status == "completed" and part.tool == "StructuredOutput"),
        refused=refused,
    )


def _child(part: PartInfo, state: ToolState) -> SubAgent | None:
    """The sub-agent a tool call waits for. Only the `task` tool is trusted to name a session."""
    session = text_in(state.metadata, "sessionId") if part.tool == "task" else None
    if session is None:
        return None
    return SubAgent(session, text_in(state.input, "subagent_type"), call_id=part.call_id)


def status_event(session: str, status: Status) -> ev.AgentEvent:
    match status.type:
        case "busy":
            return ev.Busy(session)
        case "idle":
            return ev.Idle(session)
        case "retry":
            return ev.Retrying(
                session=session,
                attempt=status.attempt,
                message=scrub(status.message),
                next_at=status.next,
            )


def permission(info: PermissionInfo) -> PermissionAsk:
    told = partial(text_in, info.metadata)
    return PermissionAsk(
        request_id=info.id,
        session=info.session,
        permission=info.permission,
        patterns=info.patterns,
        command=told("command") or None,
        filepath=told("filepath") or None,
        diff=told("diff") or None,
        title=told("title") or told("description") or None,
        always=info.always,
        call_id=info.call_id,
    )


def question(info: QuestionInfo) -> QuestionAsk:
    return QuestionAsk(info.id, info.session, info.questions, call_id=info.call_id)


def problem(error: ErrorInfo) -> Problem:
    reason, status = error.message, error.status
    sentence = None
    match error.name:
        case "APIError" if status in (401, 403):
            kind = Failure.PROVIDER_AUTH
        case "ProviderAuthError":
            kind = Failure.PROVIDER_AUTH
            sentence = (
                "OpenCode has no valid login for the model provider. "
                "Run `opencode auth login` on the OpenCode host."
            )
        case "APIError" if status in (402, 429):
            kind = Failure.PROVIDER_QUOTA
        case "ContextOverflowError":
            kind = Failure.CONTEXT_OVERFLOW
        case "MessageOutputLengthError":
            kind = Failure.OUTPUT_LIMIT
        case "ContentFilterError":
            kind, sentence = Failure.PROVIDER_ERROR, FILTERED
        case _:
            kind = Failure.PROVIDER_ERROR
    return answers.problem(kind, reason, status=status, sentence=sentence)


def _delta(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    if p["field"] != "text":
        return ()
    return (
        ev.TextDelta(
            session=p["sessionID"], message_id=p["messageID"], part_id=p["partID"], text=p["delta"]
        ),
    )


def _session_created(info: SessionInfo) -> Sequence[ev.AgentEvent]:
    return [ev.ChildStarted(info.id, info.parent, agent=info.agent)] if info.parent else []


def _session_updated(info: SessionInfo) -> Sequence[ev.AgentEvent]:
    return [] if UNTITLED.match(info.title) else [ev.TitleChanged(info.id, info.title)]


def _todos(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    empty = dict.fromkeys(("content", "status", "priority"), "")  # not every version sends all
    found = [{**empty, **todo} for todo in p["todos"]]
    todos: tuple[TodoItem, ...] = reader(tuple[TodoItem, ...]).validate_python(found)
    return [ev.TodosChanged(p["sessionID"], todos)]


def _session_error(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    if "sessionID" not in p:
        return ()
    error = ErrorInfo.model_validate(p.get("error") or {})
    if error.name == "MessageAbortedError":
        return ()  # somebody stopped the run, which is no failure; its message says so too
    if INTERRUPTED in error.message:  # what is stored tells what came of it
        return [ev.Gap(p["sessionID"])]
    return [ev.SessionErred(p["sessionID"], problem(error))]


def _closed(resolution: Any) -> Reader:
    return lambda p: [ev.InterruptClosed(p["sessionID"], p["requestID"], resolution=resolution)]


_READERS: Mapping[str, Reader] = {
    "message.part.delta": _delta,
    "message.updated": lambda p: message_events(MessageInfo.model_validate(p["info"])),
    "message.part.updated": lambda p: part_events(PartInfo.model_validate(p["part"])),
    "message.part.removed": lambda p: [
        ev.PartRemoved(p["sessionID"], p["messageID"], part_id=p["partID"])
    ],
    "session.created": lambda p: _session_created(SessionInfo.model_validate(p["info"])),
    "session.updated": lambda p: _session_updated(SessionInfo.model_validate(p["info"])),
    # No more events come. The gap makes the turn read what is stored, and find the session gone.
    "session.deleted": lambda p: [ev.Gap(p["sessionID"])],
    "session.status": lambda p: [status_event(p["sessionID"], Status.model_validate(p["status"]))],
    "session.idle": lambda p: [ev.Idle(p["sessionID"])],
    "session.error": _session_error,
    "session.compacted": lambda p: [ev.Compacting(p["sessionID"], done=True)],
    "permission.asked": lambda p: [
        ev.InterruptAsked(p["sessionID"], permission(PermissionInfo.model_validate(p)))
    ],
    "question.asked": lambda p: [
        ev.InterruptAsked(p["sessionID"], question(QuestionInfo.model_validate(p)))
    ],
    "permission.replied": lambda p: _closed(p["reply"])(p),
    "question.replied": _closed("answered"),
    "question.rejected": _closed("rejected"),
    "todo.updated": _todos,
}
