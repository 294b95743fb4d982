"""The slice of OpenCode 2's wire format this service reads, and its translation.

An event tells only what is new. What it means for a tool call follows from what was told of that
call before; one that was not told of is read from what is stored (`Gap`). OpenCode tells of a call
before it tells what is in the text before it, so the call waits for that. An event of an unknown
type is normal and means nothing; one of a known type with a broken body raises, because that is a
contract change we want to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from sys import intern
from typing import Any, Literal, TypeAlias

from pydantic import Field

from ...domain import events as ev
from ...domain.values import (
    AnsweredBy,
    Attachment,
    Choice,
    Failure,
    ModelRef,
    PermissionAction,
    PermissionAsk,
    PermissionRule,
    Problem,
    Question,
    QuestionAsk,
    SubAgent,
)
from .. import answers
from ..answers import FILTERED, Tokens, Wire, data_url, deep, file_part, scrub, text_in, usage
from ..api import without_none
from ..rules import NAMES_2, renamed

EVENT_ROUTE: tuple[str, ...] = ("api", "event")
REFUSALS = ("The user declined this tool call", "The user dismissed this question")
ABORTED = "aborted"
_TITLES = ("command", "pattern", "path", "url", "description")  # arguments that say what is done
# What rules say that were written for 1.x, where these have other names.

Calls: TypeAlias = dict[str, ev.TextSnapshot | ev.ToolSnapshot]  # and texts that are still empty
Body: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[Body, Body, Calls], Sequence[ev.AgentEvent]]


class Model(Wire):
    id: str
    provider: str = Field(alias="providerID")
    variant: str | None = None

    @property
    def chosen_variant(self) -> str | None:
        return None if self.variant == "default" else self.variant

    @property
    def ref(self) -> ModelRef:
        return ModelRef(self.provider, self.id)


class Error(Wire):
    type: str = "unknown"
    message: str = ""
    status: int | None = None


class Retry(Wire):
    attempt: int
    at: int
    error: Error = Field(default_factory=Error)


class ToolContent(Wire):
    type: str
    text: str = ""
    uri: str = ""
    mime: str = ""
    name: str | None = None


class ToolState(Wire):
    status: Literal["pending", "streaming", "running", "completed", "error"]
    input: Any = None
    content: list[ToolContent] = Field(default=[])
    metadata: dict[str, Any] = Field(default={})
    error: Error | None = None


class Content(Wire):
    """A block of an answer."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    state: dict[str, Any] | None = None  # a `ToolState` in a tool call; elsewhere the provider's
    ran: int | None = deep("time", "ran")
    completed: int | None = deep("time", "completed")


class File(Wire):
    data: str = ""
    mime: str = ""
    name: str | None = None


class Rule(Wire):
    action: str
    resource: str
    effect: PermissionAction

    @property
    def rule(self) -> PermissionRule:
        return PermissionRule(self.action, self.resource, self.effect)


class Named(Wire):
    name: str


class Message(Wire):
    """Every message that is stored, in one model: which fields are set follows from `type`."""

    id: str
    type: str
    created: int = deep("time", "created", default=0)
    completed: int | None = deep("time", "completed")
    text: str = ""
    files: list[File] = Field(default=[])
    agent: str | None = None
    model: Model | None = None
    content: list[Content] = Field(default=[])
    finish: str | None = None
    error: Error | None = None
    cost: float = 0.0
    tokens: Tokens | None = None
    changed: list[str] = deep("snapshot", "files", default=[])
    retry: Retry | None = None
    outcome: str | None = None  # of a run, when the agent came to rest
    agents: list[Named] = Field(default=[])
    command: str = ""  # this and what follows: of a shell command, or of a summary
    shell: str = Field(default="", alias="shellID")
    status: str = ""
    output: str | None = deep("output", "output")
    summary: str = ""


class Page(Wire):
    """Messages, newest first."""

    data: list[Message]
    next: str | None = deep("cursor", "next")


