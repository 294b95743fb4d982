"""Nodes that reach PostgreSQL through pgbouncer in session mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.opencode import expected_text
from tests.load.client import REST, connected, last
from tests.poolers import Pooler, why_no_pooler
from tests.postgres import Postgres
from tests.running import fake_opencode, service

pytestmark = pytest.mark.skipif(why_no_pooler() is not None, reason=str(why_no_pooler()))


async def test_nodes_work_through_a_pooler_in_session_mode(
    postgres: Postgres, tmp_path: Path
) -> None:
    postgres.without_tasks()
    (tmp_path / "work").mkdir()
    with Pooler.before(postgres, "session") as pooler:
        common = {
            "A2A_TASK_STORE_DATABASE_URL": postgres.url(pooler),
            "OPENCODE_WORKSPACE_ROOT": str(tmp_path / "work"),
        }
        with (
            fake_opencode(tmp_path / "one") as first,
            fake_opencode(tmp_path / "two") as second,
            service(first, tmp_path / "one", A2A_NODE_NAME="one", **common) as one,
            service(second, tmp_path / "two", A2A_NODE_NAME="two", **common) as two,
        ):
            async with connected(one) as ours, connected(two) as theirs:
                here, there = ours[REST], theirs[REST]
                task = await here.send("[[tokens:300]] [[rate:150]]", wait=False)
                async with (
                    here.subscribe(task.id) as near,
                    there.subscribe(task.id) as far,
                ):
                    told = await asyncio.gather(last(near), last(far))
                done = await there.get(task.id)
                whole = expected_text(done.session or "", 300)
                assert [each.answer for each in told] == [whole, whole]
                # What one node has to ask the other for.
                for asked, other in ((here, there), (there, here)):
                    waiting = await asked.send("[[permission]]", wait=False)
                    await other.until(waiting.id, "input-required")
                    await other.send("yes", taskId=waiting.id)
                    assert (await asked.until(waiting.id, "completed")).state == "completed"
                    first_turn = await asked.send("hello")
                    again = await other.send("more", contextId=first_turn.context)
                    assert again.session == first_turn.session


async def test_what_is_notified_arrives_through_a_pooler_in_session_mode(
    postgres: Postgres,
) -> None:
    from opencode_a2a.store.database import Database
    from opencode_a2a.store.wakeups import notify

    postgres.without_tasks()
    with Pooler.before(postgres, "session") as pooler:
        async with Database.open(postgres.url(pooler)) as database:
            heard: asyncio.Queue[list[str]] = asyncio.Queue()
            unsubscribe = database.wakeups.subscribe(heard.put_nowait)
            async with asyncio.timeout(60):
                assert await heard.get() == []  # it is connected: look everywhere
                for number in range(20):
                    await database.write(notify, [f"task:{number}:1"])
                    assert await heard.get() == [f"task:{number}:1"]
            unsubscribe()
