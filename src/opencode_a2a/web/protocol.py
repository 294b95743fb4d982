"""HTTP connections that cannot exhaust the service: uvicorn's, with bounds.

`connections.py` has the rule about who may stay; this module does what it says. It also bounds a
request head, answers what is not HTTP, and closes a connection in a way that lets a refused client
read the answer.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httptools
import structlog
from starlette.responses import Response
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from ..errors import InvalidRequest, RequestHeadTooLarge, RequestTimeout, ServiceError
from ..observe import metrics
from .connections import CUT_OFF, MARK_KNOWN, ConnectionLimits, Connections, Phase, network_of
from .proxies import TrustedNetworks
from .trace import UNKNOWN

logger = structlog.get_logger()

MAX_HEAD_FIELDS = 128
MAX_PIPELINED = 16  # requests that wait on a connection for the answer to an earlier one
SWEEP_SECONDS = 0.5  # how often deadlines are looked at
REPORT_SECONDS = 10.0  # how often at most closed connections are logged
LAST_REQUEST_SECONDS = 1.0  # to finish sending a request when the service stops
_UPGRADE_FIELDS = (b"upgrade", b"http2-settings")

RenderError = Callable[[Scope, ServiceError, int], Response]


class ConnectionGuard:
    """The connections of one server, and the task that looks at their deadlines."""

    def __init__(
        self,
        limits: ConnectionLimits,
        max_head_bytes: int,
        render_error: RenderError,
        trusted: TrustedNetworks,
    ) -> None:
        self.trusted = trusted
        self.max_head_bytes = max_head_bytes
        self.render_error = render_error
        self.connections = Connections[GuardedProtocol](limits)
        self._closed: Counter[str] = Counter()
        self._report_at = 0.0

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes a protocol with, for every connection."""
        return cast(type[asyncio.Protocol], functools.partial(GuardedProtocol, self))

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        limits: ConnectionLimits,
        max_head_bytes: int,
        render_error: RenderError,
        trusted: TrustedNetworks | None = None,
    ) -> AsyncIterator[ConnectionGuard]:
        trusted = trusted or TrustedNetworks(())
        guard = cls(limits, max_head_bytes, render_error=render_error, trusted=trusted)
        sweeping = asyncio.create_task(guard._sweep())
        try:
            yield guard
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)

    def admit(self, new: GuardedProtocol, address: str, now: float) -> None:
        other = self.connections.opened(new, address, now=now)
        if other is not None:
            self._closed["refused" if other is new else "for_others"] += 1
            other.abort()

    async def _sweep(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = clock()
            for connection, phase in self.connections.overdue(now):
                self._closed[f"late_{phase.value}"] += 1
                try:
                    connection.give_up(phase)
                except Exception:  # one connection must not end the watch over all others
                    logger.exception("connection.internal_error")
                    connection.abort()
            if self._closed and now >= self._report_at:
                logger.warning(
                    "connections.closed",
                    **self._closed,
                    open=len(self.connections),
                    unknown=self.connections.unknown,
                )
                self._closed.clear()
                self._report_at = now + REPORT_SECONDS


class GuardedProtocol(HttpToolsProtocol):
    """One connection. uvicorn parses and answers; this class watches how far it has come."""

    __slots__ = (  # there are many connections, and uvicorn's attributes fill a dictionary already
        "_bytes_since_body",
        "_fields",
        "_guard",
        "_has_begun",
        "_ignores_input",
        "_in_head",
        "_is_known",
        "_is_stopping",
        "_keep_alive",
        "_lingers",
        "_phase",
        "_problem",
        "_running",
        "_seen_by_uvicorn",
        "_socket",
        "_upgrades",
    )

    def __init__(self, guard: ConnectionGuard, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard = guard
        self._phase = Phase.HEAD
        self._is_known = False
        self._is_stopping = False
        self._ignores_input = False  # what still arrives is thrown away
        self._lingers = False
        self._problem: ServiceError | None = None  # why the rest of the input is refused
        self._running: RequestResponseCycle | None = None  # the request being answered, or the last
        # The request whose head or body is being read:
        self._has_begun = False
        self._in_head = True
        self._upgrades = False
        self._keep_alive = False
        self._bytes_since_body = 0  # that have arrived since the last piece of one
        self._fields = 0  # headers and trailers

    # -- the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        self._seen_by_uvicorn = _LingeringTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self._seen_by_uvicorn))
        peer = self.client[0] if self.client is not None else ""
        address = "" if self._guard.trusted.contains(peer) else network_of(peer)
        self._guard.admit(self, address, now=self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.connections.closed(self)
        self._unset_keepalive_if_required()  # after a reset uvicorn leaves the timer, and so this
        if self._running is not None:  # uvicorn tells only the last request that was read
            _disconnect(self._running)
        super().connection_lost(exc)
        self._seen_by_uvicorn.release()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        self._bytes_since_body += len(data)
        try:
            self._parse(data)
            if self._bytes_since_body > self._guard.max_head_bytes:
                self._fail(self._too_large())
        except httptools.HttpParserError:
            self._refuse(self._problem or InvalidRequest("This is not a valid HTTP request."))
        self._settle()

    def abort(self) -> None:
        """Close without a word: there is no time, or nobody who reads."""
        self._ignores_input = True
        self._socket.abort()

    def give_up(self, phase: Phase) -> None:
        """The client has let a deadline pass."""
        if phase is Phase.BODY or (phase is Phase.HEAD and self._has_begun):
            self._refuse(RequestTimeout(f"The request's {phase.value} took too long to come."))
        elif phase is Phase.HEAD:
            self._socket.close()  # after what is still to be sent
        else:
            self.abort()
        self._settle()

    def shutdown(self) -> None:
        """Close the connection after the request that it carries.

        A request may be under way that nobody has read. Where the listening socket outlives the
        service, its client would not have been refused a moment later, so it is not now.
        """
        self._is_stopping = True
        if self._lingers:
            self.abort()
        elif self._phase is Phase.HEAD:
            self.loop.call_later(LAST_REQUEST_SECONDS, self._close_unused)
        else:
            super().shutdown()

    def _close_unused(self) -> None:
        if self._phase is Phase.HEAD and not self.is_leaving:
            super().shutdown()

    # -- the parser's side

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                self._read_without_upgrade()

    def _read_without_upgrade(self) -> None:
        """Read a head that asks for another protocol as if it did not, as a server may.

        The parser takes everything behind such a head for the other protocol. It would lose the
        request's body, or read it as a request of its own.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name not in _UPGRADE_FIELDS:
                lines.append(b"%b: %b" % (name, value))
        self._begin_message()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MAX_HEAD_FIELDS:
            self._fail(self._too_large())
        if self._in_head:  # a trailer must not pass for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._fail(InvalidRequest("This service is not a proxy."))
            self._upgrades = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(InvalidRequest("Too many requests were sent before the first was answered."))
        self._check_head()
        # The authentication takes these out.
        self.scope["state"] |= {MARK_KNOWN: self._mark_known, CUT_OFF: self.abort}
        super().on_headers_complete()
        self._in_head = False
        # An answer that comes before the whole body does must close the connection.
        self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def _check_head(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._fail(InvalidRequest("The only Transfer-Encoding read here is chunked."))
        if size > self._guard.max_head_bytes:
            self._fail(self._too_large())

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._bytes_since_body = 0
        self._guard.connections.received(self, len(body))

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        if not self.cycle.response_started and not self._is_stopping:
            self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()
        self._begin_message()

    def _begin_message(self) -> None:
        self._has_begun, self._in_head, self._upgrades = False, True, False
        self._bytes_since_body = self._fields = 0

    def _too_large(self) -> RequestHeadTooLarge:
        limit = self._guard.max_head_bytes
        return RequestHeadTooLarge(
            f"The request's head is larger than {limit} bytes or has "
            f"more than {MAX_HEAD_FIELDS} fields.",
            limit=limit,
            max_fields=MAX_HEAD_FIELDS,
        )

    def _fail(self, problem: ServiceError) -> None:
        self._problem = problem
        raise httptools.HttpParserError

    # -- the answer's side

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._running is not None:
            self._running.body.clear()  # the application may not have read it
        super().on_response_complete()
        if self._problem is not None:
            self._refuse(self._problem)
        self._settle()

    @property
    def _last_request(self) -> RequestResponseCycle | None:
        """The last request whose head was read, if there was one (uvicorn's type says always)."""
        return self.cycle

    def _mark_known(self) -> None:
        if not self._is_known:
            self._is_known = True
            self._guard.connections.became_known(self)

    def _settle(self) -> None:
        """Note what the connection waits for now."""
        cycle = self._last_request
        if self._lingers:
            phase = Phase.LINGER
        elif self._socket.is_closing():
            phase = Phase.CLOSING
        elif cycle is not None and not cycle.response_complete:
            reads = cycle.more_body and not cycle.response_started and not self.pipeline
            phase = Phase.BODY if reads else Phase.ANSWER
        elif self._bytes_since_body or self._has_begun or cycle is None:
            phase = Phase.HEAD
        else:
            phase = Phase.IDLE
        if phase is not self._phase:
            self._phase = phase
            self._guard.connections.moved(self, phase, now=self.loop.time())

    def _refuse(self, error: ServiceError) -> None:
        """Answer what no application has seen, and close the connection.

        Earlier requests are answered first; then this is called again.
        """
        self._ignores_input, self._problem = True, error
        cycle = self._last_request
        if cycle is not None and not cycle.response_complete:
            if self.pipeline or cycle.response_started or not cycle.more_body:
                cycle.keep_alive = False
                return
            _disconnect(cycle)
        if self.is_leaving:
            return
        response = self._guard.render_error(self._error_scope(), error, error.http_status)
        metrics.REQUESTS.labels(UNKNOWN, "", "http", error.type).inc()
        request_id = uuid.uuid4().hex
        fields = [*self.server_state.default_headers, *response.raw_headers]
        fields += [(b"connection", b"close"), (b"x-request-id", request_id.encode())]
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        status = STATUS_LINE[response.status_code]
        self._socket.write(b"".join((status, lines, b"\r\n", response.body)))
        logger.info(
            "request.refused",
            request=request_id,
            status=response.status_code,
            type=error.type,
            address=self.client[0] if self.client is not None else None,
        )
        self._linger()

    def _error_scope(self) -> Scope:
        """As much of a request as is known; its path decides about the shape of an error."""
        path, query = b"/", b""
        if self._has_begun:
            try:
                parsed = httptools.parse_url(self.url)
                path, query = parsed.path or b"/", parsed.query or b""
            except httptools.HttpParserError:
                pass
        return {
            "type": "http",
            "path": path.decode("latin-1"),
            "query_string": query,
            "headers": self.headers if self._has_begun else [],
        }

    def leave(self) -> None:
        """Close the connection after the answer."""
        cycle = self._last_request
        if self._ignores_input or (cycle is not None and cycle.more_body):
            self._linger()
        else:
            self._socket.close()
        self._settle()

    def _linger(self) -> None:
        """Say that nothing more will come, and read on for a while.

        A connection that is closed while its client still sends is reset, and the client may lose
        the answer with it.
        """
        if self.is_leaving:
            return
        self._ignores_input = self._lingers = True
        if (cycle := self._last_request) is not None:
            cycle.body.clear()
        self.flow.resume_reading()
        if self._socket.can_write_eof():
            self._socket.write_eof()
        else:  # TLS says by itself that nothing more will come, and waits for the client a while
            self._socket.close()

    @property
    def is_leaving(self) -> bool:
        return self._lingers or self._socket.is_closing()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell a request's application that its client is gone."""
    cycle.disconnected = True
    cycle.message_event.set()


class _LingeringTransport:
    """The transport that uvicorn sees. Only closing it is different; writing costs nothing more."""

    __slots__ = ("_protocol", "get_extra_info", "pause_reading", "resume_reading", "write")

    def __init__(self, transport: asyncio.Transport, protocol: GuardedProtocol) -> None:
        self._protocol: GuardedProtocol | None = protocol
        self.write = transport.write
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.leave()

    def is_closing(self) -> bool:
        return self._protocol is None or self._protocol.is_leaving

    def release(self) -> None:
        """Forget the protocol, which refers to this object: both can be freed at once then."""
        self._protocol = None
