"""Which directories belong to git, and which files to nobody but us."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opencode_a2a import app
from opencode_a2a.app import _read_signing_keys
from opencode_a2a.cli.token import kept_token
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


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links, such as exFAT and some network shares."""

    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.usefixtures("no_links")
def test_secrets_are_made_once_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key_file = tmp_path / "keys" / "push-key.pem"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(kept_token, [tmp_path] * 8))
        keys = set(pool.map(_read_signing_keys, [key_file] * 8))
    assert len(tokens) == len(keys) == 1
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"token", "push-key.pem"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.usefixtures("no_links")
def test_a_start_that_cannot_keep_a_secret_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = tmp_path / "push-key.pem"
    monkeypatch.setattr(app, "name_new_file", rename)
    with pytest.raises(OSError, match="Input/output"):
        _read_signing_keys(file)
    assert list(tmp_path.iterdir()) == []
