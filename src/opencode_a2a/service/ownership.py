"""Which sessions a caller can see and change.

A session belongs to the caller who started or claimed it, and so do the sessions of its
sub-agents. What one caller owns does not exist for another. Where the deployment shares sessions,
every caller can see, and claim, those without an owner.

A session also belongs to a workspace root. Its owner cannot use it through a service for another
root. Nobody changes a session that works outside the root, unless it works in a worktree or
workspace of the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from ..domain.catalog import (
    Location,
    OwnershipStore,
    SessionInfo,
    SessionOwner,
    SessionQuery,
)
from ..domain.values import Caller, PermissionRule, SessionRef
from ..errors import (
    SessionForbidden,
    SessionNotFound,
    StoreError,
)
from .limits import Limiter
from .locations import Locations

logger = structlog.get_logger()

NO_PRINCIPAL = ""
CREATION_MS = 60_000  # after its creation a session of this service may not have its owner yet
FIRST_PAGE = 100
MAX_SEARCHED = 6_400  # sessions of everybody, searched for those of one caller


@dataclass(frozen=True, slots=True)
class Ownership:
    store: OwnershipStore
    locations: Locations
    shared: bool
    clock: Callable[[], int]
    claim_ms: int  # how long a claim holds unless the claimed session is used
    rules: Callable[[], Sequence[PermissionRule]] = tuple  # of the deployment, as they are now
    limiter: Limiter = field(default_factory=Limiter)

    # -- sessions

    async def visible(
        self, caller: Caller, session_id: str, *, to_act: bool = False
    ) -> SessionInfo:
        """The session, if this caller may see it, or change it (`to_act`)."""
        session = await self.locations.catalog.session(session_id)
        await self._admitted(caller, session, to_act=to_act)
        return session

    @asynccontextmanager
    async def claiming(self, caller: Caller, session_id: str) -> AsyncIterator[SessionInfo]:
        """The session to change. The caller owns it meanwhile, and for good if that succeeds."""
        session = await self.locations.catalog.session(session_id)
        root = await self._admitted(caller, session, to_act=True)
        await self.own(caller, root.ref, until=self.claim_end())
        if rules := self._rules_of(caller):
            for each in {root.id, session.id}:
                await self.locations.catalog.keep_rules(each, rules)
        renewing = asyncio.create_task(self._renew_claim(caller, root.ref))
        try:
            yield session
        finally:
            renewing.cancel()
        try:
            await self.own(caller, root.ref)
        except StoreError:  # the change is made: the caller must not repeat it because of this
            logger.warning("session.claim_ends", session=root.id, principal=caller.principal)

    async def own(self, caller: Caller, session: SessionRef, *, until: int | None = None) -> None:
        """Make the caller the owner, or raise `SessionNotFound` if somebody else is.

        The rules are set first, so that every session with an owner has them.
        """
        rules = self._rules_of(caller)
        if rules and not await self.store.owners([session.id]):
            # It was not created by this service, or forked.
            await self.locations.catalog.restrict(session.id, rules)
        owner = await self.store.claim(caller.principal, session, until=until)
        if owner != caller.principal:
            raise SessionNotFound(session.id)

    def _rules_of(self, caller: Caller) -> Sequence[PermissionRule]:
        return (*self.rules(), *self.limiter.permission_rules(caller.principal))

    def claim_end(self) -> int:
        """When a claim made now ends unless it is renewed."""
        return self.clock() + self.claim_ms

    async def _renew_claim(self, caller: Caller, session: SessionRef) -> None:
        """Keep others from claiming the session for as long as the change takes."""
        while True:
            await asyncio.sleep(self.claim_ms / 2_000)
            with suppress(StoreError):
                await self.store.claim(caller.principal, session, until=self.claim_end())

    async def among(self, caller: Caller, sessions: Sequence[SessionInfo]) -> list[SessionInfo]:
        """Those of the sessions that the caller may see."""
        roots = await self._roots(sessions)
        owners = await self._owners(roots.values())
        visible = {
            root.id: root
            for root in roots.values()
            if self._may_see(caller, root, owners=owners)
            and not self._other_root(owners.get(root.id))
        }
        unknown = [root for root in visible.values() if not self._is_known(owners.get(root.id))]
        outside = await self._outside(caller, unknown)
        return [s for s in sessions if roots[s.id].id in visible.keys() - outside]

    async def latest(
        self, caller: Caller, location: Location, *, query: SessionQuery
    ) -> Sequence[SessionInfo]:
        """The latest sessions that a caller may see.

        The search goes further back until it has found enough, up to MAX_SEARCHED: the agent
        lists everything from the start each time.
        """
        limit = FIRST_PAGE
        while True:
            found = await self.locations.catalog.sessions(location, replace(query, limit=limit))
            visible = await self.among(caller, found)
            if len(visible) >= query.limit or len(found) < limit or limit >= MAX_SEARCHED:
                return visible[: query.limit]
            limit *= 4

    async def _admitted(self, caller: Caller, session: SessionInfo, *, to_act: bool) -> SessionInfo:
        """The root of a session that the caller may see, or change (`to_act`)."""
        root = (await self._roots([session]))[session.id]
        owners = await self._owners([root])
        if not self._may_see(caller, root, owners=owners):
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
        """The workspace root of the owner's session, where that is not the one served here."""
        home = self.locations.home.directory
        return owner.root if owner is not None and owner.root != home else None

    def _is_known(self, owner: SessionOwner | None) -> bool:
        """Whether the store knows the root: then the directory was checked when it was claimed."""
        return owner is not None and owner.root is not None

    async def _owners(self, roots: Iterable[SessionInfo]) -> dict[str, SessionOwner]:
        """The owners. A session that was forked in OpenCode names the context of the original."""
        owners = dict(await self.store.owners([root.id for root in roots]))
        copies = {r.id: r.context_id for r in roots if r.id not in owners and r.context_id}
        known = await self.store.contexts(list(copies.values())) if copies else {}
        for session, context in copies.items():
            if principals := known.get(context):
                owner = min(principals) if len(principals) == 1 else NO_PRINCIPAL
                owners[session] = SessionOwner(owner)
        return owners

    def _may_see(
        self, caller: Caller, root: SessionInfo, owners: Mapping[str, SessionOwner]
    ) -> bool:
        owner = owners.get(root.id)
        if not self._is_known(owner) and root.workspace_root not in (
            None,
            self.locations.home.directory,
        ):
            return False  # the service for that root created it, and knows its owner
        if owner is not None:
            return owner.principal == caller.principal
        is_new = self.clock() - root.created_at < CREATION_MS
        return self.shared and not (root.context_id is not None and is_new)

    async def _outside(self, caller: Caller, sessions: Sequence[SessionInfo]) -> set[str]:
        """The ids of those sessions that work where this caller cannot."""
        within = await self.locations.within(caller, [session.directory for session in sessions])
        return {session.id for session in sessions if session.directory not in within}

    async def _roots(self, sessions: Sequence[SessionInfo]) -> dict[str, SessionInfo]:
        """For each session the one at the top of its chain of parents."""
        known = {session.id: session for session in sessions}
        roots = {}
        for session in sessions:
            root, visited = session, {session.id}
            while (parent := root.parent_id) is not None and parent not in visited:
                visited.add(parent)
                if parent not in known:
                    try:
                        known[parent] = await self.locations.catalog.session(parent)
                    except SessionNotFound:
                        break
                root = known[parent]
            roots[session.id] = root
        return roots
