"""What an agent offers beyond one conversation: sessions, models, projects and workspaces.

The ports stand beside the values they use: `Catalog` is the agent, `OwnershipStore` records who
owns which session, worktree and workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from .task import TaskHead
from .values import (
    Attachment,
    FileChange,
    Message,
    ModelRef,
    PermissionRule,
    SessionRef,
    TodoItem,
)


@dataclass(frozen=True, slots=True)
class Location:
    """A directory in which a caller can work, or one of the agent's workspaces."""

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
        return SessionRef(self.id, self.title, directory=self.directory)


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

    @property
    def denied(self) -> Sequence[PermissionRule]:
        """The forbidden tools as rules."""
        return [PermissionRule(tool, "*", action="deny") for tool in self.forbidden_tools]


@dataclass(frozen=True, slots=True)
class SessionCommand:
    command: str
    arguments: str
    files: tuple[Attachment, ...] = ()
    model: ModelRef | None = None
    agent: str | None = None
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that a request can choose, or that others can set to work."""

    name: str = field(
        metadata={"description": "For metadata.opencode.agent, unless its mode is `subagent`"}
    )
    description: str
    mode: str = field(metadata={"description": "`primary`, `subagent` or `all`"})
    model: ModelRef | None = field(metadata={"description": "What it is configured to answer with"})
    variant: str | None
    native: bool = field(metadata={"description": "OpenCode brings it along"})
    hidden: bool = field(metadata={"exclude": True})  # it is for titles and summaries

    @property
    def is_primary(self) -> bool:
        """Whether a person can choose it."""
        return not self.hidden and self.mode != "subagent"


@dataclass(frozen=True, slots=True)
class CommandInfo:
    name: str = field(metadata={"description": "For `command` of opencode.sessions.command"})
    description: str
    source: str = field(metadata={"description": "`command`, `mcp` or `skill`"})
    # Arguments are filled in here; None if OpenCode hides it. It belongs to whoever has configured
    # the command, so no client gets it.
    template: str | None = field(metadata={"exclude": True})
    agent: str | None = field(metadata={"description": "Which agent runs it, if one is configured"})
    model: str | None = field(metadata={"description": "provider/model, if one is configured"})
    subtask: bool = field(metadata={"description": "A sub-agent works on it"})


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
    """The model providers, without keys or anything else to use them with."""

    providers: tuple[Provider, ...]
    models: tuple[Model, ...]

    def knows(self, model: ModelRef) -> bool:
        return any(
            m.connected and (m.provider_id, m.model_id) == (model.provider, model.model)
            for m in self.models
        )

    def variants(self, model: ModelRef | None) -> list[str]:
        """The variants of this model; without a model, of all that are connected."""
        found = [
            variant
            for m in self.models
            if m.connected
            and (model is None or (m.provider_id, m.model_id) == (model.provider, model.model))
            for variant in m.variants
        ]
        return list(dict.fromkeys(found))

    @property
    def default_models(self) -> dict[str, str]:
        """By provider."""
        return {p.provider_id: p.default_model for p in self.providers if p.default_model}

    @property
    def connected(self) -> list[str]:
        return [p.provider_id for p in self.providers if p.connected]

    def with_default(self, model: ModelRef | None) -> Providers:
        """The same providers, with this model as the default of its provider."""
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
    # of the worktree of an isolated context
    base: str | None = None
    base_branch: str | None = None
    context_id: str | None = None


class Catalog(Protocol):
    """The agent's sessions, models and locations. Raises `SessionNotFound` for an unknown one."""

    async def sessions(self, location: Location, query: SessionQuery) -> Sequence[SessionInfo]:
        """Latest change first."""
        ...

    async def session(self, session: str) -> SessionInfo: ...
    async def restrict(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """Add rules to those a session has; the last that matches counts."""
        ...

    async def keep_rules(self, session: str, rules: Sequence[PermissionRule]) -> None:
        """Put these, which a session once had, before those it has, if the agent has lost them."""
        ...

    async def model_of(self, session: str) -> ModelRef | None:
        """What the session was last answered with, if it ever was."""
        ...

    async def default_model(self, location: Location) -> ModelRef | None:
        """What is configured there, if anything is."""
        ...

    async def children(self, session: str) -> Sequence[SessionInfo]: ...
    async def statuses(self, location: Location) -> Mapping[str, SessionStatus]:
        """Of those that are not idle."""
        ...

    async def todos(self, session: str) -> Sequence[TodoItem]: ...
    async def diff(self, session: str, message: str) -> Sequence[FileChange]: ...
    async def messages(self, session: str, *, limit: int, before: str | None) -> MessagePage: ...
    async def message(self, session: str, message: str) -> Message | None: ...

    async def prompt(self, session: str, prompt: SessionPrompt) -> str:
        """Start a run, or only add to the session; the id of the message."""
        ...

    async def command(self, session: str, command: SessionCommand) -> Message: ...
    async def shell(
        self, session: str, *, agent: str, command: str, model: ModelRef | None
    ) -> Message: ...
    async def summarize(self, session: str, model: ModelRef) -> None: ...
    async def fork(self, session: str, *, before: str | None) -> SessionInfo: ...
    async def share(self, session: str) -> SessionInfo:
        """Without a URL afterwards when the agent is not allowed to."""
        ...

    async def unshare(self, session: str) -> SessionInfo: ...
    async def revert(self, session: str, *, message: str, part: str | None) -> SessionInfo: ...
    async def unrevert(self, session: str) -> SessionInfo: ...
    async def rename(self, session: str, title: str) -> SessionInfo: ...
    async def delete(self, session: str) -> None:
        """With the sessions of its sub-agents. What runs in a session is not stopped by this."""
        ...

    async def providers(self, location: Location) -> Providers: ...
    async def agents(self, location: Location) -> Sequence[AgentInfo]:
        """The default agent comes first."""
        ...

    async def commands(self, location: Location) -> Sequence[CommandInfo]: ...

    async def projects(self) -> Sequence[Project]: ...
    async def project(self, location: Location) -> Project: ...
    async def workspaces(self, location: Location) -> Sequence[Workspace]: ...
    async def workspace_types(self, location: Location) -> Sequence[str]: ...
    def new_workspace_id(self) -> str:
        """An id for a workspace: what was made under it can be removed, however far it got."""
        ...

    async def create_workspace(
        self, location: Location, *, workspace_id: str, type: str, branch: str | None
    ) -> Workspace: ...

    async def remove_workspace(self, location: Location, workspace: str) -> Workspace | None:
        """What was removed; None when there is no such workspace."""
        ...

    async def worktrees(self, location: Location) -> Sequence[str]: ...
    async def create_worktree(self, location: Location, name: str | None) -> Worktree: ...

    async def remove_worktree(self, location: Location, directory: str) -> None:
        """Deletes whatever directory it is given: never a caller's word, only a listed one."""
        ...

    async def reset_worktree(self, location: Location, directory: str) -> None: ...


class HasCatalog(Protocol):
    """An agent, of whichever version it is."""

    @property
    def catalog(self) -> Catalog:
        """UpstreamError: no agent has answered yet."""
        ...


@dataclass(frozen=True, slots=True)
class SessionOwner:
    principal: str
    root: str | None = None  # the workspace root it was started or claimed in, where that is known


class OwnershipStore(Protocol):
    """Who owns which session, and which worktree (by directory) or workspace (by id)."""

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, SessionOwner]:
        """The owner of each session that has one."""
        ...

    async def contexts(self, ids: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """The principals that have a context with each of these ids."""
        ...

    async def contexts_of(self, owner: str, sessions: Sequence[str]) -> Mapping[str, str]:
        """The context of each session that serves one of this owner's."""
        ...

    async def forget_model(self, session_id: str) -> None:
        """Forget the model of a session, which goes on with that of its next prompt."""
        ...

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        """Make this caller the owner if there is none, for good or `until` then; the owner now."""
        ...

    async def location_owners(self, names: Sequence[str]) -> Mapping[str, str]: ...

    async def own_locations(self, owner: str, names: Sequence[str]) -> None: ...

    async def forget_locations(self, names: Sequence[str]) -> None: ...
