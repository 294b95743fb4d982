"""Which conversation with a peer goes on, for which caller and context."""

from __future__ import annotations

import asyncio

import pytest

from opencode_a2a.domain.ports import PeerConversation
from opencode_a2a.store.conversations import MAX_ID, SqlPeerConversations
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import Retention, SqlTaskLog
from tests.store.support import OWNER, Clock, soon

HERE = PeerConversation("their-context", "their-task")


@pytest.fixture
def conversations(database: Database, clock: Clock) -> SqlPeerConversations:
    return SqlPeerConversations(database, clock)


async def test_the_last_conversation_is_found_again(conversations: SqlPeerConversations) -> None:
    async with soon():
        assert await conversations.last(OWNER, "c", "reviewer") is None
        await conversations.keep(OWNER, "c", "reviewer", HERE)
        assert await conversations.last(OWNER, "c", "reviewer") == HERE
        over = PeerConversation("their-context")
        await conversations.keep(OWNER, "c", "reviewer", over)
        assert await conversations.last(OWNER, "c", "reviewer") == over


async def test_callers_contexts_and_peers_do_not_mix(conversations: SqlPeerConversations) -> None:
    async with soon():
        await conversations.keep(OWNER, "c", "reviewer", HERE)
        for other in (("bob", "c", "reviewer"), (OWNER, "d", "reviewer"), (OWNER, "c", "other")):
            assert await conversations.last(*other) is None


async def test_of_many_at_once_one_is_kept(conversations: SqlPeerConversations) -> None:
    many = [PeerConversation(f"context-{n}") for n in range(8)]
    async with soon():
        await asyncio.gather(*(conversations.keep(OWNER, "c", "p", each) for each in many))
        assert await conversations.last(OWNER, "c", "p") in many


@pytest.mark.parametrize("strange", ["x" * (MAX_ID + 1), "nul\0"])
async def test_ids_that_cannot_be_stored_are_forgotten(
    conversations: SqlPeerConversations, strange: str
) -> None:
    async with soon():
        for conversation in (PeerConversation(strange), PeerConversation("c", strange)):
            await conversations.keep(OWNER, "c", "p", HERE)
            await conversations.keep(OWNER, "c", "p", conversation)
            assert await conversations.last(OWNER, "c", "p") is None


async def test_a_peer_with_an_endless_address_is_not_remembered(
    conversations: SqlPeerConversations,
) -> None:
    endless = "https://example.com/" + "x" * 10_000
    async with soon():
        await conversations.keep(OWNER, "c", endless, HERE)
        assert await conversations.last(OWNER, "c", endless) is None


async def test_a_conversation_is_kept_as_long_as_tasks_are(
    conversations: SqlPeerConversations, log: SqlTaskLog, clock: Clock
) -> None:
    async with soon():
        await conversations.keep(OWNER, "c", "p", HERE)
        clock.now += 60_000
        await log.sweep(Retention(tasks=60))
        assert await conversations.last(OWNER, "c", "p") == HERE
        clock.now += 1
        await log.sweep(Retention(tasks=0))  # for ever
        assert await conversations.last(OWNER, "c", "p") == HERE
        await log.sweep(Retention(tasks=60))
        assert await conversations.last(OWNER, "c", "p") is None
