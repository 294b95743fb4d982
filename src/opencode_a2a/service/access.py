"""Which sessions a caller can see and touch, and where it can look.

A session belongs to whoever started or claimed it, and the sessions of its sub-agents belong
with it. What one caller owns does not exist for another. A session that nobody owns can be
seen, and claimed, by everybody if the deployment shares them.

A session also belongs to a workspace root. Its owner cannot use it through a service for another
root, and nobody acts in a session that works outside the root, but for the caller's worktrees and
workspaces of the project.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from ..domain.catalog import (
    Catalog,
    Owners,
    Place,
    SessionInfo,
    SessionOwner,
    SessionQuery,
)
from ..domain.values import Caller, PermissionRule, SessionRef
from ..errors import SessionForbidden, SessionNotFound, StoreUnavailable
from .places import Places

logger = structlog.get_logger()

NOBODY = ""  # that is no principal
BEING_MADE = 60_000  # milliseconds in which a session of ours finds its owner
PAGE = 100
FURTHEST = 6_400  # sessions of everybody that are looked through for those of one caller


@dataclass(frozen=True, slots=True)
class Access:
    catalog: Catalog
    owners: Owners
    places: Places
    shared: bool
    clock: Callable[[], int]
    claim_ms: int  # how long a claim holds that has not proved worth it
    rules: tuple[PermissionRule, ...] = ()  # of the deployment

    # -- sessions

    async def visible(
        self, caller: Caller, session_id: str, *, to_act: bool = False
    ) -> SessionInfo:
        """The session, if this caller may see it, or `to_act` in it."""
        session = await self.catalog.session(session_id)
        await self._admitted(caller, session, to_act=to_act)
        return session

    @asynccontextmanager
    async def claiming(self, caller: Caller, session_id: str) -> AsyncIterator[SessionInfo]:
        """The session to do something with: the caller's meanwhile, and for good if that works."""
        session = await self.catalog.session(session_id)
        root = await self._admitted(caller, session, to_act=True)
        await self.own(caller, root.ref, self.soon())
        holding = asyncio.create_task(self._hold(caller, root.ref))
        try:
            yield session
        finally:
            holding.cancel()
        try:
            await self.own(caller, root.ref)
        except StoreUnavailable:  # what was asked is done, and must not be asked again for this
            logger.warning("session.claim_ends", session=root.id, principal=caller.principal)

    async def own(self, caller: Caller, session: SessionRef, until: int | None = None) -> None:
        """Rules come first: a session that has an owner has them, however often this was tried."""
        if self.rules and not await self.owners.owners([session.id]):
            await self.catalog.restrict(session.id, self.rules)  # not made by us, or forked
        if await self.owners.claim(caller.principal, session, until) != caller.principal:
            raise SessionNotFound(session.id)

    def soon(self) -> int:
        """When a claim ends that does not prove worth it."""
        return self.clock() + self.claim_ms

    async def _hold(self, caller: Caller, session: SessionRef) -> None:
        """Nobody else gets it while something is done with it, however long that takes."""
        while True:
            await asyncio.sleep(self.claim_ms / 2_000)
            with suppress(StoreUnavailable):
                await self.owners.claim(caller.principal, session, self.soon())

    async def among(self, caller: Caller, sessions: Sequence[SessionInfo]) -> list[SessionInfo]:
        """Those of the sessions that the caller may see."""
        roots = await self._roots(sessions)
        owners = await self._owners(roots.values())
        seen = {
            root.id: root
            for root in roots.values()
            if self._may_see(caller, root, owners) and not self._other_root(owners.get(root.id))
        }
        unknown = [root for root in seen.values() if not self._is_known(owners.get(root.id))]
        outside = await self._outside(caller, unknown)
        return [s for s in sessions if roots[s.id].id in seen.keys() - outside]

    async def latest(
        self, caller: Caller, place: Place, query: SessionQuery
    ) -> Sequence[SessionInfo]:
        """The sessions a caller may see, looking further back until there are enough.

        Not for ever: the agent lists the whole of what is looked through, each time.
        """
        reach = PAGE
        while True:
            found = await self.catalog.sessions(place, replace(query, limit=reach))
            seen = await self.among(caller, found)
            if len(seen) >= query.limit or len(found) < reach or reach >= FURTHEST:
                return seen[: query.limit]
            reach *= 4

    async def _admitted(self, caller: Caller, session: SessionInfo, *, to_act: bool) -> SessionInfo:
        """The root of a session that the caller may see, or act in."""
        root = (await self._roots([session]))[session.id]
        owners = await self._owners([root])
        if not self._may_see(caller, root, owners):
            raise SessionNotFound(session.id)
        owner = owners.get(root.id)
        if other := self._other_root(owner):
            raise SessionForbidden.of_root(session.id, other)
        unchecked = [session, root] if to_act else [] if self._is_known(owner) else [root]
        if await self._outside(caller, unchecked):
            raise SessionForbidden(
                "This session works outside the workspace of this service. Use it at the service "
                "whose OPENCODE_WORKSPACE_ROOT contains its directory.",
                session_id=session.id,
            )
        return root

    def _other_root(self, owner: SessionOwner | None) -> str | None:
        """The root it belongs to, where that is not the one served here."""
        home = self.places.home.directory
        return owner.root if owner is not None and owner.root != home else None

    def _is_known(self, owner: SessionOwner | None) -> bool:
        """Whether its directory was checked when it became its owner's, in this root."""
        return owner is not None and owner.root is not None

    async def _owners(self, roots: Iterable[SessionInfo]) -> dict[str, SessionOwner]:
        """Whose they are. One that was forked in OpenCode itself still says whose it was."""
        owners = dict(await self.owners.owners([root.id for root in roots]))
        copies = {r.id: r.context_id for r in roots if r.id not in owners and r.context_id}
        known = await self.owners.contexts(list(copies.values())) if copies else {}
        for session, context in copies.items():
            if who := known.get(context):
                owners[session] = SessionOwner(min(who) if len(who) == 1 else NOBODY)
        return owners

    def _may_see(
        self, caller: Caller, root: SessionInfo, owners: Mapping[str, SessionOwner]
    ) -> bool:
        owner = owners.get(root.id)
        if not self._is_known(owner) and root.workspace_root not in (
            None,
            self.places.home.directory,
        ):
            return False  # a service for that root made it, and knows whose it is
        if owner is not None:
            return owner.principal == caller.principal
        ours = root.context_id is not None
        return self.shared and not (ours and self.clock() - root.created_at < BEING_MADE)

    async def _outside(self, caller: Caller, sessions: Sequence[SessionInfo]) -> set[str]:
        """Those that work where this caller cannot."""
        within = await self.places.within(caller, [session.directory for session in sessions])
        return {session.id for session in sessions if session.directory not in within}

    async def _roots(self, sessions: Sequence[SessionInfo]) -> dict[str, SessionInfo]:
        """For each session the one that its sub-agents, and theirs, work for."""
        known = {session.id: session for session in sessions}
        roots = {}
        for session in sessions:
            root, passed = session, {session.id}
            while (parent := root.parent_id) is not None and parent not in passed:
                passed.add(parent)
                if parent not in known:
                    try:
                        known[parent] = await self.catalog.session(parent)
                    except SessionNotFound:
                        break
                root = known[parent]
            roots[session.id] = root
        return roots
