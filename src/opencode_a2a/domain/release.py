"""Versions of OpenCode: which were tried, and what an older one cannot do.

This table is the only place that knows versions. The tests run with the tried ones, the log and the
compatibility profile say what the connected one lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# The newest of each minor version that is in use, oldest first.
TRIED = ("1.14.41", "1.15.13", "1.17.19", "1.18.33")


@dataclass(frozen=True, slots=True)
class Feature:
    """Something of OpenCode's that the service uses, and that older versions do not have."""

    name: str
    since: str
    effect: str  # of its absence, for people


FEATURES = (
    Feature(
        "session_metadata",
        since="1.15",
        effect="OpenCode does not keep which context a session belongs to: a session forked in "
        "OpenCode itself, or made by a service for another workspace root, counts as nobody's.",
    ),
    Feature(
        "session_model",
        since="1.15",
        effect="OpenCode does not tell which model a session answered with last: a variant that a "
        "request names is checked against the default model.",
    ),
    Feature(
        "clean_retries",
        since="1.15",
        effect="Where a provider breaks off and is tried again, OpenCode keeps what had come until "
        "then: the answer says it twice.",
    ),
    Feature(
        "branches_of_workspaces",
        since="1.15",
        effect="OpenCode names the branch of a new workspace itself, whatever the request says.",
    ),
    Feature(
        "lists_of_one_directory",
        since="1.17",
        effect="A list of the sessions of one directory, worktree or workspace holds those of the "
        "whole project.",
    ),
    Feature(
        "diffs_of_one_message",
        since="1.17",
        effect="The diff of a message shows also what later messages of its session have changed.",
    ),
    Feature(
        "commands_in_permissions",
        since="1.17",
        effect="A request for permission does not name the command, which the service then takes "
        "from the tool call. Of a run that no task has started it shows the patterns alone.",
    ),
    Feature(
        "denials_for_subagents",
        since="1.17",
        effect="What the rules of a deployment (A2A_PERMISSION_RULES) deny, sub-agents may still "
        "do. Deny it in OpenCode's own configuration, which holds for them, too.",
    ),
    Feature(
        "external_directory_of_commands",
        since="1.17",
        effect="OpenCode does not ask before a command reads a file outside the workspace. Let it "
        "ask before every command (permission `bash`), or isolate it.",
    ),
    Feature(
        "refusals_without_workspaces",
        since="1.18",
        effect="Where workspaces are switched off in OpenCode, opencode.workspaces.create fails "
        "with UPSTREAM_HTTP_ERROR and does not say so.",
    ),
)


@dataclass(frozen=True, slots=True)
class Release:
    """The version that an OpenCode says it is."""

    version: str

    @property
    def lacks(self) -> tuple[Feature, ...]:
        return tuple(feature for feature in FEATURES if self.is_before(feature.since))

    @property
    def takes_prompts_of_no_session(self) -> bool:
        """It accepts a prompt before it looks for the session, and then forgets the prompt."""
        return self.is_before("1.15")

    @property
    def orders_messages_by_id(self) -> bool:
        """It takes the message with the greatest id for the newest, whenever it came."""
        return self.is_before("1.18")

    @property
    def is_newer_than_tried(self) -> bool:
        """Of a minor version that the tests have not met."""
        return self._minor is not None and self._minor > _numbers(TRIED[-1])[:2]

    @property
    def is_older_than_tried(self) -> bool:
        return self._minor is not None and self._minor < _numbers(TRIED[0])[:2]

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
