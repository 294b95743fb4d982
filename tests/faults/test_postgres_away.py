"""PostgreSQL is away, takes no writes, or is replaced by its standby, under two nodes that work."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.opencode import expected_text
from tests.faults.steering import control, ready
from tests.load.client import REST, Client, Refused, connected, last
from tests.postgres import Postgres
from tests.running import Service, Upstream, fake_opencode, service

TOKENS = 400
Fault = Callable[[Postgres], None]


@dataclass(frozen=True)
class Pair:
    """Two nodes, each with its own OpenCode."""

    upstreams: tuple[Upstream, Upstream]
    nodes: tuple[Service, Service]

    async def prompts(self) -> list[str]:
        stats = [await control(each, "stats") for each in self.upstreams]
        return [text for each in stats for _, _, text in each["prompts"]]


@asynccontextmanager
async def pair(url: str, folder: Path) -> AsyncIterator[Pair]:
    (folder / "work").mkdir()
    common = {
        "A2A_TASK_STORE_DATABASE_URL": url,
        "OPENCODE_WORKSPACE_ROOT": str(folder / "work"),
    }
    with (
        fake_opencode(folder / "one") as first,
        fake_opencode(folder / "two") as second,
        service(first, folder / "one", A2A_NODE_NAME="one", **common) as one,
        service(second, folder / "two", A2A_NODE_NAME="two", **common) as two,
    ):
        yield Pair((first, second), (one, two))


def go_away(postgres: Postgres) -> None:
    postgres.stop(signal.SIGINT)


def die(postgres: Postgres) -> None:
    postgres.kill()


def come_back(postgres: Postgres) -> None:
    postgres.start()


def refuse_writes(postgres: Postgres) -> None:
    postgres.say("ALTER SYSTEM SET default_transaction_read_only = on")
    postgres.say("SELECT pg_reload_conf()")


def take_writes(postgres: Postgres) -> None:
    postgres.say("ALTER SYSTEM RESET default_transaction_read_only")
    postgres.say("SELECT pg_reload_conf()")


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """One that no other test misses when it is away."""
    with Postgres.started() as server:
        yield server


async def _refused(client: Client) -> str:
    """What was sent and refused with 503, once the node has noticed."""
    async with asyncio.timeout(60):
        while True:
            text = f"refused {uuid.uuid4()}"
            try:
                await client.send(text, wait=False)
            except Refused as refused:
                assert refused.status == 503
                assert refused.retry_after
                if refused.reason == "STORE_UNAVAILABLE":
                    return text
                assert refused.reason == "OUTCOME_UNKNOWN"  # it was sent at that very moment


@pytest.mark.usefixtures("postgres")  # the same reason to be skipped
@pytest.mark.parametrize(
    ("fault", "mend"),
    [(go_away, come_back), (die, come_back), (refuse_writes, take_writes)],
    ids=["stopped", "killed", "read-only"],
)
async def test_running_tasks_keep_what_they_have_to_say_while_sends_are_refused(
    own_postgres: Postgres, tmp_path: Path, fault: Fault, mend: Fault
) -> None:
    async with pair(own_postgres.url(), tmp_path) as pair_:
        await _outlives(pair_, lambda: asyncio.to_thread(fault, own_postgres),
                        lambda: asyncio.to_thread(mend, own_postgres))  # fmt: skip


async def _outlives(
    pair: Pair, fault: Callable[[], Awaitable[None]], mend: Callable[[], Awaitable[None]]
) -> None:
    """A task at work is told whole, at both nodes, whatever happens to the database meanwhile."""
    one, two = pair.nodes
    async with connected(one) as ours, connected(two) as theirs:
        here, there = ours[REST], theirs[REST]
        task = await here.send(f"[[tokens:{TOKENS}]] [[rate:200]]", wait=False)
        async with here.subscribe(task.id) as near, there.subscribe(task.id) as far:
            reading = asyncio.gather(last(near), last(far))
            await there.until(task.id, "working")
            await fault()
            refused = [await _refused(client) for client in (here, there)]
            await ready(one, 503)
            assert not reading.done(), "streams wait, at both nodes"
            await mend()
            told = await reading
        done = await there.get(task.id)
        assert done.state == "completed"
        whole = expected_text(done.session or "", TOKENS)
        assert [each.answer for each in told] == [whole, whole]
        assert done.answer == whole
        for node in pair.nodes:
            await ready(node)
        for client in (here, there):
            assert (await client.send("and now")).answer == "ECHO: and now"
    assert not set(refused) & set(await pair.prompts())


@pytest.mark.usefixtures("postgres")
async def test_a_standby_that_is_promoted_is_used_instead(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    """With synchronous replication, nothing that was acknowledged is lost."""
    with own_postgres.with_standby() as standby:
        async with pair(own_postgres.url(standby=standby), tmp_path) as pair_:
            async with connected(pair_.nodes[0]) as clients:
                before = await clients[REST].send("before")

            async def fault() -> None:
                await asyncio.to_thread(own_postgres.kill)

            async def mend() -> None:
                await asyncio.to_thread(standby.promote)

            await _outlives(pair_, fault, mend)
            async with connected(pair_.nodes[1]) as clients:
                assert (await clients[REST].get(before.id)).answer == "ECHO: before"
