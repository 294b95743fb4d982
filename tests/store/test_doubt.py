"""A commit that is not answered: what callers get meanwhile, and how it is settled.

On PostgreSQL the connection is really cut around a COMMIT. On SQLite the driver says that the
commit failed, whether it did or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from opencode_a2a.domain.ports import Key, KeyTaken
from opencode_a2a.domain.values import SessionRef, TaskState
from opencode_a2a.errors import OutcomeUnknown, StoreUnavailable, TaskNotFound
from opencode_a2a.store import log as log_module
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.nodes import SqlNodes
from tests.fakes.driver import Driver
from tests.postgres import Cut, Postgres, Wire
from tests.store.support import (
    DONE,
    HELLO,
    OWNER,
    Clock,
    claim_all,
    claimed_ids,
    delta,
    head,
    numbers,
    rest,
    settle,
    settled,
    soon,
    step,
)

KEY = Key("key:1", "digest", 1_000)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "RETRY_SECONDS", (0.01, 0.02, 0.05))
    monkeypatch.setattr(log_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(log_module, "DOUBT_SECONDS", 30.0)
    monkeypatch.setattr(log_module, "COMMIT_SECONDS", 30.0)


@pytest.fixture
def in_a_hurry(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers get `OutcomeUnknown` after a short time."""
    monkeypatch.setattr(log_module, "DOUBT_SECONDS", 0.1)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlTaskLog]:
    async with Database.open(url) as database, SqlTaskLog.open(database, clock=Clock()) as log:
        yield log


# -- PostgreSQL: the connection is cut


@pytest.fixture
def wire(postgres: Postgres) -> Iterator[Wire]:
    postgres.without_tasks()
    with Wire.laid(postgres.port) as wire:
        yield wire


@pytest.fixture
async def cut_log(postgres: Postgres, wire: Wire) -> AsyncIterator[SqlTaskLog]:
    """A log on PostgreSQL, through a connection that the test can cut."""
    async with opened(postgres.url(wire)) as log:
        yield log


async def test_a_task_whose_commit_was_done_but_not_answered_is_acknowledged(
    cut_log: SqlTaskLog, wire: Wire
) -> None:
    async with soon():
        wire.cut = "after"
        task = await cut_log.create(head("t"), [HELLO], [KEY])
        assert wire.cuts == 1
        assert task.last_seq == 1
        assert cut_log.is_mine("t")
        await cut_log.write("t", [DONE])
        assert numbers(await rest(cut_log.follow("t", 0))) == [1, 2]
        assert await cut_log.known(OWNER, KEY.name) == ("t", KEY.digest)


