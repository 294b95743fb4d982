"""Databases for the tests of what an operator does with them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the SQLite file of a test is; its folder exists."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "tasks.db"


@pytest.fixture
def file_url(path: Path) -> str:
    return f"sqlite:///{path}"
