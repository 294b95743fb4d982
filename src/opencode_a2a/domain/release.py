"""Versions of OpenCode: which were tried, and what an older one cannot do.

This table is the only place that knows versions. The tests run with the tried ones, the log and the
compatibility profile say what the connected one lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

Generation: TypeAlias = Literal[1, 2]  # of OpenCode's API; 1.x and 2.x have no route in common

# The newest of each minor version that is in use, oldest first.
TRIED = ("1.17.19", "1.18.33", "2.0.15")
SUPPORTED = "1.17, 1.18, and 2.x from 2.0.15 on"


@dataclass(frozen=True, slots=True)
class Feature:
    """Something of OpenCode's that the service uses, and that not every version has."""

    name: str
    effect: str  # of its absence, for people
    since: str = "1.17"
    only_in: Generation | None = None


NAMED_REFUSALS = Feature(
    "refusals_without_workspaces",
    since="1.18",
    effect="Where workspaces are switched off in OpenCode, opencode.workspaces.create fails "
    "with UPSTREAM_HTTP_ERROR and does not say so.",
)
TODOS = Feature("todos", "OpenCode 2 keeps no list of things to do.", only_in=1)
SHARING = Feature("sharing", "OpenCode 2 does not publish sessions.", only_in=1)
WORKSPACES = Feature(
    "workspaces",
    "OpenCode 2 has no workspaces. opencode.worktrees.create makes a directory of its own.",
    only_in=1,
)
WORKTREE_RESET = Feature(
    "worktree_reset",
    "OpenCode 2 does not reset worktrees. Remove this one, and create another.",
    only_in=1,
)
SYSTEM_TEXT = Feature(
    "system_text",
    "OpenCode 2 takes no system text with a prompt. OPENCODE_SYSTEM sets one for every session.",
    only_in=1,
)
SUBTASKS = Feature(
    "subtasks",
    "OpenCode 2 takes no parts of the type subtask. A part of the type agent asks for a sub-agent.",
    only_in=1,
)
REVERT_OF_PARTS = Feature(
    "revert_of_parts",
    "OpenCode 2 reverts to messages, not to parts of them. Leave out partID.",
    only_in=1,
)
COMMAND_TEMPLATES = Feature(
    "command_templates",
    "OpenCode 2 does not show what a command does with its arguments, so commands take none. Send "
    "the text as an ordinary message.",
    only_in=1,
)
LIVE_TOOL_OUTPUT = Feature(
    "live_tool_output", "The output of a tool is shown when the tool has ended.", only_in=1
)
SHARED_ALWAYS = Feature(
    "shared_always",
    'OpenCode 2 would remember "always" for good, so it holds for the context of its caller, also '
    "with A2A_PERMISSION_ALWAYS=workspace.",
    only_in=1,
)
FEATURES = (
    NAMED_REFUSALS,
    TODOS,
    SHARING,
    WORKSPACES,
    WORKTREE_RESET,
    SYSTEM_TEXT,
    SUBTASKS,
    REVERT_OF_PARTS,
    COMMAND_TEMPLATES,
    LIVE_TOOL_OUTPUT,
    SHARED_ALWAYS,
)


@dataclass(frozen=True, slots=True)
class Release:
    """The version that an OpenCode says it is, and the API it answers with."""

    version: str
    generation: Generation = 1

    @classmethod
    def named(cls, version: str) -> Release:
        """For where only the version is known, not what it answers with."""
        return cls(version, 2 if _numbers(version)[:1] == (2,) else 1)

    @property
    def is_supported(self) -> bool:
        """True for a version that is no number: somebody's own build."""
        if self._minor is None:
            return True
        first = (1, 17) if self.generation == 1 else (2, 0, 15)
        return first <= _numbers(self.version) < (self.generation + 1,)

    @property
    def lacks(self) -> tuple[Feature, ...]:
        return tuple(
            feature
            for feature in FEATURES
            if feature.only_in not in (None, self.generation)
            or (feature.only_in is None and self.is_before(feature.since))
        )

    @property
    def orders_messages_by_id(self) -> bool:
        """It takes the message with the greatest id for the newest, whenever it came."""
        return self.generation == 1 and self.is_before("1.18")

    @property
    def is_newer_than_tried(self) -> bool:
        """Of a minor version that the tests have not met."""
        return self._minor is not None and self._minor > _numbers(self.newest_tried)[:2]

    @property
    def newest_tried(self) -> str:
        """Of its generation."""
        return [each for each in TRIED if _numbers(each)[0] == self.generation][-1]

    def is_before(self, version: str) -> bool:
        """False for a version that is no number, such as that of somebody's own build."""
        minor = self._minor
        return minor is not None and minor < _numbers(version)[:2]

    @property
    def _minor(self) -> tuple[int, ...] | None:
        numbers = _numbers(self.version)
        return numbers[:2] if len(numbers) >= 2 and any(numbers) else None


@lru_cache(64)  # every prompt looks what the connected version can do
def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the beginning: (1, 18, 33) of 1.18.33 and of 1.18.33-beta."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
