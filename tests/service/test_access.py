"""Whose session it is while something is done with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from opencode_a2a.domain.catalog import Catalog, SessionInfo
from opencode_a2a.domain.values import Caller, SessionRef
from opencode_a2a.service.access import Access
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database

ALICE = Caller("alice")
SESSION = SessionInfo("ses_1", "Title", "/", 0, 0)


class Watched(SqlBindings):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.claims: asyncio.Queue[int | None] = asyncio.Queue()

    async def claim(self, owner: str, session: SessionRef, until: int | None = None) -> str:
        found = await super().claim(owner, session, until)
        self.claims.put_nowait(until)
        return found


async def _session(session_id: str) -> SessionInfo:
    return SESSION


def access(owners: Watched) -> Access:
    catalog = cast(Catalog, SimpleNamespace(session=_session))
    return Access(catalog, owners, Path("/"), True, True, lambda: 0, claim_ms=20)


async def test_a_claim_is_held_as_long_as_it_takes_and_made_final() -> None:
    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = Watched(database)
        async with access(owners).claiming(ALICE, SESSION.id) as session:
            assert session == SESSION
            assert [await owners.claims.get() for _ in range(4)] == [20] * 4
        while (last := await owners.claims.get()) is not None:
            assert last == 20
        assert await owners.owners([SESSION.id]) == {SESSION.id: "alice"}


async def test_what_fails_leaves_a_claim_that_ends() -> None:
    async with asyncio.timeout(30), Database.open("sqlite://") as database:
        owners = Watched(database)
        with pytest.raises(ValueError, match="in vain"):
            async with access(owners).claiming(ALICE, SESSION.id):
                raise ValueError("in vain")
        assert await owners.owners([SESSION.id]) == {}
