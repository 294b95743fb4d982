"""Tests of what only newer versions of OpenCode can do say so, and are skipped on older ones."""

from __future__ import annotations

import os
import subprocess
from functools import cache

import pytest

from opencode_a2a.domain.release import FEATURES, TRIED, Release


def require(feature: str) -> None:
    """Skip the test where the OpenCode of this run lacks what it is about."""
    if not available(feature):
        [since] = [known.since for known in FEATURES if known.name == feature]
        pytest.skip(f"needs {feature}, which OpenCode has since {since}")


def available(feature: str) -> bool:
    """For one step of a test that is about more."""
    assert feature in {known.name for known in FEATURES}, feature
    return feature not in {lacking.name for lacking in _release().lacks}


@cache
def _release() -> Release:
    if (command := os.environ.get("OPENCODE_COMMAND")) is None:
        return Release(TRIED[-1])  # the pinned one
    told = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    return Release(told.stdout.strip())
