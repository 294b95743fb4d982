"""Which session serves which context, and for whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import Connection, select

from opencode_a2a.domain.values import ModelRef, SessionRef
from opencode_a2a.errors import StoreUnavailable
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import DEFAULT_RETENTION, SqlTaskLog
from opencode_a2a.store.tables import sessions
from tests.store.support import OWNER, Clock, soon

SESSION = SessionRef("ses_1", "Title 🦄", "/home/alice/project")


async def test_a_context_without_a_session_has_none(database: Database) -> None:
    async with soon():
        assert await SqlBindings(database).session_of(OWNER, "c") is None


async def test_a_bound_session_is_found_again(database: Database) -> None:
    async with soon():
        await SqlBindings(database).bind(OWNER, "c", SESSION)
        assert await SqlBindings(database).session_of(OWNER, "c") == SESSION


async def test_the_same_context_of_another_caller_is_another_context(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        assert await bindings.session_of("bob", "c") is None
        assert await bindings.session_of(OWNER, "d") is None
        await bindings.bind("bob", "c", SessionRef("ses_2"))
        assert await bindings.session_of("bob", "c") == SessionRef("ses_2")
        assert await bindings.session_of(OWNER, "c") == SESSION


async def test_a_caller_learns_its_own_contexts_of_many_sessions(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        await bindings.bind("bob", "d", SessionRef("ses_2"))
        asked = [f"ses_{n}" for n in range(1_200)]
        assert await bindings.contexts_of(OWNER, asked) == {"ses_1": "c"}
        assert await bindings.contexts_of("bob", asked) == {"ses_2": "d"}
        assert await bindings.contexts_of("eve", asked) == {}
        assert await bindings.contexts_of(OWNER, []) == {}


async def test_of_two_sessions_for_one_context_the_first_stays(database: Database) -> None:
    bindings = SqlBindings(database)
    sessions = [SessionRef(f"ses_{n}") for n in range(5)]
    async with soon():
        answers = await asyncio.gather(
            *(bindings.bind(OWNER, "c", session) for session in sessions), return_exceptions=True
        )
        assert answers[0] is None
        assert all(isinstance(answer, StoreUnavailable) for answer in answers[1:])
        assert await bindings.session_of(OWNER, "c") == sessions[0]
        await bindings.bind(OWNER, "d", sessions[1])  # a refused session was not kept


async def test_a_context_whose_session_is_gone_can_have_another(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        await bindings.unbind(OWNER, "c", "ses_0")  # not its own
        await bindings.unbind("bob", "c", SESSION.id)
        assert await bindings.session_of(OWNER, "c") == SESSION
        await bindings.unbind(OWNER, "c", SESSION.id)
        assert await bindings.session_of(OWNER, "c") is None
        await bindings.bind(OWNER, "c", SessionRef("ses_2"))
        assert await bindings.session_of(OWNER, "c") == SessionRef("ses_2")


async def test_a_session_serves_one_context_only(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        for owner, context in [("bob", "c"), (OWNER, "d")]:
            with pytest.raises(StoreUnavailable):
                await bindings.bind(owner, context, SESSION)
            assert await bindings.session_of(owner, context) is None


async def owners(bindings: SqlBindings, sessions: list[str]) -> dict[str, str]:
    return {id: owner.principal for id, owner in (await bindings.owners(sessions)).items()}


async def test_a_session_is_claimed_once(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        assert await bindings.owners(["ses_1", "ses_2"]) == {}
        assert await bindings.claim("alice", SESSION) == "alice"
        assert await bindings.claim("alice", SESSION) == "alice"
        assert await bindings.claim("bob", SESSION) == "alice"
        assert await owners(bindings, ["ses_1", "ses_2"]) == {"ses_1": "alice"}


async def test_a_claim_for_a_while_ends_unless_it_is_made_for_good(database: Database) -> None:
    bindings, later = SqlBindings(database), now_ms() + 3_600_000
    async with soon():
        assert await bindings.claim("alice", SESSION, later) == "alice"
        assert await bindings.claim("bob", SESSION, later) == "alice"
        assert await bindings.claim("alice", SESSION, until=1) == "alice"  # and that is over
        assert await bindings.owners(["ses_1"]) == {}
        assert await bindings.claim("bob", SESSION, later) == "bob"
        assert await bindings.claim("bob", SESSION) == "bob"
        assert await bindings.claim("bob", SESSION, until=1) == "bob"  # what is for good, stays so
        assert await owners(bindings, ["ses_1"]) == {"ses_1": "bob"}


async def test_a_claim_that_is_over_is_swept_away_and_no_other(
    database: Database, log: SqlTaskLog, clock: Clock
) -> None:
    bindings, names = SqlBindings(database), ("over", "later", "for good", "serving")
    async with soon():
        for name, until in zip(names, (clock.now + 1, clock.now + 2, None), strict=False):
            await bindings.claim(OWNER, SessionRef(name), until)
        await bindings.bind(OWNER, "c", SessionRef("serving"))
        for left in (names, names[1:], names[2:], names[2:]):
            await log.sweep(DEFAULT_RETENTION)
            assert await database.read(_kept) == {*left}
            clock.now += 1


def _kept(db: Connection) -> set[str]:
    return set(db.execute(select(sessions.c.session_id)).scalars())


async def test_with_a_session_its_model_is_forgotten(database: Database) -> None:
    bindings, model = SqlBindings(database), ModelRef("demo", "large")
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        await bindings.keep_model(SESSION.id, model)
        assert await bindings.session_of(OWNER, "c") == replace(SESSION, model=model)
        await bindings.unbind(OWNER, "c", SESSION.id)
        await bindings.bind(OWNER, "c", SESSION)
        assert await bindings.session_of(OWNER, "c") == SESSION


async def test_to_serve_a_context_is_to_be_claimed_for_good(database: Database) -> None:
    bindings, other = SqlBindings(database), SessionRef("ses_2")
    async with soon():
        await bindings.claim("bob", SESSION, until=1)
        await bindings.claim("bob", other, now_ms() + 3_600_000)
        await bindings.bind(OWNER, "c", SESSION)
        await bindings.bind("bob", "c", other)
        for session, owner in ((SESSION, OWNER), (other, "bob")):
            await bindings.claim(owner, session, until=1)
            assert await owners(bindings, [session.id]) == {session.id: owner}


async def test_a_session_that_serves_a_context_is_owned(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        await bindings.bind(OWNER, "c", SESSION)
        assert await bindings.claim("bob", SESSION) == OWNER


async def test_of_many_who_claim_at_once_one_has_it(database: Database) -> None:
    bindings = SqlBindings(database)
    async with soon():
        found = await asyncio.gather(*(bindings.claim(f"caller-{n}", SESSION) for n in range(8)))
        assert len(set(found)) == 1
