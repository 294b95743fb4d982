"""For whom a proxy asks: the client's address, the URL it used, and its certificate.

A header can be written by anybody, so only a peer at a trusted address is believed. Each proxy adds
the address of its own peer on the right: from there, the first address that is not trusted is the
client's, and whatever stands left of it was written by the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from ..domain.addresses import host_name, is_host

CERTIFICATE = "opencode_a2a.certificate"  # in a request's state: whose certificate was verified
EXTERNAL_URL = "opencode_a2a.external_url"  # in a request's state: where the proxy was asked
MAX_HOPS = 32  # addresses in a header that are looked at
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
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


@dataclass(frozen=True, slots=True)
class Hop:
    """What one proxy says about whoever asked it; empty where it says nothing."""

    address: str = ""
    scheme: str = ""
    host: str = ""


def client_of(peer: str, hops: Sequence[Hop], trusted: TrustedNetworks) -> Hop:
    """What is known of the client; `hops` are in the order of the header, the nearest last."""
    found = Hop(peer)
    for hop in reversed(hops[-MAX_HOPS:]):
        if not trusted.contains(found.address):
            break
        if not hop.address:  # it says how it was asked, and not by whom
            return replace(hop, address=found.address)
        found = hop
    return found


def x_forwarded(headers: Mapping[bytes, str]) -> list[Hop]:
    """The hops that X-Forwarded-For tells of, without those that are too far away.

    Proto and Host may have a value for each of them. A single one is that of the outermost proxy,
    or of the only one that writes it.
    """
    named = headers.get(b"x-forwarded-for", "")
    addresses = _last(named)

    def values(name: bytes) -> list[str]:
        header = headers.get(name, "")
        if header.count(",") == named.count(","):
            return _last(header)
        return [header.rpartition(",")[2].strip()] * len(addresses)

    schemes, hosts = values(b"x-forwarded-proto"), values(b"x-forwarded-host")
    return [
        Hop(_address(address), _scheme(scheme), _host(host))
        for address, scheme, host in zip(addresses, schemes, hosts, strict=True)
    ]


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


def _last(header: str) -> list[str]:
    """The last values of a list; the first ones may be a stranger's, and very many."""
    return [each.strip() for each in header.rsplit(",", MAX_HOPS)[-MAX_HOPS:]]


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _address(text: str) -> str:
    """An address without its port; empty for what is none, such as `unknown`."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def _scheme(text: str) -> str:
    return text.lower() if text.lower() in ("http", "https") else ""


def _host(text: str) -> str:
    return text if _AUTHORITY.fullmatch(text) and is_host(host_name(text)) else ""


class TrustedProxies:
    """Puts what a trusted proxy says about the client into the request.

    Everything behind it then works as if the client had come without a proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        trusted: TrustedNetworks,
        certificate_header: str | None = None,
    ) -> None:
        self._app = app
        self._trusted = trusted
        self._certificate_header = certificate_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if scope["type"] == "http" and peer and self._trusted.contains(peer[0]):
            self._read(scope, peer[0])
        await self._app(scope, receive, send)

    def _read(self, scope: Scope, peer: str) -> None:
        headers = _joined(scope["headers"])
        client = client_of(peer, x_forwarded(headers), self._trusted)
        state = scope.setdefault("state", {})
        scope["client"] = (client.address, 0)
        if client.scheme:
            scope["scheme"] = client.scheme
        host = client.host or headers.get(b"host", "")
        if client.host:
            others = [field for field in scope["headers"] if field[0] != b"host"]
            scope["headers"] = [(b"host", client.host.encode("latin-1")), *others]
        if client.scheme and host:
            state[EXTERNAL_URL] = f"{client.scheme}://{host}"
        if self._certificate_header is not None:
            name = self._certificate_header
            values = [v for k, v in scope["headers"] if k == name.lower().encode()]
            if len(values) == 1:  # of two, one may be the client's
                found = certificate_name(_text(values[0]), name)
                if found:
                    state[CERTIFICATE] = found


def _text(value: bytes) -> str:
    """Nothing where it is not UTF-8: put right, the names of two callers could become one."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _joined(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Header fields by name; several of a name are one list, as HTTP says."""
    found: dict[bytes, str] = {}
    for name, value in fields:
        text = value.decode("latin-1")
        found[name] = f"{found[name]},{text}" if name in found else text
    return found
