"""Requests to an address that the operator has named. No redirect is followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from ..outbound.failures import PeerError, PeerRefused, PeerTimeout, PeerUnreachable
from ..outbound.transport import unreachable

SECONDS = 10.0


@asynccontextmanager
async def web_client() -> AsyncIterator[httpx.AsyncClient]:
    """A client whose errors are those of `outbound.failures`."""
    tls = httpx.create_ssl_context(trust_env=True)
    async with httpx.AsyncClient(verify=tls, trust_env=False, timeout=SECONDS) as http:
        try:
            yield http
        except httpx.ConnectError as exc:
            raise unreachable(exc, exc.request.url) from exc
        except httpx.TimeoutException as exc:
            raise PeerTimeout(f"{exc.request.url.host} did not answer in time.") from exc
        except httpx.TransportError as exc:
            raise PeerUnreachable(f"The connection to {exc.request.url.host} was lost.") from exc


def refusal(status: int, url: str) -> PeerError:
    if status in (502, 503, 504):
        return PeerUnreachable(f"A proxy at {url} gets no answer (HTTP {status}).")
    return PeerRefused(f"{url} answers HTTP {status}.")
