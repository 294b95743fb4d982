"""Where a caller can look and work: below the root, and in worktrees and workspaces.

A worktree or workspace belongs to whoever had it made. Those nobody owns can be seen, and
removed, by everybody if the deployment shares them. OpenCode lists every clone it has ever seen
as a worktree, and deletes any directory it is told is one: only those count here that git knows
as linked to the repository of the place.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..domain.catalog import Catalog, Place, PlaceOwners, Workspace
from ..domain.values import Caller
from ..errors import InvalidParams, UpstreamHttpError
from ..paths import inside_git

HERE = "metadata.opencode.directory"


@dataclass(frozen=True, slots=True)
class Places:
    catalog: Catalog
    owners: PlaceOwners
    root: Path  # the workspace
    shared: bool
    directories: bool  # whether a caller can choose among those below the root

    @property
    def home(self) -> Place:
        return Place(str(self.root))

    def below(self, path: Path) -> bool:
        """Whether it is a place to work in: below the root, and not inside a git directory."""
        real = path.resolve()
        return real.is_relative_to(self.root) and not inside_git(real)

    async def place(
        self, caller: Caller, directory: str | None, workspace: str | None, field: str = HERE
    ) -> Place:
        """Where a caller wants to look, if it may. A workspace counts more than a directory."""
        if workspace is not None:
            at = "metadata.opencode.workspace.id"
            found = await self.workspace(caller, self.home, workspace, at)
            return Place(found.directory or self.home.directory, workspace)
        if directory is None:
            return self.home
        try:
            path = (self.root / directory).resolve()
            exists = path.is_dir()
        except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a null
            raise InvalidParams.at(field, "is not a path") from None
        if path != self.root and not self.directories:
            raise InvalidParams.at(
                field, "cannot be chosen in this deployment (A2A_ALLOW_DIRECTORY_OVERRIDE)"
            )
        if path.is_relative_to(self.root) and inside_git(path):
            raise InvalidParams.at(
                field, "is inside a git directory; name a directory of the working tree"
            )
        inside = self.below(path) and exists
        around = [str(each) for each in (path, *path.parents)] if inside else []
        owners = await self.owners.place_owners(around)
        if not inside or any(owner != caller.principal for owner in owners.values()):
            raise InvalidParams.at(field, "must be a directory inside the workspace")
        return Place(str(path))

    # -- workspaces

    async def workspaces(self, caller: Caller, place: Place) -> list[Workspace]:
        found = await self.catalog.workspaces(place)
        seen = await self._seen(caller, [workspace.workspace_id for workspace in found])
        return [workspace for workspace in found if workspace.workspace_id in seen]

    async def workspace(
        self, caller: Caller, place: Place, workspace_id: str, field: str
    ) -> Workspace:
        for workspace in await self.workspaces(caller, place):
            if workspace.workspace_id == workspace_id:
                return workspace
        raise InvalidParams.at(field, "there is no such workspace")

    # -- worktrees

    async def worktrees(self, caller: Caller, place: Place) -> list[str]:
        listed = _linked(await self.catalog.worktrees(place), Path(place.directory))
        seen = await self._seen(caller, listed)
        return [directory for directory in listed if directory in seen]

    async def worktree(self, caller: Caller, place: Place, directory: str, field: str) -> str:
        """The worktree as OpenCode lists it now, and only if it lists it.

        What is listed is what is handed on, never the caller's own words. A link is refused:
        what it points to could be anything.
        """
        for entry in await self.worktrees(caller, place):
            if self._is_same(entry, directory):
                return entry
        raise InvalidParams.at(field, "is not a worktree of this project")

    def _is_same(self, entry: str, directory: str) -> bool:
        real = Path(entry).resolve()
        # What the workspace itself is in, is never a worktree to be rid of.
        same = Path(directory).is_absolute() and real == Path(directory).resolve()
        return same and not self.root.is_relative_to(real)

    async def outside_root(self, caller: Caller) -> list[Path]:
        """Where the caller can work although it lies outside the root.

        These are the worktrees and workspaces of the root's project that the caller sees.
        """
        found: list[str] = []
        with suppress(UpstreamHttpError):  # the root is in no repository
            found += await self.worktrees(caller, self.home)
        with suppress(UpstreamHttpError):
            spaces = await self.workspaces(caller, self.home)
            found += [space.directory for space in spaces if space.directory is not None]
        return [_real(directory) for directory in found]

    # -- whose they are

    async def own(self, caller: Caller, names: Iterable[str]) -> None:
        """What was just made is this caller's: ids of workspaces, directories of worktrees."""
        await self.owners.own_places(caller.principal, list(names))

    async def forget(self, names: Iterable[str]) -> None:
        await self.owners.forget_places(list(names))

    async def _seen(self, caller: Caller, names: list[str]) -> set[str]:
        owners = await self.owners.place_owners(names)
        nobodys = caller.principal if self.shared else None
        return {name for name in names if owners.get(name, nobodys) == caller.principal}


def _real(directory: str) -> Path:
    return Path(directory).resolve()


def in_root(root: Path, directory: str) -> bool:
    """Whether a session in this directory can belong to a root: inside, or a linked worktree."""
    path = Path(directory)
    if not path.is_absolute():
        return False
    return path.resolve().is_relative_to(root) or bool(_linked([directory], root))


def in_root_only(root: Path, directory: str) -> bool:
    """The same, unless it is as likely to belong to a root of its own: it is in a repository below.

    For what several roots shared: a root such as a home directory contains nearly all of them.
    """
    path = Path(directory).resolve()
    below = takewhile(lambda each: each != root, (path, *path.parents))
    has_repository = any((each / ".git").exists() for each in below)
    return in_root(root, directory) and (not has_repository or bool(_linked([directory], root)))


def _linked(listed: Iterable[str], near: Path) -> list[str]:
    """Those of the directories that are linked worktrees of the repository `near` is in."""
    common = next((found for at in (near, *near.parents) if (found := _common(at))), None)
    return [each for each in listed if common is not None and _is_linked(Path(each), common)]


def _common(directory: Path) -> Path | None:
    """What all worktrees of a repository share, if this is one, or its main directory."""
    marker = directory / ".git"
    if marker.is_dir():
        return marker.resolve()
    gitdir = _gitdir(directory)
    return gitdir.parent.parent if gitdir is not None else None


def _is_linked(directory: Path, common: Path) -> bool:
    """Both ways: a directory alone could say of itself what it likes."""
    gitdir = _gitdir(directory)
    if directory.is_symlink() or gitdir is None or gitdir.parent != common / "worktrees":
        return False
    back = _words(gitdir / "gitdir")
    return back is not None and Path(back).resolve() == (directory / ".git").resolve()


def _gitdir(directory: Path) -> Path | None:
    words = _words(directory / ".git")
    if words is None or not words.startswith("gitdir: "):
        return None
    return (directory / words.removeprefix("gitdir: ")).resolve()


def _words(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):  # no such file, a directory, or not text
        return None
