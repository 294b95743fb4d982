"""Two services of one user in short: `python -m tests.chaos.two_roots` does it for an hour."""

from __future__ import annotations

import pytest

from tests.chaos.two_roots import Plan, run


@pytest.mark.timeout(600)
async def test_no_task_runs_in_the_folder_of_another_service_or_twice() -> None:
    plan = Plan(
        seconds=1,
        round_seconds=4,
        rounds=1,
        between_tasks=2,
        between_faults=1,
        loses_opencode=False,  # the long form does, and tests/faults/test_restarts.py
    )
    report = await run(plan, print)
    assert not report.violations, report.summary()
    assert report.counts["kills"] + report.counts["terminations"]
    assert report.counts["ran"]
