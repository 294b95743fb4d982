"""What `db check` finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from opencode_a2a.data.check import check
from opencode_a2a.data.opening import opened, snapshot
from opencode_a2a.store.database import lock
from tests.postgres import Postgres
from tests.store.filling import fill

# A statement that spoils one thing, and what is said about it.
SPOILED = {
    "DELETE FROM entries WHERE task_id = 'open-bob' AND seq = 2": "open-bob: its 3 events are not",
    "DELETE FROM entries WHERE task_id = 'zebra-bob'": "zebra-bob: its 0 events are not numbered",
    "DELETE FROM tasks WHERE id = 'apple-bob'": "apple-bob: has events, and no task",
    "UPDATE tasks SET state = 'failed' WHERE id = 'apple-bob'": "is failed, and its events say",
    "UPDATE tasks SET folded = NULL WHERE id = 'apple-bob'": "its result is missing",
    "UPDATE tasks SET cleared = 1 WHERE id = 'open-bob'": "its events were removed, and 4 are",
    "UPDATE tasks SET session_id = 'x' WHERE id = 'apple-bob'": "has session x, and its events say",
    "UPDATE entries SET kind = 'Unknown' WHERE task_id = 'apple-bob'": "cannot be read",
    "UPDATE entries SET at = 5 WHERE task_id = 'apple-bob'": "is not what its events add up to",
    "UPDATE interrupts SET task_id = 'apple-bob' WHERE closed_at IS NULL": "and requests are open",
    "UPDATE interrupts SET request_id = 'x' WHERE request_id = 'per_2_bob'": "no event opened the",
    "UPDATE keys SET task_id = 'x' WHERE name = 'key-apple-bob'": "its task is not there",
    "UPDATE sessions SET owner = 'x' WHERE owner = 'bob'": "does not belong to its owner",
}


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.without_tasks()
    return file_url


def problems(url: str) -> list[str]:
    with opened(url) as engine, snapshot(engine) as db:
        return check(db).problems


def test_each_contradiction_is_found_and_a_sound_database_has_none(url: str) -> None:
    filled = fill(url)
    with opened(url) as engine:
        with snapshot(engine) as db:
            report = check(db)
        assert (report.problems, report.tasks) == ([], filled.tasks)
        for statement, said in SPOILED.items():
            with engine.connect() as db:
                lock(db)
                db.execute(text(statement))
                found = check(db).problems
                db.rollback()
            assert any(said in each for each in found), (statement, found)
    assert problems(url) == []


def test_wrong_totals_are_found(file_url: str) -> None:
    fill(file_url)
    with opened(file_url) as engine, engine.connect() as db:
        db.execute(text("UPDATE totals SET tasks = 7 WHERE state = 'completed'"))
        assert sum("totals: 7 tasks of" in each for each in check(db).problems) == 2


def test_a_damaged_file_is_found(file_url: str, path: Path) -> None:
    fill(file_url)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    assert any(each.startswith("file: ") for each in problems(file_url))
