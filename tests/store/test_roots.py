"""Which workspace root rows belong to."""

from __future__ import annotations

import pytest

from opencode_a2a.domain.updates import InterruptOpened
from opencode_a2a.domain.values import (
    PermissionAsk,
    SessionRef,
    TaskQuery,
)
from opencode_a2a.errors import OtherWorkspace, SessionForbidden, TaskNotFound
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from opencode_a2a.store.interrupts import SqlInterrupts
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import HELLO, OWNER, Clock, claimed_ids, head, soon

A, B = "/work/a", "/work/b"


# -- one database, several roots


async def test_a_process_takes_up_tasks_of_its_own_root_only(
    database: Database, clock: Clock
) -> None:
    async with soon():
        async with SqlTaskLog.open(database, clock=clock, root=A) as ours:
            await ours.create(head("a"), [HELLO])
        async with SqlTaskLog.open(database, clock=clock, root=B) as theirs:
            await theirs.create(head("b"), [HELLO])
            assert await claimed_ids(theirs) == []
        for mine, task in ((B, "b"), (A, "a")):
            async with SqlTaskLog.open(database, clock=clock, root=mine) as log:
                assert await claimed_ids(log) == [task]


async def test_a_task_of_another_root_can_be_read_and_not_acted_on(
    database: Database, clock: Clock
) -> None:
    async with (
        soon(),
        SqlTaskLog.open(database, clock=clock, root=A) as ours,
        SqlTaskLog.open(database, clock=clock, root=B) as theirs,
    ):
        await ours.create(head("t"), [HELLO])
        assert (await ours.get_own(OWNER, "t")).messages == [HELLO.message]
        assert (await theirs.get(OWNER, "t")).messages == [HELLO.message]
        assert (await theirs.list(TaskQuery(OWNER))).total == 1
        with pytest.raises(OtherWorkspace, match="/work/a"):
            await theirs.get_own(OWNER, "t")
        with pytest.raises(TaskNotFound):  # to anybody else its root does not exist either
            await theirs.get_own("bob", "t")


async def test_a_context_belongs_to_the_root_of_its_session_or_of_what_waits_in_it(
    database: Database, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock, root=B) as theirs:
        bindings, other_root = SqlBindings(database, A), SqlBindings(database, B)
        await bindings.bind(OWNER, "bound", SessionRef("ses_1", directory="/work/a"))
        async with SqlTaskLog.open(database, clock=clock, root=A) as ours:
            await ours.create(head("t", "waiting"), [HELLO])
            for context in ("bound", "waiting", "new"):
                await ours.check_context(OWNER, context)
        for context in ("bound", "waiting"):
            with pytest.raises(OtherWorkspace, match="/work/a"):
                await theirs.check_context(OWNER, context)
            await theirs.check_context("bob", context)
        await theirs.check_context(OWNER, "new")
        assert (await bindings.session_of(OWNER, "bound")) is not None
        with pytest.raises(OtherWorkspace):
            await other_root.session_of(OWNER, "bound")
        with pytest.raises(SessionForbidden, match="/work/a"):
            await other_root.claim(OWNER, SessionRef("ses_1"))
        with pytest.raises(SessionForbidden):
            await other_root.bind(OWNER, "other", SessionRef("ses_1"))


async def test_of_two_roots_that_begin_one_context_at_once_the_second_finds_the_first(
    database: Database,
) -> None:
    async with soon():
        first, second = SqlBindings(database, A), SqlBindings(database, B)
        await first.bind(OWNER, "c", SessionRef("ses_a", directory="/work/a"))
        with pytest.raises(Exception, match=r"task store|another use"):
            await second.bind(OWNER, "c", SessionRef("ses_b", directory="/work/b"))
        with pytest.raises(OtherWorkspace):
            await second.session_of(OWNER, "c")


async def test_requests_of_the_agent_are_listed_in_their_root_only(
    database: Database, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock, root=A) as log:
        await log.create(head("t"), [HELLO, InterruptOpened(PermissionAsk("per_1", "s", "bash"))])
        assert [p.task_id for p in await SqlInterrupts(database, A).pending(OWNER)] == ["t"]
        assert await SqlInterrupts(database, B).pending(OWNER) == []
