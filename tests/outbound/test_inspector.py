"""Other agents, as a person looks at them: what may be looked at, and what is shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from opencode_a2a.domain.addresses import origin_of
from opencode_a2a.errors import InvalidParams, PeerFailed, RateLimited
from opencode_a2a.outbound import inspector as inspecting
from opencode_a2a.outbound.egress import Egress
from opencode_a2a.outbound.inspector import MAX_BYTES, Inspector
from opencode_a2a.outbound.target import CallablePeers, PeerLimits, Target
from tests.outbound.agents import Rude, card, sdk_agent

LIMITS = PeerLimits(total_seconds=30, lost_seconds=1)
PUBLIC, PRIVATE = Egress(), Egress(allow_private=True)
DEPTH = {"A2A-Call-Depth": "1"}


def inspector(
    *targets: Target,
    any_address: bool = False,
    egress: Egress = PUBLIC,
    limits: PeerLimits = LIMITS,
    own: str = "http://127.0.0.1:1",
) -> Inspector:
    def by_address(url: str) -> Target:
        return Target(url, name=url, named=False, by_caller=True)

    peers = CallablePeers(
        {target.name: target for target in targets},
        by_address=by_address if any_address else None,
        own_origins=frozenset({origin_of(own)}),
    )
    return Inspector(lambda: peers, egress, limits, headers=DEPTH)


async def test_a_card_is_shown_as_it_came_with_what_is_wrong_with_it() -> None:
    async with Rude.open() as agent:
        hostile: dict[str, Any] = {**card(agent.url), "name": "<b>Rude</b>", "more": [1]}
        hostile["skills"] = [{"id": "a", "name": "<script>", "description": "x", "tags": []}]
        del hostile["version"]
        agent.card = hostile
        looking = inspector(Target(agent.url, name="rude"))
        assert looking.names() == ["rude"]
        assert not looking.takes_addresses()
        found = await looking.card("rude")
    assert found.card == hostile
    assert found.url == f"{agent.url}/.well-known/agent-card.json"
    assert (found.line, found.transport) == ("1.0", "JSONRPC")
    assert any("version" in each for each in found.problems)
    assert any("tags" in each for each in found.problems)


async def test_a_card_is_shown_although_nothing_can_be_spoken_with_its_agent() -> None:
    async with Rude.open() as agent:
        agent.card = card(agent.url)
        agent.card["supportedInterfaces"][0]["protocolBinding"] = "GRPC"
        found = await inspector(Target(agent.url, name="rude")).card("rude")
    assert (found.line, found.transport) == (None, None)
    assert any("GRPC" in each for each in found.problems)


@pytest.mark.parametrize("line", ["1.0", "0.3"])
async def test_a_message_is_answered_and_every_event_is_shown(line: str) -> None:
    async with sdk_agent(line, "JSONRPC") as url:
        looking = inspector(Target(url, name="echo"))
        first = await looking.send("echo", "one two", context_id=None)
        second = await looking.send("echo", "where are we", context_id=first.context_id)
        third = await looking.send("echo", "just say it", context_id=None)
    assert first.state == "COMPLETED"
    assert first.answer.split() == ["one", "two"]
    assert sum("artifactUpdate" in event for event in first.events) == 2
    assert second.answer.strip() == first.context_id
    assert (third.state, third.task_id, third.answer) == ("COMPLETED", None, "said")


async def test_an_answer_that_takes_too_long_is_shown_as_far_as_it_has_come() -> None:
    async with sdk_agent("1.0", "JSONRPC") as url:
        looking = inspector(Target(url, name="echo"), limits=replace(LIMITS, total_seconds=1))
        said = await looking.send("echo", "wait", context_id=None)
    assert said.state == "WORKING"
    assert said.task_id is not None


async def test_who_is_called_is_told_that_an_agent_calls() -> None:
    async with Rude.open() as agent:
        looking = inspector(Target(agent.url, name="rude"))
        with pytest.raises(PeerFailed):
            await looking.send("rude", "hello", context_id=None)
    asked = [headers for what, headers in agent.asked if what.startswith(("Send", "message"))]
    assert asked
    assert all(headers["a2a-call-depth"] == "1" for headers in asked)


async def test_an_address_is_called_only_where_the_policy_for_callers_allows_it() -> None:
    async with Rude.open() as agent:
        for refusing, word in (
            (inspector(), agent.url),
            (inspector(any_address=True), agent.url),  # a private host
            (inspector(any_address=True, egress=PRIVATE, own=agent.url), agent.url),
            (inspector(), "nobody"),
        ):
            with pytest.raises(InvalidParams) as refused:
                await refusing.card(word)
            assert set(refused.value.fields) == {"peer"}
        assert agent.asked == []
        allowing = inspector(any_address=True, egress=PRIVATE)
        assert (await allowing.card(agent.url)).card["name"] == "Rude"


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.2", "[::ffff:127.0.0.1]", "0.0.0.0", "[::1]"]
)
async def test_this_service_has_many_names_and_is_called_by_none_of_them(host: str) -> None:
    async with Rude.open() as agent:
        port = urlsplit(agent.url).port
        assert port is not None
        egress = replace(PRIVATE, own_ports=frozenset({port}))
        for target in (Target(f"http://{host}:{port}", name="me"), Target(agent.url, name="me")):
            with pytest.raises(InvalidParams, match="is not allowed"):
                await inspector(target, egress=egress).card("me")
        assert agent.asked == []


async def test_an_agent_whose_card_names_this_service_is_not_sent_to() -> None:
    async with Rude.open() as agent:
        agent.card = card("http://127.0.0.1:1/")
        looking = inspector(Target(agent.url, name="rude"))
        with pytest.raises(InvalidParams, match="cannot call itself"):
            await looking.send("rude", "hello", context_id=None)


async def test_what_is_no_agent_or_too_large_is_said_to_be_so() -> None:
    async with Rude.open() as agent:
        looking = inspector(Target(agent.url, name="rude"))
        agent.card = None
        with pytest.raises(PeerFailed, match="no Agent Card"):
            await looking.card("rude")
        agent.card = {**card(agent.url), "description": "x" * MAX_BYTES}
        with pytest.raises(PeerFailed, match="larger than"):
            await looking.card("rude")
        for member in ("\ud800", 10**30, nested(300)):
            agent.card = {**card(agent.url), "more": member}
            with pytest.raises(PeerFailed):
                await looking.card("rude")
    with pytest.raises(PeerFailed, match="Nobody accepts connections"):
        await looking.card("rude")


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


async def test_all_events_together_may_not_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sdk_agent("1.0", "JSONRPC") as url:
        looking = inspector(Target(url, name="echo"))
        assert (await looking.send("echo", "one two", context_id=None)).answer
        monkeypatch.setattr(inspecting, "MAX_BYTES", 500)
        with pytest.raises(PeerFailed, match="more than 500 bytes"):
            await looking.send("echo", "one two", context_id=None)


async def test_nobody_waits_for_the_looks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "MAX_AT_ONCE", 1)
    async with sdk_agent("1.0", "JSONRPC") as url:
        limits = replace(LIMITS, total_seconds=2)
        looking = inspector(Target(url, name="echo"), limits=limits)
        first = asyncio.create_task(looking.send("echo", "wait", context_id=None))
        while not looking._looks:  # noqa: ASYNC110 (tells nobody)
            await asyncio.sleep(0.01)
        with pytest.raises(RateLimited):
            await looking.card("echo")
        await first
        assert (await looking.card("echo")).card
