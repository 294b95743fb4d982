"""Several OpenCodes as one agent, over HTTP to fake ones that share no session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from opencode_a2a.domain.catalog import Location, SessionPrompt
from opencode_a2a.domain.values import Prompt
from opencode_a2a.opencode import agent as agents
from opencode_a2a.opencode.agent import OpenCode
from opencode_a2a.opencode.api import Defaults
from opencode_a2a.opencode.http import Endpoint
from tests.fakes.opencode import FakeOpenCode, serve

PATIENCE = 60.0


@asynccontextmanager
async def connected(*fakes: FakeOpenCode) -> AsyncIterator[OpenCode]:
    endpoints = [Endpoint(fake.base_url) for fake in fakes]
    async with (
        asyncio.timeout(PATIENCE),
        OpenCode.connect(endpoints, Defaults("/project"), timeout=60.0) as fleet,
    ):
        for member in fleet.members:
            await member.feed.ready()
        yield fleet


async def test_sessions_at_work_are_spread_and_each_stays_where_it_is() -> None:
    async with serve() as one, serve() as other, connected(one, other) as fleet:
        refs = await asyncio.gather(*(fleet.create("title", "context") for _ in range(4)))
        assert (len(one.sessions), len(other.sessions)) == (2, 2)
        subscriptions = [await fleet.session(ref).events() for ref in refs]
        for ref, subscription in zip(refs, subscriptions, strict=True):
            # The fake ones share no session: at the wrong one it would be unknown.
            await fleet.session(ref).prompt(Prompt(fleet.new_message_id(), ("hello",)))
            with subscription as events:
                assert await anext(events)


async def test_a_request_about_a_session_goes_to_the_opencode_that_has_it() -> None:
    async with serve() as one, serve() as other, connected(one, other) as fleet:
        catalog = fleet.catalog
        for _ in range(2):
            ref = await fleet.create("title", "context")
            assert (await catalog.session(ref.id)).id == ref.id
            await catalog.prompt(ref.id, SessionPrompt(("hello",)))
            page = await catalog.messages(ref.id, limit=10, before=None)
            assert page.messages
        assert len(one.sessions) == len(other.sessions) == 1
        assert await catalog.agents(Location("/project"))


async def test_what_any_of_them_is_doing_is_told() -> None:
    async with serve() as one, serve() as other, connected(one, other) as fleet:
        refs = [await fleet.create("title", "context") for _ in range(2)]
        for ref in refs:
            await fleet.session(ref).prompt(Prompt(fleet.new_message_id(), ("[[hang]]",)))
        catalog = fleet.catalog
        assert set(await catalog.statuses(Location("/project"))) == {ref.id for ref in refs}


async def test_one_that_is_away_gets_no_new_session() -> None:
    async with serve() as one, serve() as other, connected(one, other) as fleet:
        other.control("fault", mode="starting")
        other.control("drop")
        async with asyncio.timeout(60):
            while await other.swallowed.get() != "GET /global/health":
                pass  # what was being loaded
        assert fleet.connected
        for _ in range(3):
            assert (await fleet.create("title", "context")).id in one.sessions


async def test_the_longest_unused_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "REMEMBERED", 2)
    async with serve() as one, serve() as other, connected(one, other) as fleet:
        refs = [await fleet.create("title", "context") for _ in range(3)]
        members = [fleet.of_session(ref.id) for ref in refs[1:]]
        assert members == [fleet.of_session(ref.id) for ref in refs[1:]]
        await fleet.delete(refs[1])
        assert refs[1].id not in {*one.sessions, *other.sessions}
