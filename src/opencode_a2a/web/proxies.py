"""For whom a proxy asks: the client's address, the URL it used, and its certificate.

A header can be written by anybody, so only a peer at a trusted address is believed. uvicorn's
middleware reads `X-Forwarded-For` and `-Proto`; here are `-Host` and the certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ..domain.addresses import host_name, is_host

CERTIFICATE = "opencode_a2a.certificate"  # in a request's state: whose certificate was verified
EXTERNAL_URL = "opencode_a2a.external_url"  # in a request's state: where the proxy was asked
MAX_CHARACTERS = 16_384  # of a header with names and values …
MAX_PAIRS = 256  # … and how many those may be

# Nothing is tried twice (`*+`): the header may be a stranger's, and is read before the login.
_PAIR = re.compile(
    r'\s*+([\w!#$%&\'*+.^`|~-]++)\s*+=\s*+("(?:[^"\\]|\\.)*+"|[^\s;,"]*+)\s*+([;,]|$)'
)
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[\w.-]{1,253})(:\d{1,5})?")


class TrustedNetworks:
    """The addresses of the proxies that are believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(each) for each in networks)
        self.contains = lru_cache(4_096)(self._contains)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _contains(self, host: str) -> bool:
        try:
            address = ip_address(plain_address(host))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def plain_address(host: str) -> str:
    """An IPv4 address that a socket for both kinds has written as one of IPv6 is itself again."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped) if mapped is not None else host


def certificate_name(header: str, name: str) -> str:
    """Whose certificate a header names: of X-Forwarded-Client-Cert the URI or else the subject.

    Each proxy adds its client's on the right, so the last one is meant.
    """
    if name.lower() != "x-forwarded-client-cert":
        return header.strip()
    last = (_elements(header) or [{}])[-1]
    return last.get("uri") or last.get("subject", "")


def _elements(header: str) -> list[dict[str, str]]:
    """A list of names with values, such as `a=1;b="2", a=3`; empty if it cannot be read."""
    if len(header) > MAX_CHARACTERS:
        return []
    found: list[dict[str, str]] = [{}]
    position = pairs = 0
    while position < len(header):
        pair, pairs = _PAIR.match(header, position), pairs + 1
        if pair is None or pairs > MAX_PAIRS:
            return []
        found[-1].setdefault(pair[1].lower(), _unquoted(pair[2]))
        position = pair.end()
        if pair[3] == ",":
            found.append({})
    return found


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


class TrustedProxies:
    """Puts what a trusted proxy says about the client into the request.

    Everything behind it then works as if the client had come without a proxy.
    """

    def __init__(
        self, app: ASGIApp, *, trusted: Sequence[str], certificate_header: str | None = None
    ) -> None:
        self._trusted = TrustedNetworks(trusted)
        self._app = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), list(trusted)))
        self._certificate_header = certificate_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if scope["type"] == "http" and peer and self._trusted.contains(peer[0]):
            scope["client"] = (plain_address(peer[0]), peer[1])
            self._read(scope)
        await self._app(scope, receive, send)

    def _read(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        host = _last(headers, "x-forwarded-host").rpartition(",")[2].strip()
        if _AUTHORITY.fullmatch(host) and is_host(host_name(host)):
            others = [field for field in scope["headers"] if field[0] != b"host"]
            scope["headers"] = [(b"host", host.encode("latin-1")), *others]
        else:
            host = headers.get("host", "")
        scheme = _last(headers, "x-forwarded-proto").strip()
        if scheme in ("http", "https") and host:
            state[EXTERNAL_URL] = f"{scheme}://{host}"
        if (name := self._certificate_header) is not None:
            values = [v for k, v in scope["headers"] if k == name.lower().encode()]
            if len(values) == 1:  # of two, one may be the client's
                found = certificate_name(_text(values[0]), name)
                if found:
                    state[CERTIFICATE] = found


def _last(headers: Headers, name: str) -> str:
    """Of several fields the proxy has added the last one; others may be the client's."""
    return (headers.getlist(name) or [""])[-1]


def _text(value: bytes) -> str:
    """Nothing where it is not UTF-8: put right, the names of two callers could become one."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return ""
