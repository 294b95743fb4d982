"""Which agent session serves which context of which caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from ..domain.catalog import Place
from ..domain.ports import Agent, AgentSession, Bindings
from ..domain.values import Caller, SessionRef
from ..errors import ServiceError
from .places import Places

K = TypeVar("K")


class Lanes(Generic[K]):
    """One at a time per key, first come first served; keys nobody uses cost nothing."""

    def __init__(self) -> None:
        self._locks: dict[K, asyncio.Lock] = {}
        self._users: dict[K, int] = {}

    @asynccontextmanager
    async def __call__(self, key: K) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


class Sessions:
    def __init__(self, agent: Agent, bindings: Bindings, places: Places | None = None) -> None:
        """Without `places`, every directory that a session has is good enough."""
        self._agent = agent
        self._bindings = bindings
        self._places = places
        self._creating: Lanes[tuple[str, str]] = Lanes()
        self._unbound: dict[tuple[str, str], SessionRef] = {}  # made, but not written down

    async def serving(
        self,
        owner: str,
        context_id: str,
        title: str,
        place: Place | None = None,
        *,
        fresh: bool = False,
    ) -> AgentSession:
        """The session of this context, made now, in that place, if it has none.

        A `fresh` context is one nobody has heard of, so there is none to look for. `DirectoryGone`
        says that the session has lost the worktree it works in.
        """
        key = (owner, context_id)
        async with self._creating(key):
            ref = None
            if not fresh or key in self._unbound:
                ref = await self._bindings.session_of(owner, context_id)
            await self._check(owner, ref.directory if ref else place.directory if place else "")
            if ref is None:
                if key not in self._unbound:
                    self._unbound[key] = await self._agent.create(title, context_id, place)
                ref = self._unbound[key]
                await self._bindings.bind(owner, context_id, ref)
            self._unbound.pop(key, None)
        return self._agent.session(ref)

    async def _check(self, owner: str, directory: str) -> None:
        if self._places is not None and directory:
            await self._places.check(Caller(owner), directory)

    async def forget(self, owner: str, context_id: str) -> None:
        """Leave nothing of a context that did not come to be."""
        with suppress(ServiceError):  # what is left then is an empty session
            ref = self._unbound.pop((owner, context_id), None)
            if ref is None:
                ref = await self._bindings.session_of(owner, context_id)
                if ref is None:
                    return
            # In any case: it may have been bound although nobody heard of it.
            await self._bindings.unbind(owner, context_id, ref.id)
            await self._agent.delete(ref)

    async def renewed(
        self, owner: str, context_id: str, title: str, gone: SessionRef
    ) -> AgentSession:
        """The session of this context, now that the agent does not know the one it had."""
        await self._check(owner, gone.directory)  # a context does not move because it is renewed
        await self._bindings.unbind(owner, context_id, gone.id)
        place = Place(gone.directory) if gone.directory else None
        return await self.serving(owner, context_id, title, place)
