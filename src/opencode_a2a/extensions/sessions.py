"""OpenCode's sessions: read them, change them, steer them.

Every method begins with whose session it is. Reading needs a session the caller may see;
everything else makes it the caller's first.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import structlog
from pydantic import BaseModel, Field

from ..contract.a2a import Message as MessageShape
from ..contract.a2a import Rendered
from ..contract.a2a import Task as TaskShape
from ..contract.declare import Extension, Toggle
from ..contract.params import Params
from ..domain.catalog import (
    Mention,
    PromptPart,
    SessionCommand,
    SessionInfo,
    SessionMessage,
    SessionPrompt,
    SessionQuery,
    SessionStatus,
    Subtask,
    TodoItem,
)
from ..domain.ports import TaskRow
from ..domain.scopes import Scope
from ..domain.task import TaskHead
from ..domain.values import (
    Attachment,
    Caller,
    FileBytes,
    FileChange,
    FileUrl,
    Message,
    Role,
    TaskState,
)
from ..errors import (
    ContentTypeNotSupported,
    MethodDisabled,
    SessionForbidden,
    SessionNotFound,
    StoreUnavailable,
    UpstreamBusy,
    UpstreamTimeout,
)
from .services import Services
from .shapes import Directory, Done, MessageId, ModelName, Moment, Name, PartId, Placed, SessionId

CONTEXT = "ctx:opencode-session:"
SHELL = Toggle(
    "A2A_ENABLE_SESSION_SHELL", "it runs any command on the OpenCode host without asking."
)
logger = structlog.get_logger()

SESSIONS = Extension(
    "opencode-session-management-v1",
    "OpenCode Session Management v1",
    "Read, change and steer the OpenCode sessions behind the conversations.",
    "opencode",
    aliases=("urn:opencode-a2a:session-query/v1",),
    extended={
        "context_semantics": f"a session is shown as a completed Task whose contextId is "
        f"{CONTEXT}<session_id>; it is a picture of the session, not a task of this service",
        "ownership": "a caller sees its own sessions, and those nobody owns when "
        "A2A_SHARED_SESSIONS is true; mutation and control make a session the caller's",
        "pagination": {
            "opencode.sessions.list": {"limit": {"default": 20, "maximum": 100}},
            "opencode.sessions.messages.list": {
                "limit": {"default": 20, "maximum": 100},
                "cursor": {"parameter": "before", "result": "next_cursor"},
                "order": "oldest first in a page, newest page first",
            },
        },
        "prompt_parts": {
            "text": "as it is",
            "file": "data, http(s) and file URLs are read here, under the same rules as parts of "
            "a message, and handed on as data",
            "agent": "a hint to use a sub-agent",
            "subtask": "passed through: work for a sub-agent",
        },
    },
)

_READ = (SessionNotFound, SessionForbidden, StoreUnavailable)
_CHANGE = (*_READ, UpstreamBusy)


def _head(session_id: str, caller: Caller, created_at: int = 0) -> TaskHead:
    return TaskHead(session_id, CONTEXT + session_id, caller.principal, created_at)


def _task(session: SessionInfo, caller: Caller) -> TaskRow:
    head = _head(session.id, caller, session.created_at)
    return TaskRow(head, TaskState.COMPLETED, session.updated_at, None, session.ref)


SessionTask = Annotated[TaskRow, Rendered(TaskShape)]
ShownMessage = Annotated[SessionMessage, Rendered(MessageShape)]


class Session(Params):
    session_id: SessionId


class OneTask(BaseModel):
    item: SessionTask


class Tasks(BaseModel):
    items: list[SessionTask]


class OneMessage(BaseModel):
    item: ShownMessage

    @classmethod
    def of(cls, message: Message, session_id: str, caller: Caller) -> OneMessage:
        return cls(item=SessionMessage(_head(session_id, caller), message))


class SessionSummary(BaseModel):
    id: str
    title: str
    context_id: str
    parent_id: str | None
    share_url: str | None
    reverted_to: str | None = Field(description="From this message on everything is undone")
    created_at: Moment
    updated_at: Moment


class Summary(BaseModel):
    item: SessionSummary

    @classmethod
    def of(cls, session: SessionInfo) -> Summary:
        return cls(
            item=SessionSummary(
                id=session.id,
                title=session.title,
                context_id=CONTEXT + session.id,
                parent_id=session.parent_id,
                share_url=session.share_url,
                reverted_to=session.reverted_to,
                created_at=session.created_at,
                updated_at=session.updated_at,
            )
        )


# -- reading


class InDirectory(Placed):
    directory: Directory | None = None


class Statuses(BaseModel):
    items: list[SessionStatus]


@SESSIONS.method(
    "opencode.sessions.status", scope=Scope.SESSIONS_READ, errors=_READ[2:], effect="read"
)
async def status(services: Services, caller: Caller, params: InDirectory) -> Statuses:
    """What the latest 100 sessions of a directory are doing."""
    place = await params.place(services, params.directory)
    working = await services.catalog.statuses(place)
    sessions = await services.access.latest(caller, place, SessionQuery(100))
    items = [working.get(s.id, SessionStatus(s.id, "idle")) for s in sessions]
    return Statuses(items=items)


class Listing(InDirectory):
    limit: int = Field(default=20, ge=1, le=100)
    roots: bool | None = Field(default=None, description="Only sessions that no agent started")
    start: int | None = Field(default=None, ge=0, description="Changed since; ms since 1970")
    search: str | None = Field(default=None, min_length=1, max_length=255, description="In titles")


@SESSIONS.method(
    "opencode.sessions.list", scope=Scope.SESSIONS_READ, errors=_READ[2:], effect="read"
)
async def list_sessions(services: Services, caller: Caller, params: Listing) -> Tasks:
    """The sessions of the project, or of one directory, latest change first."""
    place = await params.place(services, params.directory)
    everywhere = params.directory is None and params.metadata.opencode.directory is None
    query = SessionQuery(params.limit, everywhere, params.roots, params.start, params.search)
    sessions = await services.access.latest(caller, place, query)
    return Tasks(items=[_task(session, caller) for session in sessions])


@SESSIONS.method("opencode.sessions.get", scope=Scope.SESSIONS_READ, errors=_READ, effect="read")
async def get(services: Services, caller: Caller, params: Session) -> OneTask:
    """One session."""
    session = await services.access.visible(caller, params.session_id)
    return OneTask(item=_task(session, caller))


@SESSIONS.method(
    "opencode.sessions.children", scope=Scope.SESSIONS_READ, errors=_READ, effect="read"
)
async def children(services: Services, caller: Caller, params: Session) -> Tasks:
    """The sessions of its sub-agents."""
    session = await services.access.visible(caller, params.session_id)
    found = await services.catalog.children(session.id)
    return Tasks(items=[_task(child, caller) for child in found])


class Todos(BaseModel):
    items: list[TodoItem]


@SESSIONS.method("opencode.sessions.todo", scope=Scope.SESSIONS_READ, errors=_READ, effect="read")
async def todo(services: Services, caller: Caller, params: Session) -> Todos:
    """What the agent has set itself to do."""
    session = await services.access.visible(caller, params.session_id)
    return Todos(items=list(await services.catalog.todos(session.id)))


class Diff(Session):
    message_id: MessageId | None = Field(
        default=None, description="A user's message; without one the latest"
    )


class Changes(BaseModel):
    items: list[FileChange]


@SESSIONS.method("opencode.sessions.diff", scope=Scope.SESSIONS_READ, errors=_READ, effect="read")
async def diff(services: Services, caller: Caller, params: Diff) -> Changes:
    """The files changed in answer to a message."""
    session = await services.access.visible(caller, params.session_id)
    message_id = params.message_id or await _latest_prompt(services, session.id)
    if params.message_id is not None:
        await services.checks.message(session, params.message_id, "message_id")
    if message_id is None:
        return Changes(items=[])
    return Changes(items=list(await services.catalog.diff(session.id, message_id)))


async def _latest_prompt(services: Services, session_id: str) -> str | None:
    page = await services.catalog.messages(session_id, 100, None)
    prompts = [m.message_id for m in page.messages if m.role is Role.USER]
    return prompts[-1] if prompts else None


class Page(Session):
    limit: int = Field(default=20, ge=1, le=100)
    before: str | None = Field(
        default=None, min_length=1, max_length=512, description="`next_cursor` of another page"
    )


class Messages(BaseModel):
    items: list[ShownMessage]
    next_cursor: str | None


@SESSIONS.method(
    "opencode.sessions.messages.list", scope=Scope.SESSIONS_READ, errors=_READ, effect="read"
)
async def list_messages(services: Services, caller: Caller, params: Page) -> Messages:
    """The messages of a session, the newest page first."""
    session = await services.access.visible(caller, params.session_id)
    page = await services.catalog.messages(session.id, params.limit, params.before)
    head = _head(session.id, caller)
    items = [SessionMessage(head, message) for message in page.messages]
    return Messages(items=items, next_cursor=page.older)


class OneOfThem(Session):
    message_id: MessageId


@SESSIONS.method(
    "opencode.sessions.messages.get", scope=Scope.SESSIONS_READ, errors=_READ, effect="read"
)
async def get_message(services: Services, caller: Caller, params: OneOfThem) -> OneMessage:
    """One message of a session."""
    session = await services.access.visible(caller, params.session_id)
    message = await services.checks.message(session, params.message_id, "message_id")
    return OneMessage.of(message, session.id, caller)


# -- control: the agent works, or is told something


class TextPart(Params):
    type: Literal["text"]
    text: str = Field(min_length=1)


class FilePart(Params):
    type: Literal["file"]
    mime: Name
    url: str = Field(min_length=1, description="data, http(s), or file below the workspace")
    filename: Name | None = None


class AgentPart(Params):
    type: Literal["agent"]
    name: Name


class SubtaskPart(Params):
    type: Literal["subtask"]
    prompt: str = Field(min_length=1)
    description: str
    agent: Name
    model: ModelName | None = None
    command: str | None = None


class Format(Params):
    """JSON by a schema instead of free text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")
    retryCount: int | None = Field(default=None, ge=0, le=10)


