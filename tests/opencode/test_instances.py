"""What prompts need is loaded before them, once for each directory of each start of OpenCode. What
becomes of an OpenCode that loads it while a prompt is aborted: tests/e2e/test_first_cancel.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from opencode_a2a.errors import (
    ServiceError,
    UpstreamError,
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from opencode_a2a.opencode.feed import Feed
from opencode_a2a.opencode.http import Http
from opencode_a2a.opencode.recent import DIRECTORIES
from opencode_a2a.opencode.v1.instances import LOADING_ROUTES, Instances

PATIENCE = 30.0


class Reads:
    """The part of `Http` and `Feed` that counts."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.problem: ServiceError | None = None
        self.connections = 1
        self.open = asyncio.Event()
        self.open.set()

    async def call(self, method: str, *segments: str, query: dict[str, str]) -> Any:
        assert method == "GET"
        self.asked[query["directory"]] += 1
        await self.open.wait()
        if self.problem is not None:
            raise self.problem

    def instance(self, directory: str) -> tuple[int, int]:
        return self.connections, 0


@asynccontextmanager
async def loading(reads: Reads) -> AsyncIterator[Instances]:
    async with (
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as group,
    ):
        instances = Instances(cast(Http, reads), cast(Feed, reads))
        first = group.create_task(load_first(instances))
        yield instances
        await first


async def load_first(instances: Instances) -> None:
    with suppress(UpstreamError):
        await instances.load("/first")


ALL = len(LOADING_ROUTES)


async def test_a_directory_is_loaded_once_until_opencode_may_have_been_started_again() -> None:
    reads = Reads()
    async with loading(reads) as instances:
        await asyncio.gather(*(instances.load("/work") for _ in range(3)))
        await instances.load("/work")
        assert reads.asked["/work"] == ALL
        reads.connections += 1
        await instances.load("/work")
        assert reads.asked["/work"] == 2 * ALL


async def test_the_directory_of_the_deployment_is_loaded_when_opencode_is_connected() -> None:
    reads = Reads()
    reads.open.clear()
    async with loading(reads) as instances:
        waiting = asyncio.create_task(instances.load("/first"))
        await asyncio.wait({waiting}, timeout=0.01)
        assert not waiting.done()
        reads.open.set()
        await waiting
        assert reads.asked["/first"] == ALL


@pytest.mark.parametrize(
    "problem",
    [
        UpstreamHttpError("It has no such route.", upstream_status=404, name="NotFoundError"),
        UpstreamPayloadError("It answers with a web page."),
        UpstreamTimeout("An MCP server takes long to start."),
    ],
)
async def test_prompts_do_not_depend_on_it(problem: ServiceError) -> None:
    reads = Reads()
    reads.problem = problem
    async with loading(reads) as instances:
        await instances.load("/work")
        await instances.load("/work")
        assert reads.asked["/work"] == ALL


async def test_an_opencode_that_cannot_be_reached_is_asked_again() -> None:
    reads = Reads()
    reads.problem = UpstreamUnreachable("OpenCode cannot be reached.")
    async with loading(reads) as instances:
        with pytest.raises(UpstreamUnreachable):
            await instances.load("/work")
        reads.problem = None
        await instances.load("/work")
        assert reads.asked["/work"] == 1 + ALL


async def test_of_many_directories_those_used_last_are_known() -> None:
    reads = Reads()
    async with loading(reads) as instances:
        for number in range(DIRECTORIES + 50):
            await instances.load(f"/{number}")
            await instances.load("/in-use")
        assert reads.asked["/in-use"] == ALL
        await instances.load("/0")
        assert reads.asked["/0"] == 2 * ALL
