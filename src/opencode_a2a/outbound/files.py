"""Files that callers name. The fetcher is imported with the first one: most never need it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..domain.ports import Fetched
from ..observe import audit, metrics
from .egress import Egress

if TYPE_CHECKING:
    from .fetch import Fetcher

SECONDS = 30.0  # for one file


class NamedFiles:
    """Implements `domain.ports.Files`."""

    def __init__(self, egress: Egress, root: Path, seconds: float) -> None:
        self._egress = egress
        self._root = root
        self._seconds = seconds
        self._fetcher: Fetcher | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, egress: Egress, root: Path, seconds: float = SECONDS
    ) -> AsyncIterator[NamedFiles]:
        self = cls(egress, root, seconds=seconds)
        try:
            yield self
        finally:
            if self._fetcher is not None:
                await self._fetcher.close()

    async def fetch(self, url: str, limit: int) -> Fetched:
        if self._fetcher is None:
            from .fetch import (
                Fetcher,  # imports the HTTP library, which would slow down every start
            )

            self._fetcher = Fetcher(self._egress, self._root, seconds=self._seconds)
        outcome = "refused"
        try:
            found = await self._fetcher.fetch(url, limit)
            outcome = "ok"
            return found
        finally:
            metrics.FILES_FETCHED.labels(outcome).inc()
            audit.record("file.fetch", outcome=outcome, host=_host_of(url))


def _host_of(url: str) -> str:
    """Not the whole URL: its path or query may hold a secret."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