class Prompting(Params):
    parts: list[
        Annotated[TextPart | FilePart | AgentPart | SubtaskPart, Field(discriminator="type")]
    ] = Field(min_length=1)
    model: ModelName | None = Field(default=None, description="From now on, for this session")
    agent: Name | None = None
    variant: Name | None = None
    system: str | None = Field(default=None, description="Added to the system prompt")
    noReply: bool = Field(default=False, description="Only add the message; nobody answers")
    format: Format | None = None
    tools: dict[str, Literal[False]] = Field(
        default={}, description="Tools this session must not use from now on"
    )


class PromptAsync(Session):
    request: Prompting


class Prompted(Done):
    session_id: str
    message_id: str


@SESSIONS.method(
    "opencode.sessions.prompt_async",
    scope=Scope.SESSIONS_WRITE,
    errors=(*_CHANGE, ContentTypeNotSupported),
    effect="control",
)
async def prompt_async(services: Services, caller: Caller, params: PromptAsync) -> Prompted:
    """Prompt an idle session and return at once; its messages have the answer later.

    What such a run asks for cannot be answered through this service: send a message for that.
    """
    session, asked = await services.access.claimed(caller, params.session_id), params.request
    await services.checks.idle(session)
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    parts = [
        await _part(services, session, part, f"request.parts[{i}]")
        for i, part in enumerate(asked.parts)
    ]
    message_id = await services.catalog.prompt(
        session.id,
        SessionPrompt(
            tuple(parts),
            model,
            asked.agent,
            asked.variant,
            asked.system,
            asked.noReply,
            asked.format.model_dump(by_alias=True, exclude_none=True) if asked.format else None,
            tuple(asked.tools),
        ),
    )
    return Prompted(session_id=session.id, message_id=message_id)


