"""What a request asks for besides its message: a session, a place, a model.

Everything is looked up before it is made so: OpenCode would keep a model that
does not exist. A model is for one request; OpenCode would go on with it, so what
the session had before is remembered, and sent with what comes next.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Protocol

from ..domain.catalog import Catalog, Place
from ..domain.ports import Bindings
from ..domain.values import Caller, ModelRef, Selection, SessionRef, Wish
from ..errors import InvalidParams
from .access import Access
from .checks import Checks
from .places import HERE
from .sessions import Sessions

# How sessions that were listed are called where a context is wanted.
LISTED = "ctx:opencode-session:"
_SESSION = re.compile(r"ses_[A-Za-z0-9]+")
_AT_SESSION = "metadata.shared.session.id"


class Granting(Protocol):
    """As much as is needed to begin and to continue tasks."""

    async def context(self, caller: Caller, named: str | None, wish: Wish) -> str:
        """The context a request belongs to, perhaps a new one."""
        ...

    async def grant(self, caller: Caller, context_id: str, title: str, wish: Wish) -> Selection:
        """Make it so, or say which field is wrong. What is selected goes with the prompt."""
        ...

    async def next(self, caller: Caller, context_id: str, wish: Wish) -> Selection:
        """The same for one more message of a running task, whose session is what it is."""
        ...


@dataclass(frozen=True, slots=True)
class Wishes:
    """Implements `Granting`."""

    access: Access
    checks: Checks
    catalog: Catalog
    sessions: Sessions
    bindings: Bindings
    agent: str | None = None  # of the deployment, for requests that choose none

    async def context(self, caller: Caller, named: str | None, wish: Wish) -> str:
        """A session has one context, in which its turns wait for each other."""
        listed = named is not None and named.startswith(LISTED)
        if listed and wish.session not in (None, (named or "").removeprefix(LISTED)):
            raise InvalidParams.at(_AT_SESSION, "is not the session that message.contextId names")
        session = _adopting(named, wish).session if named is not None else wish.session
        if session is None:
            return named or str(uuid.uuid4())
        serving = await self.bindings.context_of(caller.principal, session)
        if named is None or listed:
            return serving or named or LISTED + session
        if serving is not None and serving != named:
            raise InvalidParams.at(
                _AT_SESSION, f"this session goes on in the context {serving}; use that, or none"
            )
        return named

    async def grant(self, caller: Caller, context_id: str, title: str, wish: Wish) -> Selection:
        if _adopting(context_id, wish) == Wish():
            return Selection()
        bound = await self.bindings.session_of(caller.principal, context_id)
        if bound is None:  # once it is bound, its session may be renewed
            wish = _adopting(context_id, wish)
        wanted = None
        if wish.session is not None:
            wanted = await self._wanted(caller, wish.session, bound)
        place = await self._place(caller, wish, bound or wanted)
        own = await self.checks.agent(place, wish.agent, "metadata.opencode.agent")
        await self.checks.model(place, wish.model, "metadata.shared.model")
        if wish.variant is not None:
            model = wish.model or await self._answering(place, wish, bound or wanted)
            await self.checks.variant(place, wish.variant, model, "metadata.opencode.variant")
        # Nothing is taken before everything was found right.
        if bound is None and wanted is not None:
            await self.access.own(caller, wanted, self.access.soon())
            await self.bindings.bind(caller.principal, context_id, wanted)
            bound = wanted
        if bound is None and (wish.model or wish.directory or wish.workspace):
            session = await self.sessions.serving(caller.principal, context_id, title, place)
            bound = session.ref
        if bound is not None and wish.model is not None and bound.model is None:
            await self._remember_model(bound, place)
        # Else the agent would be asked with the model that the session is brought back to.
        kept = bound is not None and bound.model is not None
        return Selection(wish.model or (own if kept else None), wish.agent, wish.variant)

    async def next(self, caller: Caller, context_id: str, wish: Wish) -> Selection:
        selection = await self.grant(caller, context_id, "", wish)
        if selection.model is None:
            bound = await self.bindings.session_of(caller.principal, context_id)
            selection = replace(selection, model=bound.model if bound is not None else None)
        return selection

    async def _wanted(
        self, caller: Caller, session_id: str, bound: SessionRef | None
    ) -> SessionRef:
        if bound is not None:
            if bound.id != session_id:
                raise InvalidParams.at(
                    _AT_SESSION, "this context goes on in another session; use a new context"
                )
            return bound
        session = await self.access.visible(caller, session_id, to_act=True)
        if session.parent_id is not None:
            raise InvalidParams.at(_AT_SESSION, "is a sub-agent's; name the session it works for")
        return session.ref

    async def _place(self, caller: Caller, wish: Wish, bound: SessionRef | None) -> Place:
        if wish.directory is None and wish.workspace is None:
            home = self.access.places.home
            return Place(bound.directory) if bound is not None and bound.directory else home
        place = await self.access.places.place(caller, wish.directory, wish.workspace)
        if bound is not None and bound.directory != place.directory:
            raise InvalidParams.at(HERE, "this context works elsewhere; use a new context")
        return place

    async def _answering(
        self, place: Place, wish: Wish, session: SessionRef | None
    ) -> ModelRef | None:
        """The model that answers a request that chooses none."""
        if wish.agent is None and session is not None and session.model is not None:
            return session.model  # what the session is brought back to goes with the prompt
        agent = wish.agent or self.agent
        return await self.checks.answering(place, agent, session.id if session else None)

    async def _remember_model(self, bound: SessionRef, place: Place) -> None:
        usual = await self.catalog.model_of(bound.id) or await self._default(place)
        if usual is not None:
            await self.bindings.keep_model(bound.id, usual)

    async def _default(self, place: Place) -> ModelRef | None:
        configured = await self.catalog.default_model(place)
        if configured is not None:
            return configured
        for provider in (await self.catalog.providers(place)).providers:
            if provider.connected and provider.default_model:
                return ModelRef(provider.provider_id, provider.default_model)
        return None


def _adopting(context_id: str, wish: Wish) -> Wish:
    """A listed session is continued by its context, too."""
    if wish.session is not None or not context_id.startswith(LISTED):
        return wish
    session = context_id.removeprefix(LISTED)
    if not _SESSION.fullmatch(session):
        raise InvalidParams.at("message.contextId", f"after {LISTED} must come a session id")
    return replace(wish, session=session)
