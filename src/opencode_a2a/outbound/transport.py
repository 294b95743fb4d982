"""How requests reach a peer: to checked addresses only, and never for more than was allowed.

A name is resolved once, every address it has must be allowed, and the connection goes to those
addresses: a second look-up could be answered differently. Credentials go to the peer's own origins
only. Redirects are not followed here. What an answer may cost is bounded while it arrives.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from ..domain.ports import Refused
from .egress import Egress
from .failures import (
    AnswerTooLarge,
    ConnectionLost,
    NotAnAgent,
    PeerBusy,
    PeerError,
    PeerNotAllowed,
    PeerProtocolError,
    PeerRefused,
    PeerTimeout,
    PeerUnauthorized,
    PeerUnreachable,
    Redirected,
    StreamSilent,
)
from .lookup import address_of, look_up
from .retry_after import retry_after
from .target import Login

CONNECT_SECONDS = 10.0  # to one address; there may be another
ERROR_BYTES = 65_536  # of an error's body that are read
MESSAGE_CHARS = 500  # of an error's message that are shown
RPC_REASONS = {
    -32001: "TASK_NOT_FOUND",
    -32002: "TASK_NOT_CANCELABLE",
    -32004: "UNSUPPORTED_OPERATION",
    -32601: "METHOD_NOT_FOUND",
}
SEPARATORS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\x85\u2028\u2029"}
NAIVE_TIME = re.compile(
    rb'("state"\s*:\s*"[^"]*"\s*,\s*"timestamp"\s*:\s*"\d{4}-\d\d-\d\dT[\d:]{8}(?:\.\d+)?)"'
)
MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
UNAUTHORIZED_HINT = (
    "Set A2A_CLIENT_BEARER_TOKEN or A2A_CLIENT_BASIC_AUTH, or a credential in [peers.NAME]."
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when an answer has to come, and what is said if it does not."""

    at: float  # in the time of the event loop
    message: str
    hint: str

    @classmethod
    def after(cls, seconds: float, message: str, *, hint: str = "") -> Deadline:
        return cls(asyncio.get_running_loop().time() + seconds, message, hint)

    def error(self) -> PeerTimeout:
        return PeerTimeout(self.message, hint=self.hint)


class Connections:
    """The open connections to a peer, one pool for each host.

    The pools connect to addresses, so a shared one would use a connection whose certificate was
    checked for another name.
    """

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._pools: dict[tuple[str, str], httpx.AsyncHTTPTransport] = {}
        self._tls: ssl.SSLContext | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, egress: Egress) -> AsyncIterator[Connections]:
        self = cls(egress)
        try:
            yield self
        finally:
            async with AsyncExitStack() as stack:
                for pool in self._pools.values():
                    stack.push_async_callback(pool.aclose)

    async def send(self, request: httpx.Request, deadline: float) -> httpx.Response:
        """The response to a request, from the first address that accepts a connection.

        TimeoutError if the peer, which may have got the request, has not answered by the deadline;
        PeerUnreachable if the request could not even be sent until then.
        """
        url, host = request.url, request.url.host
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses, is_sent = list[str](), False

        async def note(event: str, _: Mapping[str, Any]) -> None:
            nonlocal is_sent
            is_sent = is_sent or event.endswith("send_request_headers.started")

        request.extensions = {
            "sni_hostname": host,  # the name that the certificate must have
            "trace": note,
        }
        try:
            async with asyncio.timeout_at(deadline):
                addresses = await self._resolve(host, port)
                return await self._send_to(addresses, request, deadline)
        except TimeoutError as exc:
            if is_sent:
                raise
            if addresses:
                raise unreachable(exc, url) from exc
            raise PeerUnreachable(
                f"No name server has told in time what address {host} has.",
                hint="Check the network, and its name servers.",
            ) from exc

    async def _send_to(
        self, addresses: Sequence[str], request: httpx.Request, deadline: float
    ) -> httpx.Response:
        pool = self._pool(request.url.scheme, request.url.host)
        now = asyncio.get_running_loop().time
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            seconds = max(0.001, min(CONNECT_SECONDS, (deadline - now()) / left))
            there = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "timeout": {"connect": seconds}},
            )
            try:
                return await pool.handle_async_request(there)
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                if left == 1:
                    raise unreachable(exc, request.url) from exc
        raise AssertionError("a name has an address")

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            self._egress.check_host(host)
            found = await asyncio.wrap_future(look_up(host, port))
            addresses = list(dict.fromkeys(map(address_of, found)))
            for address in addresses:
                parsed = ipaddress.ip_address(address.partition("%")[0])
                self._egress.check_own(parsed, port)
                if not self._egress.is_named(host):
                    self._egress.check_address(parsed)
        except Refused as exc:
            raise PeerNotAllowed(
                f"A connection to {host} is not allowed: {exc}.",
                hint="Addresses that a peer names must be public, unless you have named the host "
                "yourself or set A2A_CLIENT_ALLOW_PRIVATE_HOSTS=true.",
            ) from None
        except (OSError, UnicodeError):
            raise PeerUnreachable(
                f"There is no host {host}.", hint="Check the spelling, and the network."
            ) from None
        return addresses

    def _pool(self, scheme: str, host: str) -> httpx.AsyncHTTPTransport:
        pool = self._pools.get((scheme, host))
        if pool is None:
            if scheme == "https" and self._tls is None:
                self._tls = httpx.create_ssl_context(trust_env=True)
            verify = self._tls if scheme == "https" and self._tls else False
            pool = httpx.AsyncHTTPTransport(verify=verify, trust_env=False)
            self._pools[scheme, host] = pool
        return pool


