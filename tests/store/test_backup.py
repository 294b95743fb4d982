"""Backups: everything at one moment, in a file that is whole or refused."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sqlite3
import stat
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Integer, LargeBinary, String, create_engine, text

from opencode_a2a.domain.values import TaskState
from opencode_a2a.store import backup
from opencode_a2a.store.check import check
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.migrate import HEAD, ForeignDatabase, SchemaTooNew, create, revision
from opencode_a2a.store.rows import InUse, NoDatabase, digests, opened, snapshot
from opencode_a2a.store.tables import DERIVED, metadata
from tests.postgres import COLUMNS, Postgres
from tests.store.earlier import forget_roots_in
from tests.store.filling import fill
from tests.store.support import HELLO, OWNER, claimed_ids, head, soon, step

ENGINES = ["file", "postgres"]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.emptied()
    return file_url


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved.backup"


def save(url: str, file: Path) -> backup.Content:
    with opened(url) as engine:
        return backup.save(engine, file)


def digests_of(url: str) -> dict[str, tuple[int, str]]:
    with opened(url) as engine, snapshot(engine) as db:
        return digests(db)


def problems_of(url: str) -> list[str]:
    with opened(url) as engine, snapshot(engine) as db:
        return check(db).problems


def test_every_column_has_a_type_that_sqlite_and_postgresql_give_back_alike() -> None:
    alike = (String, BigInteger, Integer, LargeBinary)
    odd = [str(c) for t in metadata.tables.values() for c in t.c if not isinstance(c.type, alike)]
    assert not odd, f"backups and digests cannot hold {odd}"


def test_a_backup_holds_every_row_of_every_table(url: str, saved: Path) -> None:
    fill(url)
    content = save(url, saved)
    assert content == backup.check(saved)
    assert content.tables.keys() == metadata.tables.keys() - {each.name for each in DERIVED}
    assert all(rows for rows, _ in content.tables.values()), content.tables
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert [file.name for file in saved.parent.glob("*saved*")] == [saved.name]


async def test_what_is_restored_is_what_was_saved_and_tasks_are_free_to_be_claimed(
    url: str, saved: Path, tmp_path: Path
) -> None:
    filled = await asyncio.to_thread(fill, url)
    before = save(url, saved).tables
    again = url if url.startswith("postgresql") else f"sqlite:///{tmp_path / 'restored.db'}"
    done = backup.restore(saved, again, force=True)
    assert (done.kept is not None) is (again == url)
    assert done.content.tables == before
    assert problems_of(again) == []
    async with soon(), Database.open(again) as database, SqlTaskLog.open(database) as log:
        assert sorted(await claimed_ids(log)) == ["open-alice", "open-bob"]
        task = await log.get("alice", "語言-alice")
        assert (task.state, task.blocks["b"].text) == (TaskState.COMPLETED, "Grüße\0 語言 🙂")
    assert filled.tasks == before["tasks"][0]


def test_a_backup_moves_between_sqlite_and_postgresql(
    postgres: Postgres, file_url: str, saved: Path, tmp_path: Path
) -> None:
    fill(file_url)
    here = save(file_url, saved)
    backup.restore(saved, postgres.emptied())
    there = save(postgres.url(), saved)
    assert there.manifest.engine == "postgresql"
    backup.restore(saved, f"sqlite:///{tmp_path / 'back.db'}")
    # A restore lets go of open tasks and push configs; all else is the same, in the same order.
    held = ("tasks", "push_configs")
    assert {n: d for n, d in there.tables.items() if n not in held} == {
        n: d for n, d in here.tables.items() if n not in held
    }
    assert digests_of(f"sqlite:///{tmp_path / 'back.db'}") == there.tables


async def test_a_backup_is_one_moment_while_the_service_goes_on(
    url: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        await log.create(head("t"), [HELLO])

        def write_more(table: str, _: int) -> None:
            """Between two tables, as a service that does not wait for a backup."""
            entries = log.write("t", [step(1), step(2)])
            asyncio.run_coroutine_threadsafe(entries, loop).result(60)
            task = log.create(head(f"after-{table}"), [HELLO])
            asyncio.run_coroutine_threadsafe(task, loop).result(60)

        loop = asyncio.get_running_loop()
        with opened(url) as engine, saved.open("wb") as out:
            content = await asyncio.to_thread(backup.write_backup, engine, out, write_more)
        assert content.tables["tasks"][0] == content.tables["entries"][0] == 1
        assert len((await log.get(OWNER, "t")).messages) == 1


def test_a_file_that_was_cut_or_changed_is_refused(file_url: str, saved: Path) -> None:
    fill(file_url)
    save(file_url, saved)
    whole = saved.read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    row = next(i for i, line in enumerate(lines) if line.startswith(b'["Zebra-alice"'))
    damaged = {
        "cut": whole[: len(whole) // 2],
        "a row is missing": gzip.compress(b"".join(lines[:row] + lines[row + 1 :])),
        "a row was changed": gzip.compress(b"".join(lines).replace(b"Zebra-a", b"Zebra-b", 1)),
        "its checksum is wrong": whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:],
        "something follows": gzip.compress(b"".join([*lines, b"{}\n"])),
        "its end is missing": gzip.compress(b"".join(lines[:-1])),
        "something else": b"not a backup",
        "nothing": b"",
    }
    for what, content in damaged.items():
        saved.write_bytes(content)
        with pytest.raises(backup.NotABackup):
            backup.restore(saved, file_url, force=True)
            pytest.fail(what)


def test_a_backup_replaces_no_file_but_a_backup(file_url: str, path: Path, saved: Path) -> None:
    fill(file_url)
    before = path.read_bytes()
    with pytest.raises(backup.NotABackup, match="not replaced"):
        save(file_url, path)
    assert path.read_bytes() == before
    assert save(file_url, saved).tables == save(file_url, saved).tables


def test_there_is_nothing_to_save_where_there_is_no_database(file_url: str, saved: Path) -> None:
    for url in (file_url, "sqlite://"):
        with pytest.raises(NoDatabase):
            save(url, saved)
    assert not saved.exists()


def test_a_database_that_holds_something_is_kept_beside_or_left_alone(
    url: str, saved: Path, path: Path
) -> None:
    fill(url)
    save(url, saved)
    before = digests_of(url)
    with pytest.raises(backup.HoldsData):
        backup.restore(saved, url)
    assert digests_of(url) == before
    kept = backup.restore(saved, url, force=True).kept
    assert kept is not None
    if url.startswith("sqlite"):
        assert digests_of(f"sqlite:///{kept}") == before
        names = {path.name, Path(kept).name}
        assert {file.name for file in path.parent.iterdir()} == names
    else:
        schema = kept.removeprefix("schema ")
        engine = create_engine(url)
        with engine.begin() as db:
            assert db.execute(text(f"SELECT count(*) FROM {schema}.tasks")).scalar_one() == 14
            db.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()


async def test_nothing_is_restored_while_a_service_works_on_the_database(
    url: str, saved: Path
) -> None:
    await asyncio.to_thread(fill, url)
    save(url, saved)
    async with soon(), Database.open(url) as database:
        before = digests_of(url)
        with pytest.raises(InUse):
            await asyncio.to_thread(backup.restore, saved, url, force=True)
        assert await database.takes_writes()
        assert digests_of(url) == before


def test_a_backup_of_an_earlier_schema_is_migrated(
    file_url: str, path: Path, saved: Path, tmp_path: Path
) -> None:
    fill(file_url)
    forget_roots_in(path)
    content = save(file_url, saved)
    assert content.manifest.schema == "0006"
    assert "worktrees" not in content.tables
    target = f"sqlite:///{tmp_path / 'newer.db'}"
    backup.restore(saved, target)
    with opened(target) as engine, snapshot(engine) as db:
        assert revision(db) == HEAD
        assert check(db).problems == []


def test_a_backup_of_a_newer_schema_is_refused_by_both_names(
    file_url: str, path: Path, saved: Path, tmp_path: Path
) -> None:
    fill(file_url)
    save(file_url, saved)
    newer = gzip.decompress(saved.read_bytes()).replace(
        f'"schema":"{HEAD}","version":"'.encode(), b'"schema":"9999","version":"99.'
    )
    saved.write_bytes(gzip.compress(newer))
    with pytest.raises(backup.NotABackup, match=r"schema 9999 of version 99\..*this is version"):
        backup.restore(saved, f"sqlite:///{tmp_path / 'older.db'}")
    assert not (tmp_path / "older.db").exists()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    with pytest.raises(SchemaTooNew, match="9999"):
        save(file_url, tmp_path / "never")


def test_a_damaged_file_can_be_replaced(file_url: str, path: Path, saved: Path) -> None:
    fill(file_url)
    save(file_url, saved)
    path.write_bytes(b"this is no database" * 1_000)
    with pytest.raises(backup.HoldsData, match="damaged"):
        backup.restore(saved, file_url)
    kept = backup.restore(saved, file_url, force=True).kept
    assert kept is not None
    assert Path(kept).read_bytes().startswith(b"this is no database")
    assert problems_of(file_url) == []


def test_a_file_that_is_damaged_inside_can_be_replaced(
    file_url: str, path: Path, saved: Path
) -> None:
    fill(file_url)
    save(file_url, saved)
    with closing(sqlite3.connect(path)) as db:
        root = "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'contexts'"
        pages = [number for (number,) in db.execute(root)]
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        for number in pages:
            file.seek((number - 1) * size)
            file.write(b"\xff" * size)
    damaged = path.read_bytes()
    with pytest.raises(backup.HoldsData, match="damaged"):
        backup.restore(saved, file_url)
    kept = backup.restore(saved, file_url, force=True).kept
    assert kept is not None
    assert len(Path(kept).read_bytes()) == len(damaged)
    assert problems_of(file_url) == []


def test_the_log_of_a_file_that_is_gone_is_not_written_into_the_restored_one(
    file_url: str, path: Path, saved: Path
) -> None:
    fill(file_url)
    before = save(file_url, saved).tables
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM entries")
        db.commit()
        log = Path(f"{path}-wal").read_bytes()  # as after a kill
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    kept = backup.restore(saved, file_url).kept
    assert digests_of(file_url)["entries"] == before["entries"]
    assert kept is not None
    assert Path(kept).read_bytes() == log


KILLED = """
import os, sys
from pathlib import Path
from opencode_a2a.store import backup

