"""Methods that read and change OpenCode's sessions. Those that run the agent are in `control`.

Every method checks who owns the session. Reading needs a session that the caller may see; every
other method makes the caller its owner first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from ..contract.a2a import Message as MessageShape
from ..contract.a2a import Rendered
from ..contract.a2a import Task as TaskShape
from ..contract.declare import Extension
from ..contract.dispatch import ALL_NODES
from ..contract.params import Directory, MessageId, Params, PartId, Result, SessionId
from ..domain.catalog import (
    SessionInfo,
    SessionMessage,
    SessionQuery,
    SessionStatus,
)
from ..domain.ports import TaskRow
from ..domain.release import SHARING, TODOS
from ..domain.scopes import Scope
from ..domain.task import TaskHead
from ..domain.values import (
    Caller,
    FileChange,
    Message,
    Role,
    TaskState,
    TodoItem,
)
from ..errors import (
    MethodDisabled,
    ServiceError,
    SessionForbidden,
    SessionNotFound,
    UpstreamBusy,
)
from ..service.options import SESSION_CONTEXT_PREFIX
from .services import Services
from .shapes import Acknowledgement, LocationParams, Moment

SESSIONS = Extension(
    "opencode-session-management-v1",
    title="OpenCode Session Management v1",
    description="Read, change and steer the OpenCode sessions behind the conversations.",
    scope="opencode",
    aliases=("urn:opencode-a2a:session-query/v1",),
    extended={
        "context_semantics": "a session is shown as a completed Task; it is a picture of the "
        "session, not a task of this service. Its contextId continues the session: it is the "
        f"caller's own context of the session, or else {SESSION_CONTEXT_PREFIX}<session_id>",
        "ownership": "a caller sees its own sessions, and those nobody owns when "
        "A2A_SHARED_SESSIONS is true; mutation and control make a session the caller's, for good "
        "if they succeed",
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

Missing = Annotated[
    list[str],
    Field(
        description="Where nodes have an OpenCode each: the OpenCodes of this workspace root that "
        "could not be asked, so that their sessions are not in the list"
    ),
]
_READ = (SessionNotFound, SessionForbidden)
_CHANGE = (*_READ, UpstreamBusy)
_read = partial(SESSIONS.method, scope=Scope.SESSIONS_READ, errors=_READ, effect="read")


async def _context(services: Services, caller: Caller, *, session_id: str) -> str:
    """The context in which this caller continues a session; never another caller's."""
    return (await _contexts(services, caller, session_ids=[session_id]))[session_id]


async def _contexts(
    services: Services, caller: Caller, *, session_ids: Sequence[str]
) -> dict[str, str]:
    own = await services.ownership.store.contexts_of(caller.principal, session_ids)
    return {
        session_id: own.get(session_id, SESSION_CONTEXT_PREFIX + session_id)
        for session_id in session_ids
    }


async def _head(services: Services, caller: Caller, *, session_id: str) -> TaskHead:
    context_id = await _context(services, caller, session_id=session_id)
    return TaskHead(session_id, context_id, owner=caller.principal, created_at=0)


async def _tasks(
    services: Services, caller: Caller, *, sessions: Sequence[SessionInfo]
) -> list[TaskRow]:
    contexts = await _contexts(services, caller, session_ids=[session.id for session in sessions])
    return [
        TaskRow(
            head=TaskHead(
                session.id,
                contexts[session.id],
                owner=caller.principal,
                created_at=session.created_at,
            ),
            state=TaskState.COMPLETED,
            status_at=session.updated_at,
            session=session.ref,
        )
        for session in sessions
    ]


SessionTask = Annotated[TaskRow, Rendered(TaskShape)]
RenderedMessage = Annotated[SessionMessage, Rendered(MessageShape)]


class Session(Params):
    session_id: SessionId
    metadata: dict[str, Any] = Field(
        default={}, description="Not used: a session has a directory of its own"
    )


class TaskResult(Result):
    item: SessionTask


class Tasks(Result):
    items: list[SessionTask]


class TasksOfNodes(Tasks):
    missing: Missing = Field(default=[])


S = TypeVar("S", bound=Session, contravariant=True)
R = TypeVar("R", bound=Result, covariant=True)


class Change(Protocol[S, R]):
    """A method that changes the session that its parameters name."""

    async def __call__(
        self, services: Services, caller: Caller, params: S, /, *, session: SessionInfo
    ) -> R: ...


def changing(
    name: str,
    effect: str,
    scope: str = Scope.SESSIONS_WRITE,
    errors: tuple[type[ServiceError], ...] = (),
    **about: Any,
) -> Callable[[Change[S, R]], Change[S, R]]:
    """Declare a method that changes a session. The caller owns the session while it runs."""

    def declare(run: Change[S, R]) -> Change[S, R]:
        @wraps(run)
        async def claimed(services: Services, caller: Caller, params: S) -> R:
            async with services.ownership.claiming(caller, params.session_id) as session:
                return await run(services, caller, params, session=session)

        known = (*_CHANGE, *errors)
        SESSIONS.method(name, scope=scope, errors=known, effect=effect, **about)(claimed)
        return run

    return declare


