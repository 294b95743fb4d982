"""Resolves the options of a request: its session, location, model, agent and variant.

Everything is checked before anything is changed: OpenCode would store a model that
does not exist. A model is for one request. OpenCode would keep using it, so the
service remembers the model that the session had, and sends it with the next prompt.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from ..domain.catalog import Catalog, Location
from ..domain.ports import Bindings
from ..domain.values import Caller, Isolation, ModelRef, RequestOptions, Selection, SessionRef
from ..errors import InvalidParams
from . import git
from .isolation import ContextWorktrees
from .limits import Limiter
from .locations import DIRECTORY_FIELD, WORKSPACE_FIELD
from .ownership import Ownership
from .sessions import Sessions
from .validator import Validator

# Begins the context id under which a listed session can be continued.
SESSION_CONTEXT_PREFIX = "ctx:opencode-session:"
_SESSION_ID = re.compile(r"ses_[A-Za-z0-9]+")
_SESSION_FIELD = "metadata.shared.session.id"
_MODEL_FIELD = "metadata.shared.model"
_AGENT_FIELD = "metadata.opencode.agent"
DEFAULT_AGENT = "build"  # OpenCode's
ISOLATION_FIELD = "metadata.opencode.isolation"
NODE_FIELD = "metadata.opencode.node"


class OptionsResolver(Protocol):
    """What starting and continuing a task needs to know of the options of a request."""

    async def context_for(
        self, caller: Caller, *, named: str | None, options: RequestOptions
    ) -> str:
        """The context a request belongs to, perhaps a new one."""
        ...

    async def resolve(
        self, caller: Caller, context_id: str, *, title: str, options: RequestOptions
    ) -> Selection:
        """Bind session and location, or raise which field is wrong; what goes with the prompt."""
        ...

    async def resolve_next(
        self, caller: Caller, context_id: str, *, options: RequestOptions
    ) -> Selection:
        """The same for one more message of a running task, which has its session already."""
        ...


@dataclass(frozen=True, slots=True)
class CatalogOptionsResolver:
    """Implements `OptionsResolver`."""

    ownership: Ownership
    validator: Validator
    sessions: Sessions
    bindings: Bindings
    worktrees: ContextWorktrees
    has_label: Callable[[str], Awaitable[bool]]  # whether this node, or another of its OpenCode
    agent: str | None = None  # of the deployment, for requests that choose none
    isolation: Literal["none", "worktree", "never"] = "none"  # unless a request says otherwise
    limiter: Limiter = field(default_factory=Limiter)

    @property
    def _catalog(self) -> Catalog:
        return self.ownership.locations.catalog

    async def context_for(
        self, caller: Caller, *, named: str | None, options: RequestOptions
    ) -> str:
        """A session has one context, so that its tasks wait for each other."""
        listed = named is not None and named.startswith(SESSION_CONTEXT_PREFIX)
        if listed and options.session not in (
            None,
            (named or "").removeprefix(SESSION_CONTEXT_PREFIX),
        ):
            raise InvalidParams.at(
                _SESSION_FIELD, "is not the session that message.contextId names"
            )
        session = (
            _with_listed_session(named, options).session if named is not None else options.session
        )
        if session is None:
            return named or str(uuid.uuid4())
        serving = await self.bindings.context_of(caller.principal, session)
        if named is None or listed:
            return serving or named or SESSION_CONTEXT_PREFIX + session
        if serving is not None and serving != named:
            raise InvalidParams.at(
                _SESSION_FIELD, f"this session goes on in the context {serving}; use that, or none"
            )
        return named

    async def resolve(
        self, caller: Caller, context_id: str, *, title: str, options: RequestOptions
    ) -> Selection:
        limits = self.limiter.of(caller.principal)
        plain = _with_listed_session(context_id, options) == RequestOptions() and not limits.narrows
        if plain and self.isolation != "worktree":
            return Selection()
        bound = await self.bindings.session_of(caller.principal, context_id)
        if plain and bound is not None:
            return Selection()
        if options.node is not None:
            await self._check_node(options.node, is_new=bound is None)
        if bound is None:  # a bound context keeps its session, which may have been replaced since
            options = _with_listed_session(context_id, options)
        wanted = None
        if options.session is not None:
            wanted = await self._wanted_session(caller, options.session, bound=bound)
        location = await self._location(caller, context_id, options, bound=bound or wanted)
        if limits.narrows:
            options = await self._narrowed(caller, location, options, session=bound or wanted)
        agent_model = await self.validator.agent(location, options.agent, field=_AGENT_FIELD)
        await self.validator.model(location, options.model, field=_MODEL_FIELD)
        if options.variant is not None:
            model = options.model or await self._answering(
                location, options, session=bound or wanted
            )
            await self.validator.variant(
                location, options.variant, model=model, field="metadata.opencode.variant"
            )
        isolation = await self._isolation(location, options, bound=bound, wanted=wanted)
        # Nothing is claimed or bound before everything was checked.
        if bound is None and wanted is not None:
            await self.ownership.own(caller, wanted, until=self.ownership.claim_end())
            await self.bindings.bind(caller.principal, context_id, session=wanted)
            bound = wanted
        elsewhere = options.model or options.directory or options.workspace
        below = location != self.ownership.locations.home
        if bound is None and isolation is None and (elsewhere or below):
            session = await self.sessions.serving(
                caller.principal, context_id, title=title, location=location
            )
            bound = session.ref
        if bound is not None and options.model is not None and bound.model is None:
            await self._remember_model(bound, location)
        # Without a model of its own the prompt would get the one that the session goes back to.
        goes_back = bound is not None and bound.model is not None
        model = options.model or (agent_model if goes_back else None)
        return Selection(
            model=model,
            agent=options.agent,
            variant=options.variant,
            isolation=isolation,
            node=options.node,
            directory=location.directory if below and isolation is None else None,
            session=options.session,
        )

    async def resolve_next(
        self, caller: Caller, context_id: str, *, options: RequestOptions
    ) -> Selection:
        selection = await self.resolve(caller, context_id, title="", options=options)
        # The first message has decided, also where its session is not bound yet.
        selection = replace(selection, isolation=None)
        if selection.model is None:
            bound = await self.bindings.session_of(caller.principal, context_id)
            selection = replace(selection, model=bound.model if bound is not None else None)
        return selection

    async def _check_node(self, label: str, *, is_new: bool) -> None:
        """Other nodes have been looked at before: what is here is for this one."""
        if await self.has_label(label):
            return
        if is_new:
            raise InvalidParams.at(NODE_FIELD, f"no node has the name or label {label!r}")
        raise InvalidParams.at(
            NODE_FIELD,
            f"this context works at a node without the name or label {label!r}, and does not move; "
            "use a new context",
        )

    async def _wanted_session(
        self, caller: Caller, session_id: str, *, bound: SessionRef | None
    ) -> SessionRef:
        if bound is not None:
            if bound.id != session_id:
                raise InvalidParams.at(
                    _SESSION_FIELD, "this context goes on in another session; use a new context"
                )
            return bound
        session = await self.ownership.visible(caller, session_id, to_act=True)
        if session.parent_id is not None:
            raise InvalidParams.at(
                _SESSION_FIELD, "is a sub-agent's; name the session it works for"
            )
        return session.ref

    async def _location(
        self, caller: Caller, context_id: str, options: RequestOptions, *, bound: SessionRef | None
    ) -> Location:
        if options.directory is None and options.workspace is None:
            if bound is None:  # it may have worked at a node that does not come back
                directory = await self.bindings.former_directory(caller.principal, context_id)
            else:
                directory = bound.directory
            home = self.ownership.locations.home_of(caller)
            return Location(directory) if directory else home
        location = await self.ownership.locations.find(
            caller, directory=options.directory, workspace=options.workspace
        )
        if bound is not None and bound.directory != location.directory:
            raise InvalidParams.at(
                DIRECTORY_FIELD, "this context works in another directory; use a new context"
            )
        return location

    async def _narrowed(
        self,
        caller: Caller,
        location: Location,
        options: RequestOptions,
        *,
        session: SessionRef | None,
    ) -> RequestOptions:
        """The options, with what the caller's limits allow where they name nothing."""
        who, limiter = caller.principal, self.limiter
        limiter.check_model(who, options.model, field=_MODEL_FIELD)
        limiter.check_agent(who, options.agent, field=_AGENT_FIELD)
        if options.agent is None:
            agent = limiter.agent_for(who, default=self.agent or DEFAULT_AGENT)
            options = replace(options, agent=agent)
        if options.model is None and limiter.of(who).models:
            default = await self._answering(location, options, session=session)
            options = replace(options, model=limiter.model_for(who, default=default))
        return options

    async def _isolation(
        self,
        location: Location,
        options: RequestOptions,
        *,
        bound: SessionRef | None,
        wanted: SessionRef | None,
    ) -> Isolation | None:
        """Whether, and from where, the request gives its context a worktree."""
        asked = options.isolation == "worktree"
        if asked and self.isolation == "never":
            raise InvalidParams.at(
                ISOLATION_FIELD, "cannot be chosen in this deployment (A2A_ISOLATION)"
            )
        if bound is not None:
            if options.isolation is None or asked == (bound.worktree is not None):
                return None
            where = "without isolation" if asked else "in a worktree of its own"
            raise InvalidParams.at(
                ISOLATION_FIELD,
                f"this context already works {where}, and does not move; use a new context",
            )
        for other, given in ((_SESSION_FIELD, wanted), (WORKSPACE_FIELD, options.workspace)):
            if asked and given is not None:
                raise InvalidParams.at(
                    ISOLATION_FIELD,
                    f"contradicts {other}, which says where to work; leave out one of the two",
                )
        if wanted is not None or options.workspace is not None or options.isolation == "none":
            return None
        if not asked and (
            self.isolation != "worktree" or await self._is_worktree(options, location)
        ):
            return None
        await self.worktrees.check(location.directory)
        model = await self._default(location) if options.model is not None else None
        return Isolation(location.directory, model=model)

    async def _is_worktree(self, options: RequestOptions, location: Location) -> bool:
        """Whether a request names a worktree: that is as isolated as the caller wants it."""
        if options.directory is None:
            return False
        return await asyncio.to_thread(git.in_linked_worktree, Path(location.directory))

    async def _answering(
        self, location: Location, options: RequestOptions, *, session: SessionRef | None
    ) -> ModelRef | None:
        """The model that answers a request that chooses none."""
        if options.agent is None and session is not None and session.model is not None:
            return session.model  # the session goes back to it with this prompt
        agent = options.agent or self.agent
        return await self.validator.answering(
            location, agent=agent, session_id=session.id if session else None
        )

    async def _remember_model(self, bound: SessionRef, location: Location) -> None:
        model = await self._catalog.model_of(bound.id) or await self._default(location)
        if model is not None:
            await self.bindings.keep_model(bound.id, model)

    async def _default(self, location: Location) -> ModelRef | None:
        configured = await self._catalog.default_model(location)
        if configured is not None:
            return configured
        for provider in (await self._catalog.providers(location)).providers:
            if provider.connected and provider.default_model:
                return ModelRef(provider.provider_id, provider.default_model)
        return None


def _with_listed_session(context_id: str, options: RequestOptions) -> RequestOptions:
    """The options, with the session that a context id names."""
    if options.session is not None or not context_id.startswith(SESSION_CONTEXT_PREFIX):
        return options
    session = context_id.removeprefix(SESSION_CONTEXT_PREFIX)
    if not _SESSION_ID.fullmatch(session):
        raise InvalidParams.at(
            "message.contextId", f"after {SESSION_CONTEXT_PREFIX} must come a session id"
        )
    return replace(options, session=session)
