"""Which sessions a caller can see and touch, and where it can look.

A session belongs to whoever started or claimed it, and the sessions of its sub-agents belong
with it. What one caller owns does not exist for another. A session that nobody owns can be
seen, and claimed, by everybody if the deployment shares them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..domain.catalog import Catalog, Owners, Place, SessionInfo, SessionQuery
from ..domain.values import Caller, PermissionRule, SessionRef
from ..errors import (
    InvalidParams,
    SessionForbidden,
    SessionNotFound,
    StoreUnavailable,
    UpstreamHttpError,
)

BEING_MADE = 60_000  # milliseconds in which a session of ours finds its owner
PAGE = 100
FURTHEST = 6_400  # sessions of everybody that are looked through for those of one caller


@dataclass(frozen=True, slots=True)
class Access:
    catalog: Catalog
    owners: Owners
    root: Path  # the workspace
    shared: bool
    directories: bool  # whether a caller can choose among those below the root
    clock: Callable[[], int]
    claim_ms: int  # how long a claim holds that has not proved worth it
    rules: tuple[PermissionRule, ...] = ()  # of the deployment

    # -- sessions

    async def visible(self, caller: Caller, session_id: str) -> SessionInfo:
        """The session, if this caller may see it."""
        session = await self.catalog.session(session_id)
        await self._admitted(caller, session)
        return session

    @asynccontextmanager
    async def claiming(self, caller: Caller, session_id: str) -> AsyncIterator[SessionInfo]:
        """The session to do something with: the caller's meanwhile, and for good if that works."""
        session = await self.catalog.session(session_id)
        root = await self._admitted(caller, session)
        await self.own(caller, root.ref, self.clock() + self.claim_ms)
        holding = asyncio.create_task(self._hold(caller, root.ref))
        try:
            yield session
        finally:
            holding.cancel()
        await self.own(caller, root.ref)

    async def own(self, caller: Caller, session: SessionRef, until: int | None = None) -> None:
        known = await self.owners.owners([session.id])
        if await self.owners.claim(caller.principal, session, until) != caller.principal:
            raise SessionNotFound(session.id)
        if not known and self.rules:  # not made by us, or forked: it has no rules of ours
            await self.catalog.restrict(session.id, self.rules)

    async def _hold(self, caller: Caller, session: SessionRef) -> None:
        """Nobody else gets it while something is done with it, however long that takes."""
        while True:
            await asyncio.sleep(self.claim_ms / 2_000)
            with suppress(StoreUnavailable):
                until = self.clock() + self.claim_ms
                await self.owners.claim(caller.principal, session, until)

    async def among(self, caller: Caller, sessions: Sequence[SessionInfo]) -> list[SessionInfo]:
        """Those of the sessions that the caller may see."""
        roots = await self._roots(sessions)
        owners = await self.owners.owners([root.id for root in roots.values()])
        seen = {r.id: r for r in roots.values() if self._may_see(caller, r, owners)}
        outside = await self._outside(root for root in seen.values() if root.id not in owners)
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

    async def _admitted(self, caller: Caller, session: SessionInfo) -> SessionInfo:
        """The root of a session that the caller may see."""
        root = (await self._roots([session]))[session.id]
        owners = await self.owners.owners([root.id])
        if not self._may_see(caller, root, owners):
            raise SessionNotFound(session.id)
        if not owners and await self._outside([root]):
            raise SessionForbidden(
                "This session works outside the workspace of this service.", session_id=session.id
            )
        return root

    def _may_see(self, caller: Caller, root: SessionInfo, owners: Mapping[str, str]) -> bool:
        if root.id in owners:
            return owners[root.id] == caller.principal
        ours = root.context_id is not None
        return self.shared and not (ours and self.clock() - root.created_at < BEING_MADE)

    async def _outside(self, sessions: Iterable[SessionInfo]) -> set[str]:
        """Those that work neither below the root nor in a worktree of its project."""
        outside = {s.id: s.directory for s in sessions if not self._below(Path(s.directory))}
        if not outside:
            return set()
        try:
            worktrees = await self.catalog.worktrees(Place(str(self.root)))
        except UpstreamHttpError:  # the root is in no repository
            worktrees = ()
        return {session for session, directory in outside.items() if directory not in worktrees}

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

    # -- places

    async def place(
        self, directory: str | None, workspace: str | None, field: str = "directory"
    ) -> Place:
        """Where a caller wants to look, if it may. A workspace counts more than a directory."""
        home = Place(str(self.root))
        if workspace is not None:
            for found in await self.catalog.workspaces(home):
                if found.workspace_id == workspace:
                    return Place(found.directory or home.directory, workspace)
            raise InvalidParams.at("metadata.opencode.workspace.id", "there is no such one")
        if directory is None:
            return home
        try:
            path = (self.root / directory).resolve()
            exists = path.is_dir()
        except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a null
            raise InvalidParams.at(field, "is not a path") from None
        if path != self.root and not self.directories:
            raise InvalidParams.at(
                field, "cannot be chosen in this deployment (A2A_ALLOW_DIRECTORY_OVERRIDE)"
            )
        if not self._below(path) or not exists:
            raise InvalidParams.at(field, "must be a directory inside the workspace")
        return Place(str(path))

    def _below(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)
