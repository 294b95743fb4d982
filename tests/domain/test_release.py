"""What is known about a version of OpenCode."""

from __future__ import annotations

import json

import pytest

from opencode_a2a.domain.release import TRIED, Release
from tests.running import ROOT


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("1.14.41", ["session_metadata", "external_directory_of_commands"]),
        ("1.15.0", ["external_directory_of_commands"]),
        ("1.15.0-beta.1", ["external_directory_of_commands"]),
        ("1.17.20", []),
        ("2.0.0", []),
        ("0.0.0-my-branch", []),
        ("local", []),
    ],
)
def test_a_version_lacks_what_came_later(version: str, lacks: list[str]) -> None:
    assert [feature.name for feature in Release(version).lacks] == lacks


@pytest.mark.parametrize(
    ("version", "older", "newer"),
    [
        ("1.13.99", True, False),
        ("1.14.0", False, False),
        (TRIED[-1], False, False),
        ("1.18.99", False, False),
        ("1.19.0", False, True),
        ("10.0.0", False, True),
        ("0.0.0-my-branch", False, False),
    ],
)
def test_a_version_that_was_not_tried(version: str, older: bool, newer: bool) -> None:
    release = Release(version)
    assert (release.is_older_than_tried, release.is_newer_than_tried) == (older, newer)


def test_the_newest_tried_version_is_the_pinned_one() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    assert package["dependencies"]["opencode-ai"] == TRIED[-1]