async def test_a_task_that_was_not_stored_is_refused_as_if_nothing_had_been_sent(
    cut_log: SqlTaskLog, wire: Wire
) -> None:
    async with soon():
        wire.cut = "before"
        with pytest.raises(StoreUnavailable) as refusal:
            await cut_log.create(head("t"), [HELLO], [KEY])
        assert not isinstance(refusal.value, OutcomeUnknown)
        assert "Nothing was changed" in refusal.value.message
        with pytest.raises(TaskNotFound):
            await cut_log.get(OWNER, "t")
        await cut_log.create(head("again"), [HELLO], [KEY])


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_while_the_database_is_away_the_outcome_is_unknown_and_settled_later(
    cut_log: SqlTaskLog, wire: Wire, cut: Cut
) -> None:
    async with soon():
        wire.cut, wire.away_after = cut, True
        with pytest.raises(OutcomeUnknown) as refusal:
            await cut_log.create(head("t"), [HELLO], [KEY])
        assert "Nothing was changed" not in refusal.value.message
        assert "Idempotency-Key" in refusal.value.message
        assert "messageId" in refusal.value.message
        assert refusal.value.retry_after
        with pytest.raises(StoreUnavailable) as refused:  # this one was never sent
            await cut_log.create(head("u"), [HELLO])
        assert "Nothing was changed" in refused.value.message
        wire.away = False
        await settled(cut_log, "t")
        if cut == "before":
            assert await cut_log.known(OWNER, KEY.name) is None
            assert await claimed_ids(cut_log) == []
            await cut_log.create(head("again"), [HELLO], [KEY])
        else:
            assert await cut_log.known(OWNER, KEY.name) == ("t", KEY.digest)
            assert await claimed_ids(cut_log) == ["t"], "it is ours to run"
            assert await claimed_ids(cut_log) == [], "and only once"
            with pytest.raises(KeyTaken):
                await cut_log.create(head("again"), [HELLO], [KEY])
            await cut_log.write("t", [DONE])
        with pytest.raises(TaskNotFound):
            await cut_log.get(OWNER, "u")


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_stream_goes_on_where_it_was_and_repeats_nothing(
    cut_log: SqlTaskLog, wire: Wire, cut: Cut
) -> None:
    async with soon():
        await cut_log.create(head("t"), [HELLO])
        reading = asyncio.create_task(rest(cut_log.follow("t", 1)))
        for n in range(5):
            wire.cut = cut
            cut_log.append("t", [step(2 * n)])
            await settle()
            cut_log.append("t", [step(2 * n + 1)])
            await cut_log.flushed("t")
            assert cut_log.is_mine("t")
        assert wire.cuts == 5
        cut_log.append("t", [DONE])
        received = await reading
        assert [entry.update for entry in received] == [*(step(n) for n in range(10)), DONE]
        assert numbers(received) == list(range(2, 13))


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_an_end_is_stored_once(cut_log: SqlTaskLog, wire: Wire, cut: Cut) -> None:
    async with soon():
        await cut_log.create(head("t"), [HELLO])
        wire.cut = cut
        cut_log.append("t", [delta("the end"), DONE])
        received = await rest(cut_log.follow("t", 1))
        assert [entry.update for entry in received] == [delta("the end"), DONE]
        task = await cut_log.get(OWNER, "t")
        assert (task.state, task.last_seq) == (TaskState.COMPLETED, 3)


async def test_a_commit_that_is_still_under_way_is_waited_for(
    cut_log: SqlTaskLog, wire: Wire
) -> None:
    """The connection is gone, but the server commits later: one early look is not enough."""
    async with soon():
        wire.cut = "between"
        creating = asyncio.create_task(cut_log.create(head("t"), [HELLO], [KEY]))
        await until(lambda: wire.cuts == 1)
        await asyncio.sleep(0.3)  # time for a first look, which finds nothing
        assert not creating.done()
        wire.let_go.set()
        assert (await creating).last_seq == 1
        assert numbers(list(await cut_log.follow("t", 0).read())) == [1]
        wire.let_go.clear()
        wire.cut = "between"
        writing = asyncio.create_task(cut_log.write("t", [step(1)]))
        await until(lambda: wire.cuts == 2)
        await asyncio.sleep(0.3)
        assert not writing.done()
        wire.let_go.set()
        await writing
        await cut_log.write("t", [DONE])
        assert numbers(await rest(cut_log.follow("t", 0))) == [1, 2, 3]


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_commit_that_is_never_answered_is_unknown_after_a_while(
    cut_log: SqlTaskLog, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "COMMIT_SECONDS", 0.5)
    async with soon():
        wire.cut = "silence"
        with pytest.raises(OutcomeUnknown):
            await cut_log.create(head("t"), [HELLO], [KEY])
        wire.let_go.set()
        await settled(cut_log, "t")
        assert await claimed_ids(cut_log) == ["t"]


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_write_to_a_running_task_is_claimed_with_it(
    cut_log: SqlTaskLog, wire: Wire
) -> None:
    """The run of the task does not know of the write; the process that claims the task does."""
    async with soon():
        await cut_log.create(head("t"), [HELLO])
        wire.cut, wire.away_after = "after", True
        with pytest.raises(OutcomeUnknown):
            await cut_log.write("t", [step(1)], [KEY])
        with pytest.raises(OutcomeUnknown):  # the same again, too early
            await cut_log.write("t", [step(1)], [KEY])
        wire.away = False
        await settled(cut_log, "t")
        assert not cut_log.is_mine("t")
        (task,) = await claim_all(cut_log)
        assert task.last_seq == 2
        with pytest.raises(KeyTaken):
            await cut_log.write("t", [step(1)], [KEY])
        await cut_log.write("t", [DONE])
        assert numbers(await rest(cut_log.follow("t", 0))) == [1, 2, 3]


