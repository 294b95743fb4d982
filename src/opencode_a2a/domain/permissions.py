"""Which requests a caller has allowed beforehand, by saying "always" to one like them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .values import PermissionAsk


@dataclass(frozen=True, slots=True)
class AllowRule:
    permission: str
    pattern: str


def covers(grants: Iterable[AllowRule], ask: PermissionAsk) -> bool:
    """Whether everything that is asked for was allowed. Nothing named is nothing allowed."""
    patterns = [grant.pattern for grant in grants if grant.permission == ask.permission]
    return bool(ask.patterns) and all(
        any(_matcher(pattern).fullmatch(asked) for pattern in patterns) for asked in ask.patterns
    )


@lru_cache(maxsize=512)
def _matcher(pattern: str) -> re.Pattern[str]:
    """`*` is anything, `?` one character; what ends in ` *` allows the bare command too."""
    pattern, bare = (pattern[:-2], "( .*)?") if pattern.endswith(" *") else (pattern, "")
    pieces = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.compile("".join(pieces) + bare, re.DOTALL)