_mutation = partial(changing, effect="mutation")


class MessageResult(Result):
    item: RenderedMessage

    @classmethod
    async def of(
        cls, services: Services, caller: Caller, *, session_id: str, message: Message
    ) -> MessageResult:
        head = await _head(services, caller, session_id=session_id)
        return cls(item=SessionMessage(head, message))


class SessionSummary(Result):
    id: str
    title: str
    context_id: str = Field(description="A message in this context continues the session")
    parent_id: str | None
    share_url: str | None
    reverted_to: str | None = Field(description="From this message on everything is undone")
    created_at: Moment
    updated_at: Moment


class Summary(Result):
    item: SessionSummary

    @classmethod
    async def of(cls, services: Services, caller: Caller, *, session: SessionInfo) -> Summary:
        return cls(
            item=SessionSummary(
                id=session.id,
                title=session.title,
                context_id=await _context(services, caller, session_id=session.id),
                parent_id=session.parent_id,
                share_url=session.share_url,
                reverted_to=session.reverted_to,
                created_at=session.created_at,
                updated_at=session.updated_at,
            )
        )


# -- reading


class DirectoryParams(LocationParams):
    directory: Directory | None = None


class Statuses(Result):
    items: list[SessionStatus]
    missing: Missing = Field(default=[])


@_read("opencode.sessions.status", errors=(), nodes=ALL_NODES)
async def status(services: Services, caller: Caller, params: DirectoryParams) -> Statuses:
    """What the latest 100 sessions of a directory are doing."""
    location = await params.location(services, caller, directory=params.directory)
    working = await services.catalog.statuses(location)
    sessions = await services.ownership.latest(caller, location, query=SessionQuery(100))
    items = [working.get(s.id, SessionStatus(s.id, "idle")) for s in sessions]
    return Statuses(items=items)


class Listing(DirectoryParams):
    limit: int = Field(default=20, ge=1, le=100)
    roots: bool | None = Field(default=None, description="Only sessions that no agent started")
    start: int | None = Field(default=None, ge=0, description="Changed since; ms since 1970")
    search: str | None = Field(default=None, min_length=1, max_length=255, description="In titles")


@_read("opencode.sessions.list", errors=(), nodes=ALL_NODES)
async def list_sessions(services: Services, caller: Caller, params: Listing) -> TasksOfNodes:
    """The sessions of the project, or of one directory, latest change first.

    Among the latest 6400 of all callers; older ones are found by `search` or `directory`.
    """
    location = await params.location(services, caller, directory=params.directory)
    named = params.directory or params.routing.directory
    everywhere = location == services.locations.home and named is None
    query = SessionQuery(
        limit=params.limit,
        everywhere=everywhere,
        roots=params.roots,
        start=params.start,
        search=params.search,
    )
    sessions = await services.ownership.latest(caller, location, query=query)
    return TasksOfNodes(items=await _tasks(services, caller, sessions=sessions))


@_read("opencode.sessions.get")
async def get(services: Services, caller: Caller, params: Session) -> TaskResult:
    """One session."""
    session = await services.ownership.visible(caller, params.session_id)
    [item] = await _tasks(services, caller, sessions=[session])
    return TaskResult(item=item)


@_read("opencode.sessions.children")
async def children(services: Services, caller: Caller, params: Session) -> Tasks:
    """The sessions of its sub-agents."""
    session = await services.ownership.visible(caller, params.session_id)
    found = await services.catalog.children(session.id)
    return Tasks(items=await _tasks(services, caller, sessions=found))


class Todos(Result):
    items: list[TodoItem]


@_read("opencode.sessions.todo", needs=TODOS)
async def todo(services: Services, caller: Caller, params: Session) -> Todos:
    """What the agent has set itself to do."""
    session = await services.ownership.visible(caller, params.session_id)
    return Todos(items=list(await services.catalog.todos(session.id)))


class Diff(Session):
    message_id: MessageId | None = Field(
        default=None, description="A user's message; without one the latest"
    )


class Changes(Result):
    items: list[FileChange]


@_read("opencode.sessions.diff")
async def diff(services: Services, caller: Caller, params: Diff) -> Changes:
    """The files changed in answer to a message."""
    session = await services.ownership.visible(caller, params.session_id)
    message_id = params.message_id or await _latest_prompt(services, session.id)
    if params.message_id is not None:
        await services.validator.message(session, params.message_id, field="message_id")
    if message_id is None:
        return Changes(items=[])
    return Changes(items=list(await services.catalog.diff(session.id, message_id)))


