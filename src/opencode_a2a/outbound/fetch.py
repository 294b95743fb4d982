"""Files a caller names by URL, fetched by us under the deployment's policy.

A name is resolved once, every address it has must be allowed, and the connection
goes to those addresses: a second look-up could be answered differently. URLs are
read by the parser that also connects, so both see the same host. Redirects are
followed by hand, each through the same gate, and no cookie outlives its request.
`file://` reaches only regular files below the workspace root, symbolic links resolved.
"""

from __future__ import annotations

import asyncio
import ipaddress
import mimetypes
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ..domain.ports import Fetched, Refused

REDIRECTS = 3
SECONDS = 30.0  # for one file, redirects included
CARRIERS = tuple(ipaddress.ip_network(f"{prefix}::/96") for prefix in ("", "64:ff9b"))  # of IPv4

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Egress:
    """Where this service may connect to when a caller or a peer names the address."""

    allowed_hosts: frozenset[str] = frozenset()  # none named means any public host
    allow_private: bool = False

    def check_host(self, host: str | None) -> None:
        if not host:
            raise Refused("the URL names no host")
        if self.allowed_hosts and host.lower() not in self.allowed_hosts:
            raise Refused(f"{host} is not among A2A_CLIENT_ALLOWED_HOSTS")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host.replace(".", "").isdigit():  # 127.1: the connection takes it for an address
                raise Refused(f"{host} is neither a name nor an address") from None
            return  # a name: its addresses are checked when it is resolved
        self.check_address(address)

    def check_address(self, address: Address) -> None:
        if not self.allow_private and not _destination(address).is_global:
            raise Refused("the host is not on the public network (A2A_CLIENT_ALLOW_PRIVATE_HOSTS)")


def _destination(address: Address) -> Address:
    """Where an address leads: some IPv6 ones only carry an IPv4 one through a gateway."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in prefix for prefix in CARRIERS):
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


class _GuardedResolver(AbstractResolver):
    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for result in found:
            self._egress.check_address(ipaddress.ip_address(result["host"].partition("%")[0]))
        return found

    async def close(self) -> None:
        await self._resolver.close()


class Fetcher:
    """Implements `domain.ports.Files`."""

    def __init__(
        self, session: aiohttp.ClientSession, egress: Egress, root: Path, seconds: float
    ) -> None:
        self._session = session
        self._egress = egress
        self._root = root
        self._seconds = seconds

    @classmethod
    @asynccontextmanager
    async def open(
        cls, egress: Egress, root: Path, seconds: float = SECONDS
    ) -> AsyncIterator[Fetcher]:
        connector = aiohttp.TCPConnector(resolver=_GuardedResolver(egress), use_dns_cache=False)
        timeout = aiohttp.ClientTimeout(total=None, connect=5)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            yield cls(session, egress, root, seconds)

    async def fetch(self, url: str, limit: int) -> Fetched:
        try:
            target = URL(url)
            match target.scheme:
                case "http" | "https":
                    async with asyncio.timeout(self._seconds):
                        return await self._download(target, limit)
                case "file":
                    return await asyncio.to_thread(self._read, target, limit)
                case scheme:
                    raise Refused(
                        f"{scheme or 'a relative'} URL is not supported; use http or https"
                    )
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            if isinstance(exc.__cause__, Refused):
                raise exc.__cause__ from None
            raise Refused("the file could not be downloaded") from exc
        except ValueError:
            raise Refused("this is not a URL") from None

    async def _download(self, url: URL, limit: int) -> Fetched:
        for _ in range(REDIRECTS + 1):
            if url.scheme not in ("http", "https"):
                raise Refused("the server redirects to something that is not http or https")
            self._egress.check_host(url.raw_host)
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url = url.join(URL(response.headers.get("location", "")))
                    continue
                if response.status != 200:
                    raise Refused(f"the server answered HTTP {response.status}")
                content = bytearray()
                async for chunk in response.content.iter_chunked(65_536):
                    content += chunk
                    if len(content) > limit:
                        raise Refused(f"the file is larger than {limit} bytes (A2A_MAX_PART_BYTES)")
                return Fetched(bytes(content), response.content_type)
        raise Refused(f"the server redirects more than {REDIRECTS} times")

    def _read(self, url: URL, limit: int) -> Fetched:
        outside = Refused("file URLs must lie inside the workspace of this service")
        name = unquote(url.raw_path)
        if url.raw_host not in (None, "", "localhost") or "\0" in name:
            raise outside
        path = Path(os.path.realpath(name))
        if not path.is_relative_to(self._root.resolve()):
            raise outside
        try:
            if not path.is_file():
                raise OSError("a directory, or a pipe that would never end")
            with path.open("rb") as file:
                content = file.read(limit + 1)
        except OSError:
            raise Refused("the file does not exist or cannot be read") from None
        if len(content) > limit:
            raise Refused(f"the file is larger than {limit} bytes (A2A_MAX_PART_BYTES)")
        return Fetched(content, mimetypes.guess_type(path.name)[0] or "text/plain")
