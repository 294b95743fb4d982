"""What an agent can tell about itself beyond one conversation, and what can be asked of it there.

Also the ports for it, beside the values they speak of: `Catalog` is the agent, `Owners` is
whose session is whose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from .task import TaskHead
from .values import Attachment, FileChange, Message, ModelRef, PermissionRule, SessionRef


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: a directory inside the boundary, or one of the agent's workspaces."""

    directory: str
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    id: str
    title: str
    directory: str
    created_at: int
    updated_at: int
    parent_id: str | None = None  # a sub-agent works for this session
    context_id: str | None = None  # made by this service, for this context
    share_url: str | None = None
    reverted_to: str | None = None  # the message from which on everything is undone
    workspace_root: str | None = None  # made by this service, or another, for this root

    @property
    def ref(self) -> SessionRef:
        return SessionRef(self.id, self.title, self.directory)


@dataclass(frozen=True, slots=True)
class SessionQuery:
    limit: int
    everywhere: bool = False  # in the whole project rather than in one directory
    roots: bool | None = None
    start: int | None = None
    search: str | None = None


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """A message of a session, whoever sent it."""

    head: TaskHead
    message: Message


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Oldest first; `older` is where to go on."""

    messages: tuple[Message, ...]
    older: str | None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    session_id: str
    type: Literal["idle", "busy", "retry"]
    attempt: int | None = None
    message: str | None = None
    next: int | None = None


@dataclass(frozen=True, slots=True)
class TodoItem:
    content: str
    status: str
    priority: str


@dataclass(frozen=True, slots=True)
class Mention:
    """A hint to use this agent for a part of the work."""

    agent: str


@dataclass(frozen=True, slots=True)
class Subtask:
    """Work for a sub-agent, started at once."""

    prompt: str
    description: str
    agent: str
    model: ModelRef | None = None
    command: str | None = None


PromptPart: TypeAlias = str | Attachment | Mention | Subtask


@dataclass(frozen=True, slots=True)
class SessionPrompt:
    parts: tuple[PromptPart, ...]
    model: ModelRef | None = None
    agent: str | None = None
    variant: str | None = None
    system: str | None = None
    no_reply: bool = False
    forbidden_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionCommand:
    command: str
    arguments: str
    files: tuple[Attachment, ...] = ()
    model: ModelRef | None = None
    agent: str | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    provider_id: str
    model_id: str
    name: str
    status: str
    reasoning: bool
    attachments: bool
    tool_calls: bool
    input: tuple[str, ...]
    output: tuple[str, ...]
    context_tokens: int
    output_tokens: int
    variants: tuple[str, ...]
    connected: bool


@dataclass(frozen=True, slots=True)
class Provider:
    provider_id: str
    name: str
    source: str
    connected: bool
    default_model: str | None
    model_count: int


@dataclass(frozen=True, slots=True)
class Providers:
    """The model providers without anything that would let somebody use them elsewhere."""

    providers: tuple[Provider, ...]
    models: tuple[Model, ...]

    def knows(self, model: ModelRef) -> bool:
        return any(
            m.connected and (m.provider_id, m.model_id) == (model.provider, model.model)
            for m in self.models
        )

    def variants(self, model: ModelRef | None) -> list[str]:
        """Of this model, or without one of all that are connected; each once."""
        found = [
            variant
            for m in self.models
            if m.connected
            and (model is None or (m.provider_id, m.model_id) == (model.provider, model.model))
            for variant in m.variants
        ]
        return list(dict.fromkeys(found))

    def with_default(self, model: ModelRef | None) -> Providers:
        """The same, where this model is what its provider answers with by default."""
        if model is None or not self.knows(model):
            return self
        providers = (
            replace(p, default_model=model.model) if p.provider_id == model.provider else p
            for p in self.providers
        )
        return replace(self, providers=tuple(providers))


@dataclass(frozen=True, slots=True)
class Project:
    project_id: str
    worktree: str
    vcs: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    workspace_id: str
    type: str
    name: str
    branch: str | None
    directory: str | None
    project_id: str


@dataclass(frozen=True, slots=True)
class Worktree:
    directory: str
    name: str
    branch: str | None = None


class Catalog(Protocol):
    """The agent's sessions, models and places. A session that is not there: `SessionNotFound`."""

    async def sessions(self, place: Place, query: SessionQuery) -> Sequence[SessionInfo]:
        """Latest change first."""
        ...

    async def session(self, session: str) -> SessionInfo: ...
    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """Add rules to those a session has; the last that matches counts."""
        ...

    async def model_of(self, session: str) -> ModelRef | None:
        """What the session was last answered with, if it ever was."""
        ...

    async def default_model(self, place: Place) -> ModelRef | None:
        """What is configured there, if anything is."""
        ...

    async def children(self, session: str) -> Sequence[SessionInfo]: ...
    async def statuses(self, place: Place) -> Mapping[str, SessionStatus]:
        """Of those that are not idle."""
        ...

    async def todos(self, session: str) -> Sequence[TodoItem]: ...
    async def diff(self, session: str, message: str) -> Sequence[FileChange]: ...
    async def messages(self, session: str, limit: int, before: str | None) -> MessagePage: ...
    async def message(self, session: str, message: str) -> Message | None: ...

    async def prompt(self, session: str, prompt: SessionPrompt) -> str:
        """Start a run, or only add to the session; the id of the message."""
        ...

    async def command(self, session: str, command: SessionCommand) -> Message: ...
    async def shell(
        self, session: str, agent: str, command: str, model: ModelRef | None
    ) -> Message: ...
    async def summarize(self, session: str, model: ModelRef) -> None: ...
    async def fork(self, session: str, before: str | None) -> SessionInfo: ...
    async def share(self, session: str) -> SessionInfo:
        """Without a URL afterwards when the agent is not allowed to."""
        ...

    async def unshare(self, session: str) -> SessionInfo: ...
    async def revert(self, session: str, message: str, part: str | None) -> SessionInfo: ...
    async def unrevert(self, session: str) -> SessionInfo: ...

    async def providers(self, place: Place) -> Providers: ...
    async def agents(self, place: Place) -> Mapping[str, ModelRef | None]:
        """By name, each with the model it is configured for; the default agent comes first."""
        ...

    async def commands(self, place: Place) -> Mapping[str, str | None]:
        """The template of each, in which arguments are filled in; None if OpenCode hides it."""
        ...

    async def projects(self) -> Sequence[Project]: ...
    async def project(self, place: Place) -> Project: ...
    async def workspaces(self, place: Place) -> Sequence[Workspace]: ...
    async def workspace_types(self, place: Place) -> Sequence[str]: ...
    def new_workspace_id(self) -> str:
        """An id for a workspace: what was made under it can be removed, however far it got."""
        ...

    async def create_workspace(
        self, place: Place, workspace: str, type: str, branch: str | None
    ) -> Workspace: ...

    async def remove_workspace(self, place: Place, workspace: str) -> Workspace | None:
        """What was removed; None when there is no such workspace."""
        ...

    async def worktrees(self, place: Place) -> Sequence[str]: ...
    async def create_worktree(self, place: Place, name: str | None) -> Worktree: ...

    async def remove_worktree(self, place: Place, directory: str) -> None:
        """Deletes whatever directory it is given: never a caller's word, only a listed one."""
        ...

    async def reset_worktree(self, place: Place, directory: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionOwner:
    principal: str
    root: str | None = None  # the workspace root it was started or claimed in, where that is known


class Owners(Protocol):
    """Whose session is whose."""

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, SessionOwner]:
        """Of those that somebody owns."""
        ...

    async def contexts(self, ids: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """Who has a context with that id."""
        ...

    async def contexts_of(self, owner: str, sessions: Sequence[str]) -> Mapping[str, str]:
        """The context of each session that serves one of this owner's."""
        ...

    async def forget_model(self, session_id: str) -> None:
        """Of a session that is to go on with whatever it is asked with next."""
        ...

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        """Make it this caller's if it is nobody's, for a while or for good; whose it is now."""
        ...


class PlaceOwners(Protocol):
    """Who had which worktree or workspace made, by directory or id."""

    async def place_owners(self, names: Sequence[str]) -> Mapping[str, str]: ...

    async def own_places(self, owner: str, names: Sequence[str]) -> None: ...

    async def forget_places(self, names: Sequence[str]) -> None: ...
