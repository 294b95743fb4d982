"""Repositories that people have set up in their own way are neither harmed nor misread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.service.test_isolation import MERGE, Desk, desk, git

__all__ = ["desk"]
KEEP_AND_SHOW = replace(MERGE, remove=False)
LINES = "".join(f"line {number}\n" for number in range(20))


async def test_a_split_index_can_be_read_afterwards(desk: Desk) -> None:
    for number in range(9):
        (desk.root / f"{number}.txt").write_text("one\n")
    git(desk.root, "config", "core.splitIndex", "true")
    git(desk.root, "add", "--all")
    git(desk.root, "commit", "-q", "-m", "nine files")
    made = await desk.open()
    at = Path(made.ref.directory)
    for folder in (desk.root, at):
        git(folder, "update-index", "--split-index")
    for number in range(9):
        (at / f"{number}.txt").write_text("two\n")
    assert len(await desk.worktrees.changes(made.ref)) == 9
    assert (await desk.finish(at, KEEP_AND_SHOW)).merged == "fast-forward"
    assert git(desk.root, "status", "--porcelain") == ""
    assert git(at, "status", "--porcelain") == ""