async def _latest_prompt(services: Services, session_id: str) -> str | None:
    before = None
    while True:
        page = await services.catalog.messages(session_id, limit=20, before=before)
        for message in reversed(page.messages):
            if message.role is Role.USER:
                return message.message_id
        if page.older is None:
            return None
        before = page.older


class Page(Session):
    limit: int = Field(default=20, ge=1, le=100)
    before: str | None = Field(
        default=None, min_length=1, max_length=512, description="`next_cursor` of another page"
    )


class Messages(Result):
    items: list[RenderedMessage]
    next_cursor: str | None


@_read("opencode.sessions.messages.list")
async def list_messages(services: Services, caller: Caller, params: Page) -> Messages:
    """The messages of a session, the newest page first."""
    session = await services.ownership.visible(caller, params.session_id)
    page = await services.catalog.messages(session.id, limit=params.limit, before=params.before)
    head = await _head(services, caller, session_id=session.id)
    items = [SessionMessage(head, message) for message in page.messages]
    return Messages(items=items, next_cursor=page.older)


class GetMessage(Session):
    message_id: MessageId


@_read("opencode.sessions.messages.get")
async def get_message(services: Services, caller: Caller, params: GetMessage) -> MessageResult:
    """One message of a session."""
    session = await services.ownership.visible(caller, params.session_id)
    message = await services.validator.message(session, params.message_id, field="message_id")
    return await MessageResult.of(services, caller, session_id=session.id, message=message)


# -- mutation


class ForkRequest(Params):
    messageID: MessageId | None = Field(default=None, description="Keep what was before it")


class Fork(Session):
    request: ForkRequest = ForkRequest()


@_mutation("opencode.sessions.fork")
async def fork(
    services: Services, caller: Caller, params: Fork, *, session: SessionInfo
) -> Summary:
    """Copy a session, whole or up to a message, into one of the caller's own."""
    if params.request.messageID is not None:
        await services.validator.message(
            session, params.request.messageID, field="request.messageID"
        )
    forked = await services.catalog.fork(session.id, before=params.request.messageID)
    await services.ownership.own(caller, forked.ref)
    return await Summary.of(services, caller, session=forked)


@_mutation("opencode.sessions.share", needs=SHARING, errors=(MethodDisabled,))
async def share(
    services: Services, caller: Caller, params: Session, *, session: SessionInfo
) -> Summary:
    """Publish a session on OpenCode's public site."""
    shared = await services.catalog.share(session.id)
    if shared.share_url is None:  # OpenCode reports no error when sharing is off
        raise MethodDisabled(
            "Sharing is switched off in OpenCode.",
            method="opencode.sessions.share",
            setting="share, in OpenCode's configuration",
        )
    return await Summary.of(services, caller, session=shared)


@_mutation("opencode.sessions.unshare", needs=SHARING)
async def unshare(
    services: Services, caller: Caller, params: Session, *, session: SessionInfo
) -> Summary:
    """Withdraw a published session."""
    unshared = await services.catalog.unshare(session.id)
    return await Summary.of(services, caller, session=unshared)


class RevertRequest(Params):
    messageID: MessageId
    partID: PartId | None = None


class Revert(Session):
    request: RevertRequest


@_mutation("opencode.sessions.revert", errors=(MethodDisabled,))
async def revert(
    services: Services, caller: Caller, params: Revert, *, session: SessionInfo
) -> Summary:
    """Undo a message and everything after it, files included."""
    target = params.request
    await services.validator.message(session, target.messageID, field="request.messageID")
    found = await services.catalog.revert(session.id, message=target.messageID, part=target.partID)
    return await Summary.of(services, caller, session=found)


@_mutation("opencode.sessions.unrevert")
async def unrevert(
    services: Services, caller: Caller, params: Session, *, session: SessionInfo
) -> Summary:
    """Take back the undoing."""
    restored = await services.catalog.unrevert(session.id)
    return await Summary.of(services, caller, session=restored)


class RenameRequest(Params):
    title: str = Field(min_length=1, max_length=255, pattern=r"\S")


class Rename(Session):
    request: RenameRequest


@_mutation("opencode.sessions.rename")
async def rename(
    services: Services, caller: Caller, params: Rename, *, session: SessionInfo
) -> Summary:
    """Give a session another title, also while it is at work."""
    title = " ".join(params.request.title.split())
    renamed = await services.catalog.rename(session.id, title)
    return await Summary.of(services, caller, session=renamed)


@_mutation("opencode.sessions.delete")
async def delete(
    services: Services, caller: Caller, params: Session, *, session: SessionInfo
) -> Acknowledgement:
    """Delete an idle session with its messages and the sessions of its sub-agents, for good.

    Its tasks stay as they are. A message in its context goes on in a new, empty session.
    """
    await services.validator.idle(
        session, advice="Cancel its task, or wait until it has ended; then delete it."
    )
    await services.catalog.delete(session.id)
    return Acknowledgement()
