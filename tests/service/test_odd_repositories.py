"""Repositories that people have set up in their own way are neither harmed nor misread."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import pytest

from opencode_a2a.errors import IsolationFailed, MergeRefused, WorkWouldBeLost
from tests.service.test_isolation import DROP, HOUR_MS, KEEP, MERGE, Desk, commit, desk, git

__all__ = ["desk"]
KEEP_AND_SHOW = replace(MERGE, remove=False)
LINES = "".join(f"line {number}\n" for number in range(20))


async def test_a_split_index_can_be_read_afterwards(desk: Desk) -> None:
    for number in range(9):
        (desk.root / f"{number}.txt").write_text("one\n")
    git(desk.root, "config", "core.splitIndex", "true")
    git(desk.root, "add", "--all")
    git(desk.root, "commit", "-q", "-m", "nine files")
    made = await desk.open()
    at = Path(made.ref.directory)
    for folder in (desk.root, at):
        git(folder, "update-index", "--split-index")
    for number in range(9):
        (at / f"{number}.txt").write_text("two\n")
    assert len(await desk.worktrees.changes(made.ref)) == 9
    assert (await desk.finish(at, KEEP_AND_SHOW)).merged == "fast-forward"
    assert git(desk.root, "status", "--porcelain") == ""
    assert git(at, "status", "--porcelain") == ""


async def test_names_and_texts_that_are_not_utf8_can_be_answered(desk: Desk) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    made = await desk.open()
    at = Path(made.ref.directory)
    (at / name).write_bytes(b"cr\xe8me\n")
    (change,) = await desk.worktrees.changes(made.ref)
    assert change.file == "caf\N{REPLACEMENT CHARACTER}.txt"
    assert "+cr\N{REPLACEMENT CHARACTER}me" in change.patch
    lost = await desk.refused(at, DROP, WorkWouldBeLost)
    (desk.root / name).write_bytes(b"th\xe9\n")
    in_the_way = await desk.refused(at, MERGE, MergeRefused)
    git(desk.root, "add", "--all")
    git(desk.root, "commit", "-q", "-m", "theirs")
    conflict = await desk.refused(at, MERGE, MergeRefused)
    for error in (lost, in_the_way, conflict):
        assert error.facts["files"] == [change.file]
        orjson.dumps([asdict(change), error.message, error.facts])
    assert (await desk.finish(at, KEEP)).commit == git(at, "rev-parse", "HEAD")
    assert "caf\\351.txt" in git(at, "ls-files")


@pytest.mark.parametrize("how", ["logs switched off", "no logs", "a bare clone"])
async def test_a_repository_without_logs_of_its_branches_can_be_isolated(
    desk: Desk, how: str
) -> None:
    directory = desk.root
    if how == "a bare clone":
        git(desk.root, "clone", "-q", "--bare", ".", "bare")
        git(desk.root / "bare", "worktree", "add", "-q", "../linked", "main")
        directory = desk.root / "linked"
    else:
        shutil.rmtree(desk.root / ".git" / "logs")
        git(desk.root, "config", "core.logAllRefUpdates", str(how == "no logs").lower())
    at = Path((await desk.open(directory=directory)).ref.directory)
    (at / "a.txt").write_text("two\n")
    assert (await desk.finish(at, MERGE)).merged == "fast-forward"
    assert (directory / "a.txt").read_text() == "two\n"
    assert git(directory, "status", "--porcelain") == ""


async def test_a_folder_for_worktrees_that_leads_nowhere_is_an_error(desk: Desk) -> None:
    (desk.root / ".git" / "worktrees").symlink_to("gone")
    with pytest.raises(IsolationFailed, match="worktree cannot be made"):
        await desk.open()


@pytest.mark.parametrize("how", [".git", "HEAD", "elsewhere"])
async def test_a_repository_whose_checkout_cannot_be_told_is_refused(desk: Desk, how: str) -> None:
    own, directory = desk.root / ".git", desk.root
    if how == "elsewhere":
        directory = desk.root / "linked"
        git(desk.root, "init", "-q", "--separate-git-dir", str(desk.root / "own"))
        git(desk.root, "worktree", "add", "-q", "-b", "linked", "linked")
    elif how == ".git":
        own.rename(desk.root / "own")
        own.symlink_to("own")
    else:
        (own / "HEAD").unlink()
        (own / "HEAD").symlink_to("refs/heads/main")
    with pytest.raises(IsolationFailed, match=r"symbolic link|has its files elsewhere"):
        await desk.open(directory=directory)


async def test_a_folder_can_become_a_link_and_a_link_a_folder(desk: Desk) -> None:
    (desk.root / "link").symlink_to("src")
    git(desk.root, "add", "link")
    commit(desk.root, "folder/deep/c.txt", "c\n")
    at = await desk.at()
    shutil.rmtree(at / "folder")
    (at / "folder").symlink_to("src")
    (at / "link").unlink()
    (at / "link").mkdir()
    (at / "link" / "d.txt").write_text("d\n")
    assert (await desk.finish(at, KEEP)).committed
    assert git(at, "ls-files").split() == ["a.txt", "folder", "link/d.txt", "src/b.txt"]
    assert git(at, "status", "--porcelain") == ""


@pytest.mark.parametrize("begun", ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"])
async def test_a_checkout_in_the_middle_of_a_merge_is_left_alone(desk: Desk, begun: str) -> None:
    at = await desk.at()
    mine, before = commit(at, "a.txt", "two\n"), git(desk.root, "rev-parse", "HEAD")
    (desk.root / ".git" / begun).write_text(f"{mine}\n")
    error = await desk.refused(at, MERGE, MergeRefused)
    assert str(desk.root) in error.message
    assert git(desk.root, "rev-parse", "HEAD") == before
    (desk.root / ".git" / begun).unlink()
    assert (await desk.finish(at, MERGE)).merged == "fast-forward"
    assert git(desk.root, "rev-parse", "ORIG_HEAD") == before


async def test_a_file_that_has_a_merge_driver_is_not_merged_as_text(desk: Desk) -> None:
    commit(desk.root, "a.lock", LINES)
    commit(desk.root, ".gitattributes", "*.lock merge=locks\n*.txt merge=union\n")
    at = await desk.at()
    commit(at, "a.lock", f"mine\n{LINES}")
    commit(desk.root, "a.lock", f"{LINES}theirs\n")
    commit(desk.root, "only.lock", LINES)
    git(desk.root, "config", "merge.locks.driver", "true")
    error = await desk.refused(at, MERGE, MergeRefused)
    assert error.facts["files"] == ["a.lock"]
    git(desk.root, "config", "--unset", "merge.locks.driver")
    assert (await desk.finish(at, MERGE)).merged == "merge-commit"


async def test_a_filter_counts_where_it_is_configured_and_writes_a_file(desk: Desk) -> None:
    (desk.root / "gone.bin").write_text("one\n")
    commit(desk.root, ".gitattributes", "*.bin filter=known.to-git\n*.txt filter=unknown\n")
    commit(desk.root, "gone.bin", "one\n")
    git(desk.root, "config", "filter.known.to-git.clean", "cat")
    at = await desk.at()
    (at / "a.txt").write_text("two\n")
    (at / "gone.bin").unlink()
    assert (await desk.finish(at, KEEP_AND_SHOW)).merged == "fast-forward"
    (at / "new.bin").write_text("new\n")
    assert (await desk.refused(at, MERGE, MergeRefused)).facts["files"] == ["new.bin"]


@pytest.mark.parametrize("index", ["--no-sparse-index", "--sparse-index"])
async def test_a_sparse_checkout_stays_sparse(desk: Desk, index: str) -> None:
    commit(desk.root, "other/c.txt", "c\n")
    git(desk.root, "sparse-checkout", "set", "--cone", index, "src")
    at = await desk.at()
    commit(at, "src/b.txt", "two\n")
    commit(at, "other/c.txt", "two\n")
    assert (await desk.finish(at, MERGE)).merged == "fast-forward"
    assert (desk.root / "src" / "b.txt").read_text() == "two\n"
    assert not (desk.root / "other").exists()
    assert git(desk.root, "status", "--porcelain") == ""


async def test_a_committer_whose_name_is_not_utf8_commits(desk: Desk) -> None:
    with (desk.root / ".git" / "config").open("ab") as file:
        file.write(b"[user]\n\tname = Ren\xe9\n\temail = r@example.invalid\n")
    at = await desk.at()
    (at / "a.txt").write_text("two\n")
    assert (await desk.finish(at, KEEP)).committed
    assert git(at, "log", "-1", "--format=%ce") == "r@example.invalid"


@pytest.mark.parametrize("text", ["gitdir: nowhere\0", "gitdir: loop/x", f"gitdir: {'x' * 300}"])
async def test_a_worktree_that_cannot_be_read_is_an_error_for_itself_only(
    desk: Desk, text: str
) -> None:
    broken, empty = await desk.at("broken"), await desk.at("empty")
    (broken / "loop").symlink_to("loop")
    (broken / ".git").write_text(text)
    own = desk.root / ".git" / "worktrees" / broken.name
    (own / "gitdir").write_text(f"{broken}/{'x' * 300}\n")
    with pytest.raises(IsolationFailed):
        await desk.worktrees.check(str(broken))
    desk.now += HOUR_MS + 1
    await desk.worktrees.remove_idle()
    assert not empty.exists()


@pytest.mark.parametrize("how", ["--assume-unchanged", "--skip-worktree"])
async def test_an_idle_worktree_with_a_change_that_git_is_told_not_to_see_stays(
    desk: Desk, how: str
) -> None:
    at = await desk.at()
    git(at, "update-index", how, "a.txt")
    (at / "a.txt").write_text("mine\n")
    desk.now += HOUR_MS + 1
    await desk.worktrees.remove_idle()
    assert (at / "a.txt").read_text() == "mine\n"
