"""The command `nodes`, on a PostgreSQL that is used by nobody."""

from __future__ import annotations

import asyncio
import json

import pytest

from opencode_a2a.cli import main
from opencode_a2a.domain.nodes import Node
from opencode_a2a.store.database import Database
from opencode_a2a.store.nodes import SqlNodes
from tests.postgres import Postgres


def run(
    words: list[str], url: str, capsys: pytest.CaptureFixture[str], mp: pytest.MonkeyPatch
) -> tuple[int, str]:
    mp.setenv("A2A_TASK_STORE_DATABASE_URL", url)
    with pytest.raises(SystemExit) as ended:
        main(["nodes", *words])
    said = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 1), said.out + said.err


def test_nodes_are_listed_and_drained(
    postgres: Postgres, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.without_tasks()
    node = Node("h/1", "node-1", "oc", "/w", labels=frozenset({"gpu"}), capacity=4, load=2)

    async def beat() -> None:
        async with Database.open(url) as database:
            await SqlNodes(database, "h/1").beat(node)

    asyncio.run(beat())
    code, said = run(["list"], url, capsys, monkeypatch)
    assert code == 0
    assert "node-1" in said
    assert "running" in said
    assert "2/4" in said
    code, said = run(["drain", "node-1"], url, capsys, monkeypatch)
    assert code == 0
    code, said = run(["list", "--json"], url, capsys, monkeypatch)
    (found,) = json.loads(said)
    assert found["state"] == "draining"
    asyncio.run(beat())
    assert run(["resume", "node-1"], url, capsys, monkeypatch)[0] == 0
    (found,) = json.loads(run(["list", "--json"], url, capsys, monkeypatch)[1])
    assert found["state"] == "running"
    code, said = run(["drain", "nobody"], url, capsys, monkeypatch)
    assert code == 1
    assert "no running node nobody" in said


def test_only_processes_on_a_server_are_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = run(["list"], "sqlite:///x.db", capsys, monkeypatch)
    assert code == 2
    assert "PostgreSQL" in said
