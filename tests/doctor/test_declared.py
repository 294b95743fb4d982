"""Every finding is declared once, documented, and produced by a test."""

from __future__ import annotations

import re
import tomllib

from opencode_a2a.doctor import judgement
from opencode_a2a.doctor.checks import ALL
from opencode_a2a.doctor.verdict import Finding, Level
from tests.running import ROOT

FOLDER = ROOT / "tests" / "doctor"
# This program does not run on a Python that is too old, and a newer one cannot be had everywhere.
FROM_VALUES_ALONE = {"python.untested"}


def test_what_can_be_found_is_what_the_checks_declare() -> None:
    declared = [finding for check in ALL for finding in check.findings]
    assert len({finding.name for finding in declared}) == len(declared)
    known = [each for each in vars(judgement).values() if isinstance(each, Finding)]
    assert {each.name for each in known} == {each.name for each in declared}
    for each in declared:
        assert each.level in (Level.WARNING, Level.ERROR)
        assert each.means.endswith((".", ")")), each.name


def test_the_tested_pythons_are_those_that_the_package_declares() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    minor = [each.rpartition("3.")[2] for each in about if ":: 3." in each]
    assert ((3, int(minor[0])), (3, int(minor[-1]))) == judgement.TESTED_PYTHONS


def test_the_checks_have_different_names() -> None:
    names = [check.name for check in ALL]
    assert len(set(names)) == len(names)


def test_every_finding_is_produced_for_real_by_a_test() -> None:
    real = [
        path
        for path in FOLDER.glob("test_*.py")
        if path.stem not in ("test_judgement", "test_declared")
    ]
    text = "".join(path.read_text() for path in real)
    produced = set(re.findall(r'"([a-z_]+\.[a-z_]+)"', text))
    findings = {finding.name for check in ALL for finding in check.findings}
    assert findings - produced <= FROM_VALUES_ALONE


def test_every_finding_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text()
    for check in ALL:
        assert f"## {check.name}\n" in page
        for finding in check.findings:
            assert f"`{finding.name}`" in page
