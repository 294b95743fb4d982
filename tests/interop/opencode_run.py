"""Runs the tests that need the real OpenCode with other versions of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from tests.running import ROOT

from .environments import NotInstalled, install_opencode

# All that rests on OpenCode, in two forms that share neither protocol line nor binding. The pages
# of the documentation, who may call what, and what is published are about this service alone.
TESTS = (
    "tests/e2e",
    "tests/extensions",
    "--ignore=tests/e2e/test_pages.py",
    "--ignore=tests/extensions/test_access.py",
    "--ignore=tests/extensions/test_published.py",
)
CHOSEN = "not javascript and not 1.0-rest and not 0.3-rpc"
VERSION_SECONDS = 3600


def run(versions: Iterable[str]) -> dict[str, Any]:
    tests = f"pytest {' '.join(TESTS)} -k '{CHOSEN}'"
    return {"tests": tests, "rows": {version: _row(version) for version in versions}}


def _row(version: str) -> dict[str, Any]:
    try:
        command = install_opencode(version)
    except NotInstalled as exc:
        return {"problem": str(exc)}
    sys.stdout.write(f"The tests on OpenCode {version} …\n")
    sys.stdout.flush()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-n", "3", f"--junitxml={report}"]
        subprocess.run(
            [*pytest, *TESTS, "-k", CHOSEN],
            cwd=ROOT,
            env=os.environ | {"OPENCODE_COMMAND": str(command)},
            timeout=VERSION_SECONDS,
            check=False,
        )
        return _summary(ElementTree.parse(report))


def _summary(report: ElementTree.ElementTree[Any]) -> dict[str, Any]:
    passed, failed, skipped = 0, [], dict[str, int]()
    for case in report.iter("testcase"):
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}")
        elif reason is not None:
            why = reason.get("message", "")
            skipped[why] = skipped.get(why, 0) + 1
        else:
            passed += 1
    return {"passed": passed, "failed": sorted(failed), "skipped": skipped}