file, url, folder, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], 0

def kill(name, words):
    global count
    if name in ("os.rename", "os.link", "os.remove") and str(words[0]).startswith(folder):
        if count == at:
            os._exit(9)
        count += 1

for at in range(100):
    if (child := os.fork()) == 0:
        sys.addaudithook(kill)
        backup.restore(file, url, force=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    sys.stdin.readline()
    if code != 9:
        break
"""


def test_a_restore_that_is_killed_leaves_the_old_database_or_the_new_one(
    file_url: str, path: Path, saved: Path, tmp_path: Path
) -> None:
    fill(file_url)
    save(file_url, saved)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE sessions SET title = 'later'")
        db.commit()
    old, original = digests_of(file_url), tmp_path / "original"
    shutil.copy(path, original)
    new_url = f"sqlite:///{tmp_path / 'new.db'}"
    backup.restore(saved, new_url)
    new = digests_of(new_url)
    words = [sys.executable, "-c", KILLED, str(saved), file_url, str(path.parent)]
    seen: list[tuple[int, bool]] = []
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as restoring:
        assert restoring.stdin is not None
        assert restoring.stdout is not None
        for line in restoring.stdout:
            assert path.exists(), f"nothing is there after a kill before file operation {len(seen)}"
            seen.append((int(line), digests_of(file_url) == new))
            assert seen[-1][1] or digests_of(file_url) == old
            for each in path.parent.iterdir():
                each.unlink()
            shutil.copy(original, path)
            restoring.stdin.write("\n")
            restoring.stdin.flush()
    assert seen[0] == (9, False)
    assert seen[-1] == (0, True)
    assert (9, True) in seen, "no kill came after the new database had its name"


def test_memory_is_bounded_in_bytes(file_url: str, path: Path, saved: Path, tmp_path: Path) -> None:
    fill(file_url)
    with closing(sqlite3.connect(path)) as db:
        rows = ((f"large-{number}", b"x" * 100_000) for number in range(400))
        db.executemany("INSERT INTO entries VALUES (?, 1, 1, 'text', ?)", rows)
        db.commit()
    tracemalloc.start()
    save(file_url, saved)
    backup.restore(saved, f"sqlite:///{tmp_path / 'restored.db'}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25_000_000


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE tasks (id INTEGER)",
        "CREATE TABLE notes (text)",
        "CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES ('ae1027')",
    ],
)
def test_a_database_of_another_program_is_never_replaced(
    made: str, file_url: str, path: Path, saved: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(made)
    before = path.read_bytes()
    other = f"sqlite:///{tmp_path / 'ours.db'}"
    fill(other)
    save(other, saved)
    for force in (False, True):
        with pytest.raises(ForeignDatabase):
            backup.restore(saved, file_url, force=force)
        assert path.read_bytes() == before
    with pytest.raises((ForeignDatabase, NoDatabase, SchemaTooNew)):
        save(file_url, tmp_path / "never")


def test_tables_of_another_program_on_a_server_are_left_alone(
    postgres: Postgres, file_url: str, saved: Path
) -> None:
    fill(file_url)
    save(file_url, saved)
    url = postgres.emptied()
    for made in (
        "CREATE TABLE sessions (id int)",
        "DROP TABLE sessions; CREATE TABLE alembic_version (version_num text); "
        "INSERT INTO alembic_version VALUES ('ae1027')",
    ):
        postgres.say(made)
        before = postgres.say(COLUMNS)
        with pytest.raises(ForeignDatabase):
            backup.restore(saved, url, force=True)
        assert postgres.say(COLUMNS) == before
    postgres.emptied()
    postgres.say("CREATE TABLE notes (id int)")  # beside ours
    backup.restore(saved, url)
    assert postgres.say("SELECT count(*) FROM notes") == [(0,)]


def test_tables_that_somebody_added_to_an_empty_file_are_kept(
    file_url: str, path: Path, saved: Path, tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path / 'ours.db'}"
    fill(other)
    save(other, saved)
    with opened(file_url, make=True) as engine, engine.begin() as db:
        create(db)
        db.execute(text("CREATE TABLE notes (text)"))
    with pytest.raises(backup.HoldsData):
        backup.restore(saved, file_url)
    assert backup.restore(saved, file_url, force=True).kept is not None
