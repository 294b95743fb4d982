"""When a node sees to the tasks of others: not before it has itself been there for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson
import pytest

from opencode_a2a.domain.nodes import ALIVE_MS, Node, Whereabouts
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import Caller, Message, Role, Text
from opencode_a2a.errors import OutcomeUnknown, StoreUnavailable
from opencode_a2a.inbound.dialect import V1, Dialect
from opencode_a2a.inbound.forwarding import Forwarding
from opencode_a2a.observe.tracing import SpanRef
from opencode_a2a.service.cluster import BEAT_SECONDS, Cluster, NodeStore
from opencode_a2a.service.tasks import Request
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

    kind: str = "hang"
    began: asyncio.Event = field(default_factory=asyncio.Event)
    results: list[bytes] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)  # of the next attempts to store a result
    looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def take(self, begun: Collection[str]) -> Sequence[StoredCommand]:
        self.looks.release()
        command = StoredCommand("c-1", self.kind, b"{}")
        return [command] if command.id not in begun and not self.results else []

    async def done(self, command_id: str, result: bytes) -> None:
        if self.faults:
            raise self.faults.pop(0)
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
    monkeypatch.setattr("opencode_a2a.service.cluster.STOP_TIMEOUT_SECONDS", 0.01)
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


@pytest.mark.parametrize("faults", [[], [RuntimeError("a mistake of ours")] * 3])
@pytest.mark.parametrize("value", [1, 2**70], ids=["a result", "what cannot be encoded"])
async def test_a_command_is_done_once(
    value: int, faults: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of its result, which may be no JSON, or not be stored at first."""
    monkeypatch.setattr("opencode_a2a.service.cluster.POLL_SECONDS", 0.01)
    database = Commands(Clock(BEAT_MS), kind="count", faults=list(faults))
    node = cluster(database)
    done = 0

    async def count(_: object) -> object:
        nonlocal done
        done += 1
        return {"value": value}

    node.handlers["count"] = count
    async with asyncio.timeout(20), node.running():
        while not database.results:
            await database.looks.acquire()
        for _ in range(5):
            await database.looks.acquire()
    (result,) = database.results
    if value == 1:
        assert orjson.loads(result) == {"result": {"value": 1}}
    else:
        assert orjson.loads(result)["error"]["type"] == "INTERNAL_ERROR"
    assert done == 1


@dataclass
class GoneAfterTaking(Database):
    """Another node takes every command and dies. Then nobody can use the database any more."""

    asked: int = 0

    async def beat(self, node: Node) -> Sequence[Node]:
        (here,) = await super().beat(node)
        return [here, replace(here, holder="there", name="there", opencode="other")]

    async def of_task(self, owner: str, task_id: str) -> Whereabouts | None:
        if self.away:
            raise StoreUnavailable.nothing_changed()
        return Whereabouts(holder="there", opencode="other", root="/w")

    async def ask(self, command_id: str, kind: str, body: bytes, *, holder: str) -> None:
        self.asked += 1

    async def result(self, command_id: str) -> tuple[bool, bytes | None] | None:
        self.clock.now += ALIVE_MS + 1
        self.away = True
        return True, None


async def test_what_a_node_may_have_done_is_not_said_to_have_changed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opencode_a2a.service.cluster.POLL_SECONDS", 0.01)
    database = GoneAfterTaking(Clock(BEAT_MS))
    node = cluster(database)
    await node.look()
    unused = cast(Any, None)
    forwarding = Forwarding(node, tasks=unused, contract=unused)
    async with asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown):
            await forwarding.cancel(Caller("alice"), "t")
    assert database.asked == 1


class StoredAndAway:
    """Tasks that cannot be read or made any more."""

    async def get(self, *_: object) -> Task:
        raise StoreUnavailable.nothing_changed()

    find = send = get


@pytest.mark.parametrize("answered", [True, False])
async def test_a_message_that_a_node_has_taken_is_not_said_to_be_refused(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencode_a2a.service.cluster.POLL_SECONDS", 0.01)
    database = AnswersOnce(Clock(BEAT_MS), answered=answered)
    node = cluster(database)
    await node.look()
    forwarding = Forwarding(node, cast(Any, StoredAndAway()), contract=cast(Any, None))
    message = Message("m-1", Role.USER, (Text("hello"),))
    async with asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown):
            await forwarding.send(Sent(), Request(message, task_id="t"))


@dataclass
class AnswersOnce(GoneAfterTaking):
    """The task is here by the time that the other node is gone, or has said what it did."""

    answered: bool = True

    async def of_task(self, owner: str, task_id: str) -> Whereabouts | None:
        return Whereabouts() if self.asked else await super().of_task(owner, task_id)

    async def result(self, command_id: str) -> tuple[bool, bytes | None] | None:
        if self.answered:
            return True, orjson.dumps({"result": {"task": "t"}})
        return await super().result(command_id)

    async def forget(self, command_id: str) -> None:
        pass


@dataclass
class Sent:
    """A message, as far as another node has to know."""

    caller: Caller = Caller("alice")
    dialect: Dialect = V1
    params: Any = None
    idempotency_key: str | None = None
    depth: str | None = None
    trace: SpanRef = SpanRef("0" * 32, "0" * 16, sampled=False)
