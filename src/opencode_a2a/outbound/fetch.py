"""Fetches files that callers name by URL, under the deployment's policy.

A name is resolved once, every address it has must be allowed, and the connection
goes to those addresses: a second look-up could be answered differently. URLs are
read by the parser that also connects, so both see the same host. Redirects are
followed by hand, each through the same gate, and no cookie outlives its request.
`file://` reaches only regular files below the workspace root (`workspace_reader`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import mimetypes
import socket
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import unquote
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ..domain.ports import Fetched, Refused
from .egress import Egress
from .lookup import AddressInfo, address_of, look_up
from .workspace_reader import NotAFile, OutsideWorkspace, read_file

REDIRECTS = 3


LOOKUPS = 32  # at once: each takes a thread, for as long as the name server of a caller likes
LOOKUPS_PER_DOMAIN = 4
LOOKUPS_PER_OWNER = 8

# For whom a name is looked up, where that matters: others must not wait for this owner's servers.
lookup_owner: ContextVar[str] = ContextVar("lookup_owner", default="")


class GuardedResolver(AbstractResolver):
    """Resolves a name each time, and refuses it if one of its addresses is not allowed.

    A name server that hangs delays only others who look up names, and not all of them.
    """

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Semaphore]()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        domain = ".".join(host.lower().removesuffix(".").split(".")[-2:])
        wanted = {("of", domain): LOOKUPS_PER_DOMAIN}
        if owner := lookup_owner.get():
            wanted["for", owner] = LOOKUPS_PER_OWNER
        wanted["all", ""] = LOOKUPS
        taken: list[asyncio.Semaphore] = []
        loop = asyncio.get_running_loop()

        def free() -> None:
            for turn in taken:
                turn.release()

        def ended(_: Future[list[AddressInfo]]) -> None:
            with suppress(RuntimeError):  # the service has stopped meanwhile
                loop.call_soon_threadsafe(free)

        try:
            for what, most in wanted.items():
                turn = self._turns.setdefault(what, asyncio.Semaphore(most))
                await turn.acquire()
                taken.append(turn)
            job = look_up(host, port, family=family, flags=socket.AI_ADDRCONFIG)
        except BaseException:
            free()
            raise
        job.add_done_callback(ended)  # later than a caller who does not wait so long
        found = [_result(host, info) for info in await asyncio.wrap_future(job)]
        if not self._egress.is_named(host):
            for result in found:
                self._egress.check_address(ipaddress.ip_address(result["host"].partition("%")[0]))
        return found

    async def close(self) -> None:
        """Nothing is kept, and nobody waits for a look-up that still goes on."""


def _result(host: str, info: AddressInfo) -> ResolveResult:
    family, _, protocol, _, to = info
    return ResolveResult(
        hostname=host,
        host=address_of(info),
        port=int(to[1]),
        family=family,
        proto=protocol,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


class Fetcher:
    """Fetches for `NamedFiles`; one file may take `seconds`, redirects included."""

    def __init__(self, egress: Egress, root: Path, seconds: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=GuardedResolver(egress), use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=None, connect=5),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._egress = egress
        self._root = root
        self._seconds = seconds

    async def close(self) -> None:
        await self._session.close()

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
                        raise Refused(f"the file is larger than {limit} bytes, the most of a part")
                return Fetched(bytes(content), response.content_type)
        raise Refused(f"the server redirects more than {REDIRECTS} times")

    def _read(self, url: URL, limit: int) -> Fetched:
        outside = Refused("file URLs must lie inside the workspace of this service")
        name = unquote(url.raw_path)
        is_local = url.raw_host in (None, "", "localhost")
        if not is_local or not name.startswith("/") or "\0" in name:
            raise outside
        try:
            path, content = read_file(self._root.resolve(), name, limit)
        except OutsideWorkspace:
            raise outside from None
        except (NotAFile, OSError):
            raise Refused("the file does not exist or cannot be read") from None
        if len(content) > limit:
            raise Refused(f"the file is larger than {limit} bytes, the most of a part")
        return Fetched(content, mimetypes.guess_type(path.name)[0] or "text/plain")
