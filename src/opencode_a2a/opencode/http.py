"""HTTP to OpenCode.

Every path segment is encoded, and every answer's content type is checked: an unknown
route answers 200 with a web page.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import aiohttp
import orjson
import structlog
from yarl import URL

from ..domain.release import SUPPORTED, Release
from ..errors import (
    ServiceError,
    UpstreamError,
    UpstreamHttpError,
    UpstreamPayloadError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from ..observe import metrics, tracing
from ..observe.tracing import SpanRef

logger = structlog.get_logger()

FIRST_TRY_SECONDS = 5.0  # until a read is repeated
CONNECT_SECONDS = 5.0  # for the stream of events
READ_BYTES = 1 << 20  # at once: an event may hold a whole attachment
_ERRORS = (aiohttp.ClientError, OSError)  # a TimeoutError is an OSError
_ROUTE_WORDS = frozenset(  # of OpenCode's paths; what is none of these is an id or a name
    {
        *("abort", "active", "adapter", "agent", "api", "children", "command", "commit", "compact"),
        *("config", "current", "default", "diff", "experimental", "fork", "form", "global"),
        *("health", "inbox", "info", "interrupt", "location", "mcp", "message", "model"),
        *("permission", "project", "prompt", "prompt_async", "provider", "providers", "question"),
        *("reject", "reply", "reset", "revert", "session", "share", "shell", "stage", "status"),
        *("summarize", "todo", "unrevert", "workspace", "worktree"),
    }
)


class NotFound(UpstreamHttpError):
    """OpenCode says that it has no such session, message or request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an OpenCode server listens, and how to log in."""

    base_url: str
    username: str = "opencode"
    password: str | None = field(default=None, repr=False)
    managed: bool = False  # this service has started it, and chosen its port

    @property
    def authorization(self) -> dict[str, str]:
        """The header that logs in; none when there is no password."""
        return {"authorization": f"Basic {self.secrets[1]}"} if self.password is not None else {}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The password, and the login that is made of it."""
        if self.password is None:
            return ()
        return self.password, b64encode(f"{self.username}:{self.password}".encode()).decode()


class Options(TypedDict, total=False):
    """What a request may have besides its path."""

    query: Mapping[str, str] | None
    body: Any
    timeout: float | None


class Requests(ABC):
    """Requests to OpenCode; `Http` sends them to one, a fleet to the one that has the session."""

    @abstractmethod
    async def exchange(
        self, method: str, *segments: str, **options: Unpack[Options]
    ) -> tuple[Any, Mapping[str, str]]:
        """One request; its JSON answer (None where the answer has no body) and its headers."""

    async def call(self, method: str, *segments: str, **options: Unpack[Options]) -> Any:
        """Like `exchange`, without the headers."""
        return (await self.exchange(method, *segments, **options))[0]


