"""Permission rules by the names of one generation of OpenCode, for the other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from opencode_a2a.domain.values import PermissionRule
from opencode_a2a.opencode.rules import NAMES_1, NAMES_2, renamed


@pytest.mark.parametrize(
    ("names", "given", "known"),
    [
        (NAMES_2, "bash", ["shell"]),
        (NAMES_1, "shell", ["bash"]),
        (NAMES_2, "task", ["subagent"]),
        (NAMES_1, "bash", ["bash"]),
        (NAMES_1, "write", ["edit"]),
        (NAMES_2, "patch", ["edit"]),
        (NAMES_2, "a2a_*", ["a2a_*"]),
        (NAMES_2, "*", ["*"]),
        (NAMES_2, "ba*", ["ba*", "shell"]),
        (NAMES_2, "?a*", ["?a*", "shell", "subagent", "edit"]),
    ],
)
def test_a_rule_is_not_lost_because_of_its_name(
    names: Mapping[str, str], given: str, known: list[str]
) -> None:
    rules = list(renamed([PermissionRule(given, "x *", "deny")], names))
    assert rules == [PermissionRule(name, "x *", "deny") for name in known]
