"""Worktrees of isolated contexts: how they are named, what is known of them, and their store."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .values import WorktreeRef

BRANCH_PREFIX = "a2a/"
MAX_WORDS = 40  # characters of the title in a name


@dataclass(frozen=True, slots=True)
class ContextWorktree:
    """The worktree of a context. It can be removed, and made again at the same path."""

    owner: str
    context_id: str
    title: str  # of the first task
    ref: WorktreeRef
    checkout: str  # the working tree that it was made from
    folder: str = ""  # where in the worktree the session works, relative to its top
    made: bool = False  # completely, at least once

    @property
    def work_directory(self) -> str:
        return f"{self.ref.directory}/{self.folder}" if self.folder else self.ref.directory


def worktree_name(title: str, token: str) -> str:
    """A name for branch and directory that a person recognises: `fix-the-login-3f9a1c02`."""
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", ascii_only).strip("-")
    if len(words) > MAX_WORDS:
        words = words[: MAX_WORDS + 1].rpartition("-")[0] or words[:MAX_WORDS]
    return f"{words or 'task'}-{token}"


@dataclass(frozen=True, slots=True)
class Unsaved:
    """What exists only in a worktree and on its branch."""

    files: tuple[str, ...] = ()  # with changes that are not committed
    commits: int = 0  # that no other branch, tag or remote branch has

    def __bool__(self) -> bool:
        return bool(self.files or self.commits)

    def __str__(self) -> str:
        told = [f"{len(self.files)} file(s) with uncommitted changes"] if self.files else []
        told += [f"{self.commits} unmerged commit(s)"] if self.commits else []
        return " and ".join(told)


FinishAction = Literal["keep", "merge", "drop"]


@dataclass(frozen=True, slots=True)
class FinishOptions:
    """What is to become of a worktree and its branch."""

    action: FinishAction
    remove: bool  # the worktree; the branch of one that was merged or dropped goes with it
    discard: bool = False  # although something would be lost
    message: str | None = None  # for the commits that are made


@dataclass(frozen=True, slots=True)
class Finished:
    """What has become of them."""

    branch: str
    commit: str  # the last of the branch
    committed: bool  # uncommitted work was committed on the branch first
    merged: Literal["fast-forward", "merge-commit", "already-merged"] | None
    into: str | None  # the branch that it was merged into
    worktree_removed: bool
    branch_deleted: bool


class WorktreeStore(Protocol):
    """Which worktree belongs to which context. Only those of this workspace root are found."""

    async def find(self, owner: str, context_id: str) -> ContextWorktree | None: ...

    async def of_owner(self, owner: str) -> Sequence[ContextWorktree]: ...

    async def unused_since(self, at: int) -> Sequence[ContextWorktree]:
        """Those that were made, and in which no task has begun since; not those removed."""
        ...

    async def add(self, worktree: ContextWorktree, at: int) -> ContextWorktree:
        """Store what is about to be made; the one that is stored, if another was first."""
        ...

    async def used(self, worktree: ContextWorktree, at: int) -> None:
        """The worktree is complete, and somebody works in it. Stores its base as well."""
        ...

    async def removed(self, worktree: ContextWorktree) -> None:
        """The worktree is gone, until it is used again."""
        ...