async def _part(
    services: Services,
    session: SessionInfo,
    part: TextPart | FilePart | AgentPart | SubtaskPart,
    where: str,
) -> PromptPart:
    match part:
        case TextPart():
            return part.text
        case FilePart():
            return await _file(services, part, where)
        case AgentPart():
            await services.checks.agent(session, part.name, f"{where}.name")
            return Mention(part.name)
        case SubtaskPart():
            await services.checks.agent(session, part.agent, f"{where}.agent")
            model = part.model.ref if part.model else None
            await services.checks.model(session, model, f"{where}.model")
            return Subtask(part.prompt, part.description, part.agent, model, part.command)


async def _file(services: Services, part: FilePart, where: str) -> Attachment:
    """A file in the only form that is handed on; OpenCode would read any path."""
    given: FileUrl | FileBytes = FileUrl(part.url, part.mime, part.filename)
    if part.url.startswith("data:"):
        head, _, content = part.url.partition(",")
        if not head.endswith(";base64"):
            content = base64.b64encode(unquote_to_bytes(content)).decode()
        given = FileBytes(content, part.mime, part.filename)
    attached = await services.inputs.prepare_at(where, given)
    assert isinstance(attached, Attachment)
    return attached


class Commanding(Params):
    command: Name
    arguments: str = ""
    agent: Name | None = None
    model: ModelName | None = None
    variant: Name | None = None
    parts: list[FilePart] = Field(default=[])


