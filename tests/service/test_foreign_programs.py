"""Nothing that the workspace names is run when the service uses git in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from opencode_a2a.errors import IsolationFailed, MergeRefused, ServiceError, WorkWouldBeLost
from opencode_a2a.service import git_process
from tests.service.test_isolation import (
    DROP,
    HOUR_MS,
    KEEP,
    MERGE,
    Desk,
    branches,
    commit,
    desk,
    git,
)

__all__ = ["desk"]

CONFIG = """
[core]
    fsmonitor = {fsmonitor}
    hooksPath = {hooks}
    pager = {pager}
    editor = {editor}
    sshCommand = {sshCommand}
    alternateRefsCommand = {alternateRefsCommand}
    askPass = {askPass}
    gitProxy = {gitProxy}
[pager]
    diff = {pager}
    status = {pager}
[sequence]
    editor = {editor}
[diff]
    external = {diff_external}
[diff "x"]
    command = {diff_command}
    textconv = {textconv}
[filter "x"]
    clean = {clean}
    smudge = {smudge}
    required = true
[filter "y"]
    process = {process}
[merge "x"]
    driver = {merge_driver} %O %A %B
[merge]
    renormalize = true
    default = x
[credential]
    helper = {credential_helper}
[gpg]
    program = {gpg}
[commit]
    gpgSign = true
[tag]
    gpgSign = true
[uploadpack]
    packObjectsHook = {packObjectsHook}
[submodule]
    recurse = true
[status]
    submoduleSummary = true
[diff]
    submodule = log
    ignoreSubmodules = none
[alias]
    status = !{alias}
[gc]
    auto = 1
[protocol "ext"]
    allow = always
[protocol "file"]
    allow = always
[remote "origin"]
    url = ext::{remote_ext}
    promisor = true
    partialclonefilter = blob:none
    uploadpack = {uploadpack}
[hook "x"]
    command = {config_hook}
    event = pre-commit
    event = post-checkout
    event = reference-transaction
"""
HOOKS = (
    "post-checkout",
    "pre-commit",
    "commit-msg",
    "prepare-commit-msg",
    "post-commit",
    "post-merge",
    "pre-merge-commit",
    "post-index-change",
    "reference-transaction",
    "pre-auto-gc",
    "fsmonitor-watchman",
)


class Programs:
    """Scripts that leave a file when they are run, and a configuration that names them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ran").mkdir(parents=True)
        (folder / "hooks").mkdir()
        for hook in HOOKS:
            self.script(f"hooks/{hook}", "true")

    def script(self, name: str, ending: str = "cat 2>/dev/null") -> Path:
        path = self.folder / name
        marker = self.folder / "ran" / path.name
        path.write_text(f"#!/bin/sh\ntouch {marker}\n{ending}\n")
        path.chmod(0o755)
        return path

    def __getitem__(self, name: str) -> str:
        if name == "hooks":
            return str(self.folder / "hooks")
        # A textconv prints a file, a filter what it reads, a merge driver takes what there is.
        endings = {"textconv": 'cat "$1"', "merge_driver": "true", "fsmonitor": "false"}
        return str(self.script(name, endings.get(name, "cat 2>/dev/null")))

    def keys(self) -> list[str]:
        return [piece.split("}")[0] for piece in CONFIG.split("{")[1:]]

    @property
    def config(self) -> str:
        return CONFIG.format_map({name: self[name] for name in self.keys()})

    @property
    def ran(self) -> set[str]:
        return {path.name for path in (self.folder / "ran").iterdir()}


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path / "programs")


def hostile(root: Path, programs: Programs, how: str) -> None:
    """What an agent can write: configuration in every place that git reads, and attributes."""
    own = root / ".git"
    if how == "included":
        (root / "settings").write_text(programs.config)
        config = f"\n[include]\n    path = {root / 'settings'}\n"
    elif how == "for a worktree":
        (own / "config.worktree").write_text(programs.config)
        for worktree in (own / "worktrees").glob("*"):
            (worktree / "config.worktree").write_text(programs.config)
        config = "\n[extensions]\n    worktreeConfig = true\n"
    else:
        config = programs.config
    with (own / "config").open("a") as file:
        file.write(config)
    (own / "info").mkdir(exist_ok=True)
    (own / "info" / "attributes").write_text("* filter=x diff=x merge=x\n*.y filter=y\n")


