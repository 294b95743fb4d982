"""Budgets under kills in short: `python -m tests.budgets` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.budgets.campaign import Plan, noted_steps, run

pytestmark = pytest.mark.timeout(900)


async def test_what_callers_have_used_is_what_opencode_has_stored_whoever_is_killed(
    tmp_path: Path,
) -> None:
    budgets = (("erin", 30),)
    plan = Plan(tasks=25, kills=2, seed=3, budgets=budgets, most_seconds=600, late_ms=5_000)
    outcome = await run(plan, tmp_path, print)
    assert not outcome.violations, "\n".join(outcome.violations)
    assert outcome.counts["kills"] == plan.kills
    assert outcome.counts["refused"] or outcome.counts["BUDGET_EXCEEDED"]
    assert len(noted_steps(tmp_path)) == outcome.counts["steps"]
