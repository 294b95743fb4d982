"""Gives isolated contexts a git worktree and a branch of their own, and finishes them.

A worktree is stored before it is made. So a process that dies meanwhile leaves a row by which the
next one finds what there is, or makes it. A worktree that was removed is made again, at the same
path, when its context goes on. Nothing is removed that exists nowhere else, unless the caller has
said so.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import structlog

from ..domain.catalog import Location
from ..domain.isolation import (
    BRANCH_PREFIX,
    ContextWorktree,
    Finished,
    FinishOptions,
    Unsaved,
    WorktreeStore,
    worktree_name,
)
from ..domain.ports import TaskLog
from ..domain.values import (
    TERMINAL_STATES,
    Caller,
    FileChange,
    Isolation,
    TaskQuery,
    TaskState,
    WorktreeRef,
)
from ..errors import (
    InvalidParams,
    IsolationFailed,
    MergeRefused,
    ServiceError,
    WorktreeBusy,
    WorkWouldBeLost,
)
from ..locks import KeyedLock
from ..paths import make_private_directory
from . import git
from .checkout import Checkout
from .locations import Locations

logger = structlog.get_logger()

UNLOCK_SECONDS = 10.0  # for the git of a process that has died to complete a worktree
POLL_SECONDS = 0.05
SWEEP_SECONDS = 600.0  # between two searches for idle worktrees
MERGE_ATTEMPTS = 3  # while others commit to the same branch
WITHOUT = 'Send metadata.opencode.isolation: "none" to work in the directory itself.'


@dataclass(frozen=True, slots=True)
class _Base:
    """Where a new branch begins."""

    checkout: str  # a directory of the repository that stays
    commit: str
    branch: str | None
    folder: str


@dataclass(frozen=True, slots=True)
class ContextWorktrees:
    store: WorktreeStore
    locations: Locations
    log: TaskLog
    folder: Path | None  # where new ones are made
    idle_ms: int  # after which one is removed if nothing is lost; 0: never
    clock: Callable[[], int]
    _contexts: KeyedLock[tuple[str, str]] = field(default_factory=KeyedLock)
    _repositories: KeyedLock[str] = field(default_factory=KeyedLock)  # git makes one at a time

    def _at(self, directory: str) -> Checkout:
        return Checkout(directory, self.locations.root)

    # -- the worktree of a context

    async def check(self, directory: str) -> None:
        """Raise `IsolationFailed` where a directory has nothing to make a worktree from."""
        await self._base(directory)

    async def open(
        self, owner: str, context_id: str, *, title: str, isolation: Isolation | None
    ) -> ContextWorktree | None:
        """The worktree of a context, made now if it is not there.

        None where the context has none, and `isolation` does not ask for one.
        """
        async with self._contexts((owner, context_id)):
            found = await self.store.find(owner, context_id)
            if found is None and isolation is not None:
                planned = await self._plan(owner, context_id, title=title, isolation=isolation)
                found = await self.store.add(planned, self.clock())
            if found is None:
                return None
            async with self._repositories(found.checkout):
                if not await self._is_complete(found):
                    found = await self._make(found)
            await self.store.used(found, self.clock())
            return found

    async def _plan(
        self, owner: str, context_id: str, *, title: str, isolation: Isolation
    ) -> ContextWorktree:
        base = await self._base(isolation.directory)
        if self.folder is None:
            raise IsolationFailed(
                "This service has no directory for worktrees. Set XDG_STATE_HOME."
            )
        name = worktree_name(title, secrets.token_hex(4))
        ref = WorktreeRef(
            branch=BRANCH_PREFIX + name,
            directory=str(self.folder / name),
            base=base.commit,
            base_branch=base.branch,
        )
        return ContextWorktree(
            owner=owner,
            context_id=context_id,
            title=title,
            ref=ref,
            checkout=base.checkout,
            folder=base.folder,
        )

    async def _base(self, directory: str) -> _Base:
        real = await asyncio.to_thread(Path(directory).resolve)
        at = self._at(str(real))
        try:
            top = await at.working_tree()
        except IsolationFailed as exc:
            raise IsolationFailed(
                f"{exc.message} A git worktree needs a repository with a commit, which is not a "
                f"submodule. {WITHOUT}",
                directory=directory,
            ) from None
        shared = await asyncio.to_thread(git.repository, Path(top))
        if shared is None or not await asyncio.to_thread(self._is_ours, shared):
            raise IsolationFailed(
                f"The repository of {directory} lies outside the workspace. {WITHOUT}",
                directory=directory,
            )
        commit = await at.commit()
        if commit is None:
            raise IsolationFailed(
                f"The repository {top} has no commit yet, so a worktree would be empty. Commit "
                f"something first. {WITHOUT}",
                directory=directory,
            )
        folder = "" if real == Path(top) else str(real.relative_to(top))
        if folder and not await at.has_folder(commit, folder):
            raise IsolationFailed(
                f"{folder} is not in the last commit of {top}, so a worktree would not have it. "
                f"Commit it first. {WITHOUT}",
                directory=directory,
            )
        return _Base(
            checkout=str(shared.parent if shared.name == ".git" else shared),
            commit=commit,
            branch=await at.branch(),
            folder=folder,
        )

    def _is_ours(self, shared: Path) -> bool:
        """Whether a repository is the root's, or lies below the root."""
        root = self.locations.root
        return shared == git.repository(root) or shared.is_relative_to(root)

    async def _is_complete(self, worktree: ContextWorktree) -> bool:
        directory = worktree.ref.directory
        if not await self._is_registered(worktree):
            return False
        if worktree.made:
            return True
        # An earlier process has begun to make it, and has died. Git has locked it until all files
        # are there, and may still be at work.
        lock = await asyncio.to_thread(git.worktree_directory, Path(directory))
        until = time.monotonic() + UNLOCK_SECONDS
        while lock is not None and await asyncio.to_thread((lock / "locked").exists):
            if time.monotonic() > until:
                await self._at(worktree.checkout).remove_worktree(directory)
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _is_registered(self, worktree: ContextWorktree) -> bool:
        return await asyncio.to_thread(
            git.is_registered, worktree.ref.directory, near=Path(worktree.checkout)
        )

    async def _make(self, worktree: ContextWorktree) -> ContextWorktree:
        """Make a worktree for the first time, or again after it was removed."""
        ref, repository = worktree.ref, self._at(worktree.checkout)
        # Owned before it exists: nobody else finds it without an owner.
        await self.locations.own(Caller(worktree.owner), [ref.directory])
        folder = Path(ref.directory).parent
        try:
            await asyncio.to_thread(make_private_directory, folder)
        except OSError as exc:
            raise IsolationFailed(
                f"The directory for worktrees cannot be made ({folder}: {exc.strerror}). Set "
                "XDG_STATE_HOME to one that this service and OpenCode can use."
            ) from exc
        if await repository.tip(ref.branch) is not None:
            await repository.add_worktree(ref.directory, ref.branch, at=None)
        else:
            at = ref.base
            if worktree.made and ref.base_branch is not None:
                at = await repository.tip(ref.base_branch) or at
            await repository.add_worktree(ref.directory, ref.branch, at=at)
            worktree = replace(worktree, ref=replace(ref, base=at))
        logger.info("worktree.made", branch=ref.branch, directory=ref.directory)
        return worktree

    async def changes(self, ref: WorktreeRef) -> tuple[FileChange, ...]:
        """How the files of a worktree differ from what its branch began with, or has merged."""
        at = self._at(ref.directory)
        base = await at.merge_base(ref.base_branch) if ref.base_branch is not None else None
        return await at.changes_since(base or ref.base)

    # -- the end of a worktree

    async def owned_by(self, caller: Caller) -> dict[str, ContextWorktree]:
        """By directory."""
        return {each.ref.directory: each for each in await self.store.of_owner(caller.principal)}

    async def finish(self, caller: Caller, directory: str, finish: FinishOptions) -> Finished:
        found = (await self.owned_by(caller)).get(directory.rstrip("/"))
        if found is None:
            raise InvalidParams.at(
                "request.directory",
                "is not the worktree of an isolated context of yours; opencode.worktrees.remove "
                "removes those that opencode.worktrees.create has made",
            )
        async with self._contexts((found.owner, found.context_id)):
            return await self._finish(found, finish)

    async def _finish(self, worktree: ContextWorktree, finish: FinishOptions) -> Finished:
        exists = await self._is_registered(worktree)
        await self._check_not_in_use(worktree, exists=exists)
        if finish.action == "drop":
            return await self._drop(worktree, exists=exists, discard=finish.discard)
        if exists and finish.remove:
            await self._check_nothing_inside(worktree)
        committed = exists and await self._commit_rest(worktree, message=finish.message)
        repository, branch = self._at(worktree.checkout), worktree.ref.branch
        commit = await repository.tip(branch)
        if commit is None:
            raise InvalidParams.at("request.directory", f"its branch {branch} was deleted already")
        merged = None
        if finish.action == "merge":
            merged = await self._merge(worktree, commit, message=finish.message)
        if exists and finish.remove:
            await repository.remove_worktree(worktree.ref.directory)
            await self.store.removed(worktree)
        delete = merged is not None and finish.remove
        if delete:
            await repository.delete_branch(branch, commit)
        return Finished(
            branch=branch,
            commit=commit,
            committed=committed,
            merged=merged,
            into=worktree.ref.base_branch if merged is not None else None,
            worktree_removed=exists and finish.remove,
            branch_deleted=delete,
        )

    async def _check_not_in_use(self, worktree: ContextWorktree, *, exists: bool) -> None:
        for state in TaskState:
            if state in TERMINAL_STATES:
                continue
            query = TaskQuery(worktree.owner, context_id=worktree.context_id, state=state, limit=1)
            for row in (await self.log.list(query)).rows:
                raise WorktreeBusy(
                    f"A task of this context has not ended (state: {state.value}). Wait for it, or "
                    "cancel it.",
                    task_id=row.head.id,
                    state=state.value,
                )
        if exists:
            location = Location(worktree.work_directory)
            for session_id in await self.locations.catalog.statuses(location):
                raise WorktreeBusy(
                    "A session works in this worktree. Wait for it, or abort it.",
                    session_id=session_id,
                )

    async def _check_nothing_inside(self, worktree: ContextWorktree) -> None:
        if inside := await self._at(worktree.ref.directory).repositories_inside():
            raise MergeRefused(
                f"The worktree has git repositories of their own in {', '.join(inside[:10])}. What "
                "is in them would be deleted with it. Have them removed or moved away first, or "
                "send remove: false.",
                files=inside,
            )

    async def _commit_rest(self, worktree: ContextWorktree, *, message: str | None) -> bool:
        """Commit what the agent has left uncommitted. Whether there was something."""
        at, branch = self._at(worktree.ref.directory), worktree.ref.branch
        current = await at.branch()
        if current != branch:
            has = f"the branch {current}" if current is not None else "no branch"
            raise MergeRefused(
                f"The worktree has {has} checked out instead of {branch}. Have {branch} checked "
                "out there again first."
            )
        if conflicts := await at.unmerged_files():
            raise MergeRefused(
                "The worktree has files with unresolved conflicts. Have them resolved first.",
                files=conflicts,
            )
        default = (
            f"{worktree.title}\n\nWhat the agent had not committed when its worktree was finished."
        )
        return await at.commit_all(branch, message or default)

    async def _drop(self, worktree: ContextWorktree, *, exists: bool, discard: bool) -> Finished:
        repository, ref = self._at(worktree.checkout), worktree.ref
        commit = await repository.tip(ref.branch)
        unsaved = await self._unsaved(worktree, exists=exists)
        if unsaved and not discard:
            raise WorkWouldBeLost(
                f"This would delete {unsaved} of {ref.branch} for good. Keep or merge the branch, "
                "or send discard: true.",
                files=list(unsaved.files),
                commits=unsaved.commits,
            )
        await self._remove(worktree, commit, exists=exists)
        return Finished(
            branch=ref.branch,
            commit=commit or ref.base,
            committed=False,
            merged=None,
            into=None,
            worktree_removed=exists,
            branch_deleted=commit is not None,
        )

    async def _unsaved(self, worktree: ContextWorktree, *, exists: bool) -> Unsaved:
        at = self._at(worktree.ref.directory if exists else worktree.checkout)
        branch = worktree.ref.branch
        # The agent may have checked out something else, or nothing.
        tips = {await at.tip(branch), await at.commit() if exists else None} - {None}
        files = [*await at.uncommitted(), *await at.repositories_inside()] if exists else []
        return Unsaved(
            files=tuple(dict.fromkeys(files)),
            commits=await at.commits_only_on(branch, tips=[tip for tip in tips if tip]),
        )

    async def _remove(self, worktree: ContextWorktree, commit: str | None, *, exists: bool) -> None:
        repository = self._at(worktree.checkout)
        if exists:
            await repository.remove_worktree(worktree.ref.directory)
        if commit is not None:
            await repository.delete_branch(worktree.ref.branch, commit)
        await self.store.removed(worktree)
        logger.info("worktree.removed", branch=worktree.ref.branch, commit=commit)

    # -- merging

    async def _merge(
        self, worktree: ContextWorktree, commit: str, *, message: str | None
    ) -> Literal["fast-forward", "merge-commit", "already-merged"]:
        """Merge a branch into the one that it was made from."""
        ref, repository = worktree.ref, self._at(worktree.checkout)
        into = ref.base_branch
        if into is None:
            raise MergeRefused(
                "The worktree was made from a detached HEAD, so there is no branch to merge into. "
                f"Keep {ref.branch}, and merge it yourself."
            )
        for _ in range(MERGE_ATTEMPTS):
            theirs = await repository.tip(into)
            if theirs is None:
                raise MergeRefused(
                    f"The branch {into}, from which this one was made, does not exist any more. "
                    f"Keep {ref.branch}, and merge it yourself."
                )
            if await repository.is_ancestor(commit, theirs):
                return "already-merged"
            is_newer = await repository.is_ancestor(theirs, commit)
            new = commit
            if not is_newer:
                text = message or f"Merge branch '{ref.branch}'\n\n{worktree.title}"
                new = await self._merge_commit(worktree, theirs=theirs, mine=commit, message=text)
            if await self._moved(worktree, into, theirs=theirs, new=new):
                return "fast-forward" if is_newer else "merge-commit"
        raise MergeRefused(f"Others commit to {into} all the time. Try again.")

    async def _merge_commit(
        self, worktree: ContextWorktree, *, theirs: str, mine: str, message: str
    ) -> str:
        ref, repository = worktree.ref, self._at(worktree.checkout)
        if files := await repository.merged_by_programs(theirs, mine):
            raise MergeRefused(
                f"The attributes of the repository ask for a merge driver for "
                f"{', '.join(files[:10])}, and this service runs none. Nothing was merged. Ask "
                f"the agent to merge {ref.base_branch} into its branch, then try again.",
                files=files,
            )
        tree, conflicts = await repository.merged_tree(theirs, mine)
        if tree is None:
            raise MergeRefused(
                f"{ref.branch} conflicts with {ref.base_branch} in {len(conflicts)} file(s): "
                f"{', '.join(conflicts[:10])}. Nothing was changed. Ask the agent to merge "
                f"{ref.base_branch} into its branch and to resolve the conflicts, then try again.",
                files=conflicts,
            )
        return await repository.commit_merge(tree, [theirs, mine], message)

    async def _moved(
        self, worktree: ContextWorktree, branch: str, *, theirs: str, new: str
    ) -> bool:
        """Move a branch on to a newer commit. False if somebody else has moved it meanwhile."""
        repository = self._at(worktree.checkout)
        where = await repository.checked_out_at(branch)
        if where is None:
            answer = await repository.move_branch(branch, new, from_commit=theirs)
        else:
            await self._check_not_filtered(worktree, where, theirs=theirs, new=new)
            answer = await self._at(where).fast_forward(new)
        if answer.code == 0:
            return True
        if await repository.tip(branch) != theirs:
            return False
        if where is not None:
            touched = set(await repository.changed_between(theirs, new))
            if files := sorted(touched.intersection(await self._at(where).uncommitted())):
                raise MergeRefused(
                    f"{branch} is checked out in {where}, and uncommitted changes there are in the "
                    f"way: {', '.join(files[:10])}. Nothing was changed. Commit or stash them, "
                    "then try again.",
                    files=files,
                )
        raise MergeRefused(f"Git does not move {branch}: {answer.message}. Nothing was changed.")

    async def _check_not_filtered(
        self, worktree: ContextWorktree, where: str, *, theirs: str, new: str
    ) -> None:
        at, ref = self._at(where), worktree.ref
        if files := await at.filtered_between(theirs, new):
            raise MergeRefused(
                f"{ref.base_branch} is checked out in {where}, and git writes "
                f"{', '.join(files[:10])} there through a filter (Git LFS is one), which this "
                f"service does not run. Nothing was changed there. Merge it yourself: git merge "
                f"{ref.branch}",
                files=files,
            )

    # -- idle ones

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Remove idle worktrees now and then."""
        if not self.idle_ms:
            yield
            return
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.remove_idle()
            except ServiceError as exc:  # the store is away
                logger.debug("worktree.sweep_failed", problem=exc.type)
            except Exception:
                logger.exception("worktree.sweep_broken")
            await asyncio.sleep(min(SWEEP_SECONDS, self.idle_ms / 1_000))

    async def remove_idle(self) -> None:
        """Remove those worktrees, and their branches, that nobody uses and that hold nothing."""
        for worktree in await self.store.unused_since(self.clock() - self.idle_ms):
            key = (worktree.owner, worktree.context_id)
            try:
                async with self._contexts(key):
                    await self._remove_if_empty(worktree)
            except ServiceError:  # in use, or OpenCode or git cannot tell: it stays
                pass
            except Exception:  # nor does it keep the others
                logger.exception("worktree.sweep_broken", directory=worktree.ref.directory)

    async def _remove_if_empty(self, worktree: ContextWorktree) -> None:
        exists = await self._is_registered(worktree)
        if await self._unsaved(worktree, exists=exists):
            return
        if exists and await self._at(worktree.ref.directory).has_ignored_files():
            return
        # Asked last: OpenCode would load every idle directory, again and again.
        await self._check_not_in_use(worktree, exists=exists)
        commit = await self._at(worktree.checkout).tip(worktree.ref.branch)
        await self._remove(worktree, commit, exists=exists)