@contextmanager
def harmless(root: Path) -> Iterator[None]:
    """For what the person does by hand in the meantime."""
    config = root / ".git" / "config"
    attributes = root / ".git" / "info" / "attributes"
    texts = {path: path.read_text() for path in (config, attributes)}
    config.write_text("[core]\n    repositoryformatversion = 0\n    bare = false\n")
    attributes.unlink()
    try:
        yield
    finally:
        for path, text in texts.items():
            path.write_text(text)


@pytest.mark.parametrize("how", ["in the repository", "included", "for a worktree"])
async def test_no_program_of_a_workspace_is_run_by_any_use_of_git(
    desk: Desk, programs: Programs, how: str
) -> None:
    root = desk.root
    commit(root, ".gitignore", "home\nsettings\n")
    (root / "lib").mkdir()
    git(root / "lib", "init", "-q")
    commit(root / "lib", "l.txt", "l\n")
    git(root, "add", "lib")
    git(root, "commit", "-q", "-m", "a submodule")
    hostile(root, programs, how)

    async def changed(context: str, name: str, text: str) -> Path:
        """A worktree in which the agent has written a file, a submodule and configuration."""
        made = await desk.open(context)
        at = Path(made.ref.directory)
        hostile(root, programs, how)
        (at / name).write_text(text)
        if not (at / "lib" / ".git").exists():
            with harmless(root):
                git(at / "lib", "init", "-q")
                commit(at / "lib", "l.txt", "other\n")
            hostile(at / "lib", programs, "in the repository")
            (at / "lib" / "l.txt").write_text("not committed\n")
        assert name in {change.file for change in await desk.worktrees.changes(made.ref)}
        return at

    def reset(at: Path) -> None:
        """Take away what is refused: filters in the attributes, and the submodule's files."""
        shutil.rmtree(at / "lib", ignore_errors=True)
        (at / "lib").mkdir()
        (root / ".git" / "info" / "attributes").write_text("* diff=x\n")

    await desk.worktrees.check(str(root))
    # What is changed through a filter is not committed by the service.
    at = await changed("filtered", "a.txt", "two\n")
    error = await desk.refused(at, KEEP, MergeRefused)
    assert "filter" in error.message
    await desk.refused(at, DROP, WorkWouldBeLost)
    await desk.finish(at, replace(DROP, discard=True))
    # Without filters in the attributes, but with everything else, the work is committed and merged.
    for context, options in (("kept", KEEP), ("forward", MERGE), ("merged", MERGE)):
        at = await changed(context, f"{context}.txt", "one\n" * 20)
        reset(at)
        if context == "merged":
            (at / "src/b.txt").write_text("b\n" + "mine\n" * 9)
            with harmless(root):
                commit(root, "src/b.txt", "theirs\n" * 9 + "b\n")
            (root / ".git" / "info" / "attributes").write_text("* diff=x merge=x\n")
            error = await desk.refused(at, MERGE, MergeRefused)
            assert "merge driver" in error.message
            reset(at)
            (at / "more.txt").write_text("more\n")
        done = await desk.finish(at, options)
        assert done.committed
    at = await changed("conflict", "src/b.txt", "mine\n")
    reset(at)
    with harmless(root):
        commit(root, "src/b.txt", "theirs\n")
    await desk.refused(at, MERGE, MergeRefused)
    await desk.finish(at, replace(DROP, discard=True))
    await desk.open("idle")
    desk.now += HOUR_MS + 1
    await desk.worktrees.remove_idle()
    await desk.open("idle")
    assert programs.ran == set()


async def test_the_same_by_hand_would_run_them(desk: Desk, programs: Programs) -> None:
    # Else the test above would show nothing.
    hostile(desk.root, programs, "in the repository")
    (desk.root / "a.txt").write_text("two\n")
    for words in (
        ("diff",),
        ("diff", "--no-ext-diff"),
        ("add", "--all"),
        ("worktree", "add", "../by-hand", "-b", "x"),
        ("-c", "commit.gpgSign=false", "commit", "-q", "-m", "x"),
    ):
        try:
            git(desk.root, *words)
        except Exception:
            continue
    assert {"clean", "smudge", "fsmonitor", "diff_command", "post-index-change"} <= programs.ran


