"""Where a caller can look and work: below the root, and in worktrees and workspaces.

A worktree or workspace belongs to whoever had it made. Those nobody owns can be seen, and
removed, by everybody if the deployment shares them. OpenCode lists every clone it has ever seen
as a worktree, and deletes any directory it is told is one: only those count here that git knows
as linked to the repository of the place.

OpenCode keeps its worktrees outside the root. `Places.within` is the one rule that says in which
directories a caller can work, inside the root or outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..domain.catalog import Catalog, Place, PlaceOwners, Workspace
from ..domain.values import Caller
from ..errors import DirectoryGone, InvalidParams, UpstreamHttpError
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
        except NOT_A_PATH:
            raise InvalidParams.at(field, "is not a path") from None
        if path != self.root and not self.directories:
            raise InvalidParams.at(
                field, "cannot be chosen in this deployment (A2A_ALLOW_DIRECTORY_OVERRIDE)"
            )
        if path.is_relative_to(self.root) and inside_git(path):
            raise InvalidParams.at(
                field, "is inside a git directory; name a directory of the working tree"
            )
        if not exists or not await self.within(caller, [str(path)]):
            raise InvalidParams.at(
                field, "must be a directory inside the workspace, or in a worktree of yours"
            )
        return Place(str(path))

    async def within(self, caller: Caller, directories: Iterable[str]) -> set[str]:
        """Those of the directories that belong to this root, and in which this caller can work.

        They lie below the root, or outside in a worktree or workspace of the root's repository, or
        of a repository below the root. What belongs to another caller does not count.
        """
        real = {directory: _real(directory) for directory in directories}
        below = {path for path in real.values() if self.below(path)}
        trees = await self._outside(caller, {path for path in real.values() if path not in below})
        others = await self._of_others(caller, below)
        return {
            directory
            for directory, path in real.items()
            if (path in below and path not in others)
            or (any(path.is_relative_to(tree) for tree in trees) and not inside_git(path))
        }

    async def _outside(self, caller: Caller, paths: set[Path]) -> list[Path]:
        """The worktrees and workspaces of the caller's that could hold these paths."""
        if not paths:
            return []
        own, found = _repository(self.root), list[str]()
        for common in {_repository(path) for path in paths}:
            if common is None:
                continue
            if common == own:
                found += await self.worktrees(caller, self.home)
            elif common.is_relative_to(self.root):
                found += await self.worktrees(caller, Place(str(common.parent)))
        with suppress(UpstreamHttpError):  # an OpenCode that has no workspaces
            spaces = await self.workspaces(caller, self.home)
            found += [space.directory for space in spaces if space.directory]
        return [_real(directory) for directory in found]

    async def _of_others(self, caller: Caller, paths: set[Path]) -> set[Path]:
        """Those of the paths below the root that are in a worktree or workspace of another."""
        around = {
            path: [each for each in (path, *path.parents) if self.below(each)] for path in paths
        }
        names = {str(each) for several in around.values() for each in several} - {str(self.root)}
        owners = await self.owners.place_owners(sorted(names)) if names else {}
        others = {Path(name) for name, owner in owners.items() if owner != caller.principal}
        return {path for path, several in around.items() if others.intersection(several)}

    async def check(self, caller: Caller, directory: str) -> None:
        """Raise `DirectoryGone` where a session of the caller's cannot work any more."""
        if not _exists(directory) or not await self.within(caller, [directory]):
            raise DirectoryGone(directory)

    def main(self, place: Place) -> Place:
        """The checkout that the worktrees of a place's repository are linked to.

        Asked from inside a worktree, OpenCode removes the worktree and leaves its branch behind.
        """
        common = _repository(Path(place.directory))
        main = common.parent if common is not None and common.name == ".git" else None
        return Place(str(main)) if main is not None and self.below(main) else self.home

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


def _exists(directory: str) -> bool:
    return Path(directory).is_dir()


NOT_A_PATH = (OSError, RuntimeError, ValueError)  # no access, too long, a loop of links, a null


def in_root(root: Path, directory: str) -> bool:
    """Whether a session in this directory can belong to a root.

    It lies inside, or in a worktree of the root's repository or of a repository inside. What
    cannot be looked at does not.
    """
    path = Path(directory)
    if not path.is_absolute():
        return False
    try:
        real = path.resolve()
        if real.is_relative_to(root):
            return True
        common = _repository(real)
        if common is None or not (common == _repository(root) or common.is_relative_to(root)):
            return False
        return _in_worktree(real, common)
    except NOT_A_PATH:
        return False


def in_root_only(root: Path, directory: str) -> bool:
    """The same, unless it is as likely to belong to a root of its own: it is in a repository below.

    For what several roots shared: a root such as a home directory contains nearly all of them.
    """
    if not in_root(root, directory):
        return False
    try:
        real = Path(directory).resolve()
        below = takewhile(lambda each: each != root, (real, *real.parents))
        own = _repository(root)
        if own is not None and _in_worktree(real, own):
            return True
        return not any((each / ".git").exists() for each in below)
    except NOT_A_PATH:
        return False


def _in_worktree(path: Path, common: Path) -> bool:
    """Whether a directory lies in a linked worktree of a repository."""
    return any(_is_linked(each, common) for each in (path, *path.parents))


def _linked(listed: Iterable[str], near: Path) -> list[str]:
    """Those of the directories that are linked worktrees of the repository `near` is in."""
    common = _repository(near)
    return [each for each in listed if common is not None and _is_linked(Path(each), common)]


def _repository(near: Path) -> Path | None:
    """The git directory that all worktrees of the repository around a directory share."""
    return next((found for at in (near, *near.parents) if (found := _common(at))), None)


def registered_worktrees(near: Path) -> set[Path]:
    """The linked worktrees that git has registered for the repository around a directory."""
    common = _repository(near)
    files = common.glob("worktrees/*/gitdir") if common is not None else ()
    markers = (words for file in files if (words := _words(file)))
    return {_real(str(Path(each).parent)) for each in markers if Path(each).exists()}


def is_registered(worktree: str, near: Path) -> bool:
    return _real(worktree) in registered_worktrees(near)


def git_directory(worktree: Path) -> Path | None:
    """Where git keeps what it knows of a linked worktree."""
    return _gitdir(worktree)


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
