"""What becomes of the tasks of a node that is gone, by the rows of a PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencode_a2a.domain.nodes import Node
from opencode_a2a.domain.updates import (
    InterruptOpened,
    MessageAdded,
    NodeLost,
    NodeReturned,
    Started,
)
from opencode_a2a.domain.values import (
    Isolation,
    PermissionAsk,
    Selection,
    SessionRef,
    TaskQuery,
    TaskState,
)
from opencode_a2a.errors import UnsupportedOperation
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import LEASE
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.statements import ADOPTION_MS, SWEEP_ROWS
from tests.postgres import Postgres
from tests.store.support import HELLO, OWNER, Clock, claimed_ids, delta, head, rest, soon
from tests.store.test_sharing import process

RETURN_MS = 60_000
STARTED = Started("ses_1", "title")
MINE = Node("h-two", "two", opencode="two", root="", labels=frozenset({"gpu"}))


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.without_tasks()


def saw(postgres: Postgres, opencode: str, at: int) -> None:
    """A node of this OpenCode was seen then."""
    postgres.say(f"DELETE FROM nodes WHERE holder = 'h-{opencode}'")
    columns = "holder, name, opencode, root, labels, version, opencode_version, capacity, load"
    values = f"'h-{opencode}', '{opencode}', '{opencode}', '', '[]', '1', '1', 4, 0"
    postgres.say(
        f"INSERT INTO nodes ({columns}, started_at, seen_at) VALUES ({values}, {at}, {at})"
    )


async def adopted(log: SqlTaskLog, clock: Clock, node: Node = MINE) -> list[str]:
    return list(
        await log.adopt_unstarted(
            node, alive_since=clock.now - LEASE, return_since=clock.now - RETURN_MS
        )
    )


async def test_a_task_says_that_it_waits_for_its_node_and_that_one_is_back(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as paused:
        await paused.create(head("t"), [HELLO, STARTED, delta("so far")])
        reader = other.follow("t", 3)
        seen_at, held_until = clock.now, clock.now + LEASE
        clock.outlast_leases()
        assert await other.note_lost(seen_at, return_ms=RETURN_MS) == [], "it was seen just then"
        assert await other.note_lost(clock.now, return_ms=RETURN_MS) == ["t"]
        assert await other.note_lost(clock.now, return_ms=RETURN_MS) == [], "it is said once"
        task = await other.get(OWNER, "t")
        assert (task.state, task.lost) == (TaskState.WORKING, NodeLost("one", held_until + 60_000))
        (row,) = (await other.list(TaskQuery(OWNER))).rows
        assert "waits" in (row.message or "")
        with pytest.raises(UnsupportedOperation):
            await paused.write("t", [delta("unseen")])
        async with process(url, clock, "one") as back:
            assert await claimed_ids(back) == ["t"]
            await back.write("t", [delta(", and more")])
            assert (await back.get(OWNER, "t")).lost is None
            (row,) = (await other.list(TaskQuery(OWNER))).rows
            assert row.message is None
            found = list(await reader.read())
            while len(found) < 3:
                found += await reader.read()
        kinds = [type(entry.update) for entry in found]
        assert kinds[:2] == [NodeLost, NodeReturned]
        assert [entry.seq for entry in found] == [4, 5, 6]


async def test_a_request_of_the_agent_stays_what_a_lost_task_says(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    asked = InterruptOpened(PermissionAsk("per_1", "ses_1", "bash", ("rm",), title="rm"))
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        await log.create(head("t"), [HELLO, STARTED, asked])
        before = (await other.list(TaskQuery(OWNER))).rows[0].message
        clock.outlast_leases()
        assert await other.note_lost(clock.now, return_ms=RETURN_MS) == ["t"]
        (row,) = (await other.list(TaskQuery(OWNER))).rows
        assert (row.state, row.message) == (TaskState.INPUT_REQUIRED, before)
        assert (await other.get(OWNER, "t")).lost is not None


async def test_a_task_that_nobody_returns_for_fails(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        await log.create(head("t"), [HELLO, STARTED])
        await log.create(head("queued", "another"), [HELLO])
        clock.outlast_leases()
        assert set(await other.note_lost(clock.now, return_ms=RETURN_MS)) == {"t", "queued"}
        clock.now += RETURN_MS
        assert await other.fail_abandoned(clock.now - RETURN_MS) == ["t"]
        assert (await other.get(OWNER, "t")).lost is None
        assert (await rest(other.follow("t", 0)))[-1].state is TaskState.FAILED
        clock.now += ADOPTION_MS + 1
        assert await other.fail_abandoned(clock.now - RETURN_MS) == ["queued"]


async def test_what_a_lost_node_has_not_begun_is_begun_by_another_one(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as paused:
        await paused.create(head("begun", "c-1"), [HELLO, STARTED])
        await paused.create(head("unbegun", "c-2"), [HELLO])
        await paused.create(head("behind", "c-1"), [HELLO])
        # Its session was made, but the slot was still to come.
        session = SessionRef("ses_2", "title", "/r")
        async with Database.open(url) as database:
            await SqlBindings(database, opencode="one").bind(OWNER, "c-2", session)
        assert await adopted(other, clock) == [], "it is held"
        clock.outlast_leases()
        assert await adopted(other, replace(clock, now=1_001)) == [], "its node was seen just then"
        assert await adopted(other, clock) == ["unbegun"]
        assert await adopted(other, clock) == []
        assert await claimed_ids(other) == ["unbegun"]
        async with Database.open(url) as database:
            bound = await SqlBindings(database, opencode="two").session_of(OWNER, "c-2")
            assert bound is None, "the next session is made where the task is"
        with pytest.raises(UnsupportedOperation):  # so its first prompt is never sent
            await paused.write("unbegun", [STARTED])
        await other.write("unbegun", [Started("ses_3", "title")])


async def test_what_waits_in_a_conversation_moves_when_its_node_is_given_up(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        async with Database.open(url) as database:
            session = SessionRef("ses_1", "title", "/r/part")
            await SqlBindings(database, opencode="one").bind(OWNER, "context", session)
        await log.create(head("begun"), [HELLO, STARTED])
        await log.create(head("behind", created_at=1_001), [HELLO])
        clock.now += RETURN_MS + LEASE + 1
        assert await adopted(other, clock) == [], "the other one has not ended"
        assert await other.fail_abandoned(clock.now - RETURN_MS) == ["begun"]
        assert await adopted(other, clock) == ["behind"]
        assert await claimed_ids(other) == ["behind"]
        async with Database.open(url) as database:
            bindings = SqlBindings(database, opencode="two")
            assert await bindings.session_of(OWNER, "context") is None
            assert await bindings.former_directory(OWNER, "context") == "/r/part"
            assert await bindings.former_directory(OWNER, "another") is None
        (earlier,) = await other.earlier_tasks(head("behind", created_at=1_001))
        assert (earlier.id, earlier.session, earlier.elsewhere) == ("begun", "ses_1", True)


async def test_what_cannot_move_does_not_keep_others_from_it(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    tied = MessageAdded(HELLO.message, "msg_1", selection=Selection(node="big"))
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        for n in range(SWEEP_ROWS + 1):
            await log.create(head(f"tied-{n}", f"c-{n}", created_at=1_000 + n), [tied])
        await log.create(head("free", "c", created_at=2_000), [HELLO])
        clock.outlast_leases()
        found = [await adopted(other, clock) for _ in range(2)]
        assert found == [[], ["free"]]
        await log.create(head("early", "c-early", created_at=1), [HELLO])
        clock.outlast_leases()
        assert await adopted(other, clock) == ["early"], "then it begins again"


async def test_the_tasks_of_a_context_move_together_or_not_at_all(
    url: str, clock: Clock, postgres: Postgres
) -> None:
    saw(postgres, "one", clock.now)
    third = replace(MINE, holder="h-three", name="three", opencode="three")
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        for n in range(3):
            await log.create(head(f"t-{n}", created_at=1_000 + n), [HELLO])
        clock.outlast_leases()
        with postgres.locked("SELECT 1 FROM tasks WHERE id = 't-0' FOR UPDATE"):
            assert await adopted(other, clock, third) == [], "another node adopts the oldest"
        postgres.say("UPDATE tasks SET opencode = 'four' WHERE id = 't-2'")
        assert await adopted(other, clock) == []
        postgres.say("UPDATE tasks SET opencode = 'one' WHERE id = 't-2'")
        assert await adopted(other, clock) == ["t-0", "t-1", "t-2"]
        saw(postgres, "two", clock.now)
        assert await adopted(other, clock, third) == []


@pytest.mark.parametrize(
    ("selection", "node", "moves"),
    [
        (Selection(node="gpu"), MINE, True),
        (Selection(node="two"), MINE, True),
        (Selection(node="big"), MINE, False),
        (Selection(), replace(MINE, root="/elsewhere"), False),
        (Selection(isolation=Isolation("/r")), MINE, False),
        (Selection(directory="/r/part"), MINE, True),
        (Selection(session="ses_named"), MINE, False),
    ],
)
async def test_it_moves_only_to_a_node_that_has_what_was_asked_for(
    url: str, clock: Clock, postgres: Postgres, selection: Selection, node: Node, moves: bool
) -> None:
    saw(postgres, "one", clock.now)
    async with soon(), process(url, clock, "two") as other, process(url, clock, "one") as log:
        asked = MessageAdded(HELLO.message, "msg_1", selection=selection)
        await log.create(head("t"), [asked])
        clock.outlast_leases()
        assert await adopted(other, clock, node) == (["t"] if moves else [])
