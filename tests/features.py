"""What differs between the versions of OpenCode that the tests can run with.

Tests of what only some versions can do say so, and are skipped on the others.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest

from opencode_a2a.domain.release import FEATURES, Release
from tests import tools
from tests.running import ROOT


def require(feature: str) -> None:
    """Skip the test where the OpenCode of this run lacks what it is about."""
    if not available(feature):
        pytest.skip(f"needs {feature}, which OpenCode {release().version} does not have")


def available(feature: str) -> bool:
    """For one step of a test that is about more."""
    assert feature in {known.name for known in FEATURES}, feature
    return feature not in {lacking.name for lacking in release().lacks}


@cache
def release() -> Release:
    """The OpenCode of this run."""
    if (command := os.environ.get("OPENCODE_COMMAND")) is None:
        package = json.loads((ROOT / "package.json").read_text())
        return Release.named(package["dependencies"]["opencode-ai"])
    told = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    return Release.named(told.stdout.strip().removeprefix("opencode v"))


def is_2() -> bool:
    return release().generation == 2


# What the shell is said to have printed where it has printed nothing.
_NOTHING = '{"exit":0,"truncated":false,"output":"","status":"completed"}'


def no_output() -> str:
    return _NOTHING if is_2() else "(no output)"


def tool_name(name: str) -> str:
    """What the OpenCode of this run calls a tool of 1.x, or the permission for it."""
    return tools.NAMES.get(name, name) if is_2() else name


def tool_input(**arguments: Any) -> dict[str, Any]:
    """What the OpenCode of this run shows as the arguments of a tool of 1.x."""
    return tools.renamed(arguments) if is_2() else arguments