class Http(Requests):
    """One OpenCode."""

    def __init__(self, base_url: str, client: aiohttp.ClientSession, timeout: float) -> None:
        self._base = base_url.rstrip("/")
        self._client = client
        self._timeout = timeout
        self._first_tries: set[asyncio.Timeout] = set()
        self.answered = asyncio.Event()  # set by every answer; cleared by those who wait for one

    @classmethod
    @asynccontextmanager
    async def open(cls, endpoint: Endpoint, timeout: float = 30.0) -> AsyncIterator[Http]:
        async with aiohttp.ClientSession(
            headers=endpoint.authorization,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=READ_BYTES,
        ) as client:
            yield cls(endpoint.base_url, client, timeout)

    async def exchange(
        self, method: str, *segments: str, **options: Unpack[Options]
    ) -> tuple[Any, Mapping[str, str]]:
        """Repeat a GET once: OpenCode 1.x never answers a request that arrives while it starts."""
        clock = asyncio.get_running_loop().time
        until = clock() + (options.get("timeout") or self._timeout)
        if method == "GET":
            with suppress(TimeoutError, UpstreamTimeout):
                async with asyncio.timeout_at(min(until, clock() + FIRST_TRY_SECONDS)) as first_try:
                    self._first_tries.add(first_try)
                    try:
                        return await self._request(method, segments, **options)
                    finally:
                        self._first_tries.discard(first_try)
        return await self._request(method, segments, **options | {"timeout": until - clock()})

    def retry_pending(self) -> None:
        """Repeat the reads that wait for an answer, because OpenCode has just started."""
        now = asyncio.get_running_loop().time()
        while self._first_tries:
            self._first_tries.pop().reschedule(now)

    async def probe(self, timeout: float) -> Release:
        """Which OpenCode answers, or what is wrong."""
        release = await self.identify(timeout)
        if not release.is_supported:
            raise UpstreamPayloadError(
                f"OpenCode {release.version} is not supported: this version of opencode-a2a works "
                f"with {SUPPORTED}. Install one of those."
            )
        return release

    async def identify(self, timeout: float) -> Release:
        """Which OpenCode answers, supported or not."""
        if (version := await self._version("global", "health", timeout=timeout)) is not None:
            return Release(version)
        if (version := await self._version("api", "info", timeout=timeout)) is not None:
            return Release(version, generation=2)
        raise UpstreamPayloadError(
            "What answers at OPENCODE_BASE_URL is not OpenCode: it has neither `/global/health` "
            "nor `/api/info`. Check the address, and that it is `opencode serve` of a supported "
            f"version: {SUPPORTED}."
        )

    async def _version(self, *segments: str, timeout: float) -> str | None:
        """What OpenCode says there; None where it has no such route, or something else answers."""
        try:
            answer, _ = await self._request("GET", segments, timeout=timeout)
        except UpstreamPayloadError:  # 2.x has a web page at every path that is not its API's
            return None
        except UpstreamError as exc:
            if exc.facts.get("upstream_status") in (404, 405):
                return None
            raise
        version = answer.get("version", "") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    async def _request(
        self, method: str, segments: tuple[str, ...], **options: Unpack[Options]
    ) -> tuple[Any, Mapping[str, str]]:
        body, timeout = options.get("body"), options.get("timeout") or self._timeout
        headers = {"content-type": "application/json"} if body is not None else {}
        data = orjson.dumps(body) if body is not None else None
        url = self._url(segments, options.get("query"))
        began, outcome, status = time.time_ns(), "canceled", 0
        try:
            async with (
                asyncio.timeout(timeout),
                self._client.request(method, url, data=data, headers=headers) as answer,
            ):
                status, raw = answer.status, await answer.read()
            if status < 500:  # from 500 on it may be the answer of a proxy
                self.answered.set()
            parsed, outcome = _parse_answer(answer, raw), "ok"
        except _ERRORS as exc:
            error = _translated(exc)
            outcome = error.type
            raise error from exc
        except ServiceError as exc:
            outcome = exc.type
            raise
        finally:
            ended = time.time_ns()
            ms = round((ended - began) / 1e6, 1)
            logger.debug("opencode.call", method=method, path=url.path, status=status, ms=ms)
            _observe(method, segments, (began, ended), outcome, tracing.recorded())
        return parsed, answer.headers

    @asynccontextmanager
    async def stream(self, *segments: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """An endless answer in chunks."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
        try:
            async with self._client.get(self._url(segments, None), timeout=timeout) as answer:
                if answer.status != 200:
                    _parse_answer(answer, await answer.read())
                if answer.content_type != "text/event-stream":
                    raise _not_opencode(answer)
                yield answer.content.iter_any()
        except _ERRORS as exc:
            raise _translated(exc) from exc

    def _url(self, segments: tuple[str, ...], query: Mapping[str, str] | None) -> URL:
        if not all(segment.strip(".") for segment in segments):
            # Dots are resolved even if they are encoded: the request would go to another route.
            raise NotFound("OpenCode has nothing of that name.", upstream_status=404, name=None)
        path = "/".join(map(_quoted, segments))
        given = [f"{_quoted(name)}={_quoted(value)}" for name, value in (query or {}).items()]
        return URL(f"{self._base}/{path}{'?' if given else ''}{'&'.join(given)}", encoded=True)


@lru_cache(256)  # the words of the routes and the directory are in nearly every request
def _quoted(text: str) -> str:
    return quote(text, safe="")


def _observe(
    method: str,
    segments: tuple[str, ...],
    times: tuple[int, int],
    outcome: str,
    parent: SpanRef | None,
) -> None:
    """Count a request, and record its span below `parent`. Times are by the machine's clock."""
    words = [word if word in _ROUTE_WORDS else "{id}" for word in segments]
    route = f"{method} /{'/'.join(words)}"
    metrics.OPENCODE_REQUESTS.labels(route, outcome).inc()
    metrics.OPENCODE_SECONDS.labels(route).observe(max(0, times[1] - times[0]) / 1e9)
    if parent is not None:
        error = outcome if outcome != "ok" else None
        tracing.record(f"OpenCode {route}", below=parent, kind="client", times=times, error=error)


def _translated(exc: Exception) -> UpstreamTimeout | UpstreamUnreachable:
    if isinstance(exc, TimeoutError):  # aiohttp's own timeouts are among these
        return UpstreamTimeout("OpenCode did not answer in time.")
    return UpstreamUnreachable(
        "OpenCode cannot be reached. Check that it runs and that OPENCODE_BASE_URL names it.",
        retry_after=5,
    )


def _parse_answer(answer: aiohttp.ClientResponse, raw: bytes) -> Any:
    is_json = answer.content_type == "application/json"
    if answer.status >= 400:
        raise _http_error(answer.status, raw if is_json else b"")
    if not raw:
        return None
    if not is_json:
        raise _not_opencode(answer)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        raise UpstreamPayloadError("OpenCode sent an answer that is not valid JSON.") from exc


def _http_error(status: int, raw: bytes) -> UpstreamError:
    """An error with OpenCode's name for it. The rest of the body may hold secrets."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    name = (body.get("name") or body.get("_tag")) if isinstance(body, dict) else None
    name = name if isinstance(name, str) else None
    if status == 404 and name is not None and name.endswith("NotFoundError"):
        return NotFound("OpenCode has nothing of that name.", upstream_status=404, name=name)
    if status == 404:  # of a proxy: nothing is known, and no prompt is sent twice for it
        return UpstreamUnreachable(
            "Something else than OpenCode has answered.", upstream_status=404
        )
    sentence = f"OpenCode answered with HTTP {status}."
    if status == 401:
        sentence = (
            "OpenCode refused our credentials. "
            "Check OPENCODE_AUTH_USERNAME and OPENCODE_AUTH_PASSWORD."
        )
    error = UpstreamHttpError(sentence, upstream_status=status, name=name)
    error.body = body
    return error


def _not_opencode(answer: aiohttp.ClientResponse) -> UpstreamPayloadError:
    return UpstreamPayloadError(
        f"The server at OPENCODE_BASE_URL answered {answer.content_type} where OpenCode's API "
        f"answers JSON. Check that it is `opencode serve`, of a supported version: {SUPPORTED}.",
        upstream_status=answer.status,
    )
