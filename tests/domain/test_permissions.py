"""What "always" covers, and what it does not."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opencode_a2a.domain.permissions import AllowRule, covers
from opencode_a2a.domain.values import PermissionAsk
from tests.domain.logs import STEADY


def ask(*patterns: str, permission: str = "bash") -> PermissionAsk:
    return PermissionAsk("per_1", "ses", permission, patterns)


@pytest.mark.parametrize(
    ("pattern", "asked", "allowed"),
    [
        ("ls", "ls", True),
        ("ls", "ls -l", False),
        ("ls", "lsof", False),
        ("git *", "git status", True),
        ("git *", "git", True),
        ("git *", "gitk", False),
        ("git *", "git\nrm x", False),
        ("git *", "git status\nrm x", True),  # OpenCode asks for each command by itself
        ("git*", "gitk", True),
        ("*", "anything\nat all", True),
        ("*", "", True),
        ("src/*", "src/a/b.py", True),
        ("src/*", "src", False),
        ("src/*", "other/src/a", False),
        ("file.?", "file.c", True),
        ("file.?", "file.py", False),
        ("a.py", "aXpy", False),
        ("[ab]", "a", False),
        ("(x|y)", "x", False),
        ("a+", "aa", False),
        ("LS", "ls", False),
        ("", "", True),
        ("", "ls", False),
    ],
)
def test_a_pattern_allows_what_it_plainly_says(pattern: str, asked: str, allowed: bool) -> None:
    assert covers([AllowRule("bash", pattern)], ask(asked)) is allowed


def test_every_part_must_be_allowed() -> None:
    grants = [AllowRule("bash", "echo *"), AllowRule("bash", "ls")]
    assert covers(grants, ask("echo hi", "ls"))
    assert not covers(grants, ask("echo hi", "rm x"))


def test_nothing_named_is_nothing_allowed() -> None:
    assert not covers([AllowRule("bash", "*")], ask())
    assert not covers([], ask("ls"))
    assert not covers([], ask())


def test_a_grant_is_for_its_own_permission() -> None:
    assert not covers([AllowRule("bash", "*")], ask("a.py", permission="edit"))
    assert not covers([AllowRule("*", "*")], ask("ls"))


@STEADY
@given(st.text("ab*? ./"), st.text("ab ./"))
def test_patterns_are_wildcards_and_nothing_else(pattern: str, asked: str) -> None:
    assume(not pattern.endswith(" *"))
    expected = fnmatch.fnmatchcase(asked, pattern)
    assert covers([AllowRule("bash", pattern)], ask(asked)) is expected


@STEADY
@given(st.text(max_size=8), st.text(max_size=8))
def test_a_pattern_without_wildcards_allows_itself_only(pattern: str, asked: str) -> None:
    assume(not set(pattern) & set("*?"))
    assert covers([AllowRule("bash", pattern)], ask(asked)) is (pattern == asked)
