"""Creates and removes worktrees and workspaces for callers, completely or not at all.

OpenCode makes a git worktree before it knows whether it can go on, and keeps it when it cannot:
where workspaces are switched off, every attempt leaves a worktree behind. The creator removes what
a failed creation has left, with its branch. It finds a workspace by the id that it chose
beforehand, and a worktree by its name among those that git has registered since the request.
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

from ..domain.catalog import Location, Workspace, Worktree
from ..domain.values import Caller
from ..errors import (
    MethodDisabled,
    ServiceError,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from . import git
from .locations import Locations

logger = structlog.get_logger()
T = TypeVar("T")

UNDO_SECONDS = 30.0  # how long the creator tries to reach OpenCode to remove what it left
CHECKOUT_SECONDS = 15.0  # for the files of a new worktree, while git does not write …
MAX_CHECKOUT_SECONDS = 600.0  # … and while it does
RETRY_SECONDS = 0.5  # between two attempts to reach OpenCode
POLL_SECONDS = 0.05  # between two reads of git's files


@dataclass(frozen=True, slots=True)
class Creator:
    locations: Locations
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one new worktree at a time

    # -- workspaces

    async def create_workspace(
        self, caller: Caller, location: Location, *, type: str, branch: str | None
    ) -> Workspace:
        """Create a workspace that the caller owns, and wait for its files."""
        catalog = self.locations.catalog
        workspace_id = catalog.new_workspace_id()
        # Owned before it exists: if this process dies now, its owner can find and remove it.
        await self.locations.own(caller, [workspace_id])
        try:
            workspace = await catalog.create_workspace(
                location, workspace_id=workspace_id, type=type, branch=branch
            )
            names = (workspace_id, workspace.directory)
            await self.locations.own(caller, filter(None, names))
            if workspace.directory is not None:
                await _wait_for_checkout(Path(workspace.directory))
        except BaseException as exc:
            off = await self._undo(exc, lambda: self._undo_workspace(location, workspace_id))
            if off and isinstance(exc, UpstreamError):
                raise _workspaces_are_off() from exc
            raise
        return workspace

    async def _undo_workspace(self, location: Location, workspace_id: str) -> bool:
        """Whether OpenCode had stored a workspace that it does not list: they are switched off."""
        listed = await self.locations.catalog.workspaces(location)
        removed = await self.remove_workspace(location, workspace_id)
        return removed is not None and workspace_id not in {each.workspace_id for each in listed}

    async def remove_workspace(self, location: Location, workspace_id: str) -> Workspace | None:
        main, catalog = await self.locations.main_checkout(location), self.locations.catalog
        removed = await catalog.remove_workspace(main, workspace_id)
        directory = removed.directory if removed is not None else None
        # OpenCode does not report that it could not remove the directory.
        if directory is not None and await asyncio.to_thread(
            git.is_registered, directory, near=Path(main.directory)
        ):
            await catalog.remove_worktree(main, directory)
        await self.locations.forget(filter(None, (workspace_id, directory)))
        return removed

    # -- worktrees

    async def create_worktree(
        self, caller: Caller, location: Location, name: str | None
    ) -> Worktree:
        """Create a worktree that the caller owns, and wait for its files."""
        catalog, near = self.locations.catalog, Path(location.directory)
        name = name or f"a2a-{secrets.token_hex(4)}"
        async with self.lock:
            await catalog.worktrees(location)  # raises where OpenCode is away: nothing is made then
            before = await asyncio.to_thread(git.registered_worktrees, near)
            try:
                worktree = await catalog.create_worktree(location, name)
            except BaseException as exc:
                await self._undo(
                    exc, lambda: self._undo_worktree(location, name=name, before=before)
                )
                raise
        try:
            await self.locations.own(caller, [worktree.directory])
            await _wait_for_checkout(Path(worktree.directory))
        except BaseException as exc:
            await self._undo(exc, lambda: self.remove_worktree(location, worktree.directory))
            raise
        return worktree

    async def _undo_worktree(self, location: Location, *, name: str, before: set[Path]) -> None:
        # Once OpenCode answers this, git has done its part of the creation.
        await self.locations.catalog.worktrees(location)
        after = await asyncio.to_thread(git.registered_worktrees, Path(location.directory))
        new = [str(path) for path in after - before if _is_named(path.name, name)]
        # Another service in this root may have made one of the same name meanwhile.
        owned = await self.locations.owned(new)
        for directory in new:
            if directory not in owned:
                await self.remove_worktree(location, directory)

    async def remove_worktree(self, location: Location, directory: str) -> None:
        """Remove a directory that OpenCode lists, or git has registered, as a worktree."""
        main = await self.locations.main_checkout(location)
        await self.locations.catalog.remove_worktree(main, directory)
        await self.locations.forget([directory])

    # -- failed creations

    async def _undo(self, reason: BaseException, undo: Callable[[], Awaitable[T]]) -> T | None:
        """Call `undo` until OpenCode answers; its result, or None when it could not be done."""
        until = time.monotonic() + UNDO_SECONDS
        try:
            while True:
                try:
                    return await undo()
                except (UpstreamUnreachable, UpstreamTimeout):
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
        except ServiceError as exc:
            logger.warning("creation.left_behind", reason=type(reason).__name__, problem=exc.type)
            if isinstance(reason, UpstreamError):
                reason.message += (
                    " What OpenCode had made could not be removed: look at opencode.worktrees.list "
                    "and opencode.workspaces.list when it is back."
                )
            return None


def _workspaces_are_off() -> MethodDisabled:
    return MethodDisabled(
        "Workspaces are switched off in OpenCode. Start OpenCode with "
        "OPENCODE_EXPERIMENTAL_WORKSPACES=1 in its environment to use them. "
        "opencode.worktrees.create works without. Nothing was left behind.",
        method="opencode.workspaces.create",
        setting="OPENCODE_EXPERIMENTAL_WORKSPACES, in OpenCode's environment",
    )


def _is_named(directory: str, name: str) -> bool:
    """Whether OpenCode may have given a worktree this directory name for the requested one."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.fullmatch(rf"{slug}(-[a-z]+-[a-z]+)?", directory) is not None


async def _wait_for_checkout(worktree: Path) -> None:
    """Wait until git has written the files of a new worktree.

    OpenCode answers earlier, and git would overwrite what somebody changes there meanwhile. Git
    writes the index last.
    """
    directory = await asyncio.to_thread(git.worktree_directory, worktree)
    if directory is None:
        return
    until = time.monotonic() + CHECKOUT_SECONDS
    at_last = time.monotonic() + MAX_CHECKOUT_SECONDS
    while not await asyncio.to_thread((directory / "index").exists):
        if await asyncio.to_thread((directory / "index.lock").exists):
            until = min(time.monotonic() + CHECKOUT_SECONDS, at_last)
        if time.monotonic() > until:
            raise UpstreamTimeout("OpenCode has not written the files of the new worktree in time.")
        await asyncio.sleep(POLL_SECONDS)
