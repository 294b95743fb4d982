"""How worktrees of isolated contexts are named, and what is told about what they hold."""

from __future__ import annotations

import pytest

from opencode_a2a.domain.isolation import Unsaved, worktree_name


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Fix the login", "fix-the-login-1f"),
        ("  ../../etc: `rm -rf`\n", "etc-rm-rf-1f"),
        ("Größe der Schrift ändern", "groe-der-schrift-andern-1f"),
        ("修复登录", "task-1f"),
        ("", "task-1f"),
        (
            "Make the very long description of this task short",
            "make-the-very-long-description-of-this-1f",
        ),
        ("x" * 200, "x" * 40 + "-1f"),
    ],
)
def test_a_name_can_be_read_and_is_safe_for_git_and_files(title: str, name: str) -> None:
    assert worktree_name(title, "1f") == name


def test_what_would_be_lost_is_counted() -> None:
    assert not Unsaved()
    assert str(Unsaved(files=("a", "b"))) == "2 file(s) with uncommitted changes"
    assert str(Unsaved(files=("a",), commits=3)) == (
        "1 file(s) with uncommitted changes and 3 unmerged commit(s)"
    )
