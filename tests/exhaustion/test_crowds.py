"""Many connections of nobody in particular: known callers come in, and what they have goes on."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.exhaustion.attacks import (
    HALF_HEAD,
    WRONG,
    Stream,
    allow_files,
    connect,
    head,
    held,
    list_tasks,
    memory,
    still_open,
)
from tests.running import TOKEN, Service, Upstream, isolated, running, service

CROWD = 1_000
SERVE = [str(Path(sys.executable).parent / "opencode-a2a"), "serve"]
FEW_FILES = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *SERVE]
HALF_BODY = b"POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1000\r\n" + WRONG + b"\r\n{"


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    allow_files(CROWD + 200)


@pytest.fixture(scope="module")
def small(fake: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service for 64 connections, 32 of them unknown."""
    with service(fake, tmp_path_factory.mktemp("small"), command=FEW_FILES) as running:
        yield running


@pytest.mark.parametrize("sends", [b"", HALF_HEAD, HALF_BODY], ids=["nothing", "head", "body"])
async def test_a_thousand_half_open_connections_keep_no_known_caller_out(
    small: Service, sends: bytes
) -> None:
    async with Stream(small).open() as stream, connect(small) as used:
        await used.send(head(small, "GET /tasks"))
        assert (await used.answer()).status == 200
        before = memory(small)
        async with held(small, CROWD, sends) as crowd:
            await list_tasks(small)
            assert await still_open(crowd) <= 32
            await stream.goes_on()
            await used.send(head(small, "GET /tasks"))
            assert (await used.answer()).status == 200, "known callers keep their connections"
            assert memory(small) < before + 30


async def test_known_callers_do_not_count_against_their_address(small: Service) -> None:
    """All of them may come through one proxy."""
    async with AsyncExitStack() as stack:
        used = [await stack.enter_async_context(connect(small)) for _ in range(15)]
        for _ in range(2):
            for socket in used:
                await socket.send(head(small, "GET /tasks"))
                assert (await socket.answer()).status == 200
            used += [await stack.enter_async_context(connect(small)) for _ in range(15)]
        async with held(small, 60, HALF_HEAD):
            await list_tasks(small)
            for socket in used[:30]:
                await socket.send(head(small, "GET /tasks"))
                assert (await socket.answer()).status == 200


async def test_when_all_connections_are_in_use_by_known_callers_none_is_closed_for_a_new_one(
    fake: Upstream, tmp_path: Path
) -> None:
    fields = ("Content-Type: application/json", "Content-Length: 2", "Expect: 100-continue")
    with service(fake, tmp_path, command=FEW_FILES) as full:
        async with AsyncExitStack() as stack:
            used = []
            for _ in range(64):
                used.append(socket := await stack.enter_async_context(connect(full)))
                await socket.send(head(full, "POST /tasks/missing:cancel", *fields))
                assert (await socket.answer()).status == 100, "the service waits for the body"
            for _ in range(3):
                async with connect(full) as newcomer:
                    assert await newcomer.closed() == b""
            await used[0].send(b"{}")
            assert (await used[0].answer()).status == 404
            await list_tasks(full)
            assert await used[0].closed() == b"", "it was not in use any more"
            for socket in used[1:]:
                await socket.send(b"{}")
                assert (await socket.answer()).status == 404


async def test_where_few_files_may_be_open_there_are_enough_for_known_callers(
    fake: Upstream, tmp_path: Path
) -> None:
    """As many as the hard limit allows; the service raises the soft one itself."""
    env = isolated(
        tmp_path / "home",
        OPENCODE_BASE_URL=fake.base_url,
        OPENCODE_WORKSPACE_ROOT=str(fake.workspace),
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{tmp_path / 'tasks.db'}",
        A2A_BEARER_TOKEN=TOKEN,
        A2A_PORT="0",
    )
    limited = 'ulimit -Sn 100 && ulimit -Hn 200 && exec "$@"'
    with running(["sh", "-c", limited, "sh", *SERVE], env, fake.workspace) as program:
        attacked = Service(program.wait_for(r"event=serving url=(\S+)")[1], program)
        assert "event=connections.limited to=100 open_files=200" in program.output
        assert resource.prlimit(program.process.pid, resource.RLIMIT_NOFILE) == (200, 200)
        async with Stream(attacked).open() as stream, held(attacked, 300, HALF_HEAD) as crowd:
            await list_tasks(attacked)
            assert await still_open(crowd) <= 50
            await stream.goes_on()
