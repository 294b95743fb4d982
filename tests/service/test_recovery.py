"""Taking over many tasks, and one that cannot be taken over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from opencode_a2a.domain.task import Task, TaskHead
from opencode_a2a.domain.updates import MessageAdded, Progress
from opencode_a2a.domain.values import Failure, Message, Role, TaskState, Text
from opencode_a2a.service.inputs import Inputs
from opencode_a2a.service.recovery import Recovery
from opencode_a2a.store import statements
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.fakes.session import PATIENCE, ScriptedAgent
from tests.service.house import ALICE, House, NoFiles, answers, house
from tests.store.support import HELLO


def recovering(at: House, every: float = 60) -> Any:
    return Recovery.open(
        at.log, at.scheduler, inputs=Inputs(NoFiles(), 1 << 20, 1 << 20), every=every
    )


async def test_a_task_that_cannot_be_resumed_fails_and_the_others_go_on(tmp_path: Path) -> None:
    url, agent = f"sqlite:///{tmp_path / 'tasks.db'}", ScriptedAgent()
    async with house(url=url, agent=agent) as at:
        # Nobody knows what was asked, so nobody can ask it again.
        await at.log.create(
            TaskHead("bad", "b", ALICE.principal, 1), [Progress("step-start", "one")]
        )
        hello = MessageAdded(Message("m-1", Role.USER, (Text("hello"),)), "msg_1")
        await at.log.create(TaskHead("good", "c", ALICE.principal, 2), [hello])
    async with asyncio.timeout(PATIENCE), house(url=url, agent=agent) as at, recovering(at):
        failed = await at.ended("bad")
        assert failed.state is TaskState.FAILED
        assert failed.ended is not None
        assert failed.ended.problem is not None
        assert failed.ended.problem.type is Failure.INTERNAL
        await agent.until(lambda: bool(agent.sessions))
        await agent.of("c").until_asked("hello")
        agent.of("c").answer("HELLO")
        assert answers(await at.ended("good")) == ["HELLO"]


class CountedRenewals(SqlTaskLog):
    """A log that says when the leases have been renewed three times."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.renewals = 0
        self.renewed = threading.Event()

    async def renew_leases(self) -> Sequence[str]:
        asked = await super().renew_leases()
        self.renewals += 1
        if self.renewals >= 3:
            self.renewed.set()
        return asked


class NotedOnly:
    """A scheduler that notes what it is to resume."""

    def __init__(self) -> None:
        self.resumed: list[str] = []

    def resume(self, task: Task, **_: object) -> None:
        self.resumed.append(task.head.id)


async def test_leases_are_renewed_while_others_are_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what is being claimed: it takes a while to read."""
    async with (
        asyncio.timeout(PATIENCE),
        Database.open(f"sqlite:///{tmp_path / 't.db'}") as database,
    ):
        async with SqlTaskLog.open(database) as former:
            await former.create(TaskHead("t", "c", ALICE.principal, 1), [HELLO])
        async with CountedRenewals.open(database) as log:
            assert isinstance(log, CountedRenewals)
            load = statements.load

            def load_slowly(db: Connection, task_id: str) -> Task | None:
                assert log.renewed.wait(PATIENCE)
                return load(db, task_id)

            monkeypatch.setattr(statements, "load", load_slowly)
            scheduler = NotedOnly()
            async with Recovery.open(log, scheduler, inputs=None, every=0.01):  # type: ignore[arg-type]
                assert scheduler.resumed == ["t"]
                assert log.is_mine("t")
