"""What is known about a version of OpenCode."""

from __future__ import annotations

import json

import pytest

from opencode_a2a.domain.release import FEATURES, TRIED, Release
from tests.running import ROOT

BEFORE_1_18 = {"refusals_without_workspaces"}
ONLY_IN_1 = {feature.name for feature in FEATURES if feature.only_in == 1}


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("1.17.19", BEFORE_1_18),
        ("1.18.33", set()),
        ("2.0.15", ONLY_IN_1),
        ("0.0.0-my-branch", set()),
        ("local", set()),
    ],
)
def test_a_version_lacks_what_came_later_or_is_only_in_the_other_generation(
    version: str, lacks: set[str]
) -> None:
    assert {feature.name for feature in Release.named(version).lacks} == lacks


def test_a_build_of_no_number_is_of_the_generation_whose_api_it_answers_with() -> None:
    assert {feature.name for feature in Release("local", generation=2).lacks} == ONLY_IN_1


@pytest.mark.parametrize(
    ("release", "supported", "newer"),
    [
        (Release("1.16.9"), False, False),
        (Release("1.17.0"), True, False),
        (Release("1.18.99"), True, False),
        (Release("1.19.0"), True, True),
        (Release("2.0.15"), False, True),  # answers with the other API
        (Release("0.0.0-my-branch"), True, False),
        (Release("2.0.14", generation=2), False, False),
        (Release("2.0.15", generation=2), True, False),
        (Release("2.1.0", generation=2), True, True),
        (Release("3.0.0", generation=2), False, True),
        (Release("local", generation=2), True, False),
    ],
)
def test_a_version_that_was_not_tried(release: Release, supported: bool, newer: bool) -> None:
    assert (release.is_supported, release.is_newer_than_tried) == (supported, newer)


@pytest.mark.parametrize(
    ("version", "does"), [("1.17.19", True), ("1.18.0", False), ("2.0.15", False), ("x", False)]
)
def test_older_versions_take_the_greatest_id_for_the_newest_message(
    version: str, does: bool
) -> None:
    assert Release.named(version).orders_messages_by_id is does


def test_the_page_on_compatibility_says_what_each_version_lacks() -> None:
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    for feature in FEATURES:
        missing_in = "2.x" if feature.only_in == 1 else f"before {feature.since}"
        assert f"| `{feature.name}` | {missing_in} |" in page


@pytest.mark.parametrize(
    ("package", "name", "version"),
    [
        ("package.json", "opencode-ai", Release(TRIED[0]).newest_tried),
        (
            "tests/opencode2/package.json",
            "@opencode/cli-linux-x64-baseline",
            Release.named(TRIED[-1]).newest_tried,
        ),
    ],
)
def test_the_newest_tried_versions_are_the_pinned_ones(
    package: str, name: str, version: str
) -> None:
    pinned = json.loads((ROOT / package).read_text())
    assert pinned["dependencies"][name] == version
