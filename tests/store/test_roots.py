"""Which workspace root rows belong to, also rows that an earlier version stored without one."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from opencode_a2a.domain.catalog import SessionOwner
from opencode_a2a.domain.permissions import AllowRule
from opencode_a2a.domain.ports import Key
from opencode_a2a.domain.updates import InterruptAnswered, InterruptOpened, Started, Update
from opencode_a2a.domain.values import (
    Failure,
    ModelRef,
    PermissionAsk,
    PermissionDecision,
    Root,
    SessionRef,
    TaskQuery,
    TaskState,
)
from opencode_a2a.errors import OtherWorkspace, SessionForbidden, TaskNotFound
from opencode_a2a.observe import metrics
from opencode_a2a.store import database as database_module
from opencode_a2a.store import legacy, migrate
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import Holder
from opencode_a2a.store.interrupts import SqlInterrupts
from opencode_a2a.store.legacy import MoveCounts, NotMoved, take_over
from opencode_a2a.store.log import SqlTaskLog
from tests.store.earlier import forget_roots, forget_roots_in
from tests.store.support import DONE, HELLO, OWNER, Clock, claimed_ids, head, soon
from tests.store.test_migrations import schema


def root(path: str) -> Root:
    return Root(path, lambda directory: f"{directory}/".startswith(f"{path}/"))


A, B = root("/work/a"), root("/work/b")
OUTER = root("/work")


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


# -- a database of an earlier version that the settings name


async def upgrade_from_0006(database: Database) -> None:
    await database.write(forget_roots)
    await database.write(migrate.upgrade)


async def test_what_an_earlier_version_left_goes_to_the_root_of_its_session(
    database: Database, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database) as log:
        bindings = SqlBindings(database)
        await bindings.bind(OWNER, "in a", SessionRef("ses_a", directory="/work/a/sub"))
        await bindings.bind(OWNER, "in b", SessionRef("ses_b", directory="/work/b"))
        await log.create(head("a-1", "in a"), [HELLO, Started("ses_a", "")])
        await log.create(head("a-2", "in a", created_at=1_001), [HELLO])
        await log.create(head("b", "in b"), [HELLO])
        await log.create(head("nowhere", "fresh"), [HELLO])
    async with soon():
        await upgrade_from_0006(database)
        failed = ("failed", Failure.OTHER_WORKSPACE.value)
        before = metrics.TASKS_ENDED.values.get(failed, 0)
        async with SqlTaskLog.open(database, clock=clock, root=A) as log:
            assert await claimed_ids(log) == ["a-1", "a-2"]
            assert metrics.TASKS_ENDED.values[failed] == before + 1
            lost = await log.get(OWNER, "nowhere")
            assert lost.state is TaskState.FAILED
            assert lost.ended is not None
            assert lost.ended.problem is not None
            assert lost.ended.problem.type is Failure.OTHER_WORKSPACE
            assert "Nothing of it was done" in (lost.ended.message or "")
            assert (await log.get(OWNER, "b")).state is TaskState.SUBMITTED
            with pytest.raises(OtherWorkspace, match="/work/b"):
                await log.check_context(OWNER, "in b")
        bindings = SqlBindings(database, A)
        with pytest.raises(OtherWorkspace):
            await bindings.session_of(OWNER, "in b")
        owners = await bindings.owners(["ses_a", "ses_b"])
        assert {id: owner.root for id, owner in owners.items()} == {
            "ses_a": A.path,
            "ses_b": None,
        }
        async with SqlTaskLog.open(database, clock=clock, root=B) as log:
            assert await claimed_ids(log) == ["b"]


async def test_of_nested_roots_only_one_takes_what_an_earlier_version_left(
    database: Database, clock: Clock
) -> None:
    async with soon(), SqlTaskLog.open(database) as log:
        await SqlBindings(database).bind(OWNER, "c", SessionRef("ses_1", directory="/work/a"))
        await log.create(head("t", "c"), [HELLO])
    async with soon():
        await upgrade_from_0006(database)
        async with (
            SqlTaskLog.open(database, clock=clock, root=A) as inner,
            SqlTaskLog.open(database, clock=clock, root=OUTER) as outer,
        ):
            found = await asyncio.gather(claimed_ids(inner), claimed_ids(outer))
            assert sorted(found) == [[], ["t"]]
            winner = A if found[0] else OUTER
        loser = OUTER if winner is A else A
        assert await SqlBindings(database, winner).session_of(OWNER, "c")
        with pytest.raises(OtherWorkspace):
            await SqlBindings(database, loser).session_of(OWNER, "c")


async def test_a_task_that_an_earlier_version_still_holds_is_left_to_it(
    path: Path, file_url: str
) -> None:
    async with soon(), Database.open(file_url) as database, SqlTaskLog.open(database) as log:
        await SqlBindings(database).bind(OWNER, "c", SessionRef("s", directory="/work/a"))
        await log.create(head("t", "c"), [HELLO])
        await log.create(head("nowhere", "fresh"), [HELLO])
        forget_roots_in(path)
        async with (
            Database.open(file_url) as upgraded,
            SqlTaskLog.open(upgraded, root=A) as newer,
        ):
            assert await claimed_ids(newer) == []
            assert (await newer.get(OWNER, "nowhere")).state is TaskState.SUBMITTED


# -- the one database that all roots of a user shared


class Shared:
    """The file an earlier version left, and the files of the roots."""

    def __init__(self, folder: Path) -> None:
        self.file, self.url = folder / "shared.db", f"sqlite:///{folder / 'shared.db'}"
        self._folder = folder

    def own_url(self, mine: Root) -> str:
        return f"sqlite:///{self._folder / mine.path.replace('/', '-')}.db"

    async def move(self, mine: Root) -> MoveCounts:
        async with Database.open(self.own_url(mine)):
            return await take_over(self.url, self.own_url(mine), mine)

    async def tasks(self, mine: Root | None = None) -> set[str]:
        url = self.url if mine is None else self.own_url(mine)
        async with Database.open(url) as database, SqlTaskLog.open(database) as log:
            return {row.head.id for row in (await log.list(TaskQuery(OWNER))).rows}


@pytest.fixture
async def shared(path: Path) -> Shared:
    shared = Shared(path.parent)
    async with soon(), Database.open(shared.url) as database, SqlTaskLog.open(database) as log:
        bindings = SqlBindings(database)
        for name in ("a", "b"):
            session = SessionRef(f"ses_{name}", directory=f"/work/{name}")
            ask = PermissionAsk(f"per_{name}", session.id, "bash", always=("ls *",))
            answered = InterruptAnswered(ask, PermissionDecision("once"), "always", 0, ("ls *",))
            await bindings.bind(OWNER, name, session)
            await bindings.keep_model(session.id, ModelRef("demo", name))
            started: list[Update] = [
                HELLO,
                Started(session.id, ""),
                InterruptOpened(ask),
                answered,
                DONE,
            ]
            await log.create(head(f"{name}-done", name), started, [Key(f"key {name}", "d", 1)])
            await log.create(head(f"{name}-queued", name, created_at=1_001), [HELLO])
        await log.create(head("nowhere", "fresh"), [HELLO])
        await bindings.own_locations("alice", ["/worktrees/1"])
    forget_roots_in(shared.file)
    return shared


def test_what_the_tests_take_for_an_earlier_schema_is_one(path: Path) -> None:
    earlier = path.with_name("earlier.db")
    for file, revision in ((path, migrate.HEAD), (earlier, "0006")):
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            config = Config()
            folder = Path(migrate.__file__).parent / "migrations"
            config.set_main_option("script_location", str(folder))
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            assert connection.execute(text("SELECT 1 FROM alembic_version")).scalar_one()
        engine.dispose()
    forget_roots_in(path)
    assert schema(path) == schema(earlier)


async def test_what_belongs_to_a_root_moves_with_all_that_belongs_to_it(shared: Shared) -> None:
    async with soon():
        assert await shared.move(A) == MoveCounts(tasks=2, contexts=1, open_left=2)
        assert await shared.tasks(A) == {"a-done", "a-queued"}
        assert await shared.tasks() == {"b-done", "b-queued", "nowhere"}
        async with (
            Database.open(shared.own_url(A)) as database,
            SqlTaskLog.open(database, root=A) as log,
        ):
            done = await log.get(OWNER, "a-done")
            assert done.state is TaskState.COMPLETED
            assert await claimed_ids(log) == ["a-queued"]
            assert await log.known(OWNER, "key a") == ("a-done", "d")
            assert await log.known(OWNER, "key b") is None
            asked = SqlInterrupts(database, A)
            assert await asked.find(OWNER, "per_a") is not None
            assert await asked.allow_rules(OWNER, "a") == [AllowRule("bash", "ls *")]
            assert await asked.allow_rules(OWNER, "b") == []
            bindings = SqlBindings(database, A)
            session = SessionRef("ses_a", "", "/work/a", ModelRef("demo", "a"))
            assert await bindings.session_of(OWNER, "a") == session
            with pytest.raises(OtherWorkspace, match="/work/b"):
                await bindings.session_of(OWNER, "b")
            assert await bindings.location_owners(["/worktrees/1"]) == {"/worktrees/1": "alice"}
            assert (await log.list(TaskQuery(OWNER))).total == 2
        assert await shared.move(A) == MoveCounts(open_left=2)
        assert await shared.move(B) == MoveCounts(tasks=2, contexts=1, open_left=1)
        assert await shared.tasks() == {"nowhere"}


@pytest.mark.parametrize("died_after", ["mark", "copy"])
async def test_a_move_that_was_cut_short_is_finished_by_the_next_start_of_that_root(
    shared: Shared, died_after: str
) -> None:
    async with soon():
        async with Database.open(shared.url) as database, Database.open(shared.own_url(A)):
            await database.write(legacy._mark, A, now_ms())
            if died_after == "copy":
                legacy._copy(shared.url, shared.own_url(A), A.path)
        assert await shared.move(OUTER) == MoveCounts(tasks=2, contexts=1, open_left=2)  # b's
        assert await shared.tasks(OUTER) == {"b-done", "b-queued"}
        copied = died_after == "copy"
        assert await shared.move(A) == MoveCounts(0 if copied else 2, 0 if copied else 1, 1)
        assert await shared.tasks(A) == {"a-done", "a-queued"}
        assert await shared.tasks() == {"nowhere"}


async def test_every_task_moves_once_however_many_start_at_once(shared: Shared) -> None:
    async with soon():
        roots = [A, OUTER, B, A, OUTER]
        for mine in (A, OUTER, B):
            async with Database.open(shared.own_url(mine)):
                pass
        await asyncio.gather(*(shared.move(mine) for mine in roots))
        found = [await shared.tasks(mine) for mine in (A, OUTER, B)]
        assert sorted(task for each in found for task in each) == [
            *("a-done", "a-queued", "b-done", "b-queued")
        ]
        assert await shared.tasks() == {"nowhere"}


async def test_what_a_process_of_an_earlier_version_works_on_stays_with_it(shared: Shared) -> None:
    with closing(sqlite3.connect(shared.file)) as db, db:
        holder = Holder.this_process().name
        lease = (holder, now_ms() + 60_000)
        db.execute("UPDATE tasks SET holder=?, held_until=? WHERE id='a-queued'", lease)
    async with soon():
        assert await shared.move(A) == MoveCounts(open_left=3)
        assert await shared.tasks(A) == set()
        assert await shared.move(B) == MoveCounts(tasks=2, contexts=1, open_left=2)


async def test_whose_a_session_is_stays_known_where_it_does_not_move(shared: Shared) -> None:
    mine = root("/elsewhere")
    async with soon():
        assert await shared.move(mine) == MoveCounts(open_left=3)
        async with Database.open(shared.own_url(mine)) as database:
            owners = await SqlBindings(database, mine).owners(["ses_a", "ses_b"])
        assert {name: owner.principal for name, owner in owners.items()} == {
            "ses_a": OWNER,
            "ses_b": OWNER,
        }


async def test_what_an_earlier_version_changes_meanwhile_is_what_moves_in_the_end(
    shared: Shared,
) -> None:
    lease = (Holder.this_process().name, now_ms() + 60_000)
    with closing(sqlite3.connect(shared.file)) as db, db:
        db.execute("UPDATE tasks SET holder=?, held_until=? WHERE id='a-queued'", lease)
        db.execute("UPDATE sessions SET claimed_until=1 WHERE session_id='ses_a'")
    async with soon():
        assert await shared.move(A) == MoveCounts(open_left=3)
        with closing(sqlite3.connect(shared.file)) as db, db:
            db.execute("UPDATE tasks SET holder=NULL, held_until=0")
            db.execute(
                "UPDATE sessions SET session_id='ses_new', claimed_until=NULL"
                " WHERE session_id='ses_a'"
            )
            db.execute("UPDATE contexts SET session_id='ses_new' WHERE session_id='ses_a'")
        assert await shared.move(A) == MoveCounts(tasks=2, contexts=1, open_left=2)
        async with Database.open(shared.own_url(A)) as database:
            bindings = SqlBindings(database, A)
            session = await bindings.session_of(OWNER, "a")
            assert session is not None
            assert session.id == "ses_new"
            assert await bindings.owners(["ses_new"]) == {"ses_new": SessionOwner(OWNER, A.path)}


async def test_a_session_that_stays_is_not_adopted_by_a_root_around_it(shared: Shared) -> None:
    outer = root("/work")
    only_itself = Root("/work", lambda directory: directory == "/work")
    async with soon():
        assert await shared.move(only_itself) == MoveCounts(open_left=3)
        async with Database.open(shared.own_url(outer)) as database:
            with pytest.raises(OtherWorkspace, match="/work/a"):
                await SqlBindings(database, outer).session_of(OWNER, "a")
        assert await shared.move(A) == MoveCounts(tasks=2, contexts=1, open_left=2)


async def test_what_a_service_of_this_version_keeps_in_the_same_file_stays(shared: Shared) -> None:
    async with (
        soon(),
        Database.open(shared.url) as database,
        SqlTaskLog.open(database, root=A) as log,
    ):
        await log.create(head("mine", "new"), [HELLO])
        assert await shared.move(A) == MoveCounts(tasks=2, contexts=1, open_left=3)
        assert log.is_mine("mine")
        assert (await log.get(OWNER, "mine")).state is TaskState.SUBMITTED


async def test_a_service_does_not_start_while_the_shared_file_cannot_be_read(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(legacy, "BUSY_SECONDS", 0.01)
    async with soon():
        with closing(sqlite3.connect(shared.file, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            with pytest.raises(NotMoved, match=r"shared\.db.*locked"):
                await shared.move(A)
        with closing(sqlite3.connect(shared.file)) as db, db:
            db.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(NotMoved, match="9999"):
            await shared.move(A)
        shared.file.write_bytes(b"no database" * 1000)
        with pytest.raises(NotMoved, match="not a database"):
            await shared.move(A)
        shared.file.unlink()
        assert await shared.move(A) == MoveCounts()
