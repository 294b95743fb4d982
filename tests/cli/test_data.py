"""The commands about stored data, as an operator gives them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from opencode_a2a import cli
from opencode_a2a.data.copying import TABLES, Counted, count
from opencode_a2a.data.opening import opened, snapshot
from tests.cli.commands import Ran, called
from tests.store.filling import fill

Command = Callable[..., Ran]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def run(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command on the database, or on another one."""

    def run(*words: str, database: str = f"sqlite:///{store}", **settings: str) -> Ran:
        given = {
            "HOME": str(tmp_path),
            "OPENCODE_WORKSPACE_ROOT": str(tmp_path),
            "A2A_TASK_STORE_DATABASE_URL": database,
            **settings,
        }
        capsys.readouterr()  # what filling the database has logged
        return called(cli.main, list(words), given, capsys)

    return run


def digests_of(file: Path) -> dict[str, Counted]:
    with opened(f"sqlite:///{file}") as engine, snapshot(engine) as db:
        return {table.name: count(db, table) for table in TABLES}


def test_a_backup_is_made_and_restored_elsewhere(run: Command, store: Path, tmp_path: Path) -> None:
    fill(f"sqlite:///{store}")
    saved, other = tmp_path / "it.backup", tmp_path / "other.db"
    made = run("backup", str(saved))
    assert made.code == 0, made.err
    assert "14 tasks" in made.err
    restored = run("restore", str(saved), database=f"sqlite:///{other}")
    assert restored.code == 0, restored.err
    assert "14 tasks" in restored.err
    again = run("restore", str(saved), database=f"sqlite:///{other}")
    assert again.code == 1
    assert "With --force the backup takes its place" in again.err
    forced = run("restore", "--force", str(saved), database=f"sqlite:///{other}")
    assert forced.code == 0
    assert "What was there before: " in forced.err
    assert digests_of(other)["entries"] == digests_of(store)["entries"]


def test_what_is_wrong_is_said_with_the_setting_to_look_at(
    run: Command, store: Path, tmp_path: Path
) -> None:
    nothing = run("backup", str(tmp_path / "x"))
    assert (nothing.code, nothing.problems) == (
        1,
        [f"{store}: there is no such file (A2A_TASK_STORE_DATABASE_URL)"],
    )
    store.write_bytes(b"something else" * 1_000)
    damaged = run("db", "check")
    assert damaged.code == 1
    assert "file is not a database" in damaged.err
    memory = run("db", "check", A2A_TASK_STORE_BACKEND="memory")
    assert memory.problems == ["tasks are kept in memory only (A2A_TASK_STORE_BACKEND)"]
    unknown = run("db", "check", A2A_PORT="many")
    assert unknown.code == 2
    assert "A2A_PORT" in unknown.err
    missing = run("restore", str(tmp_path / "missing"))
    assert (missing.code, missing.problems) == (
        1,
        [f"{tmp_path / 'missing'}: No such file or directory"],
    )
    nobody = run("db", "check", database="postgresql://a2a:secret@127.0.0.1:1/a2a")
    assert nobody.code == 1
    assert "127.0.0.1" in nobody.err
    assert "secret" not in nobody.err


def test_a_sound_database_is_said_to_be_sound(run: Command, store: Path) -> None:
    fill(f"sqlite:///{store}")
    found = run("db", "check")
    assert (found.code, found.out) == (0, "14 tasks and 56 events: nothing is wrong.\n")


def test_a_task_is_exported_as_clients_see_it_and_as_it_is_stored(
    run: Command, store: Path
) -> None:
    fill(f"sqlite:///{store}")
    lines = [json.loads(line) for line in run("db", "export", "apple-alice").out.splitlines()]
    assert lines[0]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert lines[0]["task"]["artifacts"][0]["parts"][0]["text"] == "Grüße\0 語言 🙂"
    assert any("statusUpdate" in line.get("event", {}) for line in lines)
    stored = [line for line in lines if line.get("row") == "entries"]
    assert [line["seq"] for line in stored] == [1, 2, 3, 4]
    assert stored[0]["body"]["message"]["parts"]
    assert run("db", "export", "no-such-task").problems == ["there is no task no-such-task"]


def test_nothing_is_removed_without_being_asked_for(run: Command, store: Path) -> None:
    fill(f"sqlite:///{store}")
    assert run("db", "purge").code == 2
    wrong = run("db", "purge", "--before", "yesterday")
    assert (wrong.code, "90d" in wrong.err) == (2, True)
    unanswered = run("db", "purge", "--principal", "alice")
    assert unanswered.code == 2
    assert "tasks: 7 rows" in unanswered.err
    assert "sessions: 1 rows lose their owner" in unanswered.err
    assert digests_of(store)["tasks"][0] == 14
    assert run("db", "purge", "--before", "1d", "--yes").out == "There is nothing to remove.\n"
    removed = run("db", "purge", "--principal", "alice", "--yes")
    assert removed.code == 0
    assert digests_of(store)["tasks"][0] == 7
    assert run("db", "purge", "--before", "0m", "--yes").code == 0
    assert digests_of(store)["tasks"][0] == 1
    assert run("db", "check").code == 0


def test_what_changes_data_is_in_the_audit_log(run: Command, store: Path, tmp_path: Path) -> None:
    fill(f"sqlite:///{store}")
    log = tmp_path / "audit.log"
    assert run("db", "purge", "--principal", "alice", "--yes", A2A_AUDIT_LOG=str(log)).code == 0
    assert run("db", "purge", A2A_AUDIT_LOG=str(log)).code == 2
    assert run("db", "check", A2A_AUDIT_LOG=str(log)).code == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["act"], line["outcome"], line["operator"]) for line in lines] == [
        ("db purge", "ok", True),
        ("db purge", "failed", True),
    ]
    assert (lines[0]["target"], lines[0]["principal"]) == ("alice", None)


def test_a_move_prints_what_both_sides_hold(run: Command, store: Path, tmp_path: Path) -> None:
    fill(f"sqlite:///{store}")
    target = tmp_path / "target.db"
    moved = run("migrate", "--to", f"sqlite:///{target}")
    assert moved.code == 0, moved.err
    rows, digest = digests_of(target)["entries"]
    assert f"{rows}  {digest}" in moved.out
    again = run("migrate", "--to", f"sqlite:///{target}")
    assert again.code == 1
    assert "is not empty" in again.err
    assert run("migrate", "--to", f"sqlite:///{store}").code == 2
    assert run("migrate", "--to", "mysql://x/y").code == 2


def test_another_schema_is_neither_purged_nor_exported(run: Command, store: Path) -> None:
    fill(f"sqlite:///{store}")
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE schema_version SET version = 7")
    for words in (("purge", "--principal", "alice", "--yes"), ("export", "apple-alice")):
        refused = run("db", *words)
        assert refused.code == 1
        assert "the database has schema 7" in refused.err
        assert "Run the newer version that wrote it" in refused.err


def test_passwords_of_a_url_are_not_shown(run: Command, tmp_path: Path, store: Path) -> None:
    fill(f"sqlite:///{store}")
    url = "postgresql://a2a:first@127.0.0.1:1/a2a?password=second&sslpassword=third"
    for failed in (run("migrate", "--to", url), run("db", "check", database=url)):
        assert failed.code == 1
        assert "127.0.0.1" in failed.err
        assert not {"first", "second", "third"} & set(re.findall(r"\w+", failed.err))
