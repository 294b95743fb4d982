"""Which agent session serves which context of which caller."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ..domain.catalog import Location
from ..domain.isolation import ContextWorktree
from ..domain.ports import Agent, AgentSession, Bindings
from ..domain.values import Caller, FileChange, Isolation, SessionRef, WorktreeRef
from ..errors import IsolationFailed, ServiceError
from ..locks import KeyedLock
from .isolation import ContextWorktrees
from .limits import Limiter
from .locations import Locations


class Sessions:
    def __init__(
        self,
        agent: Agent,
        bindings: Bindings,
        locations: Locations | None = None,
        worktrees: ContextWorktrees | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        """Without `locations`, sessions may work in any directory; without `worktrees`, no context
        is isolated.
        """
        self._agent = agent
        self._bindings = bindings
        self._locations = locations
        self._worktrees = worktrees
        self._limiter = limiter or Limiter()
        self._creating: KeyedLock[tuple[str, str]] = KeyedLock()
        self._unbound: dict[tuple[str, str], SessionRef] = {}  # created, but not stored yet

    async def serving(
        self,
        owner: str,
        context_id: str,
        *,
        title: str,
        location: Location | None = None,
        isolation: Isolation | None = None,
        fresh: bool = False,
    ) -> AgentSession:
        """The session of this context; created now, at the location, if there is none.

        A `fresh` context is new, so it cannot have a session yet. The worktree of an isolated
        context is made as well, if it is not there. Raises `DirectoryGone` when another worktree,
        in which the session works, was removed.
        """
        key = (owner, context_id)
        async with self._creating(key):
            ref = None
            if not fresh or key in self._unbound:
                ref = await self._bindings.session_of(owner, context_id)
            worktree = None
            if not fresh and (ref is None or ref.worktree is not None or isolation is not None):
                worktree = await self._worktree(key, ref, title=title, isolation=isolation)
            if worktree is not None:
                location = Location(worktree.work_directory)
            else:
                if ref is None and location is None and not fresh:
                    location = await self._former_location(owner, context_id)
                await self._check(
                    owner, ref.directory if ref else location.directory if location else ""
                )
            if ref is None:
                if key not in self._unbound:
                    self._unbound[key] = await self._agent.create(
                        title,
                        context_id,
                        location=location,
                        rules=self._limiter.permission_rules(owner),
                    )
                ref = self._unbound[key]
                if isolation is not None and isolation.model is not None:
                    await self._bindings.keep_model(ref.id, isolation.model)
                await self._bindings.bind(owner, context_id, session=ref)
            self._unbound.pop(key, None)
        ref = replace(ref, worktree=worktree.ref) if worktree else ref
        return self._agent.session(ref, self._limiter.permission_rules(owner))

    async def _former_location(self, owner: str, context_id: str) -> Location | None:
        """Where a context has worked that comes from another node, or where its caller may work."""
        if former := await self._bindings.former_directory(owner, context_id):
            return Location(former)
        if self._locations is None:
            return None
        home = self._locations.home_of(Caller(owner))
        return home if home != self._locations.home else None

    async def _worktree(
        self,
        context: tuple[str, str],
        session: SessionRef | None,
        *,
        title: str,
        isolation: Isolation | None,
    ) -> ContextWorktree | None:
        if session is not None and session.worktree is None:
            raise IsolationFailed(
                f"This context already works in {session.directory}, without isolation. Use a new "
                "context.",
                directory=session.directory,
            )
        if self._worktrees is None:
            return None
        return await self._worktrees.open(*context, title=title, isolation=isolation)

    async def changes(self, worktree: WorktreeRef) -> tuple[FileChange, ...]:
        """How the files of a worktree differ from its base."""
        return await self._worktrees.changes(worktree) if self._worktrees is not None else ()

    def new_message_id(self) -> str:
        """An id for a prompt that this service sends of its own accord."""
        return self._agent.new_message_id()

    async def _check(self, owner: str, directory: str) -> None:
        if self._locations is not None and directory:
            await self._locations.check(Caller(owner), directory)

    async def forget(self, owner: str, context_id: str) -> None:
        """Delete the session of a context whose task was not stored."""
        with suppress(ServiceError):  # then an empty session is left
            ref = self._unbound.pop((owner, context_id), None)
            if ref is None:
                ref = await self._bindings.session_of(owner, context_id)
                if ref is None:
                    return
            # The binding may have been stored although its transaction reported a failure.
            await self._bindings.unbind(owner, context_id, session_id=ref.id)
            await self._agent.delete(ref)

    async def renewed(
        self, owner: str, context_id: str, *, title: str, gone: SessionRef
    ) -> AgentSession:
        """A new session for this context: somebody has deleted the one it had."""
        if gone.worktree is None:
            await self._check(owner, gone.directory)  # the context stays where it was
        await self._bindings.unbind(owner, context_id, session_id=gone.id)
        location = Location(gone.directory) if gone.directory else None
        return await self.serving(owner, context_id, title=title, location=location)
