"""Budgets under kills, on the real OpenCode with the scripted model.

python -m tests.budgets --tasks 200 --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.budgets.campaign import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.budgets", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", type=float, default=4, metavar="SECONDS", help="between kills")
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave it there")
    given = parser.parse_args()
    plan = Plan(tasks=given.tasks, kills=given.kills, seed=given.seed, calm=given.calm)
    with tempfile.TemporaryDirectory() as made:
        folder = given.keep or Path(made)
        folder.mkdir(exist_ok=True)
        outcome = asyncio.run(run(plan, folder, say))
    for name, count in sorted(outcome.counts.items()):
        say(f"{name:42} {count:>8}")
    for sentence in outcome.violations:
        say(f"VIOLATION {sentence[:2000]}")
    return 1 if outcome.violations else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
