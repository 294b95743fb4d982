"""Storms on demand, and a table of what came of them.

    python -m tests.chaos --upstream fake --kills 1000 --cuts 10000 --seed 7 --seconds 3600

The seed decides what is asked, cut and killed, and after how long; the machine decides what that
meets, so a seed makes a failure likely again, not certain.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.chaos.ledger import Ledger
from tests.chaos.scenario import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--upstream", choices=("fake", "real", "real2"), default="fake")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--disk", action="store_true", help="on a disk that is full at times")
    parser.add_argument("--backup-every", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--report", type=Path, help="where to write the table, too")
    given = parser.parse_args()
    plan = Plan(
        given.upstream,
        given.kills,
        given.cuts,
        given.seed,
        given.seconds,
        clients=given.clients,
        disk=given.disk,
        backup_every=given.backup_every,
    )
    ledger = asyncio.run(run(plan, say))
    table = summary(plan, ledger)
    say(table)
    if given.report:
        given.report.write_text(table)
    return 1 if ledger.violations else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def summary(plan: Plan, ledger: Ledger) -> str:
    rows = [f"{name:42} {count:>8}" for name, count in sorted(ledger.counts.items()) if count]
    rows += [f"longest {name:34} {took:>7.2f}s" for name, took in sorted(ledger.longest.items())]
    blamed = [f"VIOLATION {sentence[:1500]}" for sentence in ledger.violations[:20]]
    head = f"upstream {plan.upstream}, seed {plan.seed}"
    return "\n".join([head, *rows, *blamed, ""])


if __name__ == "__main__":
    sys.exit(main())