async def test_a_session_is_bound_once_whether_the_commit_was_answered_or_not(
    postgres: Postgres, wire: Wire
) -> None:
    async with soon(), Database.open(postgres.url(wire)) as database:
        bindings = SqlBindings(database)
        wire.cut = "after"
        with pytest.raises(OutcomeUnknown):
            await bindings.bind(OWNER, "c", SessionRef("ses_1"))
        found = await bindings.session_of(OWNER, "c")
        assert found is not None
        assert found.id == "ses_1"


@pytest.mark.usefixtures("in_a_hurry")
async def test_the_next_process_finds_what_the_last_one_did_not_hear_of(
    postgres: Postgres, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "STOP_TIMEOUT_SECONDS", 0.2)
    async with soon():
        async with opened(postgres.url(wire)) as log:
            wire.cut, wire.away_after = "after", True
            with pytest.raises(OutcomeUnknown):
                await log.create(head("t"), [HELLO], [KEY])
        wire.away = False
        async with opened(postgres.url(wire)) as log:
            assert await log.known(OWNER, KEY.name) == ("t", KEY.digest)


async def test_no_task_is_lost_or_doubled_by_cuts_at_random(
    postgres: Postgres, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "DOUBT_SECONDS", 0.05)
    async with soon(), opened(postgres.url(wire)) as log:
        figures = await campaign(log, wire, random.Random(9), cuts=20)
    assert figures.cuts >= 20
    assert figures.lost == figures.doubled == figures.untrue == 0


@dataclass
class Figures:
    cuts: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    stored: int = 0  # of the unknown ones
    lost: int = 0  # acknowledged, and not there
    doubled: int = 0  # there twice, or with entries that were not written, or out of order
    untrue: int = 0  # refused with "Nothing was changed", and there


async def campaign(log: SqlTaskLog, wire: Wire, chance: random.Random, *, cuts: int) -> Figures:
    """Tasks are made and written to while the wire is cut around commits; then all is counted."""
    figures = Figures()
    outcome: dict[str, str] = {}
    written: dict[str, list[int]] = {}

    async def one(number: int) -> None:
        name = f"t{number}"
        try:
            await log.create(head(name, created_at=number), [HELLO], [Key(f"key:{name}", "d", 1)])
        except OutcomeUnknown:
            outcome[name] = "unknown"
            return
        except StoreUnavailable:
            outcome[name] = "refused"
            return
        outcome[name] = "acknowledged"
        for n in range(4):
            log.append(name, [step(n)])
            await asyncio.sleep(0)
        log.append(name, [DONE])
        await log.flushed(name)
        written[name] = list(range(1, 7))

    number = 0
    while wire.cuts < cuts:
        if wire.cut is None:
            wire.cut = chance.choice(["before", "after", "after"])
            wire.away_after = chance.random() < 0.2
        await asyncio.gather(*(one(number + i) for i in range(3)))
        number += 3
        wire.away = False
    wire.cut, wire.away_after, wire.away = None, False, False
    for name in outcome:
        await settled(log, name)
    for task in await claim_all(log):
        log.append(task.head.id, [DONE])
        await log.flushed(task.head.id)
    figures.cuts = wire.cuts
    for name, answer in outcome.items():
        setattr(figures, answer, getattr(figures, answer) + 1)
        known = await log.known(OWNER, f"key:{name}")
        there = numbers(await rest(log.follow(name, 0)))
        figures.stored += answer == "unknown" and known is not None
        figures.lost += answer == "acknowledged" and (known is None or not there)
        figures.untrue += answer == "refused" and (known is not None or bool(there))
        figures.doubled += there not in (written.get(name, [1, 2] if known else []),)
    return figures


