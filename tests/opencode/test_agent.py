"""OpenCode as an agent, over HTTP to the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from opencode_a2a.domain.events import MessageSeen
from opencode_a2a.domain.ports import SessionGone
from opencode_a2a.domain.release import Release
from opencode_a2a.domain.values import (
    Decision,
    Interrupt,
    PermissionAsk,
    PermissionDecision,
    Prompt,
    QuestionAsk,
    QuestionDecision,
    SessionRef,
)
from opencode_a2a.opencode.agent import OpenCode
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.http import Endpoint, Http
from tests.fakes.opencode import FakeOpenCode, serve

PATIENCE = 30.0


@asynccontextmanager
async def agent_on(fake: FakeOpenCode) -> AsyncIterator[OpenCode]:
    async with OpenCode.connect([Endpoint(fake.base_url)], Defaults("/project"), 60.0) as opencode:
        yield opencode


@pytest.mark.parametrize("order", ["create", "prompt", "abort"])
async def test_no_order_is_given_while_opencode_starts(order: str) -> None:
    """It would be swallowed, and waited for as long as any answer may take."""
    async with serve() as fake, agent_on(fake) as opencode, asyncio.timeout(PATIENCE):
        session = opencode.session(await opencode.create("title", "context"))
        fake.control("fault", mode="starting")
        fake.control("drop")
        while await fake.swallowed.get() != "GET /global/health":
            pass  # what was being loaded
        orders: dict[str, Callable[[], Coroutine[Any, Any, SessionRef | None]]] = {
            "create": lambda: opencode.create("title", "context"),
            "prompt": lambda: session.prompt(Prompt(opencode.new_message_id(), ("hello",))),
            "abort": lambda: session.abort(()),
        }
        giving = asyncio.create_task(orders[order]())
        await asyncio.sleep(0.05)  # enough to send it, were it sent
        fake.control("fault", mode="ok")
        given = await giving
        assert (given is not None) == (order == "create")
        swallowed = {fake.swallowed.get_nowait() for _ in range(fake.swallowed.qsize())}
        assert all(request.startswith("GET ") for request in swallowed)


async def test_a_session_that_is_deleted_takes_no_prompts() -> None:
    async with serve() as fake, agent_on(fake) as opencode, asyncio.timeout(PATIENCE):
        ref = await opencode.create("title", "context")
        await opencode.delete(ref)
        with pytest.raises(SessionGone):
            await opencode.session(ref).prompt(Prompt(opencode.new_message_id(), ("hello",)))


async def test_opencode_says_that_it_does_not_have_a_prompt() -> None:
    async with serve() as fake, agent_on(fake) as opencode, asyncio.timeout(PATIENCE):
        session = opencode.session(await opencode.create("title", "context"))
        assert not await session.has(opencode.new_message_id())


@pytest.mark.parametrize(
    ("ask", "decision"),
    [
        (PermissionAsk("per_gone", "ses_1", "bash"), PermissionDecision("once")),
        (QuestionAsk("que_gone", "ses_1", ()), QuestionDecision(None)),
    ],
    ids=["permission", "question"],
)
async def test_opencode_says_that_a_request_is_decided(ask: Interrupt, decision: Decision) -> None:
    async with serve() as fake, agent_on(fake) as opencode, asyncio.timeout(PATIENCE):
        session = opencode.session(await opencode.create("title", "context"))
        assert not await session.settle(ask, decision)


async def test_a_prompt_is_the_newest_message_also_by_its_id_where_that_makes_the_order() -> None:
    """It may have waited for another answer, whose id is greater than the one it was given."""
    async with serve() as fake, asyncio.timeout(PATIENCE):
        fake.version = "1.17.19"
        async with agent_on(fake) as opencode:
            await until_version(opencode, fake.version)
            ref, given = await opencode.create("title", "context"), opencode.new_message_id()
            session = opencode.session(ref)
            assert not await session.has(given)
            between = opencode.new_message_id()
            await session.prompt(Prompt(given, ("hello",)))
            assert await session.has(given)
            stored = await opencode.members[0].http.call("GET", "session", ref.id, "message")
            assert between < stored[0]["info"]["id"]
            after_restart = opencode.session(ref)
            assert await after_restart.has(given)
            told = [e for e in await after_restart.read(given) if isinstance(e, MessageSeen)]
            assert told[0].message_id == given
            assert {each.parent_id for each in told} <= {None, given}


async def test_the_feed_goes_on_after_a_fault_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, faults = Http.stream, [ValueError("nobody thought of this")]

    def faulty(*args: Any, **kwargs: Any) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        if faults:
            raise faults.pop()
        return stream(*args, **kwargs)

    monkeypatch.setattr(Http, "stream", faulty)
    with capture_logs() as said:
        async with serve() as fake, agent_on(fake) as opencode, asyncio.timeout(PATIENCE):
            assert (await opencode.create("title", "context")).id
    assert "opencode.feed.internal_error" in [line["event"] for line in said]


async def test_the_version_is_read_at_each_connection() -> None:
    with capture_logs() as said:
        async with serve() as fake, asyncio.timeout(PATIENCE):
            fake.version = "1.17.19"
            async with agent_on(fake) as opencode:
                await opencode.available()
                fake.version = "1.19.0"
                fake.control("drop")
                await until_version(opencode, "1.19.0")
    lines = [line for line in said if line["event"].startswith("opencode.version")]
    lacks = ", ".join(each.name for each in Release("1.17.19").lacks)
    assert lacks
    assert [(line["event"], line.get("lacks")) for line in lines] == [
        ("opencode.version", lacks),
        ("opencode.version", "nothing"),
        ("opencode.version.untried", None),
    ]


async def until_version(opencode: OpenCode, version: str) -> None:
    while opencode.release != Release(version):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
