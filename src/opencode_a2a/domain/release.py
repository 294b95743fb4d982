"""Versions of OpenCode: which were tried, and what an older one cannot do.

This table is the only place that knows versions. The tests run with the tried ones, the log and the
compatibility profile say what the connected one lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# The newest of each minor version that is in use, oldest first.
TRIED = ("1.17.19", "1.18.33")


@dataclass(frozen=True, slots=True)
class Feature:
    """Something of OpenCode's that the service uses, and that older versions do not have."""

    name: str
    since: str
    effect: str  # of its absence, for people


FEATURES = (
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