async def until(so: Callable[[], bool]) -> None:
    while not so():  # noqa: ASYNC110 (another thread makes it so)
        await asyncio.sleep(0.005)


# -- SQLite: the driver says that the commit failed


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver.installed(monkeypatch)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_file_that_fails_while_it_commits_is_looked_at_again(
    file_url: str, driver: Driver, commits: bool
) -> None:
    async with soon(), opened(file_url) as log:
        await log.create(head("t"), [HELLO])
        driver.lose(commits=commits)
        log.append("t", [step(1)])
        await log.flushed("t")
        driver.lose(commits=commits)
        if commits:
            await log.create(head("u"), [HELLO], [KEY])
        else:
            with pytest.raises(StoreUnavailable) as refusal:
                await log.create(head("u"), [HELLO], [KEY])
            assert not isinstance(refusal.value, OutcomeUnknown)
        assert (await log.known(OWNER, KEY.name) is not None) == commits
        log.append("t", [DONE])
        assert numbers(await rest(log.follow("t", 0))) == [1, 2, 3]


@pytest.mark.parametrize("error", ["SQLITE_FULL", "SQLITE_BUSY"])
async def test_a_commit_that_certainly_failed_is_no_doubt(
    file_url: str, driver: Driver, error: str
) -> None:
    async with soon(), opened(file_url) as log:
        driver.says, driver.commits = error, False
        with pytest.raises(StoreUnavailable) as refusal:
            await log.create(head("t"), [HELLO])
        assert not isinstance(refusal.value, OutcomeUnknown)
        assert "Nothing was changed" in refusal.value.message


@pytest.mark.usefixtures("in_a_hurry")
async def test_what_is_committed_to_a_file_that_is_taken_away_is_not_acknowledged(
    path: Path, file_url: str, driver: Driver
) -> None:
    away = path.with_name("away.db")
    async with soon(), opened(file_url) as log:
        await log.create(head("before"), [HELLO])
        driver.after = lambda: path.rename(away)
        with pytest.raises(OutcomeUnknown):
            await log.create(head("t"), [HELLO], [KEY])
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await log.create(head("u"), [HELLO])
        away.rename(path)
        await settled(log, "t")
        assert await log.known(OWNER, KEY.name) == ("t", KEY.digest)
        assert await claimed_ids(log) == ["t"]


# -- commands for other nodes


async def test_a_command_whose_taking_was_not_answered_is_taken_again(
    postgres: Postgres, wire: Wire
) -> None:
    async with soon(), Database.open(postgres.url(wire)) as database:
        asking, mine = (SqlNodes(database, holder) for holder in ("asking", "mine"))
        await asking.ask("c-1", "cancel", b"{}", holder="mine")
        wire.cut = "after"
        with pytest.raises(OutcomeUnknown):
            await mine.take([])
        assert wire.cuts == 1
        assert [command.id for command in await mine.take([])] == ["c-1"]
        assert await mine.take(["c-1"]) == [], "it is at work"
        assert await asking.result("c-1") == (True, None)
        await mine.done("c-1", b"done")
        assert await mine.take([]) == []
        assert await asking.result("c-1") == (True, b"done")


async def test_a_command_that_was_withdrawn_without_an_answer_is_gone(
    postgres: Postgres, wire: Wire
) -> None:
    async with soon(), Database.open(postgres.url(wire)) as database:
        asking, other = (SqlNodes(database, holder) for holder in ("asking", "other"))
        await asking.ask("c-1", "cancel", b"{}", holder="other")
        wire.cut = "after"
        with pytest.raises(OutcomeUnknown):
            await asking.withdraw("c-1")
        assert await asking.result("c-1") is None
        assert await other.take([]) == []
