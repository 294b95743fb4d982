"""Looking for the sessions of one caller among those of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from opencode_a2a.domain.catalog import Place, SessionInfo, SessionQuery
from opencode_a2a.service.access import FURTHEST, Access
from tests.service.house import ALICE


class Crowd:
    """Sessions of Bob, one of Alice among them, so many that no list has an end."""

    def __init__(self, of_alice: int) -> None:
        self.of_alice = f"ses_{of_alice}"
        self.listed: list[int] = []

    async def sessions(self, place: Place, query: SessionQuery) -> Sequence[SessionInfo]:
        self.listed.append(query.limit)
        return [SessionInfo(f"ses_{n}", "", "/work", 0, 0) for n in range(query.limit)]

    async def owners(self, sessions: Sequence[str]) -> Mapping[str, str]:
        return {session: "alice" if session == self.of_alice else "bob" for session in sessions}


@pytest.mark.parametrize(("of_alice", "found"), [(3, True), (5_000, True), (50_000, False)])
async def test_a_list_looks_further_back_but_not_for_ever(of_alice: int, found: bool) -> None:
    crowd = cast(Any, Crowd(of_alice))
    access = Access(crowd, crowd, Path("/work"), shared=False, directories=False, clock=lambda: 0)
    seen = await access.latest(ALICE, Place("/work"), SessionQuery(2))
    assert [session.id for session in seen] == [crowd.of_alice] * found
    assert max(crowd.listed) == FURTHEST