async def test_what_a_partial_clone_lacks_is_not_fetched(desk: Desk, programs: Programs) -> None:
    blob = git(desk.root, "rev-parse", "HEAD:a.txt")
    hostile(desk.root, programs, "in the repository")
    with (desk.root / ".git" / "config").open("a") as file:
        file.write("[extensions]\n    partialClone = origin\n")
    (desk.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(IsolationFailed):
        await desk.open()
    assert programs.ran == set()
    assert not any(desk.folder.iterdir())


async def test_what_git_lfs_keeps_is_left_for_the_agent_to_commit(desk: Desk) -> None:
    commit(desk.root, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    git(desk.root, "config", "filter.lfs.clean", "cat")
    at = await desk.at()
    (at / "big.bin").write_bytes(b"\0" * 1_000)
    error = await desk.refused(at, MERGE, MergeRefused)
    assert error.facts["files"] == ["big.bin"]
    commit(at, "big.bin", "version https://git-lfs.github.com/spec/v1\n")  # as Git LFS does
    error = await desk.refused(at, MERGE, MergeRefused)
    assert "big.bin" in error.message
    assert f"git merge {git(at, 'branch', '--show-current')}" in error.message
    kept = await desk.finish(at, replace(KEEP, remove=True))
    assert kept.branch in branches(desk.root)


async def test_a_repository_inside_a_worktree_is_not_lost(desk: Desk) -> None:
    at = await desk.at()
    (at / "nested").mkdir()
    git(at / "nested", "init", "-q")
    commit(at / "nested", "n.txt", "n\n")
    error = await desk.refused(at, replace(KEEP, remove=True), MergeRefused)
    assert error.facts["files"] == ["nested/"]
    assert (at / "nested" / "n.txt").exists()


async def test_a_merge_that_the_agent_has_resolved_is_committed_as_one(desk: Desk) -> None:
    at = await desk.at()
    mine = commit(at, "a.txt", "mine\n")
    theirs = commit(desk.root, "a.txt", "theirs\n")
    with pytest.raises(Exception, match="merge"):
        git(at, "merge", "-q", "main")
    (at / "a.txt").write_text("both\n")
    git(at, "add", "a.txt")
    done = await desk.finish(at, replace(MERGE, remove=False))
    assert done.merged == "fast-forward"
    assert git(at, "log", "-1", "--format=%P") == f"{mine} {theirs}"
    assert git(at, "status", "--porcelain=v1", "--branch").count("\n") == 0
    assert "merge" not in git(at, "status", "--long").lower().replace("up to date", "")


async def test_a_worktree_of_the_service_is_one_for_the_git_of_everybody(desk: Desk) -> None:
    at = await desk.at()
    assert git(at, "rev-parse", "--path-format=absolute", "--git-common-dir") == str(
        desk.root / ".git"
    )
    assert git(at, "status", "--porcelain") == ""
    assert git(desk.root, "worktree", "prune", "--dry-run", "--verbose") == ""
    assert git(desk.root, "fsck", "--no-progress") == ""
    commit(at, "a.txt", "by the agent\n")
    assert str(at) in git(desk.root, "worktree", "list")


async def test_a_git_that_does_not_answer_is_ended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await desk.open()
    at = Path(made.ref.directory)
    os.mkfifo(at / ".gitattributes")  # nobody ever writes to it
    (at / "a.txt").write_text("two\n")
    monkeypatch.setattr(git_process, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(ServiceError, match=r"git .* did not end within 0\.5 s"):
        await desk.worktrees.changes(made.ref)
    monkeypatch.undo()


async def test_a_pipe_in_place_of_one_of_gits_files_holds_nobody_up(desk: Desk) -> None:
    at = await desk.at()
    own = next((desk.root / ".git" / "worktrees").iterdir())
    (own / "HEAD").unlink()
    os.mkfifo(own / "HEAD")
    with pytest.raises(IsolationFailed, match="HEAD cannot be read"):
        await desk.finish(at, KEEP)


async def test_a_git_in_the_workspace_is_never_taken_for_git(
    desk: Desk, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await desk.at()
    (at / "a.txt").write_text("two\n")
    (tools := desk.root / ".venv" / "bin").mkdir(parents=True)
    for folder in (desk.root, at, tools):
        shutil.copy(programs.script("git"), folder)
    monkeypatch.setenv("PATH", f".::bin:{tools}:{os.environ['PATH']}")
    assert (await desk.finish(at, KEEP)).committed
    assert programs.ran == set()