class Command(Session):
    request: Commanding


@SESSIONS.method(
    "opencode.sessions.command",
    scope=Scope.SESSIONS_WRITE,
    errors=(*_CHANGE, ContentTypeNotSupported),
    effect="control",
)
async def command(services: Services, caller: Caller, params: Command) -> OneMessage:
    """Run one of OpenCode's commands in an idle session, and wait for the answer."""
    session, asked = await services.access.claimed(caller, params.session_id), params.request
    await services.checks.idle(session)
    await services.checks.command(session, asked.command, "request.command")
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    files = [
        await _file(services, part, f"request.parts[{i}]") for i, part in enumerate(asked.parts)
    ]
    wanted = SessionCommand(
        asked.command, asked.arguments, tuple(files), model, asked.agent, asked.variant
    )
    try:
        message = await services.catalog.command(session.id, wanted)
    except UpstreamTimeout:
        await services.catalog.abort(session.id)
        raise
    return OneMessage.of(message, session.id, caller)


class Shelling(Params):
    agent: Name
    command: str = Field(min_length=1, max_length=65_536)
    model: ModelName | None = None


class Shell(Session):
    request: Shelling


@SESSIONS.method(
    "opencode.sessions.shell",
    scope=Scope.SESSIONS_SHELL,
    errors=_CHANGE,
    toggle=SHELL,
    effect="control",
    output="one snapshot when the command has ended; never interactive",
)
async def shell(services: Services, caller: Caller, params: Shell) -> OneMessage:
    """Run a command in the session's directory, without asking anybody."""
    session, asked = await services.access.claimed(caller, params.session_id), params.request
    await services.checks.agent(session, asked.agent, "request.agent")
    model = asked.model.ref if asked.model else None
    await services.checks.model(session, model, "request.model")
    # Who ran something, where and when. Not what: a command can hold a secret.
    audit = logger.bind(
        principal=caller.principal,
        session_id=session.id,
        directory=session.directory,
        command_sha256=hashlib.sha256(asked.command.encode()).hexdigest(),
        command_bytes=len(asked.command.encode()),
    )
    audit.warning("audit.session_shell", outcome="started")
    try:
        message = await services.catalog.shell(session.id, asked.agent, asked.command, model)
    except UpstreamTimeout:
        audit.warning("audit.session_shell", outcome="timed out")
        await services.catalog.abort(session.id)
        raise
    audit.warning("audit.session_shell", outcome="ended")
    return OneMessage.of(message, session.id, caller)


