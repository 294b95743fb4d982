"""Chaos in short: what `python -m tests.chaos` does for as long as one likes."""

from __future__ import annotations

import pytest

from tests.chaos.disk import SmallDisk
from tests.chaos.ledger import Ledger
from tests.chaos.scenario import Plan, run

# A storm ends when it has done what it was to do, in a minute as a rule; a slow machine gets there.
pytestmark = pytest.mark.timeout(900)
needs_mount = pytest.mark.skipif(not SmallDisk.possible(), reason="nothing can be mounted here")


def verdict(plan: Plan, ledger: Ledger) -> str:
    again = f"python -m tests.chaos --upstream {plan.upstream} --seed {plan.seed}"
    return "\n".join([f"{again}  # found this:", *ledger.violations[:10]])


async def test_nothing_is_lost_changed_or_repeated_when_the_service_is_killed() -> None:
    plan = Plan("fake", kills=8, cuts=80, seed=1, seconds=300)
    ledger = await run(plan, print)
    assert not ledger.violations, verdict(plan, ledger)
    assert plan.fulfilled(ledger), ledger.counts


async def test_the_same_holds_with_the_real_opencode() -> None:
    plan = Plan("real", kills=3, cuts=10, seed=2, seconds=300, clients=3)
    ledger = await run(plan, print)
    assert not ledger.violations, verdict(plan, ledger)
    assert ledger.counts["kills"] >= plan.kills


@needs_mount
async def test_the_same_holds_when_the_disk_is_full_at_times() -> None:
    plan = Plan("fake", kills=3, cuts=20, seed=3, seconds=300, disk=True)
    ledger = await run(plan, print)
    assert not ledger.violations, verdict(plan, ledger)
    assert ledger.counts["full disks"]
