"""Time that passes when a test says so."""

from __future__ import annotations

import time

import pytest

from opencode_a2a.service import runner


class Hours:
    """What runners look at instead of the clock."""

    def __init__(self) -> None:
        self.passed = 0.0  # seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    passing = Hours()
    monkeypatch.setattr(runner, "time", passing)
    return passing