class Summarize(Session):
    request: ModelName


@SESSIONS.method(
    "opencode.sessions.summarize", scope=Scope.SESSIONS_WRITE, errors=_CHANGE, effect="control"
)
async def summarize(services: Services, caller: Caller, params: Summarize) -> Done:
    """Replace what was said so far by a summary, which this model writes."""
    session = await services.access.claimed(caller, params.session_id)
    await services.checks.idle(session)
    await services.checks.model(session, params.request.ref, "request")
    await services.catalog.summarize(session.id, params.request.ref)
    return Done()


# -- mutation


class Forking(Params):
    messageID: MessageId | None = Field(default=None, description="Keep what was before it")


class Fork(Session):
    request: Forking = Forking()


@SESSIONS.method(
    "opencode.sessions.fork", scope=Scope.SESSIONS_WRITE, errors=_CHANGE, effect="mutation"
)
async def fork(services: Services, caller: Caller, params: Fork) -> Summary:
    """Copy a session, whole or up to a message, into one of the caller's own."""
    session, before = await services.access.claimed(caller, params.session_id), params.request
    if before.messageID is not None:
        await services.checks.message(session, before.messageID, "request.messageID")
    forked = await services.catalog.fork(session.id, before.messageID)
    await services.access.own(caller, forked)
    return Summary.of(forked)


@SESSIONS.method(
    "opencode.sessions.share",
    scope=Scope.SESSIONS_WRITE,
    errors=(*_CHANGE, MethodDisabled),
    effect="mutation",
)
async def share(services: Services, caller: Caller, params: Session) -> Summary:
    """Publish a session on OpenCode's public site."""
    session = await services.access.claimed(caller, params.session_id)
    shared = await services.catalog.share(session.id)
    if shared.share_url is None:  # OpenCode says nothing when it may not
        raise MethodDisabled(
            "Sharing is switched off in OpenCode.",
            method="opencode.sessions.share",
            setting="share, in OpenCode's configuration",
        )
    return Summary.of(shared)


@SESSIONS.method(
    "opencode.sessions.unshare", scope=Scope.SESSIONS_WRITE, errors=_CHANGE, effect="mutation"
)
async def unshare(services: Services, caller: Caller, params: Session) -> Summary:
    """Withdraw a published session."""
    session = await services.access.claimed(caller, params.session_id)
    return Summary.of(await services.catalog.unshare(session.id))


class Reverting(Params):
    messageID: MessageId
    partID: PartId | None = None


class Revert(Session):
    request: Reverting


@SESSIONS.method(
    "opencode.sessions.revert", scope=Scope.SESSIONS_WRITE, errors=_CHANGE, effect="mutation"
)
async def revert(services: Services, caller: Caller, params: Revert) -> Summary:
    """Undo a message and everything after it, files included."""
    session, target = await services.access.claimed(caller, params.session_id), params.request
    await services.checks.message(session, target.messageID, "request.messageID")
    found = await services.catalog.revert(session.id, target.messageID, target.partID)
    return Summary.of(found)


@SESSIONS.method(
    "opencode.sessions.unrevert", scope=Scope.SESSIONS_WRITE, errors=_CHANGE, effect="mutation"
)
async def unrevert(services: Services, caller: Caller, params: Session) -> Summary:
    """Take back the undoing."""
    session = await services.access.claimed(caller, params.session_id)
    return Summary.of(await services.catalog.unrevert(session.id))
