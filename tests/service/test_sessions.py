"""Where the session of a context works that has none here."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencode_a2a.domain.catalog import Location
from opencode_a2a.domain.limits import Limits
from opencode_a2a.errors import DirectoryGone
from opencode_a2a.service.limits import Limiter
from opencode_a2a.service.locations import Locations
from opencode_a2a.service.sessions import Sessions
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.database import Database
from tests.fakes.session import ScriptedAgent


async def test_a_limited_caller_works_where_it_may_although_nobody_names_a_directory(
    tmp_path: Path,
) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    limiter = Limiter(of=lambda _: Limits(directories=("mine",)))
    async with Database.open("sqlite://") as database:
        bindings = SqlBindings(database)
        locations = Locations(
            None,  # type: ignore[arg-type]  # only worktrees are asked about
            bindings,
            tmp_path,
            shared=False,
            directories=True,
            limiter=limiter,
        )
        sessions = Sessions(ScriptedAgent(), bindings, locations, limiter=limiter)
        session = await sessions.serving("ada", "from another node", title="hello")
        assert session.ref.directory == str(tmp_path / "mine")
        with pytest.raises(DirectoryGone):
            await sessions.serving(
                "ada", "another", title="hello", location=Location(str(tmp_path / "theirs"))
            )
