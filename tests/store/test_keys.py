"""Keys of repeated requests: one key stands for one task, in every process."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, func, select

from opencode_a2a.domain.ports import Key, KeyTaken
from opencode_a2a.domain.task import Task
from opencode_a2a.domain.values import TaskQuery
from opencode_a2a.errors import ServiceError, TaskNotFound, UnsupportedOperation
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.tables import keys
from tests.store.support import DONE, HELLO, OWNER, Clock, claimed_ids, head, rest, soon, step

KEY = Key("key:1", "digest", 1_000)
OTHER = Key("key:2", "digest", 1_000)


def _stored_keys(db: Connection) -> int:
    return db.execute(select(func.count()).select_from(keys)).scalar_one()


async def test_a_key_stands_for_the_task_it_came_with(database: Database, log: SqlTaskLog) -> None:
    async with soon(), SqlTaskLog.open(database) as another:
        assert await log.known(OWNER, KEY.name) is None
        await log.create(head("t"), [HELLO], [KEY, OTHER])
        for found in (log, another):
            assert await found.known(OWNER, KEY.name) == ("t", "digest")
            assert await found.known(OWNER, OTHER.name) == ("t", "digest")
            assert await found.known("bob", KEY.name) is None
            assert await found.known(OWNER, "key:3") is None
        await log.write("t", [DONE])
        assert await log.known(OWNER, KEY.name) == ("t", "digest")


async def test_the_same_key_again_makes_no_task(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO], [KEY])
        with pytest.raises(KeyTaken):
            await log.create(head("u"), [HELLO], [Key(KEY.name, "another digest", 2_000)])
        assert not log.is_mine("u")
        with pytest.raises(TaskNotFound):
            await log.get(OWNER, "u")
        assert await rest(log.follow("u", 0)) == []
        assert await log.known(OWNER, KEY.name) == ("t", "digest")
        assert (await log.list(TaskQuery(OWNER))).total == 1
        await log.create(head("v", owner="bob"), [HELLO], [KEY])  # a key is its caller's own


async def test_a_task_that_is_refused_takes_none_of_its_keys(
    database: Database, log: SqlTaskLog
) -> None:
    async with soon():
        await log.create(head("t"), [HELLO], [KEY])
        for keys in ([OTHER, KEY], [KEY, OTHER]):
            with pytest.raises(KeyTaken):
                await log.create(head("u"), [HELLO], keys)
        assert await log.known(OWNER, OTHER.name) is None
        assert await database.read(_stored_keys) == 1
        await log.create(head("u"), [HELLO], [OTHER])


async def test_of_many_at_once_one_is_first(log: SqlTaskLog, commits: list[Connection]) -> None:
    async with soon():
        answers = await asyncio.gather(
            *(log.create(head(f"t-{n}"), [HELLO], [KEY]) for n in range(20)),
            log.create(head("bystander"), [HELLO], [OTHER]),
            return_exceptions=True,
        )
        assert len(commits) == 1
        made = [answer.head.id for answer in answers if isinstance(answer, Task)]
        refused = [answer for answer in answers if isinstance(answer, KeyTaken)]
        assert (made, len(refused)) == (["t-0", "bystander"], 19)
        page = await log.list(TaskQuery(OWNER))
        assert {row.head.id for row in page.rows} == set(made)
        assert await log.known(OWNER, KEY.name) == ("t-0", "digest")


async def test_of_two_processes_one_is_first(file_url: str) -> None:
    async with (
        soon(),
        Database.open(file_url) as here,
        Database.open(file_url) as there,
        SqlTaskLog.open(here) as log,
        SqlTaskLog.open(there) as another,
    ):
        for n in range(20):
            key = Key(f"key:{n}", "digest", n)
            answers = await asyncio.gather(
                log.create(head(f"a-{n}"), [HELLO], [key]),
                another.create(head(f"b-{n}"), [HELLO], [key]),
                return_exceptions=True,
            )
            assert {type(answer) for answer in answers} == {Task, KeyTaken}
            (made,) = (answer.head.id for answer in answers if isinstance(answer, Task))
            for asked in (log, another):
                assert await asked.known(OWNER, key.name) == (made, "digest")
        assert (await log.list(TaskQuery(OWNER))).total == 20


async def test_another_refusal_is_not_taken_for_a_taken_key(
    database: Database, log: SqlTaskLog
) -> None:
    """A caller that gets `KeyTaken` looks for the task of the key, so there must be one."""
    async with soon(), SqlTaskLog.open(database) as another:
        await log.create(head("t"), [HELLO])
        with pytest.raises(ServiceError):
            await another.create(head("t"), [HELLO], [KEY])
        assert await log.known(OWNER, KEY.name) is None


# -- writing more


async def test_later_writes_have_keys_too(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO], [KEY])
        await log.write("t", [step(1)], [OTHER])
        assert await log.known(OWNER, OTHER.name) == ("t", "digest")
        with pytest.raises(KeyTaken):
            await log.create(head("u"), [HELLO], [OTHER])
        for keys in ([Key(OTHER.name, "another", 2_000)], [KEY, Key("key:3", "digest", 2_000)]):
            with pytest.raises(KeyTaken):
                await log.write("t", [step(2)], keys)
        assert (await log.get(OWNER, "t")).last_seq == 2
        assert await log.known(OWNER, OTHER.name) == ("t", "digest")
        assert await log.known(OWNER, "key:3") is None


async def test_updates_beside_a_repeated_request_are_not_lost(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        await log.create(head("u"), [HELLO], [KEY])
        cursor = log.follow("t", 1)
        log.append("t", [step(1)])
        answers = await asyncio.gather(
            log.write("t", [step(2)], [KEY]),
            log.write("t", [step(3)], [OTHER]),
            log.write("t", [step(4)]),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [KeyTaken, type(None), type(None)]
        await log.write("t", [DONE])
        received = await rest(cursor)
        assert [entry.update for entry in received] == [step(1), step(3), step(4), DONE]
        assert [entry.seq for entry in received] == [2, 3, 4, 5]
        assert await log.known(OWNER, OTHER.name) == ("t", "digest")


async def test_the_same_key_twice_at_once_is_accepted_once(log: SqlTaskLog) -> None:
    async with soon():
        await log.create(head("t"), [HELLO])
        writing = (log.write("t", [step(n)], [KEY]) for n in range(3))
        answers = await asyncio.gather(*writing, return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None), KeyTaken, KeyTaken]
        assert (await log.get(OWNER, "t")).last_seq == 2
        assert await log.known(OWNER, KEY.name) == ("t", "digest")


@pytest.mark.parametrize("ended", [False, True])
async def test_a_write_that_failed_leaves_no_key(
    database: Database, log: SqlTaskLog, clock: Clock, ended: bool
) -> None:
    async with soon(), SqlTaskLog.open(database, clock=clock) as another:
        await log.create(head("t"), [HELLO])
        clock.outlast_leases()
        assert await claimed_ids(another) == ["t"]
        await another.write("t", [DONE if ended else step(1)])
        with pytest.raises(UnsupportedOperation):
            await log.write("t", [step(2)], [KEY])
        assert await log.known(OWNER, KEY.name) is None


async def test_a_task_whose_caller_could_not_be_answered_is_there_when_it_is_asked_for_again(
    log: SqlTaskLog,
) -> None:
    async with soon():
        creating = asyncio.create_task(log.create(head("t"), [HELLO], [KEY]))
        await asyncio.sleep(0)  # it is to be written
        creating.cancel()  # such as when the service stops
        await asyncio.gather(creating, return_exceptions=True)
        while log.is_mine("t"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await log.known(OWNER, KEY.name) == ("t", KEY.digest)
        assert (await log.get(OWNER, "t")).ended is None
        assert await claimed_ids(log) == ["t"], "somebody works on it"