class Agent(Wire):
    id: str
    description: str = ""
    mode: str = "primary"
    hidden: bool = False
    model: Model | None = None
    permissions: list[Rule] = Field(default=[])

    @property
    def can_be_default(self) -> bool:
        return not self.hidden and self.mode != "subagent"


class Session(Wire):
    id: str
    title: str = ""
    parent: str | None = Field(default=None, alias="parentID")
    agent: str | None = None
    model: Model | None = None
    directory: str = deep("location", "directory", default="")
    permissions: list[Rule] = Field(default=[])
    created: int = deep("time", "created", default=0)
    updated: int = deep("time", "updated", default=0)
    metadata: dict[str, Any] | None = None
    reverted_to: str | None = deep("revert", "messageID")


class Change(Wire):
    file: str = ""
    patch: str = ""


class Permission(Wire):
    id: str
    session: str = Field(alias="sessionID")
    action: str
    resources: tuple[str, ...] = ()
    save: tuple[str, ...] = ()
    changes: list[Change] = deep("metadata", "files", default=[])
    call_id: str | None = deep("source", "id")


class FormField(Wire):
    title: str = ""
    description: str = ""
    type: str = ""
    options: tuple[Choice, ...] = ()
    custom: bool = False


class Form(Wire):
    id: str
    session: str = Field(alias="sessionID")
    kind: str = deep("metadata", "kind", default="")
    call_id: str | None = deep("metadata", "tool", "id")
    fields: list[FormField] = Field(default=[])


# -- what is sent


def at(directory: str) -> dict[str, str]:
    """The query of a request about a directory."""
    return {"location[directory]": directory}


def rules_to_wire(rules: Sequence[PermissionRule]) -> list[dict[str, str]]:
    return [
        {"action": rule.permission, "resource": rule.pattern, "effect": rule.action}
        for rule in renamed(rules, NAMES_2)
    ]


def prompt_body(parts: Sequence[str | Attachment]) -> dict[str, Any]:
    """A prompt has one text."""
    text = "\n\n".join(part for part in parts if isinstance(part, str))
    given = [part for part in parts if isinstance(part, Attachment)]
    files = [without_none({"uri": data_url(f), "name": f.filename or None}) for f in given]
    return without_none({"text": text, "files": files or None})


# -- events


def payload(raw: Any) -> Body:
    found: Body = raw
    return found


def session_of(event: Body) -> str | None:
    data = event["data"]
    session = data.get("sessionID") or data.get("form", {}).get("sessionID")
    return session if isinstance(session, str) else None


def parent_of(event: Body) -> str | None:
    parent = event["data"].get("parentID")
    return parent if isinstance(parent, str) else None


def number_of(event: Body) -> int | None:
    durable = event.get("durable")
    return durable["seq"] if durable else None


