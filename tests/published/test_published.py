"""What is published is what the code says: the committed files are what `make gen` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.running import ROOT


def test_the_generated_files_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "gen.py"), str(tmp_path)], check=True)
    for fresh in filter(Path.is_file, tmp_path.rglob("*")):
        committed = ROOT / fresh.relative_to(tmp_path)
        assert committed.read_text() == fresh.read_text(), f"run `make gen`: {committed} differs"


def test_every_decision_and_page_is_reachable_from_the_readme_or_the_docs_index() -> None:
    pages = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")}
    linked = (ROOT / "README.md").read_text() + (ROOT / "docs" / "README.md").read_text()
    missing = [page for page in pages if page.removeprefix("docs/") not in linked]
    assert missing == ["docs/README.md"] or not missing
