"""Has OpenCode load what prompts need in a directory, before the first prompt there.

OpenCode loads providers, MCP servers, tools and agents of a directory when a prompt needs them for
the first time. If that prompt is aborted meanwhile, OpenCode keeps the interruption in the place of
what it was loading: every later prompt in that directory is dropped, or counts as aborted, until
OpenCode is started again. Reads load the same things, and an abort does not reach them.
"""

from __future__ import annotations

import structlog

from ...errors import UpstreamHttpError, UpstreamPayloadError, UpstreamTimeout
from ...locks import KeyedLock
from ..feed import Feed
from ..http import Requests
from ..recent import Recent

logger = structlog.get_logger()

LOADING_ROUTES = (
    ("config", "providers"),
    ("mcp",),
    ("agent",),
    ("command",),
    ("skill",),
    ("experimental", "tool", "ids"),
)


class Instances:
    """Knows for which directories OpenCode has loaded everything."""

    def __init__(self, http: Requests, feed: Feed) -> None:
        self._http = http
        self._feed = feed
        self._loading: KeyedLock[str] = KeyedLock()
        self._loaded = Recent[object]()  # the instance

    async def load(self, directory: str) -> None:
        """Return once OpenCode has loaded what prompts need there, or has had enough time for it.

        An MCP server can take long to start, and prompts can do without it.
        """
        if self._loaded.get(directory) == self._feed.instance(directory):
            return
        async with self._loading(directory):
            instance = self._feed.instance(directory)
            if self._loaded.get(directory) == instance:
                return
            for route in LOADING_ROUTES:
                await self._read(route, directory)
            self._loaded.put(directory, instance)

    async def _read(self, route: tuple[str, ...], directory: str) -> None:
        try:
            await self._http.call("GET", *route, query={"directory": directory})
        except (UpstreamHttpError, UpstreamPayloadError):
            pass  # other versions of OpenCode do not have every route
        except UpstreamTimeout:
            logger.warning("opencode.loads_slowly", directory=directory, route="/".join(route))