async def get(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """What is at an address, after a few redirects; each of them is checked like the first."""
    at = url
    for _ in range(MAX_REDIRECTS + 1):
        if urlsplit(at).scheme not in ("http", "https"):
            raise PeerProtocolError(f"{at[:MESSAGE_CHARS]} is no http(s) URL.")
        try:
            return await http.get(at, headers=headers)
        except Redirected as exc:
            at = exc.location
        except httpx.InvalidURL:
            raise NotAnAgent(f"{at} is no URL.") from None
    raise PeerProtocolError(f"{url} redirects more than {MAX_REDIRECTS} times.")


class PeerTransport(httpx.AsyncBaseTransport):
    """What one call sends and gets; also knows the last event that has arrived whole.

    An answer has to be there by the deadline: the name, the connection, the head and the body
    together. With `idle_seconds` only its beginning has to be, and it may then take as long as it
    is never silent for more than that. `is_a2a` says that an answer is to be A2A, so that a web
    page is none.
    """

    def __init__(
        self,
        connections: Connections,
        login: Login,
        max_bytes: int,
        deadline: Deadline,
        *,
        idle_seconds: float | None = None,
        is_a2a: bool = True,
    ) -> None:
        self._connections = connections
        self._login = login
        self._is_a2a = is_a2a
        self.max_bytes = max_bytes
        self.deadline = deadline
        self.idle_seconds = idle_seconds
        self.last_event_id: str | None = None
        self._bodies: list[_Body] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"  # what is counted is what is kept
        known = self._login.headers_for(str(request.url))
        for name, value in known:
            request.headers[name] = value
        try:
            response = await self._connections.send(request, self.deadline.at)
        except TimeoutError as exc:
            raise self.deadline.error() from exc
        except httpx.TransportError as exc:
            raise _lost(request.url) from exc
        body = _Body(response, self, request.url)
        self._bodies.append(body)
        answer = httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=body,
            extensions=response.extensions,
            request=request,
        )
        if answer.status_code < 300 or answer.status_code == 304:
            try:
                _check_form(answer, is_a2a=self._is_a2a)
            except PeerError:
                await answer.aclose()
                raise
            return answer
        try:
            raise await _refusal(answer, has_login=bool(known))
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        """Close the answers that nobody has read to the end."""
        for body in self._bodies:
            await body.aclose()


class _Body(httpx.AsyncByteStream):
    """Counts what arrives, mends what the SDK cannot read, and reads the ids of events.

    An id counts when its event is complete. Whoever reads the events asks for more bytes only when
    all complete events have been handed on, so after a break the id is that of the last one.
    """

    def __init__(self, response: httpx.Response, owner: PeerTransport, url: httpx.URL) -> None:
        self._stream = response.stream
        self._is_events = "text/event-stream" in response.headers.get("content-type", "")
        self._owner = owner
        self._url = url
        self._kept: list[bytes] = []  # of a line of an event stream, or of all else
        self._next_id: str | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._stream, httpx.AsyncByteStream)
        received, limit = 0, self._owner.max_bytes
        try:
            async for chunk in self._chunks(self._stream):
                received += len(chunk)
                if received > limit:
                    raise AnswerTooLarge(
                        f"The peer's answer is larger than {limit} bytes.",
                        hint="This is the most that an answer may have.",
                    )
                whole, newline, rest = chunk.rpartition(b"\n")
                if newline and self._is_events:
                    lines = mended(b"".join([*self._kept, whole, newline]))
                    self._kept = [rest]
                    self._read_ids(lines)
                    yield lines
                else:
                    self._kept.append(chunk)
        except httpx.TransportError as exc:
            raise _lost(self._url) from exc
        yield mended(b"".join(self._kept))

    async def _chunks(self, stream: httpx.AsyncByteStream) -> AsyncIterator[bytes]:
        chunks, idle = aiter(stream), self._owner.idle_seconds
        until = self._owner.deadline.at
        late: Callable[[], PeerError] = self._owner.deadline.error
        while True:
            try:
                async with asyncio.timeout_at(until):
                    chunk = await anext(chunks, None)
            except TimeoutError as exc:
                raise late() from exc
            if chunk is None:
                return
            yield chunk
            if idle is not None:
                until, late = asyncio.get_running_loop().time() + idle, self._silent

    def _silent(self) -> StreamSilent:
        return StreamSilent(f"{self._url.host} has been silent for too long.")

    def _read_ids(self, lines: bytes) -> None:
        for raw in lines.split(b"\n")[:-1]:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"id:"):
                self._next_id = line[3:].strip().decode(errors="replace")
            elif not line and self._next_id is not None:
                self._owner.last_event_id = self._next_id

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx.AsyncByteStream)
        await self._stream.aclose()


