"""Every promise of the security model names a test that exists."""

from __future__ import annotations

import re

from tests.named import is_test
from tests.running import ROOT

PAGE = (ROOT / "docs" / "security-model.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE)
    assert len(named) > 20
    assert not [name for name in named if not is_test(name)]


def test_every_promise_names_its_test() -> None:
    promises = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)]


def test_a_name_that_is_none_is_noticed() -> None:
    assert not is_test("tests/web/test_oidc.py::test_nothing")
    assert not is_test("tests/nowhere.py::test_nothing")