def translate(event: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
    reader = _READERS.get(event["type"])
    return reader(event, event["data"], calls) if reader is not None else ()


def _delta(kind: ev.BlockKind) -> Reader:
    def read(_: Body, d: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
        message = d["assistantMessageID"]
        part_id = _text_id(message, kind, d["ordinal"])
        delta = ev.TextDelta(
            session=d["sessionID"], message_id=message, part_id=part_id, text=d["delta"]
        )
        return [delta, *_waiting(calls, after=part_id)]

    return read


def _waiting(calls: Calls, after: str) -> Sequence[ev.AgentEvent]:
    """The calls that have waited for this text, which is not empty any more."""
    text = calls.pop(after, None)
    if text is None or _has_empty_text(calls, text.message_id):
        return ()
    return [each for each in calls.values() if each.message_id == text.message_id]


def _has_empty_text(calls: Calls, message: str) -> bool:
    return any(isinstance(e, ev.TextSnapshot) and e.message_id == message for e in calls.values())


def _text(kind: ev.BlockKind) -> Reader:
    """The start of a block, or its end, which has all of it."""

    def read(_: Body, d: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
        message, text = intern(d["assistantMessageID"]), d.get("text")
        snapshot = ev.TextSnapshot(
            intern(d["sessionID"]),
            message,
            _text_id(message, kind, d["ordinal"]),
            kind=kind,
            text=text or "",
            ended=text is not None,
        )
        if not snapshot.ended:
            calls[snapshot.part_id] = snapshot
            return [snapshot]
        return [snapshot, *_waiting(calls, after=snapshot.part_id)]

    return read


def _text_id(message: str, kind: ev.BlockKind, ordinal: int) -> str:
    return intern(f"{message}-{kind}-{ordinal}")


def _tool_id(message: str, call: str) -> str:
    return intern(f"{message}-{call}")


def _tool_named(event: Body, d: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
    message, call_id = intern(d["assistantMessageID"]), d["id"]
    snapshot = ev.ToolSnapshot(
        intern(d["sessionID"]),
        message,
        _tool_id(message, call_id),
        call=ev.ToolCall(call_id, d["name"], "pending"),
    )
    calls[snapshot.part_id] = snapshot
    return [snapshot] if not _has_empty_text(calls, message) else []


def _tool_changed(event: Body, d: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
    known = calls.get(_tool_id(d["assistantMessageID"], d["id"]))
    if not isinstance(known, ev.ToolSnapshot):
        return [ev.Gap(d["sessionID"])]
    call = known.call
    status = _STATUSES.get(event["type"], call.status)
    if status == "running" and call.started_at is None:
        call = replace(call, started_at=event["created"])
    elif status in ("completed", "error"):
        call = replace(call, ended_at=event["created"])
    told = {key: d[key] for key in ("input", "content", "metadata", "error") if d.get(key)}
    state = ToolState.model_validate({"status": status, "input": call.input} | told)
    snapshot, *files = _tool_events(replace(known, call=call), state)
    assert isinstance(snapshot, ev.ToolSnapshot)
    if snapshot.call.over and not snapshot.refused:
        del calls[snapshot.part_id]
    else:  # the end of its step is the refusal's
        calls[snapshot.part_id] = snapshot
    waits = status == "running" and _has_empty_text(calls, known.message_id)
    return [] if waits else [snapshot, *files]


def _tool_events(known: ev.ToolSnapshot, state: ToolState) -> Iterator[ev.AgentEvent]:
    """A tool call as it is now, then the files that it has shown."""
    given = state.input if isinstance(state.input, dict) else {}
    texts = [each.text for each in state.content if each.type == "text"]
    error = state.error
    titles = (title for key in _TITLES if (title := text_in(given, key)) is not None)
    call = replace(
        known.call,
        status="pending" if state.status == "streaming" else state.status,
        title=next(titles, None) if state.status == "completed" else None,
        subtitle=text_in(given, "description"),
        input=given or None,
        output="\n".join(texts) if state.content else None,
        error=error.message if error is not None else None,
    )
    refused = error is not None and error.type == ABORTED and error.message.startswith(REFUSALS)
    child = _child(call, state.metadata) or known.child
    yield replace(known, call=call, child=child, stops=refused, refused=refused)
    for number, each in enumerate(state.content, 1):
        if each.type == "file":
            name = PurePath(each.name).name if each.name else None
            shown = file_part(each.uri, media_type=each.mime, name=name)
            part_id = f"{known.part_id}-file-{number}"
            yield ev.FileSnapshot(known.session, known.message_id, part_id, part=shown)


def _child(call: ev.ToolCall, metadata: Body) -> SubAgent | None:
    """The sub-agent of a tool call. Only the tool `subagent` is trusted to name a session."""
    session = text_in(metadata, "sessionID") if call.tool == "subagent" else None
    if session is None:
        return None
    given = call.input or {}
    background = given.get("background") is True
    return SubAgent(session, text_in(given, "agent"), call_id=call.call_id, background=background)


def _prompted(event: Body, d: Body, _: Calls) -> Sequence[ev.AgentEvent]:
    """A prompt has become a message of the session."""
    session, message = intern(d["sessionID"]), intern(d["inboxID"])
    return [ev.MessageSeen(session, message, ev.Speaker.USER, created=event["created"])]


def _step_started(event: Body, d: Body, _: Calls) -> Sequence[ev.AgentEvent]:
    session, message = intern(d["sessionID"]), intern(d["assistantMessageID"])
    answers = _answered_by(Model.model_validate(d["model"]), d.get("agent"))
    created = d.get("started") or event["created"]
    return [
        ev.MessageSeen(session, message, ev.Speaker.AGENT, created=created, answered_by=answers),
        ev.StepStarted(session, message, _step_id(message)),
    ]


def _step_ended(event: Body, d: Body, calls: Calls) -> Sequence[ev.AgentEvent]:
    session, message, finish = intern(d["sessionID"]), intern(d["assistantMessageID"]), None
    events: list[ev.AgentEvent] = []
    if d.get("files"):
        events.append(ev.FilesChanged(session, message))
    error = Error.model_validate(d["error"]) if "error" in d else None
    told = [part_id for part_id, each in calls.items() if each.message_id == message]
    left = [calls.pop(part_id) for part_id in told]
    refused = any(isinstance(each, ev.ToolSnapshot) and each.refused for each in left)
    finish = d.get("finish")
    if "tokens" in d:
        tokens = Tokens.model_validate(d["tokens"])
        events.append(_step_finished(session, message, finish, tokens, d.get("cost", 0.0)))
    ended = ev.MessageSeen(
        session, message, ev.Speaker.AGENT, created=event["created"], completed=True
    )
    return [*events, _ended(ended, finish, error, refused=refused)]


def _step_id(message: str) -> str:
    return intern(f"{message}-step")


def _step_finished(
    session: str, message: str, finish: str | None, tokens: Tokens | None, cost: float
) -> ev.StepFinished:
    used, last = usage(tokens, cost), finish not in (None, "tool-calls")
    return ev.StepFinished(session, message, _step_id(message), used, may_be_last=last)


def _ended(
    message: ev.MessageSeen, finish: str | None, error: Error | None, *, refused: bool
) -> ev.MessageSeen:
    """A message at its end. A refusal ends the run with the calls of this message."""
    if refused:
        return replace(message, finish="tool-calls")
    if error is None or finish == "length":
        return replace(message, finish=finish)
    if error.type == ABORTED:
        return replace(message, aborted=True)
    return replace(message, finish=finish, problem=problem(error))


def _answered_by(model: Model | None, agent: str | None) -> AnsweredBy | None:
    if model is None:
        return None
    return AnsweredBy(model.ref, agent=agent, variant=model.chosen_variant)


def _compacting(event: Body, d: Body, _: Calls) -> Sequence[ev.AgentEvent]:
    message = d.get("inputID") or f"msg_{event['id'].removeprefix('evt_')}"
    return [ev.Compacting(d["sessionID"], done=False, part_id=message)]


def _child_started(_: Body, d: Body, __: Calls) -> Sequence[ev.AgentEvent]:
    parent = d.get("parentID")
    return [ev.ChildStarted(d["sessionID"], parent, agent=d.get("agent"))] if parent else []


def _form_created(_: Body, d: Body, __: Calls) -> Sequence[ev.AgentEvent]:
    form = Form.model_validate(d["form"])
    return [ev.InterruptAsked(form.session, question(form))] if is_question(form) else []


def _permission_asked(_: Body, d: Body, __: Calls) -> Sequence[ev.AgentEvent]:
    info = Permission.model_validate(d)
    return [ev.InterruptAsked(info.session, permission(info))]


def _closed(key: str, resolution: Any = None) -> Reader:
    return lambda _, d, __: [
        ev.InterruptClosed(d["sessionID"], d[key], resolution=resolution or d["reply"])
    ]


_KINDS = (ev.BlockKind.TEXT, ev.BlockKind.REASONING)
_STATUSES = {
    "session.tool.called": "running",
    "session.tool.success": "completed",
    "session.tool.failed": "error",
}
_READERS: Mapping[str, Reader] = {
    **{f"session.{kind}.delta": _delta(kind) for kind in _KINDS},
    **{f"session.{kind}.{what}": _text(kind) for kind in _KINDS for what in ("started", "ended")},
    "session.tool.input.started": _tool_named,
    **dict.fromkeys((*_STATUSES, "session.tool.progress"), _tool_changed),
    "session.step.started": _step_started,
    "session.step.ended": _step_ended,
    "session.step.failed": _step_ended,
    "session.inbox.delivered": _prompted,
    "session.execution.started": lambda _, d, __: [ev.Busy(d["sessionID"])],
    "session.execution.succeeded": lambda _, d, __: [ev.Idle(d["sessionID"], ev.RunEnd())],
    "session.execution.interrupted": lambda _, d, __: [
        ev.Idle(d["sessionID"], ev.RunEnd(aborted=True))
    ],
    "session.execution.failed": lambda _, d, __: [
        ev.Idle(d["sessionID"], ev.RunEnd(problem(Error.model_validate(d["error"]))))
    ],
    "session.retry.scheduled": lambda _, d, __: [_retry(d["sessionID"], Retry(**d))],
    "session.compaction.started": _compacting,
    # It does not say of which compaction. What is stored does, with what the summary has used.
    "session.compaction.ended": lambda _, d, __: [ev.Gap(d["sessionID"])],
    "session.created": _child_started,
    "session.renamed": lambda _, d, __: [ev.TitleChanged(d["sessionID"], d["title"])],
    # No more events come. The gap makes the turn read what is stored, and find the session gone.
    "session.deleted": lambda _, d, __: [ev.Gap(d["sessionID"])],
    "permission.asked": _permission_asked,
    "permission.replied": _closed("requestID"),
    "form.created": _form_created,
    "form.replied": _closed("id", "answered"),
    "form.cancelled": _closed("id", "rejected"),
}


# -- what is stored


def stored_events(
    session: str, message: Message, *, at_rest: bool = True
) -> Iterator[ev.AgentEvent]:
    """The events that would have led to a stored message: its start, its blocks, its end.

    `at_rest`: the agent has said that it came to rest after this message. If it has not, a message
    that counts as aborted was only cut off, when OpenCode was stopped.
    """
    match message.type:
        case "user" | "synthetic":
            yield ev.MessageSeen(session, message.id, ev.Speaker.USER, created=message.created)
        case "assistant":
            yield from _answer_events(session, message, at_rest=at_rest)
        case "compaction":
            yield from _compaction_events(session, message)
        case _:
            pass


def _answer_events(session: str, message: Message, *, at_rest: bool) -> Iterator[ev.AgentEvent]:
    answers = _answered_by(message.model, message.agent)
    begun = ev.MessageSeen(
        session, message.id, ev.Speaker.AGENT, created=message.created, answered_by=answers
    )
    yield begun
    yield ev.StepStarted(session, message.id, _step_id(message.id))
    over, refused = message.completed is not None, False
    for event in blocks(session, message):
        refused |= isinstance(event, ev.ToolSnapshot) and event.refused
        yield event
    if message.changed:
        yield ev.FilesChanged(session, message.id)
    if message.tokens is not None:
        yield _step_finished(session, message.id, message.finish, message.tokens, message.cost)
    cut = message.error is not None and message.error.type == ABORTED and not refused
    if over and (at_rest or not cut):
        finish = None if message.finish == "error" else message.finish
        completed = replace(begun, completed=True)
        yield _ended(completed, finish, message.error, refused=refused)
    elif not over and message.retry is not None:
        yield _retry(session, message.retry)


def _compaction_events(session: str, message: Message) -> Iterator[ev.AgentEvent]:
    """The summary is a step of the agent's, but no message that it has."""
    yield ev.Compacting(session, done=False, part_id=message.id)
    if message.status == "completed":
        summary = ev.MessageSeen(
            session, message.id, ev.Speaker.HOUSEKEEPING, created=message.created
        )
        yield replace(summary, completed=True, finish="stop")
        yield ev.StepStarted(session, message.id, _step_id(message.id))
        yield _step_finished(session, message.id, None, message.tokens, message.cost)
        yield ev.Compacting(session, done=True, part_id=message.id)


def blocks(session: str, message: Message) -> Iterator[ev.AgentEvent]:
    """The texts, tool calls and files of an answer."""
    ordinals, over = Counter[str](), message.completed is not None
    for each in message.content:
        if each.type in _KINDS:
            kind = ev.BlockKind(each.type)
            part_id = _text_id(message.id, kind, ordinals[kind])
            ordinals[kind] += 1
            # While a text grows, nothing of it is stored.
            ended = over or bool(each.text)
            yield ev.TextSnapshot(session, message.id, part_id, kind, each.text, ended=ended)
        elif each.type == "tool" and each.state is not None:
            call = ev.ToolCall(
                each.id, each.name, "pending", started_at=each.ran, ended_at=each.completed
            )
            known = ev.ToolSnapshot(session, message.id, _tool_id(message.id, each.id), call)
            yield from _tool_events(known, ToolState.model_validate(each.state))


def end_of_run(message: Message) -> ev.RunEnd:
    """How a run ended that this message closes."""
    match message.outcome:
        case "interrupted":
            return ev.RunEnd(aborted=True)
        case "failed":
            return ev.RunEnd(problem(Error()))
        case _:
            return ev.RunEnd()


def _retry(session: str, retry: Retry) -> ev.Retrying:
    """The first attempt is none after a failure."""
    return ev.Retrying(session, retry.attempt - 1, scrub(retry.error.message), retry.at)


def permission(info: Permission) -> PermissionAsk:
    changes = info.changes
    return PermissionAsk(
        request_id=info.id,
        session=info.session,
        permission=info.action,
        patterns=info.resources,
        filepath=changes[0].file or None if changes else None,
        diff="\n".join(each.patch for each in changes if each.patch) or None,
        always=info.save,
        call_id=info.call_id,
    )


def is_question(form: Form) -> bool:
    """Whether the agent asks; MCP servers have forms of other kinds, which are left alone."""
    return form.kind == "question"


def question(form: Form) -> QuestionAsk:
    questions = tuple(
        Question(f.title, f.description, f.options, f.type == "multiselect", f.custom)
        for f in form.fields
    )
    return QuestionAsk(form.id, form.session, questions, call_id=form.call_id)


def answer_to(ask: QuestionAsk, chosen: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The answers by the keys of their fields, which OpenCode numbers."""
    return {
        f"q{number}": list(given) if asked.multiple else (given[0] if given else "")
        for number, (asked, given) in enumerate(zip(ask.questions, chosen, strict=False))
    }


_PROBLEMS = {
    "provider.auth": Failure.PROVIDER_AUTH,
    "provider.quota": Failure.PROVIDER_QUOTA,
    "provider.rate-limit": Failure.PROVIDER_QUOTA,
}


def problem(error: Error) -> Problem:
    kind = _PROBLEMS.get(error.type, Failure.PROVIDER_ERROR)
    if "context" in error.type and "overflow" in error.type:
        kind = Failure.CONTEXT_OVERFLOW
    sentence = FILTERED if error.type == "provider.content-filter" else None
    return answers.problem(kind, error.message, status=error.status, sentence=sentence)
