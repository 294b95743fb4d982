"""What the database does for a list of tasks: it finds them in an index, and reads no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from opencode_a2a.domain.values import TaskQuery, TaskState
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from tests.store.support import DONE, HELLO, OWNER, Clock, head, soon

Statement = tuple[str, Any]
AFTER = (1_005, "t-3")
QUERIES = {
    "own": TaskQuery(OWNER),
    "own, next page": TaskQuery(OWNER, after=AFTER),
    "own, of a context": TaskQuery(OWNER, "c-1", after=AFTER),
    "everybody's": TaskQuery(None),
    "everybody's, next page": TaskQuery(None, after=AFTER),
    "everybody's, changed since": TaskQuery(None, since=1_002),
    "everybody's at work": TaskQuery(None, state=TaskState.WORKING),
    "everybody's that failed, next page": TaskQuery(None, state=TaskState.FAILED, after=AFTER),
    "everybody's of a context": TaskQuery(None, "c-1"),
    "everybody's of a context that are done": TaskQuery(None, "c-1", TaskState.COMPLETED),
}


@pytest.fixture
def statements() -> Iterator[list[Statement]]:
    """Every statement about tasks, with its parameters."""
    seen: list[Statement] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if "FROM tasks" in statement:
            seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
async def test_a_list_is_found_in_an_index(
    log: SqlTaskLog, database: Database, statements: list[Statement], query: TaskQuery
) -> None:
    async with soon():
        statements.clear()
        await log.list(query)
        done = list(statements)
        assert done
        for statement in done:
            scans = await database.read(_scans, statement)
            # In PostgreSQL all tasks are counted where nothing narrows the list but a time.
            if "count(" not in statement[0] or database_counts_from_index(query):
                assert scans == [], statement[0]


def database_counts_from_index(query: TaskQuery) -> bool:
    return query.owner is not None or query.context_id is not None or query.state is not None


def _scans(db: Connection, statement: Statement) -> list[str]:
    """The parts of a plan that read tasks without an index that narrows them."""
    sql, parameters = statement
    if db.dialect.name == "sqlite":
        rows = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all()
        return [row.detail for row in rows if row.detail.startswith("SCAN tasks")]
    db.exec_driver_sql("SET LOCAL enable_seqscan = off")  # which is cheaper for few rows
    plan = db.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", parameters).scalar_one()
    found = json.loads(plan) if isinstance(plan, str) else plan
    return [str(node) for node in _nodes(found[0]["Plan"]) if _is_scan(node)]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _is_scan(node: dict[str, Any]) -> bool:
    if node.get("Relation Name") != "tasks":
        return False
    # A heap scan of a bitmap has the index below it.
    return node["Node Type"] != "Bitmap Heap Scan" and "Index Cond" not in node


async def test_everybodys_tasks_are_listed_in_pages_newest_first(
    log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        for n in range(12):
            clock.now = 1_000 + n // 3  # few moments, many tasks
            made = head(f"t-{n:02}", f"c-{n % 2}", owner=f"caller-{n % 4}", created_at=clock.now)
            await log.create(made, [HELLO])
            if n % 5 == 0:
                await log.write(made.id, [DONE])
        rows = [row for page in await _pages(log, limit=5) for row in page]
        assert [row.head.id for row in rows] == [f"t-{n:02}" for n in reversed(range(12))]
        assert [row.state for row in rows if row.state is not TaskState.SUBMITTED] == [
            TaskState.COMPLETED
        ] * 3
        recent = await log.list(TaskQuery(None, since=1_002))
        assert [row.head.id for row in recent.rows] == [f"t-{n:02}" for n in range(11, 5, -1)]
        assert recent.total == 6
        context = await log.list(TaskQuery(None, "c-1", TaskState.COMPLETED))
        assert [row.head.id for row in context.rows] == ["t-05"]


async def _pages(log: SqlTaskLog, limit: int) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = await log.list(TaskQuery(None, limit=limit, after=after))
        assert page.total == 12
        found.append(page.rows)
        after = page.next
        if after is None:
            return found
