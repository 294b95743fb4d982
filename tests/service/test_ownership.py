"""Whose session it is while something is done with it, and which a caller finds among many."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opencode_a2a.domain.catalog import Catalog, Location, SessionInfo, SessionOwner, SessionQuery
from opencode_a2a.domain.values import PermissionRule, SessionRef
from opencode_a2a.errors import SessionNotFound, StoreUnavailable, UpstreamTimeout
from opencode_a2a.service.locations import Locations
from opencode_a2a.service.ownership import CREATION_MS, MAX_SEARCHED, Ownership
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from tests.service.house import ALICE, FixedCatalog

SESSION = SessionInfo("ses_1", "Title", "/", 0, 0)


class Watched(SqlBindings):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.claims: asyncio.Queue[int | None] = asyncio.Queue()

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        found = await super().claim(owner, session, until)
        self.claims.put_nowait(until)
        return found


class Full(Watched):
    full = False

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        if self.full:
            raise StoreUnavailable("full")
        return await super().claim(owner, session, until)


async def _session(session_id: str) -> SessionInfo:
    return SESSION


def locations_of(owners: SqlBindings, **catalog: Any) -> Locations:
    agent = FixedCatalog(cast(Catalog, SimpleNamespace(**catalog)))
    return Locations(agent, owners, Path("/"), shared=True, directories=True)


def ownership(owners: Watched) -> Ownership:
    locations = locations_of(owners, session=_session)
    return Ownership(owners, locations, shared=True, clock=lambda: 0, claim_ms=20)


async def test_a_claim_is_held_as_long_as_it_takes_and_made_final() -> None:
    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = Watched(database)
        async with ownership(owners).claiming(ALICE, SESSION.id) as session:
            assert session == SESSION
            assert [await owners.claims.get() for _ in range(4)] == [20] * 4
        while (last := await owners.claims.get()) is not None:
            assert last == 20
        assert (await owners.owners([SESSION.id]))[SESSION.id].principal == "alice"


async def test_what_fails_leaves_a_claim_that_ends() -> None:
    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = Watched(database)
        with pytest.raises(ValueError, match="in vain"):
            async with ownership(owners).claiming(ALICE, SESSION.id):
                raise ValueError("in vain")
        assert await owners.owners([SESSION.id]) == {}


async def test_rules_are_set_before_anybody_owns_a_session() -> None:
    tries: list[str] = []

    async def restrict(session_id: str, rules: object) -> None:
        tries.append(session_id)
        if len(tries) == 1:
            raise UpstreamTimeout("too slow")

    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = SqlBindings(database)
        catalog = cast(Catalog, SimpleNamespace(session=_session, restrict=restrict))
        locations = Locations(
            FixedCatalog(catalog), owners, Path("/"), shared=True, directories=True
        )
        rules = (PermissionRule("bash", "*", "ask"),)
        guard = Ownership(
            owners,
            locations,
            shared=True,
            clock=lambda: 0,
            claim_ms=20,
            rules=lambda: rules,
        )
        with pytest.raises(UpstreamTimeout):
            await guard.own(ALICE, SESSION.ref)
        assert await owners.owners([SESSION.id]) == {}
        await guard.own(ALICE, SESSION.ref)
        await guard.own(ALICE, SESSION.ref)
        assert tries == [SESSION.id] * 2


async def test_what_is_done_is_not_denied_because_of_the_store() -> None:
    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = Full(database)
        async with ownership(owners).claiming(ALICE, SESSION.id):
            owners.full = True


@pytest.mark.parametrize(("root", "is_seen"), [(None, True), ("/", True), ("/inner", False)])
async def test_what_a_service_for_another_root_made_is_not_shared_here(
    root: str | None, is_seen: bool
) -> None:
    """It may lie below this root, too; who owns it is in the database of the other service."""
    made = replace(SESSION, directory="/inner", context_id="c", workspace_root=root)

    async def session(session_id: str) -> SessionInfo:
        return made

    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners, catalog = SqlBindings(database), cast(Catalog, SimpleNamespace(session=session))
        locations = Locations(
            FixedCatalog(catalog), owners, Path("/"), shared=True, directories=True
        )
        guard = Ownership(owners, locations, shared=True, clock=lambda: CREATION_MS, claim_ms=20)
        assert await guard.among(ALICE, [made]) == [made] * is_seen
        if is_seen:
            assert await guard.visible(ALICE, made.id) == made
        else:
            with pytest.raises(SessionNotFound):
                await guard.visible(ALICE, made.id)


class Crowd:
    """Sessions of Bob, one of Alice among them, so many that no list has an end."""

    def __init__(self, of_alice: int) -> None:
        self.of_alice = f"ses_{of_alice}"
        self.listed: list[int] = []

    async def sessions(self, location: Location, query: SessionQuery) -> Sequence[SessionInfo]:
        self.listed.append(query.limit)
        return [SessionInfo(f"ses_{n}", "", "/home/project", 0, 0) for n in range(query.limit)]

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, SessionOwner]:
        return {
            session: SessionOwner("alice" if session == self.of_alice else "bob", "/home/project")
            for session in sessions
        }


@pytest.mark.parametrize(("of_alice", "found"), [(3, True), (5_000, True), (50_000, False)])
async def test_a_list_looks_further_back_but_not_for_ever(of_alice: int, found: bool) -> None:
    crowd = cast(Any, Crowd(of_alice))
    locations = Locations(
        FixedCatalog(crowd), crowd, Path("/home/project"), shared=False, directories=False
    )
    ownership = Ownership(crowd, locations, shared=False, clock=lambda: 0, claim_ms=1)
    seen = await ownership.latest(ALICE, Location("/home/project"), query=SessionQuery(2))
    assert [session.id for session in seen] == [crowd.of_alice] * found
    assert max(crowd.listed) == MAX_SEARCHED
