"""When a node sees to the tasks of others: not before it has itself been there for long enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from opencode_a2a.domain.nodes import Node
from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.service.cluster import BEAT_SECONDS, Cluster, NodeStore
from tests.store.support import Clock

RETURN_MS = 60_000
BEAT_MS = int(BEAT_SECONDS * 1_000)


@dataclass
class Database:
    """The rows of nodes, which can be out of reach, and what is done with tasks."""

    clock: Clock
    away: bool = False
    done: list[str] = field(default_factory=list)
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
        self.done.append("adopt")
        return []

    async def note_lost(self, since: int, *, return_ms: int) -> Sequence[str]:
        self.done.append("note")
        return []

    async def fail_abandoned(self, before: int) -> Sequence[str]:
        self.done.append("fail")
        return []


def _fields(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in Node.__slots__}


def cluster(database: Database) -> Cluster:
    here = Node("here", "here", opencode="oc", root="/w", load=1)
    store = cast(NodeStore, database)
    return Cluster(store, lambda: here, log=database, return_ms=RETURN_MS)


async def beats(node: Cluster, database: Database, *, until: int) -> set[str]:
    """What is done with the tasks of others until then."""
    database.done.clear()
    while database.clock.now < until:
        await node.look()
        database.clock.now += BEAT_MS
    return set(database.done)


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
