"""No cost grows with what it must not grow with: length, streams, size of the database."""

from __future__ import annotations

from pathlib import Path

from bench import smoke
from bench.lab import Lab


async def test_no_cost_grows_with_length_streams_or_database(tmp_path: Path) -> None:
    assert await smoke.run(Lab(tmp_path, repeats=1, scale=0.2)) == []
