"""Looking at a database on a server without changing it; files are looked at in tests/doctor."""

from __future__ import annotations

from sqlalchemy import create_engine, inspect

from opencode_a2a.store.examine import examine
from opencode_a2a.store.schema import SCHEMA
from tests.doctor.looking import nobody
from tests.postgres import Postgres

READ_ONLY = "options=-c%20default_transaction_read_only%3Don"


def test_a_server_is_looked_at_and_left_as_it_is(postgres: Postgres) -> None:
    url = postgres.emptied()
    empty = examine(url, makes_folder=False)
    assert (empty.problem, empty.schema, empty.has_tasks) == (None, None, False)
    engine = create_engine(url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()
    used = examine(postgres.without_tasks(), makes_folder=False)
    assert (used.problem, used.schema, used.has_tasks) == (None, SCHEMA, True)
    assert used.size > 1_000_000
    refused = examine(f"{url}{'&' if '?' in url else '?'}{READ_ONLY}", makes_folder=False)
    assert "read-only" in str(refused.problem)


def test_a_server_that_is_not_there_is_a_problem_and_no_error() -> None:
    with nobody() as url:
        there = url.replace("http://", "postgresql+psycopg://user:hush@")
        facts = examine(f"{there}/tasks", makes_folder=False)
    assert facts.problem
    assert "hush" not in facts.problem
