"""Which directories belong to a workspace root, judged without asking OpenCode."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.service.git import in_root, in_root_only
from tests.test_paths import git


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a worktree outside, and a repository inside with one of its own."""
    root = tmp_path / "root"
    for name, repository in (("outer", root), ("inner", root / "inner")):
        (repository / "src").mkdir(parents=True)
        git(repository, "init", "-q")
        git(repository, "commit", "-q", "--allow-empty", "-m", "first")
        git(repository, "worktree", "add", "-q", str(tmp_path / f"{name}-tree"))
        (tmp_path / f"{name}-tree" / "src").mkdir()
    (tmp_path / "elsewhere").mkdir()
    return root


@pytest.mark.parametrize(
    ("directory", "belongs", "only_here"),
    [
        ("root", True, True),
        ("root/src", True, True),
        ("outer-tree", True, True),
        ("outer-tree/src", True, True),
        ("root/inner", True, False),
        ("root/inner/src", True, False),
        ("inner-tree", True, False),
        ("inner-tree/src", True, False),
        ("elsewhere", False, False),
        ("gone", False, False),
        ("root/gone", True, True),
    ],
)
def test_what_lies_inside_or_in_a_worktree_belongs_to_a_root(
    root: Path, directory: str, *, belongs: bool, only_here: bool
) -> None:
    path = str(root.parent / directory)
    assert (in_root(root, path), in_root_only(root, path)) == (belongs, only_here)


def test_what_cannot_be_looked_at_belongs_to_no_root(root: Path) -> None:
    loop = root.parent / "loop"
    loop.symlink_to(loop)
    for path in (str(loop), f"/{'long' * 2_000}", "/nothing\0here", "relative", ""):
        assert not in_root(root, path)
        assert not in_root_only(root, path)
