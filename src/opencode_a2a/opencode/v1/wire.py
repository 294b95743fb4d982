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
from sys import intern
from typing import Any, Literal

from pydantic import Field

from ...domain import events as ev
from ...domain.values import (
    AnsweredBy,
    Attachment,
    Choice,
    Failure,
    Interrupt,
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
from ..answers import FILTERED, Tokens, Wire, data_url, file_part, reader, scrub, usage
from ..ids import prompt_id

REFUSALS = ("The user rejected permission", "The user dismissed this question")
INTERRUPTED = "All fibers interrupted"  # what OpenCode says where it has interrupted itself
OUTPUT_WINDOW = 30_000  # characters that OpenCode tells of a running tool: its latest, …
OUTPUT_CUT = "...\n\n"  # … after this
_NAMES_OF_2 = {"shell": "bash", "subagent": "task"}  # what rules say that were written for 2.x
# What OpenCode calls a session until a model has made a title for it.
UNTITLED = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT|$")


class Time(Wire):
    created: int = 0
    completed: int | None = None
    start: int | None = None
    end: int | None = None


class ErrorInfo(Wire):
    class Data(Wire):
        message: str = ""
        status: int | None = Field(default=None, alias="statusCode")

    name: str = "UnknownError"
    data: Data = Field(default_factory=Data)


class MessageInfo(Wire):
    id: str
    session: str = Field(alias="sessionID")
    role: Literal["user", "assistant"]
    parent: str | None = Field(default=None, alias="parentID")
    time: Time = Field(default_factory=Time)
    finish: str | None = None
    error: ErrorInfo | None = None
    summary: Any = None
    agent: str | None = None
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
    input: dict[str, Any] | None = None
    output: str | None = None
    error: str | None = None
    metadata: dict[str, Any] | None = None
    time: Time | None = None
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
    time: Time | None = None
    call_id: str = Field(default="", alias="callID")
    tool: str = ""
    state: ToolState | None = None
    tokens: Tokens | None = None  # only few parts have any
    cost: float = 0.0
    reason: str | None = None  # why a step has ended


class SessionInfo(Wire):
    id: str
    parent: str | None = Field(default=None, alias="parentID")
    title: str = ""
    directory: str = ""
    agent: str | None = None
    time: Time = Field(default_factory=Time)


class Status(Wire):
    type: Literal["idle", "busy", "retry"]
    attempt: int = 0
    message: str = ""
    next: int = 0


class ToolRef(Wire):
    call_id: str = Field(alias="callID")


class PermissionInfo(Wire):
    id: str
    session: str = Field(alias="sessionID")
    permission: str
    patterns: list[str] = Field(default=[])
    metadata: dict[str, Any] = Field(default={})
    always: list[str] = Field(default=[])
    tool: ToolRef | None = None


class QuestionInfo(Wire):
    class Item(Wire):
        class Option(Wire):
            label: str
            description: str = ""

        question: str = ""
        header: str = ""
        options: list[Option] = Field(default=[])
        multiple: bool = False
        custom: bool = True

    id: str
    session: str = Field(alias="sessionID")
    questions: list[Item] = Field(default=[])
    tool: ToolRef | None = None


def rule_to_wire(rule: PermissionRule) -> dict[str, Any]:
    return asdict(rule) | {"permission": _NAMES_OF_2.get(rule.permission, rule.permission)}


def prompt_part(part: str | Attachment) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    file = {
        "type": "file",
        "mime": part.media_type,
        "url": data_url(part),
    }
    return file | ({"filename": part.filename} if part.filename else {})


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
            created=info.time.created,
            parent_id=intern(prompt_id(info.parent)) if info.parent else None,
            completed=info.time.completed is not None,
            finish=info.finish,
            problem=problem(info.error) if info.error is not None and not aborted else None,
            aborted=aborted,
            answered_by=_answered_by(info) if speaker is not ev.Speaker.USER else None,
        )
    ]


def _answered_by(info: MessageInfo) -> AnsweredBy | None:
    if not info.provider_id or not info.model_id:
        return None
    model = ModelRef(info.provider_id, info.model_id)
    return AnsweredBy(model, agent=info.agent, variant=info.variant)


