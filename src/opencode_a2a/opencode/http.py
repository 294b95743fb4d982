"""HTTP to OpenCode: the only module that knows the HTTP library.

Every path segment is encoded, every answer's content type is checked (an unknown
route answers 200 with a web page), and every failure is translated here.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from yarl import URL

from ..errors import (
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)

FIRST_TRY = 5.0  # seconds until a question is asked again


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an OpenCode server listens, and how to log in."""

    base_url: str
    username: str = "opencode"
    password: str | None = field(default=None, repr=False)

    @property
    def authorization(self) -> dict[str, str]:
        """The header that logs in; none when there is no password."""
        if self.password is None:
            return {}
        secret = b64encode(f"{self.username}:{self.password}".encode()).decode()
        return {"authorization": f"Basic {secret}"}


class Http:
    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, timeout: float, concurrency: int
    ) -> None:
        self._session = session
        self._base = base_url.rstrip("/")
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, endpoint: Endpoint, timeout: float = 30.0, concurrency: int = 0
    ) -> AsyncIterator[Http]:
        async with aiohttp.ClientSession(
            headers=endpoint.authorization,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,  # one event is one line, and may hold a whole attachment
        ) as session:
            yield cls(session, endpoint.base_url, timeout, concurrency)

    async def call(
        self,
        method: str,
        *segments: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """One request and its JSON answer; None where the answer has no body."""
        answer, _ = await self.exchange(method, *segments, query=query, body=body, timeout=timeout)
        return answer

    async def exchange(
        self,
        method: str,
        *segments: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
    ) -> tuple[Any, Mapping[str, str]]:
        """Like `call`, with the answer's headers."""
        if self._slots is None:
            return await self._exchange(method, segments, query, body, timeout)
        async with self._slots:
            return await self._exchange(method, segments, query, body, timeout)

    async def _exchange(
        self,
        method: str,
        segments: tuple[str, ...],
        query: Mapping[str, str] | None,
        body: Any,
        timeout: float | None,
    ) -> tuple[Any, Mapping[str, str]]:
        """Questions are asked again: what OpenCode gets while it starts is never answered."""
        patience = timeout or self._timeout
        if method == "GET" and patience > FIRST_TRY:
            with suppress(UpstreamTimeout):
                return await self._once(method, segments, query, body, FIRST_TRY)
            patience -= FIRST_TRY
        return await self._once(method, segments, query, body, patience)

    async def _once(
        self,
        method: str,
        segments: tuple[str, ...],
        query: Mapping[str, str] | None,
        body: Any,
        timeout: float,
    ) -> tuple[Any, Mapping[str, str]]:
        headers = {"content-type": "application/json"} if body is not None else {}
        data = orjson.dumps(body) if body is not None else None
        with _translated():
            async with (
                asyncio.timeout(timeout),
                self._session.request(
                    method, self._url(segments, query), data=data, headers=headers
                ) as response,
            ):
                raw = await response.read()
        return _checked(response, raw), response.headers

    @asynccontextmanager
    async def stream(self, *segments: str, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """An endless answer in chunks; ends with an error when silent for too long."""
        with _translated():
            async with self._session.get(
                self._url(segments, None),
                timeout=aiohttp.ClientTimeout(total=None, connect=5, sock_read=silence),
            ) as response:
                if response.status != 200:
                    _checked(response, await response.read())
                if response.content_type != "text/event-stream":
                    raise _not_opencode(response)
                yield response.content.iter_any()

    def _url(self, segments: tuple[str, ...], query: Mapping[str, str] | None) -> URL:
        if not all(segment.strip(".") for segment in segments):
            # Encoded or not, dots are resolved on the way: this would be another route.
            raise UpstreamHttpError(
                "OpenCode has nothing of that name.", upstream_status=404, name="NotFoundError"
            )
        path = "/".join(quote(segment, safe="") for segment in segments)
        search = f"?{urlencode(query, quote_via=quote)}" if query else ""
        return URL(f"{self._base}/{path}{search}", encoded=True)


def _checked(response: aiohttp.ClientResponse, raw: bytes) -> Any:
    is_json = response.content_type == "application/json"
    if response.status >= 400:
        raise _refused(response.status, raw if is_json else b"")
    if not raw:
        return None
    if not is_json:
        raise _not_opencode(response)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        raise UpstreamPayloadError("OpenCode sent an answer that is not valid JSON.") from exc


def _refused(status: int, raw: bytes) -> UpstreamHttpError:
    """With the error's own name. Nothing else of the body is safe to pass on."""
    sentence = f"OpenCode answered with HTTP {status}."
    if status == 401:
        sentence = (
            "OpenCode refused our credentials. "
            "Check OPENCODE_AUTH_USERNAME and OPENCODE_AUTH_PASSWORD."
        )
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    name = (body.get("name") or body.get("_tag")) if isinstance(body, dict) else None
    error = UpstreamHttpError(
        sentence, upstream_status=status, name=name if isinstance(name, str) else None
    )
    error.body = body
    return error


def _not_opencode(response: aiohttp.ClientResponse) -> UpstreamPayloadError:
    return UpstreamPayloadError(
        f"The server at OPENCODE_BASE_URL answered {response.content_type} where OpenCode's API "
        "answers JSON. Check that it is `opencode serve`, of a supported version.",
        upstream_status=response.status,
    )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:  # aiohttp's own timeouts are among these
        raise UpstreamTimeout("OpenCode did not answer in time.") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise UpstreamUnreachable(
            "OpenCode cannot be reached. Check that it runs and that OPENCODE_BASE_URL names it.",
            retry_after=5,
        ) from exc
