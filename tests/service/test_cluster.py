"""When a node sees to the tasks of others: not before it has itself been there for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from opencode_a2a.domain.nodes import Node
from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.service.cluster import BEAT_SECONDS, Cluster, NodeStore
from opencode_a2a.store.nodes import Command as StoredCommand
from tests.store.support import Clock

RETURN_MS = 60_000
BEAT_MS = int(BEAT_SECONDS * 1_000)


@dataclass
class Database:
    """The rows of nodes, which can be out of reach, and what is done with tasks."""

    clock: Clock
    away: bool = False
    tended: list[str] = field(default_factory=list)
    draining: bool = False
    holder: str = "here"
    started_at: int = 0

    def on_words(self, listener: Callable[[list[str]], None]) -> Callable[[], None]:
        return lambda: None

    async def beat(self, node: Node) -> Sequence[Node]:
        if self.away:
            raise StoreUnavailable("The server is away.")
        self.started_at = self.started_at or self.clock.now
        here = Node("here", "here", opencode="oc", root="/w", draining=self.draining)
        return [Node(**{**_fields(here), "seen_at": self.clock.now, "started_at": self.started_at})]

    async def adopt_unstarted(self, mine: Node, **times: int) -> Sequence[str]:
        self.tended.append("adopt")
        return []

    async def note_lost(self, since: int, *, return_ms: int) -> Sequence[str]:
        self.tended.append("note")
        return []

    async def fail_abandoned(self, before: int) -> Sequence[str]:
        self.tended.append("fail")
        return []


def _fields(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in Node.__slots__}


def cluster(database: Database) -> Cluster:
    here = Node("here", "here", opencode="oc", root="/w", load=1)
    store = cast(NodeStore, database)
    return Cluster(store, lambda: here, log=database, return_ms=RETURN_MS)


async def beats(node: Cluster, database: Database, *, until: int) -> set[str]:
    """What is done with the tasks of others until then."""
    database.tended.clear()
    while database.clock.now < until:
        await node.look()
        database.clock.now += BEAT_MS
    return set(database.tended)


async def test_whoever_has_just_started_leaves_the_tasks_of_others_alone() -> None:
    database = Database(Clock(0 + BEAT_MS))
    node = cluster(database)
    assert await beats(node, database, until=10_000) == set()
    assert await beats(node, database, until=16_000) == {"adopt"}
    assert await beats(node, database, until=60_000) == {"adopt", "note"}
    assert await beats(node, database, until=70_000) == {"adopt", "note", "fail"}


async def test_whoever_was_cut_off_from_the_database_leaves_them_alone_as_well() -> None:
    """All others look as if they were gone, and they were cut off too."""
    database = Database(Clock(BEAT_MS))
    node = cluster(database)
    assert "fail" in await beats(node, database, until=100_000)
    database.away = True
    assert await beats(node, database, until=400_000) == set()
    database.away = False
    assert await beats(node, database, until=410_000) == set()
    assert await beats(node, database, until=460_000) == {"adopt", "note"}
    assert "fail" in await beats(node, database, until=480_000)


async def test_a_node_that_is_being_drained_adopts_nothing() -> None:
    database = Database(Clock(BEAT_MS), draining=True)
    assert "adopt" not in await beats(cluster(database), database, until=100_000)


@dataclass
class Commands(Database):
    """One command for this node. Its result can be stored as long as the server is there."""

    taken: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)
    results: list[bytes] = field(default_factory=list)

    async def take(self, begun: Collection[str]) -> Sequence[StoredCommand]:
        first, self.taken = not self.taken, True
        return [StoredCommand("c-1", "hang", b"{}")] if first else []

    async def done(self, command_id: str, result: bytes) -> None:
        if self.away:
            raise StoreUnavailable("The server is away.")
        self.results.append(result)

    async def leave(self) -> None:
        if self.away:
            raise StoreUnavailable("The server is away.")


@pytest.mark.parametrize("away", [True, False])
async def test_a_node_stops_although_a_command_hangs(
    away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it can still say so."""
    monkeypatch.setattr("opencode_a2a.service.cluster.GOODBYE_SECONDS", 0.01)
    database = Commands(Clock(BEAT_MS))
    node = cluster(database)

    async def hang(_: object) -> None:
        database.began.set()
        await asyncio.Future()

    node.handlers["hang"] = hang
    async with asyncio.timeout(20):
        async with node.running():
            node._asked.set()
            await database.began.wait()
            database.away = away
    assert [orjson.loads(each)["error"]["type"] for each in database.results] == (
        [] if away else ["OUTCOME_UNKNOWN"]
    )
