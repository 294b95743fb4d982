"""Stops a run that no caller waits for any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ..domain.catalog import Catalog, Location, SessionInfo
from ..domain.exchange import ABORT_AGAIN_SECONDS
from ..domain.ports import Agent
from ..errors import UpstreamError

STOP_SECONDS = 10.0


async def stop_until_idle(agent: Agent, catalog: Catalog, *, session: SessionInfo) -> None:
    """Stop the run of a session again and again: OpenCode may stop only a sub-agent at first."""
    running = agent.session(session.ref)
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            while True:
                await running.abort(await _sub_agents(catalog, session.id))
                if session.id not in await catalog.statuses(Location(session.directory)):
                    return
                await asyncio.sleep(ABORT_AGAIN_SECONDS)


async def _sub_agents(catalog: Catalog, session_id: str) -> list[str]:
    """The sessions that work for this one, at any depth."""
    found = [session_id]
    for each in found:
        found += [child.id for child in await catalog.children(each)]
    return found[1:]
