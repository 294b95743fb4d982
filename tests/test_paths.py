"""Which directories belong to git, and which files to nobody but us."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opencode_a2a.paths import inside_git, make_private_directory, make_private_file, tighten
from tests.running import isolated


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid")
    env = isolated(folder.parent / "home")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, env=env, capture_output=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_git_keeps_a_repository_in_is_told_from_its_working_trees(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "first")
    git(tree, "worktree", "add", "-q", str(tmp_path / "linked"))
    git(tmp_path, "clone", "-q", "--bare", str(tree), "bare")
    git(tmp_path / "bare", "worktree", "add", "-q", "inside", "-b", "other")
    git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "apart"), "separate")
    (tmp_path / "plain" / "refs").mkdir(parents=True)

    for work in ("tree", "tree/src", "linked", "bare/inside", "separate", "plain", "plain/refs"):
        assert not inside_git(tmp_path / work), work
    for kept in (
        *("tree/.git", "tree/.git/hooks", "tree/.git/worktrees/linked", "tree/.git/not/there"),
        *("bare", "bare/refs", "bare/worktrees/inside", "apart", "apart/objects"),
        *("linked/.git", "tree/.GIT/hooks"),
    ):
        assert inside_git(tmp_path / kept), kept


def test_directories_and_files_are_made_for_this_user_only(
    tmp_path: Path, open_umask: None
) -> None:
    folder = tmp_path / "a" / "b" / "c"
    make_private_directory(folder)
    make_private_directory(folder)
    make_private_file(str(folder / "file"))
    assert [mode(each) for each in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    assert mode(folder / "file") == 0o600


def test_what_others_can_reach_is_taken_away_from_them(tmp_path: Path, open_umask: None) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    assert (tighten(file), tighten(folder)) == (True, True)
    assert (mode(file), mode(folder)) == (0o600, 0o700)
    assert (tighten(file), tighten(folder), tighten(tmp_path / "none")) == (False, False, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
def test_what_belongs_to_somebody_else_is_left_as_it_is(tmp_path: Path, open_umask: None) -> None:
    file = tmp_path / "file"
    file.touch()
    os.chown(file, 12345, -1)
    assert not tighten(file)
    assert mode(file) == 0o666


def test_what_cannot_be_looked_at_is_no_place_to_work_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refuse)  # root may look everywhere
    assert inside_git(tmp_path)
