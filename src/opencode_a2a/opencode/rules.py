"""Permission rules by the names that an OpenCode knows.

A rule with a name that it does not know matches nothing there, and would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..domain.permissions import matches
from ..domain.values import PermissionRule

_WRITING = dict.fromkeys(("write", "patch", "multiedit", "apply_patch"), "edit")
NAMES_1 = {"shell": "bash", "subagent": "task", **_WRITING}
NAMES_2 = {"bash": "shell", "task": "subagent", **_WRITING}


def renamed(rules: Iterable[PermissionRule], names: Mapping[str, str]) -> Iterator[PermissionRule]:
    """A pattern of names stays, and is followed by what it would have matched."""
    for rule in rules:
        if rule.permission in names:
            yield replace(rule, permission=names[rule.permission])
            continue
        yield rule
        meant = dict.fromkeys(new for old, new in names.items() if matches(rule.permission, old))
        for name in meant:
            if not matches(rule.permission, name):
                yield replace(rule, permission=name)