def mended(content: bytes) -> bytes:
    """JSON without what the SDK cannot read.

    That is what may stand in JSON but what httpx takes for the end of a line, and the time of a
    status without a time zone, as some servers write it.
    """
    for separator, escape in SEPARATORS.items():
        content = content.replace(separator, escape)
    return NAIVE_TIME.sub(rb'\1Z"', content)


def _check_form(response: httpx.Response, *, is_a2a: bool = True) -> None:
    headers, host = response.headers, response.request.url.host
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise PeerProtocolError(f"{host} compresses its answer although it was asked not to.")
    if is_a2a and headers.get("content-type", "").lower().startswith("text/html"):
        raise NotAnAgent(
            f"{host} answers with a web page (HTTP {response.status_code}).",
            hint="Is this the address of an A2A agent? A proxy or login page may be in between.",
        )


async def _refusal(response: httpx.Response, *, has_login: bool) -> PeerError:
    """What an answer that is no success means."""
    status, headers, host = response.status_code, response.headers, response.request.url.host
    if status in REDIRECTS:
        return _redirected(response)
    if status in (502, 504):
        return PeerUnreachable(f"A proxy in front of {host} gets no answer (HTTP {status}).")
    if status not in (401, 403, 429, 503):
        _check_form(response)
    message, reason = _error(await _error_body(response))
    said = f": {message}" if message else "."
    if status in (401, 403):
        hint = "It does not accept the credential." if has_login else UNAUTHORIZED_HINT
        return PeerUnauthorized(f"{host} refuses access (HTTP {status}){said}", hint=hint)
    if status in (429, 503):
        after = retry_after(headers.get("retry-after"))
        wait = "later" if after is None else f"in {math.ceil(after)} s"
        text = f"{host} cannot take this request now (HTTP {status}){said}"
        return PeerBusy(text, hint=f"Try again {wait}.", retry_after=after)
    if not reason and status == 404:
        reason = "NOT_FOUND"
    return PeerRefused(f"{host} answers HTTP {status}{said}", reason=reason)


def _redirected(response: httpx.Response) -> PeerProtocolError:
    location = response.headers.get("location", "")
    try:
        return Redirected(str(response.request.url.join(location)))
    except httpx.InvalidURL:
        return PeerProtocolError(f"{response.request.url.host} redirects to no URL.")


async def _error_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > ERROR_BYTES:
            return b""
    return bytes(body)


def _error(body: bytes) -> tuple[str, str]:
    """What an error says, and A2A's name for it, in whichever of A2A's forms it comes."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(found, dict):
        return "", ""
    inner = found.get("error")
    error: Mapping[str, Any] = inner if isinstance(inner, dict) else found
    message = str(error.get("message") or error.get("detail") or "")[:MESSAGE_CHARS]
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, dict) and detail.get("reason"):
            return message, str(detail["reason"])
    if isinstance(code := error.get("code"), int) and code in RPC_REASONS:
        return message, RPC_REASONS[code]
    kind = str(error.get("type") or "").removesuffix("Error")  # 0.3: TaskNotFoundError
    return message, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()


def unreachable(exc: Exception, url: httpx.URL) -> PeerUnreachable:
    where = f"{url.host} port {url.port or {'https': 443}.get(url.scheme, 80)}"
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return PeerUnreachable(
            f"The certificate of {url.host} is not valid: {cause.verify_message}.",
            hint="For a certificate authority of your own set SSL_CERT_FILE.",
        )
    if cause is not None:
        return PeerUnreachable(
            f"{where} does not speak TLS as it should.", hint="Is it http instead of https?"
        )
    if isinstance(exc, httpx.ConnectTimeout | TimeoutError):
        return PeerUnreachable(
            f"{where} did not accept a connection in time.",
            hint="Is the peer running? A firewall may drop what is sent there.",
        )
    return PeerUnreachable(
        f"Nobody accepts connections at {where}.", hint="Is the peer running, and the port right?"
    )


def _lost(url: httpx.URL) -> ConnectionLost:
    return ConnectionLost(f"The connection to {url.host} was lost.")
