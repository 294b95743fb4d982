"""A store that fails under a running service: what callers and `/ready` are told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.commits import campaign
from tests.faults.steering import control, ready
from tests.load.client import REST, RPC_03, Refused, connected
from tests.postgres import Postgres, Wire
from tests.running import Service, Upstream, fake_opencode, service


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    """Whose prompts nobody else counts."""
    with fake_opencode(tmp_path / "opencode") as upstream:
        yield upstream


@pytest.fixture
def wire(postgres: Postgres) -> Iterator[Wire]:
    postgres.emptied()
    with Wire.laid(postgres.port) as wire:
        yield wire


@pytest.fixture
def on_postgres(
    upstream: Upstream, postgres: Postgres, wire: Wire, tmp_path: Path
) -> Iterator[Service]:
    url = postgres.url(wire)
    with service(upstream, tmp_path, A2A_TASK_STORE_DATABASE_URL=url) as running:
        yield running


async def prompts(upstream: Upstream) -> list[str]:
    return [text for _, _, text in (await control(upstream, "stats"))["prompts"]]


async def test_a_request_of_unknown_outcome_is_done_once_and_found_when_it_is_sent_again(
    upstream: Upstream, on_postgres: Service, wire: Wire
) -> None:
    await ready(on_postgres)
    async with connected(on_postgres) as clients:
        for form in (REST, RPC_03):
            text, message_id = f"hello {form.line} {form.rpc}", str(uuid.uuid4())
            context = (await clients[form].send("before")).context
            wire.cut, wire.only, wire.away_after = "after", text.encode(), True
            with pytest.raises(Refused) as refused:
                await clients[form].send(text, contextId=context, messageId=message_id)
            assert refused.value.reason == "OUTCOME_UNKNOWN"
            assert refused.value.status == (200 if form.rpc else 503)
            assert refused.value.retry_after
            assert "Nothing was changed" not in refused.value.message
            assert "Idempotency-Key" in refused.value.message
            await ready(on_postgres, 503)
            wire.away = False
            await ready(on_postgres)
            task = await clients[form].send(text, contextId=context, messageId=message_id)
            assert (task.state, task.answer) == ("completed", f"ECHO: {text}")
            assert (await prompts(upstream)).count(text) == 1


async def test_no_task_is_lost_or_done_twice_when_commits_are_cut_off(
    upstream: Upstream, on_postgres: Service, wire: Wire
) -> None:
    await ready(on_postgres)
    found = await campaign(upstream, on_postgres, wire, cuts=12, seed=4, clients=4)
    assert not found.wrong, f"{found}\n{on_postgres.program.output}"
    assert found.counts["sent"] > 0


async def test_a_database_file_that_is_replaced_is_not_used(
    upstream: Upstream, tmp_path: Path
) -> None:
    path, kept = tmp_path / "tasks.db", tmp_path / "kept.db"
    with service(upstream, tmp_path) as running:
        assert (await ready(running))["checks"]["store"] is True
        async with connected(running) as clients:
            client = clients[REST]
            task = await client.send("before")
            kept.hardlink_to(path)
            path.unlink()
            path.write_bytes(b"")
            found = await ready(running, 503)
            assert found["checks"] == {"store": False, "opencode": True}
            with pytest.raises(Refused) as refused:
                await client.send("meanwhile")
            assert (refused.value.status, refused.value.reason) == (503, "STORE_UNAVAILABLE")
            assert "deleted or replaced" in refused.value.message
            assert path.read_bytes() == b""
            running.program.wait_for("event=store.file_replaced .*put the original file back")
            kept.replace(path)
            await ready(running)
            assert (await client.get(task.id)).state == "completed"
            assert (await client.send("after")).state == "completed"
