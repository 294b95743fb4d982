"""The directories in which a caller can work: below the root, and in worktrees and workspaces.

A worktree or workspace belongs to the caller who created it. Where the deployment shares sessions,
every caller sees, and can remove, those that have no owner. OpenCode lists every clone it has ever
seen as a worktree, and deletes any directory that a request calls one. So a listed directory
counts as a worktree only if git has linked it to the repository of the location.

A caller can be limited to some directories below the root. Its worktrees and workspaces are not
concerned: what is done there does not touch the directories of others.

OpenCode keeps its worktrees outside the root. `Locations.within` is the one rule that decides in
which directories a caller can work, inside the root or outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..domain.catalog import Catalog, HasCatalog, Location, OwnershipStore, Workspace
from ..domain.values import Caller
from ..errors import DirectoryGone, InvalidParams, UpstreamHttpError
from ..paths import inside_git
from . import git
from .limits import Limiter

DIRECTORY_FIELD = "metadata.opencode.directory"
WORKSPACE_FIELD = "metadata.opencode.workspace.id"


@dataclass(frozen=True, slots=True)
class Locations:
    agent: HasCatalog
    store: OwnershipStore
    root: Path  # the workspace
    shared: bool
    directories: bool  # whether a caller can choose among those below the root
    limiter: Limiter = field(default_factory=Limiter)

    @property
    def catalog(self) -> Catalog:
        return self.agent.catalog

    @property
    def home(self) -> Location:
        return Location(str(self.root))

    def home_of(self, caller: Caller) -> Location:
        """Where a request works that does not say: in the root, if its caller may work there."""
        allowed = self._allowed_directories(caller)
        if not allowed or self.root in allowed:
            return self.home
        return Location(str(allowed[0]))

    def _allowed_directories(self, caller: Caller) -> list[Path]:
        """Those below the root to which the caller is limited; none means all."""
        named = self.limiter.of(caller.principal).directories
        return [(self.root / each).resolve() for each in named]

    async def find(
        self,
        caller: Caller,
        *,
        directory: str | None,
        workspace: str | None,
        field: str = DIRECTORY_FIELD,
    ) -> Location:
        """The location that a request names, if the caller can work there.

        A workspace counts more than a directory, which the request names in `field`.
        """
        if workspace is not None:
            found = await self.workspace(
                caller, self.home, workspace_id=workspace, field=WORKSPACE_FIELD
            )
            return Location(found.directory or self.home.directory, workspace)
        if directory is None:
            return self.home_of(caller)
        path = await asyncio.to_thread(self._named_directory, directory, field)
        if path is None or not await self.within(caller, [str(path)]):
            raise InvalidParams.at(
                field, "must be a directory inside the workspace, or in a worktree of yours"
            )
        return Location(str(path))

    def _named_directory(self, directory: str, field: str) -> Path | None:
        """The directory, or None when it does not exist."""
        try:
            path = (self.root / directory).resolve()
            exists = path.is_dir()
        except git.NOT_A_PATH:
            raise InvalidParams.at(field, "is not a path") from None
        if path != self.root and not self.directories:
            raise InvalidParams.at(
                field, "cannot be chosen in this deployment (A2A_ALLOW_DIRECTORY_OVERRIDE)"
            )
        if path.is_relative_to(self.root) and inside_git(path):
            raise InvalidParams.at(
                field, "is inside a git directory; name a directory of the working tree"
            )
        return path if exists else None

    async def within(self, caller: Caller, directories: Iterable[str]) -> set[str]:
        """Those of the directories that belong to this root, and in which this caller can work.

        They lie below the root, or outside in a worktree or workspace of the root's repository, or
        of a repository below the root. What belongs to another caller does not count.
        """
        real, below = await asyncio.to_thread(self._resolve, list(directories))
        outside = {path for path in real.values() if path not in below}
        trees = await self._trees_around(caller, outside)
        if allowed_directories := self._allowed_directories(caller):
            below = {p for p in below if any(p.is_relative_to(d) for d in allowed_directories)}
        others = await self._owned_by_others(caller, below)
        inside_trees = await asyncio.to_thread(_inside, outside, trees)
        allowed = (below - others) | inside_trees
        return {directory for directory, path in real.items() if path in allowed}

    def _resolve(self, directories: list[str]) -> tuple[dict[str, Path], set[Path]]:
        """The real paths, and those of them that lie below the root and outside git directories."""
        real = {directory: Path(directory).resolve() for directory in directories}
        return real, {path for path in real.values() if self._is_below(path)}

    def _is_below(self, path: Path) -> bool:
        real = path.resolve()
        return real.is_relative_to(self.root) and not inside_git(real)

    async def _trees_around(self, caller: Caller, paths: set[Path]) -> list[Path]:
        """The worktrees and workspaces of the caller's that could hold these paths."""
        if not paths:
            return []
        found = list[str]()
        for repository in await asyncio.to_thread(self._repositories, paths):
            found += await self.worktrees(caller, repository)
        with suppress(UpstreamHttpError):  # an OpenCode that has no workspaces
            spaces = await self.workspaces(caller, self.home)
            found += [space.directory for space in spaces if space.directory]
        return await asyncio.to_thread(_resolve_all, found)

    def _repositories(self, paths: set[Path]) -> list[Location]:
        """The root, or checkouts below it, whose repositories hold these paths."""
        own, found = git.repository(self.root), list[Location]()
        for shared in {git.repository(path) for path in paths}:
            if shared is None:
                continue
            if shared == own:
                found.append(self.home)
            elif shared.is_relative_to(self.root):
                found.append(Location(str(shared.parent)))
        return found

    async def _owned_by_others(self, caller: Caller, paths: set[Path]) -> set[Path]:
        """Those of the paths below the root that are in a worktree or workspace of another."""
        around = await asyncio.to_thread(self._directories_around, paths)
        names = {str(each) for several in around.values() for each in several} - {str(self.root)}
        owners = await self.store.location_owners(sorted(names)) if names else {}
        others = {Path(name) for name, owner in owners.items() if owner != caller.principal}
        return {path for path, several in around.items() if others.intersection(several)}

    def _directories_around(self, paths: set[Path]) -> dict[Path, list[Path]]:
        return {
            path: [each for each in (path, *path.parents) if self._is_below(each)] for path in paths
        }

    async def check(self, caller: Caller, directory: str) -> None:
        """Raise `DirectoryGone` where a session of the caller's cannot work any more."""
        if directory == self.home_of(caller).directory == self.home.directory:
            return  # nobody owns the root, and most sessions work in it
        exists = await asyncio.to_thread(Path(directory).is_dir)
        if not exists or not await self.within(caller, [directory]):
            raise DirectoryGone(directory)

    async def main_checkout(self, location: Location) -> Location:
        """The checkout that the worktrees of a location's repository are linked to.

        A request from inside a worktree makes OpenCode remove it and leave its branch behind.
        """
        return await asyncio.to_thread(self._main_checkout, Path(location.directory))

    def _main_checkout(self, directory: Path) -> Location:
        shared = git.repository(directory)
        main = shared.parent if shared is not None and shared.name == ".git" else None
        return Location(str(main)) if main is not None and self._is_below(main) else self.home

    # -- workspaces

    async def workspaces(self, caller: Caller, location: Location) -> list[Workspace]:
        found = await self.catalog.workspaces(location)
        visible = await self._visible(caller, [workspace.workspace_id for workspace in found])
        return [workspace for workspace in found if workspace.workspace_id in visible]

    async def workspace(
        self, caller: Caller, location: Location, workspace_id: str, *, field: str
    ) -> Workspace:
        for workspace in await self.workspaces(caller, location):
            if workspace.workspace_id == workspace_id:
                return workspace
        raise InvalidParams.at(field, "there is no such workspace")

    # -- worktrees

    async def worktrees(self, caller: Caller, location: Location) -> list[str]:
        """Those that OpenCode lists, and those that this service has made for isolated contexts.

        OpenCode does not know the latter before it works in them.
        """
        listed = await self.catalog.worktrees(location)
        linked, unlisted = await asyncio.to_thread(
            _linked_worktrees, listed, near=Path(location.directory)
        )
        visible = await self._visible(caller, linked)
        owners = await self.store.location_owners(unlisted)
        own = [each for each in unlisted if owners.get(each) == caller.principal]
        return [directory for directory in linked if directory in visible] + own

    async def worktree(
        self, caller: Caller, location: Location, directory: str, *, field: str
    ) -> str:
        """The worktree as OpenCode lists it now, and only if OpenCode lists it.

        The service passes the listed name on, never the caller's own words. A symbolic link is
        refused: it could point anywhere.
        """
        listed = await self.worktrees(caller, location)
        found = await asyncio.to_thread(self._same_directory, listed, directory)
        if found is None:
            raise InvalidParams.at(field, "is not a worktree of this project")
        return found

    def _same_directory(self, listed: list[str], directory: str) -> str | None:
        if not Path(directory).is_absolute():
            return None
        wanted = Path(directory).resolve()
        if self.root.is_relative_to(wanted):  # nobody removes what the workspace itself lies in
            return None
        return next((each for each in listed if Path(each).resolve() == wanted), None)

    # -- owners

    async def own(self, caller: Caller, names: Iterable[str]) -> None:
        """Record what the caller has just created: ids of workspaces, directories of worktrees."""
        await self.store.own_locations(caller.principal, list(names))

    async def forget(self, names: Iterable[str]) -> None:
        await self.store.forget_locations(list(names))

    async def owned(self, names: list[str]) -> set[str]:
        """Those of the names that have an owner."""
        return set(await self.store.location_owners(names))

    async def _visible(self, caller: Caller, names: list[str]) -> set[str]:
        owners = await self.store.location_owners(names)
        default = caller.principal if self.shared else None
        return {name for name in names if owners.get(name, default) == caller.principal}


def _linked_worktrees(listed: Iterable[str], near: Path) -> tuple[list[str], list[str]]:
    """The linked worktrees among those listed, and those that git alone has registered."""
    linked = git.linked_worktrees(listed, near=near)
    known = set(_resolve_all(linked))
    return linked, sorted(str(path) for path in git.registered_worktrees(near) - known)


def _inside(paths: set[Path], trees: list[Path]) -> set[Path]:
    """Those of the paths that lie in one of the trees, and in no git directory."""
    in_trees = {path for path in paths if any(path.is_relative_to(tree) for tree in trees)}
    return {path for path in in_trees if not inside_git(path)}


def _resolve_all(directories: list[str]) -> list[Path]:
    return [Path(directory).resolve() for directory in directories]