def part_events(part: PartInfo) -> list[ev.AgentEvent]:
    # Many events have the same ids, which live as long as the task: keep one copy of each.
    where = (intern(part.session), intern(part.message), intern(part.id))
    match part.type:
        case "text" | "reasoning":
            if part.synthetic or part.ignored:
                return []
            ended = part.time is not None and part.time.end is not None
            return [
                ev.TextSnapshot(*where, kind=ev.BlockKind(part.type), text=part.text, ended=ended)
            ]
        case "tool" if part.state is not None:
            call = _tool_call(part, part.state)
            return [
                ev.ToolSnapshot(
                    *where,
                    call=call,
                    child=_child(part),
                    stops=_stops(call),
                    refused=_refused(call),
                ),
                *(
                    ev.FileSnapshot(
                        session=part.session,
                        message_id=part.message,
                        part_id=f"{part.id}-file-{n}",
                        part=_file(info),
                    )
                    for n, info in enumerate(part.state.attachments, 1)
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


def _child(part: PartInfo) -> SubAgent | None:
    """The sub-agent a tool call waits for. Only the `task` tool is trusted to name a session."""
    if part.state is None or part.tool != "task":
        return None
    session = (part.state.metadata or {}).get("sessionId")
    agent = (part.state.input or {}).get("subagent_type")
    if not isinstance(session, str):
        return None
    return SubAgent(session, agent if isinstance(agent, str) else None, call_id=part.call_id)


def _stops(call: ev.ToolCall) -> bool:
    """Whether OpenCode ends the run with this call. After any other it calls the model again.

    A refusal with feedback does not end the run: the model looks for another way.
    """
    if _refused(call):
        return "with the following feedback" not in (call.error or "")
    return call.status == "completed" and call.tool == "StructuredOutput"


def _refused(call: ev.ToolCall) -> bool:
    return call.status == "error" and (call.error or "").startswith(REFUSALS)


def _tool_call(part: PartInfo, state: ToolState) -> ev.ToolCall:
    output = state.output
    if output is None and state.metadata and isinstance(state.metadata.get("output"), str):
        output = state.metadata["output"]
        if len(output) >= OUTPUT_WINDOW:
            output = output.removeprefix(OUTPUT_CUT)
    subtitle = (state.input or {}).get("description")
    return ev.ToolCall(
        call_id=part.call_id,
        tool=part.tool,
        status=state.status,
        title=state.title or None,
        subtitle=subtitle if isinstance(subtitle, str) else None,
        input=state.input or None,
        output=output,
        error=state.error,
        started_at=state.time.start if state.time else None,
        ended_at=state.time.end if state.time else None,
    )


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


def permission(info: PermissionInfo) -> Interrupt:
    def text(key: str) -> str | None:
        value = info.metadata.get(key)
        return value if isinstance(value, str) and value else None

    return PermissionAsk(
        request_id=info.id,
        session=info.session,
        permission=info.permission,
        patterns=tuple(info.patterns),
        command=text("command"),
        filepath=text("filepath"),
        diff=text("diff"),
        title=text("title") or text("description"),
        always=tuple(info.always),
        call_id=info.tool.call_id if info.tool else None,
    )


def question(info: QuestionInfo) -> Interrupt:
    return QuestionAsk(
        request_id=info.id,
        session=info.session,
        questions=tuple(
            Question(
                header=item.header,
                question=item.question,
                options=tuple(Choice(o.label, o.description) for o in item.options),
                multiple=item.multiple,
                custom=item.custom,
            )
            for item in info.questions
        ),
        call_id=info.tool.call_id if info.tool else None,
    )


def problem(error: ErrorInfo) -> Problem:
    reason, status = error.data.message, error.data.status
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


def _session_created(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    info = SessionInfo.model_validate(p["info"])
    return [ev.ChildStarted(info.id, info.parent, agent=info.agent)] if info.parent else []


def _session_updated(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    info = SessionInfo.model_validate(p["info"])
    return [] if UNTITLED.match(info.title) else [ev.TitleChanged(info.id, info.title)]


def _permission_asked(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    info = PermissionInfo.model_validate(p)
    return [ev.InterruptAsked(info.session, permission(info))]


def _question_asked(p: dict[str, Any]) -> Sequence[ev.AgentEvent]:
    info = QuestionInfo.model_validate(p)
    return [ev.InterruptAsked(info.session, question(info))]


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
    if INTERRUPTED in error.data.message:  # what is stored tells what came of it
        return [ev.Gap(p["sessionID"])]
    return [ev.SessionErred(p["sessionID"], problem(error))]


_READERS: Mapping[str, Callable[[dict[str, Any]], Sequence[ev.AgentEvent]]] = {
    "message.part.delta": _delta,
    "message.updated": lambda p: message_events(MessageInfo.model_validate(p["info"])),
    "message.part.updated": lambda p: part_events(PartInfo.model_validate(p["part"])),
    "message.part.removed": lambda p: [
        ev.PartRemoved(p["sessionID"], p["messageID"], part_id=p["partID"])
    ],
    "session.created": _session_created,
    "session.updated": _session_updated,
    # No more events come. The gap makes the turn read what is stored, and find the session gone.
    "session.deleted": lambda p: [ev.Gap(p["sessionID"])],
    "session.status": lambda p: [status_event(p["sessionID"], Status.model_validate(p["status"]))],
    "session.idle": lambda p: [ev.Idle(p["sessionID"])],
    "session.error": _session_error,
    "session.compacted": lambda p: [ev.Compacting(p["sessionID"], done=True)],
    "permission.asked": _permission_asked,
    "question.asked": _question_asked,
    "permission.replied": lambda p: [
        ev.InterruptClosed(p["sessionID"], p["requestID"], resolution=p["reply"])
    ],
    "question.replied": lambda p: [
        ev.InterruptClosed(p["sessionID"], p["requestID"], resolution="answered")
    ],
    "question.rejected": lambda p: [
        ev.InterruptClosed(p["sessionID"], p["requestID"], resolution="rejected")
    ],
    "todo.updated": _todos,
}
