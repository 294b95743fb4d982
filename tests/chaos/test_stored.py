"""Backups and a soak in short; `tests.chaos` and `.soak` do them at length."""

from __future__ import annotations

import pytest

from tests.chaos import soak
from tests.chaos.scenario import Plan, run

pytestmark = pytest.mark.timeout(900)


async def test_every_backup_of_a_storm_restores_all_that_was_acknowledged() -> None:
    plan = Plan("fake", kills=3, cuts=10, seed=4, seconds=300, clients=4, backup_every=0.5)
    ledger = await run(plan, print)
    assert not ledger.violations, ledger.violations[:5]
    assert ledger.counts["backups restored"]
    assert ledger.counts["services on a restored database"]


async def test_tasks_end_while_the_service_is_killed_reloaded_and_backed_up() -> None:
    plan = soak.Plan(
        tasks=120, seconds=300, clients=4, kill_every=1.5, reload_every=0.3, backup_every=2.0
    )
    done = await soak.run(plan)
    assert not done.ledger.violations, done.ledger.violations[:5]
    assert done.ended == 120
    assert done.ledger.counts["backups"]
