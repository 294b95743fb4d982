"""What is known about a version of OpenCode."""

from __future__ import annotations

import json

import pytest

from opencode_a2a.domain.release import FEATURES, TRIED, Release
from tests.running import ROOT

BEFORE_1_18 = ["refusals_without_workspaces"]


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("1.17.19", BEFORE_1_18),
        ("1.18.33", []),
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
        ("1.15.13", True, False),
        ("1.17.0", False, False),
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


@pytest.mark.parametrize(("version", "does"), [("1.17.19", True), ("1.18.0", False), ("x", False)])
def test_older_versions_take_the_greatest_id_for_the_newest_message(
    version: str, does: bool
) -> None:
    assert Release(version).orders_messages_by_id is does


def test_the_page_on_compatibility_says_what_each_version_lacks() -> None:
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    for feature in FEATURES:
        assert f"| `{feature.name}` | {feature.since} |" in page


def test_the_newest_tried_version_is_the_pinned_one() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    assert package["dependencies"]["opencode-ai"] == TRIED[-1]
