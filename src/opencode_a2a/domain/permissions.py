"""Which requests are allowed beforehand, and what the agent's rules say about the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .values import PermissionAction, PermissionAsk, PermissionRule

SHELL = ("bash", "shell")  # what versions of the agent call its shell, as a tool and in rules


@dataclass(frozen=True, slots=True)
class AllowRule:
    """A caller has said "always" to a request like this."""

    permission: str
    pattern: str


def covers(grants: Iterable[AllowRule], ask: PermissionAsk) -> bool:
    """Whether everything that is asked for was allowed. Nothing named is nothing allowed."""
    patterns = [grant.pattern for grant in grants if grant.permission == ask.permission]
    return bool(ask.patterns) and all(
        any(matches(pattern, asked) for pattern in patterns) for asked in ask.patterns
    )


def action_of(
    rules: Sequence[PermissionRule], permission: str, pattern: str = "*"
) -> PermissionAction | None:
    """What the rules say about a permission: the last that matches counts; None if none does."""
    for rule in reversed(rules):
        if matches(rule.permission, permission) and matches(rule.pattern, pattern):
            return rule.action
    return None


def matches(pattern: str, text: str) -> bool:
    return _matcher(pattern).fullmatch(text) is not None


@lru_cache(maxsize=512)
def _matcher(pattern: str) -> re.Pattern[str]:
    """`*` is anything, `?` one character; what ends in ` *` allows the bare command too."""
    pattern, bare = (pattern[:-2], "( .*)?") if pattern.endswith(" *") else (pattern, "")
    pieces = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.compile("".join(pieces) + bare, re.DOTALL)
