"""Worktrees of isolated contexts, made and finished by the real git."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from opencode_a2a.domain.catalog import Catalog, Location, SessionStatus
from opencode_a2a.domain.isolation import ContextWorktree, Finished, FinishOptions
from opencode_a2a.domain.task import TaskHead
from opencode_a2a.domain.updates import Ended, MessageAdded
from opencode_a2a.domain.values import (
    Caller,
    Isolation,
    Message,
    ModelRef,
    RequestOptions,
    Role,
    Selection,
    SessionRef,
    TaskState,
    Text,
    WorktreeRef,
)
from opencode_a2a.errors import (
    InvalidParams,
    IsolationFailed,
    MergeRefused,
    ServiceError,
    WorktreeBusy,
    WorkWouldBeLost,
)
from opencode_a2a.service import isolation as service_isolation
from opencode_a2a.service.isolation import ContextWorktrees
from opencode_a2a.service.locations import Locations
from opencode_a2a.service.options import CatalogOptionsResolver
from opencode_a2a.service.ownership import Ownership
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.service.validator import Validator
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.worktrees import SqlWorktrees
from tests.fakes.session import ScriptedAgent
from tests.running import isolated as environment
from tests.service.house import ALICE, BOB, FixedCatalog

Default = Literal["none", "worktree", "never"]
HOUR_MS = 3_600_000
KEEP, MERGE, DROP = (
    FinishOptions("keep", remove=False),
    FinishOptions("merge", remove=True),
    FinishOptions("drop", remove=True),
)


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    env = environment(folder.parent / "home")
    done = subprocess.run(
        ["git", *author, *words], cwd=folder, check=True, env=env, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-q", "-m", f"change {name}")
    return git(folder, "rev-parse", "HEAD")


def branches(folder: Path) -> list[str]:
    return git(folder, "branch", "--format=%(refname:short)").splitlines()


def listed(folder: Path) -> list[Path]:
    """The worktrees that git knows and that are there."""
    lines = git(folder, "worktree", "list", "--porcelain").splitlines()
    found = [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")]
    return [path for path in found if path.is_dir()]


@dataclass
class Desk:
    """A repository, and the service that makes worktrees of it."""

    root: Path
    folder: Path
    database: Database
    log: SqlTaskLog
    busy: dict[str, SessionStatus] = field(default_factory=dict)
    now: int = HOUR_MS

    def __post_init__(self) -> None:
        async def nothing(*_: object) -> list[str]:
            return []

        async def statuses(location: Location) -> Mapping[str, SessionStatus]:
            return self.busy

        self.catalog = cast(
            Catalog, SimpleNamespace(worktrees=nothing, workspaces=nothing, statuses=statuses)
        )
        root = str(self.root)
        self.bindings = SqlBindings(self.database, root)
        self.store = SqlWorktrees(self.database, root)
        self.locations = Locations(
            FixedCatalog(self.catalog), self.bindings, self.root, shared=True, directories=True
        )

    @property
    def worktrees(self) -> ContextWorktrees:
        """As a process that has just started has it."""
        return ContextWorktrees(
            store=self.store,
            locations=self.locations,
            log=self.log,
            folder=self.folder,
            idle_ms=HOUR_MS,
            clock=lambda: self.now,
        )

    async def open(
        self, context: str = "c", title: str = "Fix the login", directory: Path | None = None
    ) -> ContextWorktree:
        wanted = Isolation(str(directory or self.root))
        found = await self.worktrees.open("alice", context, title=title, isolation=wanted)
        assert found is not None
        return found

    async def at(self, context: str = "c") -> Path:
        return Path((await self.open(context)).ref.directory)

    async def finish(self, at: Path, options: FinishOptions, caller: Caller = ALICE) -> Finished:
        return await self.worktrees.finish(caller, str(at), options)

    async def refused(self, at: Path, options: FinishOptions, kind: type[ServiceError]) -> Any:
        with pytest.raises(kind) as caught:
            await self.finish(at, options)
        assert at in listed(self.root)
        return caught.value


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "root"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commit(root, "a.txt", "one\n")
    commit(root, "src/b.txt", "b\n")
    async with Database.open("sqlite://") as database, SqlTaskLog.open(database) as log:
        yield Desk(root, tmp_path / "state" / "worktrees", database, log)


# -- making


async def test_a_context_gets_a_branch_and_files_of_its_own(desk: Desk) -> None:
    (desk.root / "a.txt").write_text("changed, not committed\n")
    made = await desk.open()
    ref, at = made.ref, Path(made.ref.directory)
    assert ref.branch.startswith("a2a/fix-the-login-")
    assert at.name == ref.branch.removeprefix("a2a/")
    assert (ref.base, ref.base_branch) == (git(desk.root, "rev-parse", "HEAD"), "main")
    assert (at / "a.txt").read_text() == "one\n"  # as it was committed
    assert git(at, "branch", "--show-current") == ref.branch
    assert await desk.locations.within(ALICE, [str(at)]) == {str(at)}
    assert await desk.locations.within(BOB, [str(at)]) == set()
    assert (await desk.open()).ref == ref
    assert (await desk.open("another")).ref != ref


async def test_a_session_works_in_the_same_folder_of_its_worktree(desk: Desk) -> None:
    made = await desk.open(directory=desk.root / "src")
    assert made.work_directory == f"{made.ref.directory}/src"
    assert git(Path(made.work_directory), "ls-files") == "b.txt"


@pytest.mark.parametrize("left", ["nothing", "a branch", "half a worktree", "all of it"])
async def test_after_a_crash_the_next_process_makes_one_and_not_two(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(service_isolation, "UNLOCK_SECONDS", 0)
    name, base = "fix-the-login-1f", git(desk.root, "rev-parse", "HEAD")
    ref = WorktreeRef(f"a2a/{name}", str(desk.folder / name), base=base, base_branch="main")
    planned = ContextWorktree(
        owner="alice", context_id="c", title="Fix", ref=ref, checkout=str(desk.root)
    )
    await desk.store.add(planned, desk.now)
    if left == "a branch":
        git(desk.root, "branch", ref.branch)
    elif left != "nothing":
        lock = ["--lock"] if left == "half a worktree" else []
        git(desk.root, "worktree", "add", "-q", *lock, "-b", ref.branch, ref.directory)
        if lock:
            (desk.folder / name / "a.txt").unlink()
    assert (await desk.open()).ref == ref
    assert branches(desk.root) == [ref.branch, "main"]
    assert (desk.folder / name / "a.txt").read_text() == "one\n"
    assert len(git(desk.root, "worktree", "list").splitlines()) == 2
    stored = await desk.store.find("alice", "c")
    assert stored is not None
    assert stored.made


async def test_ten_contexts_at_once_have_ten_worktrees(desk: Desk) -> None:
    worktrees, wanted = desk.worktrees, Isolation(str(desk.root))
    made = await asyncio.gather(
        *(
            worktrees.open("alice", str(number), title="Same words", isolation=wanted)
            for number in range(10)
        )
    )
    assert len({each.ref.branch for each in made if each}) == 10
    assert len(branches(desk.root)) == 11


async def test_where_there_is_nothing_to_branch_from_the_reason_is_given(
    desk: Desk, tmp_path: Path
) -> None:
    def repository(name: str) -> Path:
        (folder := desk.root / name).mkdir()
        git(folder, "init", "-q")
        return folder

    empty, bare, outside = repository("empty"), desk.root / "bare", tmp_path / "outside"
    git(desk.root, "clone", "-q", "--bare", ".", "bare")
    (plain := desk.root / "new").mkdir()
    outside.mkdir()
    git(outside, "init", "-q")
    (linked := desk.root / "linked").mkdir()
    (linked / ".git").write_text(f"gitdir: {outside / '.git'}\n")
    git(desk.root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", "./bare", "sub")
    for directory, reason in (
        (outside.parent / "home", "not in a git repository"),
        (empty, "has no commit yet"),
        (bare, "bare repository"),
        (plain, "new is not in the last commit"),
        (desk.root / "sub", "in a submodule"),
        (linked, "knows no such worktree"),
    ):
        with pytest.raises(IsolationFailed, match=reason):
            await desk.worktrees.check(str(directory))


async def test_a_hook_of_the_repository_is_not_run(desk: Desk) -> None:
    for name in (
        "post-checkout",
        "pre-commit",
        "post-commit",
        "post-merge",
        "reference-transaction",
    ):
        hook = desk.root / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\nenv > {desk.root}/ran\nexit 1\n")
        hook.chmod(0o755)
    at = await desk.at()
    (at / "a.txt").write_text("two\n")
    await desk.finish(at, MERGE)
    assert not (desk.root / "ran").exists()


# -- changes


async def test_changes_are_reported_against_the_base_whether_committed_or_not(desk: Desk) -> None:
    made = await desk.open()
    at = Path(made.ref.directory)
    commit(at, "a.txt", "one\ntwo\n")
    (at / "new file.txt").write_text("hello\n")
    (at / "src/b.txt").unlink()
    (at / "image.bin").write_bytes(bytes(range(256)))
    before = git(at, "status", "--porcelain")
    changes = {change.file: change for change in await desk.worktrees.changes(made.ref)}
    told = {name: (each.status, each.additions, each.deletions) for name, each in changes.items()}
    assert told == {
        "a.txt": ("modified", 1, 0),
        "new file.txt": ("added", 1, 0),
        "src/b.txt": ("deleted", 0, 1),
        "image.bin": ("added", 0, 0),
    }
    assert "+two" in changes["a.txt"].patch
    assert "+hello" in changes["new file.txt"].patch
    assert git(at, "status", "--porcelain") == before
    # What the agent takes over from main is not its own.
    git(at, "add", "-A")
    git(at, "commit", "-q", "-m", "rest")
    commit(desk.root, "c.txt", "of main\n")
    git(at, "merge", "-q", "main")
    assert {change.file for change in await desk.worktrees.changes(made.ref)} == set(told)


# -- finishing


async def test_a_merge_commits_what_is_left_and_moves_main_on(desk: Desk) -> None:
    at = await desk.at()
    commit(at, "a.txt", "two\n")
    (at / "left.txt").write_text("left over\n")
    (desk.root / "mine.txt").write_text("not committed\n")
    (desk.root / "src/b.txt").write_text("not committed either\n")
    done = await desk.finish(at, MERGE)
    assert (done.committed, done.merged, done.into) == (True, "fast-forward", "main")
    assert (done.worktree_removed, done.branch_deleted) == (True, True)
    assert git(desk.root, "rev-parse", "main") == done.commit
    assert "Fix the login" in git(desk.root, "log", "-1", "--format=%B")
    assert (desk.root / "a.txt").read_text() == "two\n"
    assert (desk.root / "left.txt").read_text() == "left over\n"
    assert (desk.root / "mine.txt").read_text() == "not committed\n"
    assert (desk.root / "src/b.txt").read_text() == "not committed either\n"
    assert not at.exists()
    assert branches(desk.root) == ["main"]


async def test_where_both_have_moved_on_a_merge_commit_is_made(desk: Desk) -> None:
    at = await desk.at()
    commit(at, "a.txt", "two\n")
    main = commit(desk.root, "c.txt", "c\n")
    done = await desk.finish(at, replace(MERGE, remove=False, message="Both of them"))
    assert (done.merged, done.worktree_removed, done.branch_deleted) == (
        "merge-commit",
        False,
        False,
    )
    assert git(desk.root, "log", "-1", "--format=%P %s") == f"{main} {done.commit} Both of them"
    assert [(desk.root / name).read_text() for name in ("a.txt", "c.txt")] == ["two\n", "c\n"]
    assert git(desk.root, "status", "--porcelain") == ""
    assert (await desk.finish(at, MERGE)).merged == "already-merged"


async def test_a_branch_that_is_checked_out_nowhere_is_merged_too(desk: Desk) -> None:
    at = await desk.at()
    made = commit(at, "a.txt", "two\n")
    git(desk.root, "checkout", "-q", "-b", "other")
    assert (await desk.finish(at, MERGE)).merged == "fast-forward"
    assert git(desk.root, "rev-parse", "main") == made
    assert (desk.root / "a.txt").read_text() == "one\n"


async def test_conflicts_are_named_and_nothing_is_changed(desk: Desk) -> None:
    at = await desk.at()
    commit(at, "a.txt", "two\n")
    commit(desk.root, "a.txt", "three\n")
    error = await desk.refused(at, MERGE, MergeRefused)
    assert error.facts["files"] == ["a.txt"]
    assert (desk.root / "a.txt").read_text() == "three\n"
    assert git(desk.root, "status", "--porcelain") == ""


async def test_uncommitted_changes_of_the_main_checkout_are_never_overwritten(desk: Desk) -> None:
    at = await desk.at()
    commit(at, "a.txt", "two\n")
    (at / "new.txt").write_text("of the agent\n")
    (desk.root / "a.txt").write_text("of the user\n")
    (desk.root / "new.txt").write_text("of the user\n")
    before = git(desk.root, "rev-parse", "main")
    error = await desk.refused(at, MERGE, MergeRefused)
    assert error.facts["files"] == ["a.txt", "new.txt"]
    assert git(desk.root, "rev-parse", "main") == before
    assert [(desk.root / name).read_text() for name in ("a.txt", "new.txt")] == [
        "of the user\n"
    ] * 2


async def test_from_a_detached_head_a_branch_can_be_kept_but_not_merged(desk: Desk) -> None:
    git(desk.root, "checkout", "-q", "--detach")
    at = await desk.at()
    (at / "a.txt").write_text("two\n")
    await desk.refused(at, MERGE, MergeRefused)
    kept = await desk.finish(at, replace(KEEP, remove=True))
    assert (kept.worktree_removed, kept.branch_deleted) == (True, False)
    assert git(desk.root, "show", f"{kept.branch}:a.txt") == "two"


@pytest.mark.parametrize("how", ["uncommitted", "untracked", "committed", "detached"])
async def test_what_exists_nowhere_else_is_dropped_only_if_told_so(desk: Desk, how: str) -> None:
    at = await desk.at()
    if how == "detached":
        git(at, "checkout", "-q", "--detach")
    if how in ("committed", "detached"):
        commit(at, "a.txt", "two\n")
    else:
        (at / ("new.txt" if how == "untracked" else "a.txt")).write_text("two\n")
    error = await desk.refused(at, DROP, WorkWouldBeLost)
    assert bool(error.facts["files"]) == (how in ("uncommitted", "untracked"))
    assert bool(error.facts["commits"]) == (how in ("committed", "detached"))
    dropped = await desk.finish(at, replace(DROP, discard=True))
    assert (dropped.worktree_removed, dropped.branch_deleted) == (True, True)
    assert not at.exists()
    assert branches(desk.root) == ["main"]


async def test_who_works_in_a_worktree_keeps_it(desk: Desk) -> None:
    at = await desk.at()
    message = Message("m", Role.USER, (Text("hello"),))
    await desk.log.create(TaskHead("t", "c", "alice", 0), [MessageAdded(message, "msg_1")])
    error = await desk.refused(at, DROP, WorktreeBusy)
    assert error.facts == {"task_id": "t", "state": "submitted"}
    await desk.log.write("t", [Ended(TaskState.CANCELED)])
    desk.busy["ses_9"] = SessionStatus("ses_9", "busy")
    assert (await desk.refused(at, DROP, WorktreeBusy)).facts == {"session_id": "ses_9"}
    desk.busy.clear()
    await desk.finish(at, DROP)


async def test_another_callers_worktree_does_not_exist(desk: Desk) -> None:
    at = await desk.at()
    for directory, caller in ((at, BOB), (desk.root, ALICE), (at.parent, ALICE)):
        with pytest.raises(InvalidParams, match=r"request\.directory"):
            await desk.finish(directory, replace(DROP, discard=True), caller)
    assert at.is_dir()


async def test_a_context_goes_on_after_its_worktree_was_finished(desk: Desk) -> None:
    first = await desk.open()
    at = Path(first.ref.directory)
    commit(at, "a.txt", "two\n")
    done = await desk.finish(at, MERGE)
    again = await desk.worktrees.open("alice", "c", title="More", isolation=None)
    assert again is not None
    assert again.ref == replace(first.ref, base=done.commit)
    assert (at / "a.txt").read_text() == "two\n"
    assert await desk.worktrees.changes(again.ref) == ()
    (at / "a.txt").write_text("three\n")
    await desk.finish(at, replace(KEEP, remove=True))
    await desk.open()
    assert (at / "a.txt").read_text() == "three\n"  # on the branch that was kept


# -- idle ones


async def test_idle_worktrees_go_only_if_nothing_is_lost_with_them(desk: Desk) -> None:
    untouched, merged, committed, dirty = [await desk.at(str(number)) for number in range(4)]
    for at in (merged, committed):
        commit(at, "a.txt", f"{at.name}\n")
    git(desk.root, "merge", "-q", "--ff-only", f"a2a/{merged.name}")
    (dirty / "new.txt").write_text("x\n")
    await desk.worktrees.remove_idle()
    assert untouched.is_dir()  # not idle for long enough
    desk.now += HOUR_MS + 1
    await desk.worktrees.remove_idle()
    assert [at.is_dir() for at in (untouched, merged, committed, dirty)] == [
        False,
        False,
        True,
        True,
    ]
    assert len(branches(desk.root)) == 3
    assert await desk.at("0") == untouched  # it is made again
    assert untouched.is_dir()


@pytest.mark.parametrize("name", [".env", "data/local.db", "node_modules/x/index.js"])
async def test_an_idle_worktree_with_files_that_git_ignores_stays(desk: Desk, name: str) -> None:
    commit(desk.root, ".gitignore", ".env\n*.db\nnode_modules/\n")
    at = await desk.at()
    (at / name).parent.mkdir(parents=True, exist_ok=True)
    (at / name).write_text("exists nowhere else\n")
    (at / "node_modules" / "empty").mkdir(parents=True)
    desk.now += HOUR_MS + 1
    await desk.worktrees.remove_idle()
    assert (at / name).read_text() == "exists nowhere else\n"
    (at / name).unlink()
    await desk.worktrees.remove_idle()
    assert not at.exists()


# -- the options of a request, and the session


def resolver(desk: Desk, isolation: Default = "none") -> CatalogOptionsResolver:
    ownership = Ownership(desk.bindings, desk.locations, shared=True, clock=lambda: 0, claim_ms=1)
    return CatalogOptionsResolver(
        ownership=ownership,
        validator=Validator(desk.locations.agent),
        sessions=Sessions(ScriptedAgent(), desk.bindings, worktrees=desk.worktrees),
        bindings=desk.bindings,
        worktrees=desk.worktrees,
        has_label=_is_here,
        isolation=isolation,
    )


async def _is_here(label: str) -> bool:
    return label == "here"


async def resolved(
    desk: Desk, options: RequestOptions, context: str = "c", *, default: Default = "none"
) -> Selection:
    found = resolver(desk, default)
    return await found.resolve(ALICE, context, title="Fix", options=options)


async def test_a_node_that_is_asked_for_has_to_be_this_one(desk: Desk) -> None:
    assert (await resolved(desk, RequestOptions(node="here"))).node == "here"
    with pytest.raises(InvalidParams, match="no node has the name or label 'gpu'"):
        await resolved(desk, RequestOptions(node="gpu"))
    await desk.bindings.bind(ALICE.principal, "c", SessionRef("ses_1", directory=str(desk.root)))
    assert (await resolved(desk, RequestOptions(node="here"))).node == "here"
    with pytest.raises(InvalidParams, match="does not move; use a new context"):
        await resolved(desk, RequestOptions(node="gpu"))


async def test_a_deployment_isolates_new_contexts_unless_a_request_says_otherwise(
    desk: Desk,
) -> None:
    here = Isolation(str(desk.root))
    asked = RequestOptions(isolation="worktree")
    assert (await resolved(desk, RequestOptions())).isolation is None
    assert (await resolved(desk, asked)).isolation == here
    assert (await resolved(desk, RequestOptions(), default="worktree")).isolation == here
    none = RequestOptions(isolation="none")
    assert (await resolved(desk, none, default="worktree")).isolation is None
    with pytest.raises(InvalidParams, match="A2A_ISOLATION"):
        await resolved(desk, asked, default="never")
    at = await desk.at("another")
    inside = RequestOptions(directory=str(at))
    assert (await resolved(desk, inside, "d", default="worktree")).isolation is None
    assert branches(desk.root) == [f"a2a/{at.name}", "main"]  # none is made before the task


async def test_a_context_does_not_change_where_it_works(desk: Desk) -> None:
    sessions = Sessions(ScriptedAgent(), desk.bindings, worktrees=desk.worktrees)
    wanted, model = Isolation(str(desk.root)), ModelRef("demo", "demo")
    isolated = await sessions.serving(
        "alice", "isolated", title="Fix", isolation=replace(wanted, model=model)
    )
    assert isolated.ref.worktree is not None
    assert isolated.ref.directory == isolated.ref.worktree.directory
    bound = await desk.bindings.session_of("alice", "isolated")
    assert bound is not None
    assert (bound.worktree, bound.model) == (isolated.ref.worktree, model)
    await sessions.serving("alice", "plain", title="Fix")
    yes, no = RequestOptions(isolation="worktree"), RequestOptions(isolation="none")
    assert (await resolved(desk, yes, "isolated")).isolation is None
    assert (await resolved(desk, no, "plain")).isolation is None
    for options, context in ((no, "isolated"), (yes, "plain")):
        with pytest.raises(InvalidParams, match="does not move"):
            await resolved(desk, options, context)
    with pytest.raises(IsolationFailed, match="already works in"):  # it was queued meanwhile
        await sessions.serving("alice", "plain", title="Fix", isolation=wanted)


async def test_isolation_contradicts_another_place_to_work(desk: Desk) -> None:
    options = RequestOptions(isolation="worktree", workspace="wrk_1")
    with pytest.raises(InvalidParams) as refused:
        await resolver(desk)._isolation(desk.locations.home, options, bound=None, wanted=None)
    assert "contradicts metadata.opencode.workspace.id" in refused.value.message
