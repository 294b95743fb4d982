"""Creates and removes worktrees and workspaces for callers, wholly or not at all.

OpenCode makes a git worktree before it knows whether it can go on, and keeps it when it cannot:
where workspaces are switched off, every attempt leaves one behind. What a failed creation has made
is removed here, with its branch. A workspace is known by an id that we choose beforehand. A
worktree is the one that git has registered under the name we asked for since we asked.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from ..domain.catalog import Place, Workspace, Worktree
from ..domain.values import Caller
from ..errors import (
    MethodDisabled,
    ServiceError,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from .places import Places, git_directory, is_registered, registered_worktrees

logger = structlog.get_logger()
T = TypeVar("T")

UNDO_SECONDS = 30.0  # OpenCode may be away before what it left is given up
CHECKOUT_SECONDS = 15.0  # without git at work on the files of a new worktree …
CHECKOUT_AT_MOST = 600.0  # … and with it
AGAIN = 0.5  # seconds between two attempts to reach OpenCode
LOOK = 0.05  # seconds between two looks at git's files


@dataclass(frozen=True, slots=True)
class Creator:
    places: Places
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one new worktree at a time

    # -- workspaces

    async def create_workspace(
        self, caller: Caller, place: Place, type: str, branch: str | None
    ) -> Workspace:
        """A workspace of the caller's, with its files in place."""
        catalog = self.places.catalog
        workspace_id = catalog.new_workspace_id()
        # Owned before it exists: if this process dies now, its owner can find and remove it.
        await self.places.own(caller, [workspace_id])
        try:
            made = await catalog.create_workspace(place, workspace_id, type, branch)
            names = (workspace_id, made.directory)
            await self.places.own(caller, filter(None, names))
            if made.directory is not None:
                await _checked_out(Path(made.directory))
        except BaseException as exc:
            off = await self._undo(exc, lambda: self._undo_workspace(place, workspace_id))
            if off and isinstance(exc, UpstreamError):
                raise _switched_off() from exc
            raise
        return made

    async def _undo_workspace(self, place: Place, workspace_id: str) -> bool:
        """Whether OpenCode had stored a workspace that it does not list: they are switched off."""
        listed = await self.places.catalog.workspaces(place)
        removed = await self.remove_workspace(place, workspace_id)
        return removed is not None and workspace_id not in {each.workspace_id for each in listed}

    async def remove_workspace(self, place: Place, workspace_id: str) -> Workspace | None:
        main, catalog = self.places.main(place), self.places.catalog
        removed = await catalog.remove_workspace(main, workspace_id)
        directory = removed.directory if removed is not None else None
        # OpenCode does not say when it could not remove the directory.
        if directory is not None and is_registered(directory, Path(main.directory)):
            await catalog.remove_worktree(main, directory)
        await self.places.forget(filter(None, (workspace_id, directory)))
        return removed

    # -- worktrees

    async def create_worktree(self, caller: Caller, place: Place, name: str | None) -> Worktree:
        """A worktree of the caller's, with its files in place."""
        catalog, near = self.places.catalog, Path(place.directory)
        name = name or f"a2a-{secrets.token_hex(4)}"
        async with self.lock:
            await catalog.worktrees(place)  # where OpenCode is away, nothing is asked of it
            before = registered_worktrees(near)
            try:
                made = await catalog.create_worktree(place, name)
            except BaseException as exc:
                await self._undo(exc, lambda: self._undo_worktree(place, name, before))
                raise
        try:
            await self.places.own(caller, [made.directory])
            await _checked_out(Path(made.directory))
        except BaseException as exc:
            await self._undo(exc, lambda: self.remove_worktree(place, made.directory))
            raise
        return made

    async def _undo_worktree(self, place: Place, name: str, before: set[Path]) -> None:
        await self.places.catalog.worktrees(place)  # OpenCode is back, and git has done its part
        new = registered_worktrees(Path(place.directory)) - before
        made = [str(directory) for directory in new if _is_named(directory.name, name)]
        # Another service in this root may have made one of the same name meanwhile.
        owned = await self.places.owners.place_owners(made)
        for directory in made:
            if directory not in owned:
                await self.remove_worktree(place, directory)

    async def remove_worktree(self, place: Place, directory: str) -> None:
        """Remove a directory that OpenCode lists, or git has registered, as a worktree."""
        await self.places.catalog.remove_worktree(self.places.main(place), directory)
        await self.places.forget([directory])

    # -- what is left of a failed creation

    async def _undo(self, reason: BaseException, undo: Callable[[], Awaitable[T]]) -> T | None:
        """Remove what there is, as soon as OpenCode answers; what `undo` has found, if it could."""
        until = time.monotonic() + UNDO_SECONDS
        try:
            while True:
                try:
                    return await undo()
                except (UpstreamUnreachable, UpstreamTimeout):
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(AGAIN)
        except ServiceError as exc:
            logger.warning("creation.left_behind", reason=type(reason).__name__, problem=exc.type)
            if isinstance(reason, UpstreamError):
                reason.message += (
                    " What OpenCode had made could not be removed: look at opencode.worktrees.list "
                    "and opencode.workspaces.list when it is back."
                )
            return None


def _switched_off() -> MethodDisabled:
    return MethodDisabled(
        "Workspaces are switched off in OpenCode. Start OpenCode with "
        "OPENCODE_EXPERIMENTAL_WORKSPACES=1 in its environment to use them. "
        "opencode.worktrees.create works without. Nothing was left behind.",
        method="opencode.workspaces.create",
        setting="OPENCODE_EXPERIMENTAL_WORKSPACES, in OpenCode's environment",
    )


def _is_named(directory: str, name: str) -> bool:
    """Whether OpenCode may name a worktree so when it is asked for this name."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.fullmatch(rf"{slug}(-[a-z]+-[a-z]+)?", directory) is not None


async def _checked_out(worktree: Path) -> None:
    """Wait until git has written the files of a new worktree.

    OpenCode answers before, and git would overwrite what somebody changes there meanwhile. Git
    writes the index last.
    """
    if (git := git_directory(worktree)) is None:
        return
    until = time.monotonic() + CHECKOUT_SECONDS
    at_last = time.monotonic() + CHECKOUT_AT_MOST
    while not (git / "index").exists():
        if (git / "index.lock").exists():
            until = min(time.monotonic() + CHECKOUT_SECONDS, at_last)
        if time.monotonic() > until:
            raise UpstreamTimeout("OpenCode has not written the files of the new worktree in time.")
        await asyncio.sleep(LOOK)
