"""Wraps the HTTP library, and turns its errors into ours.

No other module of this package knows the library. This one is imported with the first request to
OpenCode and not while the service starts: the library is large, and prepares TLS on import.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import structlog
from yarl import URL

from ..errors import UpstreamTimeout, UpstreamUnreachable
from .listener import OtherUserListens, socket_to_own_user

logger = structlog.get_logger()
level = logging.getLogger("opencode_a2a")  # may change while the service runs

Answer = aiohttp.ClientResponse
_ERRORS = (aiohttp.ClientError, OSError)  # a TimeoutError is an OSError


class Client:
    def __init__(self, headers: Mapping[str, str], *, own_user_only: bool = False) -> None:
        make_socket = socket_to_own_user if own_user_only else None
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, socket_factory=make_socket),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,  # one event is one line, and may hold a whole attachment
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        url: str,
        *,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> tuple[Answer, bytes]:
        """One request, and all of its answer. The URL is encoded already."""
        target, began, status = URL(url, encoded=True), time.perf_counter(), 0
        try:
            async with (
                asyncio.timeout(timeout),
                self._session.request(method, target, data=data, headers=headers) as answer,
            ):
                status = answer.status
                return answer, await answer.read()
        except _ERRORS as exc:
            raise _translated(exc) from exc
        finally:  # a status of 0: no answer
            if level.isEnabledFor(logging.DEBUG):
                ms = round((time.perf_counter() - began) * 1000, 1)
                logger.debug("opencode.call", method=method, path=target.path, status=status, ms=ms)

    @asynccontextmanager
    async def listen(self, url: str) -> AsyncIterator[Answer]:
        """An answer that need not end."""
        try:
            async with self._session.get(
                URL(url, encoded=True),
                timeout=aiohttp.ClientTimeout(total=None, connect=5),
            ) as answer:
                yield answer
        except _ERRORS as exc:
            raise _translated(exc) from exc


def _translated(exc: Exception) -> UpstreamTimeout | UpstreamUnreachable:
    if isinstance(exc, TimeoutError):  # aiohttp's own timeouts are among these
        return UpstreamTimeout("OpenCode did not answer in time.")
    if isinstance(getattr(exc, "os_error", None), OtherUserListens):
        return UpstreamUnreachable(
            "Another user of this machine listens at OpenCode's port, so the password is not "
            "sent there. End that program, or give this instance another port.",
            retry_after=5,
        )
    return UpstreamUnreachable(
        "OpenCode cannot be reached. Check that it runs and that OPENCODE_BASE_URL names it.",
        retry_after=5,
    )
