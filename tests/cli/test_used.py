"""The command `usage`, on a store that a service has written."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pytest

from opencode_a2a.cli import main
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.cli.commands import Ran, called
from tests.store.support import HELLO, Clock, head
from tests.store.test_usage import NOON, finished

Capture = pytest.CaptureFixture[str]
JANUARY = ("--from", "2027-01-01", "--to", "2027-01-31")


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"

    async def write() -> None:
        async with (
            Database.open(url) as database,
            SqlTaskLog.open(database, clock=Clock(NOON)) as log,
        ):
            for owner in ("alice", "bob"):
                await log.create(head(owner, owner=owner), [HELLO])
                await log.write(owner, [finished(f"{owner}-1"), finished(f"{owner}-2")])

    asyncio.run(write())
    return url


def usage(url: str, capsys: Capture, *words: str) -> Ran:
    return called(main, ["usage", *words], {"A2A_TASK_STORE_DATABASE_URL": url}, capsys)


def test_what_callers_have_used_is_a_table(store: str, capsys: Capture) -> None:
    ran = usage(store, capsys, *JANUARY)
    assert (ran.code, ran.err) == (0, "")
    first, alice, bob = ran.out.splitlines()
    assert first.split()[:6] == ["DAY", "PRINCIPAL", "MODEL", "STEPS", "INPUT", "OUTPUT"]
    assert alice.split() == (
        ["2027-01-15", "alice", "demo/small", "2", "10", "8", "6", "4", "2", "30", "0.200000"]
    )
    assert bob.split()[1] == "bob"


def test_or_csv_or_json_by_what_one_wants_to_know(store: str, capsys: Capture) -> None:
    ran = usage(store, capsys, *JANUARY, "--by", "principal", "--csv")
    rows = list(csv.DictReader(ran.out.splitlines()))
    assert [(row["principal"], row["total_tokens"]) for row in rows] == [
        ("alice", "30"),
        ("bob", "30"),
    ]
    assert rows[0]["cost"] == "0.200000000", "spreadsheets take 1e-06 for a text"
    ran = usage(store, capsys, *JANUARY, "--by", "model", "--principal", "bob", "--json")
    [only] = json.loads(ran.out)
    assert (only["model"], only["steps"], only["cost"]) == ("demo/small", 2, 0.2)
    ran = usage(store, capsys, "--from", "2020-01-01", "--to", "2020-01-02", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--by", "hour"), "--by: 'hour' is none of day, principal, model"),
        (("--from", "soon"), "--from: must be a day such as 2026-01-31, not 'soon'"),
    ],
)
def test_wrong_words_are_named(
    store: str, capsys: Capture, words: tuple[str, ...], problem: str
) -> None:
    ran = usage(store, capsys, *words)
    assert (ran.code, ran.problems) == (2, [problem])


def test_where_nothing_is_stored_it_says_so(tmp_path: Path, capsys: Capture) -> None:
    ran = usage(f"sqlite:///{tmp_path / 'none.db'}", capsys)
    assert ran.code == 1
    assert "nothing is stored" in ran.err
    assert not list(tmp_path.glob("none.db*"))
