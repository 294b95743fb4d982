"""Files named by URL: only from where the deployment allows, and never for ever."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from opencode_a2a.domain.ports import Refused
from opencode_a2a.outbound.egress import Address, Egress
from opencode_a2a.outbound.fetch import REDIRECTS
from opencode_a2a.outbound.files import NamedFiles
from tests.running import isolated

LIMIT = 1000
ANYWHERE = Egress(allow_private=True)
PRIVATE = "not on the public network"

# What a server says; it may depend on the path.
Script = Callable[[str, asyncio.StreamWriter], None]


@dataclass
class Web:
    """A server on this machine that says what its script says, and remembers who came."""

    port: int = 0
    hits: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    def url(self, path: str = "/file", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


def told(
    body: bytes = b"content", kind: str = "text/markdown", *more: str, status: str = "200 OK"
) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *more]
    if kind:
        lines.append(f"Content-Type: {kind}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def moved(where: str, status: str = "302 Found") -> bytes:
    return told(b"", "", f"Location: {where}", status=status)


@asynccontextmanager
async def web(script: Script | bytes, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Web]:
    found, done = Web(), asyncio.Event()
    before = asyncio.all_tasks()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):  # whoever asked may have left
            await answer(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ")[1]
        found.hits.append(path)
        found.heads.append(head)
        if isinstance(script, bytes):
            writer.write(script)
        else:
            script(path, writer)
        if not writer.is_closing() and path.startswith("/hang"):
            await done.wait()

    server = await asyncio.start_server(serve, host, port)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        done.set()
        server.close()
        await server.wait_closed()
        while left := asyncio.all_tasks() - before:  # it does not wait for its connections
            await asyncio.wait(left)


async def fetched(
    url: str,
    egress: Egress = ANYWHERE,
    root: Path = Path("/nowhere"),
    seconds: float = 30.0,
) -> tuple[bytes, str]:
    async with asyncio.timeout(60), NamedFiles.open(egress, root, seconds) as files:
        found = await files.fetch(url, LIMIT)
    return found.content, found.media_type


async def refused(
    url: str,
    egress: Egress = ANYWHERE,
    root: Path = Path("/nowhere"),
    seconds: float = 30.0,
) -> str:
    with pytest.raises(Refused) as caught:
        await fetched(url, egress, root, seconds)
    return str(caught.value)


# -- where to


async def test_a_file_is_downloaded_with_its_type() -> None:
    async with web(told(b"# hi", "text/markdown; charset=utf-8")) as server:
        assert await fetched(server.url()) == (b"# hi", "text/markdown")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.8.8",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "0.0.0.0",
        "0",
        "１２７.０.０.１",
        "127。0。0。1",
        "127.0.0.１",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[fe80::1%25lo]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "ⓛocalhost",
        "user:password@127.0.0.1",
        "example.org@127.0.0.1",
        "127.0.0.1\\@example.org",
    ],
)
async def test_no_name_for_this_machine_gets_through(host: str) -> None:
    async with web(told()) as server:
        await refused(f"http://{host}:{server.port}/file", Egress())
        assert server.hits == []


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[fc00::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[2001:db8::1]",
    ],
)
async def test_no_private_address_is_tried(host: str) -> None:
    assert PRIVATE in await refused(f"http://{host}/latest/meta-data", Egress())


def test_public_addresses_are_public() -> None:
    for address in ("1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"):
        Egress().check_address(ip_address(address))


async def test_a_name_counts_by_the_addresses_it_has() -> None:
    """`localhost` is a name like any other: what it resolves to decides."""
    async with web(told()) as server:
        assert PRIVATE in await refused(server.url(host="localhost"), Egress())
        assert server.hits == []
        assert (await fetched(server.url(host="localhost")))[0] == b"content"


async def test_only_named_hosts_are_asked_when_some_are_named() -> None:
    async with web(told()) as server:
        only = Egress(frozenset({"localhost"}), allow_private=True)
        assert (await fetched(server.url(host="LocalHost"), only))[0] == b"content"
        assert "A2A_CLIENT_ALLOWED_HOSTS" in await refused(server.url(), only)
        assert len(server.hits) == 1


async def test_a_named_host_must_still_be_public() -> None:
    async with web(told()) as server:
        only = Egress(frozenset({"localhost"}))
        assert PRIVATE in await refused(server.url(host="localhost"), only)
        assert server.hits == []


# -- redirects


@dataclass(frozen=True, slots=True)
class OnlyOne(Egress):
    """A network in which 127.0.0.1 is public and nothing else is."""

    def check_address(self, address: Address) -> None:
        if str(address) != "127.0.0.1":
            raise Refused(PRIVATE)


@pytest.mark.parametrize("status", ["301 x", "302 x", "303 x", "307 x", "308 x"])
async def test_a_redirect_is_followed_where_it_is_allowed(status: str) -> None:
    def script(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(told(b"there") if path == "/there" else moved("/there", status))

    async with web(script) as server:
        assert await fetched(server.url("/here"), OnlyOne()) == (b"there", "text/markdown")
        assert server.hits == ["/here", "/there"]


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.2:{}/x",
        "//127.0.0.2:{}/x",
        "http://１２７.０.０.２:{}/x",
        "http://[::1]:{}/x",
        "http://127.2:{}/x",
    ],
)
async def test_a_redirect_into_the_private_network_is_not_followed(where: str) -> None:
    async with web(told(), "127.0.0.2") as inside, web(moved(where.format(inside.port))) as outside:
        await refused(outside.url(), OnlyOne())
        assert (outside.hits, inside.hits) == (["/file"], [])


async def test_a_redirect_to_a_host_that_is_not_named_is_not_followed() -> None:
    async with web(told()) as inside, web(moved(inside.url())) as outside:
        only = Egress(frozenset({"localhost"}), allow_private=True)
        problem = await refused(outside.url(host="localhost"), only)
        assert "127.0.0.1" in problem
        assert inside.hits == []


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://x/", "gopher://x/", "data:,x"])
async def test_a_redirect_to_another_kind_of_url_is_not_followed(where: str) -> None:
    async with web(moved(where)) as server:
        assert "not http" in await refused(server.url())


@pytest.mark.parametrize("where", ["http://[::1", "http://x:99999/", "http://\\x/"])
async def test_a_redirect_to_nonsense_is_not_followed(where: str) -> None:
    async with web(moved(where)) as server:
        assert await refused(server.url()) == "this is not a URL"


async def test_redirects_come_to_an_end() -> None:
    async with web(moved("/again")) as server:
        assert "redirects" in await refused(server.url())
        assert len(server.hits) == REDIRECTS + 1


async def test_no_cookie_is_kept() -> None:
    """What one caller's server sets must not travel with another caller's request."""
    cookie = "Set-Cookie: session=1; Path=/"
    async with web(told(b"x", "text/plain", cookie)) as server:
        async with NamedFiles.open(ANYWHERE, Path("/nowhere")) as files:
            for _ in range(2):
                await files.fetch(server.url(host="localhost"), LIMIT)
        assert len(server.heads) == 2
        assert not any("cookie" in head.lower() for head in server.heads)


# -- how much, how long


async def test_a_file_may_be_as_large_as_the_limit_and_no_larger() -> None:
    async with web(told(b"x" * LIMIT)) as server:
        assert len((await fetched(server.url()))[0]) == LIMIT
    async with web(told(b"x" * (LIMIT + 1))) as server:
        assert "larger than 1000 bytes" in await refused(server.url())


async def test_a_file_without_end_is_given_up_at_the_limit() -> None:
    def script(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + b"x" * 100_000)

    async with web(script) as server:
        assert "larger" in await refused(server.url("/hang"))


async def test_a_small_file_that_unpacks_to_a_large_one_is_refused() -> None:
    packed = zlib.compress(b"\0" * 1_000_000)
    async with web(told(packed, "text/plain", "Content-Encoding: deflate")) as server:
        assert len(packed) < LIMIT * 2
        assert "larger" in await refused(server.url())


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", told(b"12")[:-1]])
async def test_a_server_that_falls_silent_is_given_up(said: bytes) -> None:
    async with web(lambda path, writer: writer.write(said)) as server:
        assert "could not be downloaded" in await refused(server.url("/hang"), seconds=0.2)


async def test_the_time_is_for_all_redirects_together() -> None:
    """None of these takes too long by itself."""

    def script(path: str, writer: asyncio.StreamWriter) -> None:
        def answer() -> None:
            writer.write(told() if path == "/hang/3" else moved(f"/hang/{int(path[-1]) + 1}"))
            writer.close()

        asyncio.get_running_loop().call_later(0.2, answer)

    async with web(script) as server:
        assert "could not be downloaded" in await refused(server.url("/hang/0"), seconds=0.4)
        assert "/hang/3" not in server.hits


def test_a_name_server_that_hangs_does_not_keep_the_service_from_ending(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, socket, threading\n"
        "socket.getaddrinfo = lambda *args, **named: threading.Event().wait()\n"
        "from opencode_a2a.outbound.egress import Egress\n"
        "from opencode_a2a.outbound.files import NamedFiles\n"
        "async def serve():\n"
        "    async with NamedFiles.open(Egress(), pathlib.Path('/nowhere'), 0.2) as files:\n"
        "        await files.fetch('http://files.example/', 1)\n"
        "asyncio.run(serve())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=isolated(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Refused: the file could not be downloaded" in ran.stderr


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "204 No Content", "206 Part"])
async def test_only_a_whole_file_is_a_file(status: str) -> None:
    async with web(told(b"", status=status)) as server:
        assert f"HTTP {status[:3]}" in await refused(server.url())


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"\x16\x03\x01", told(b"12")[:-1]])
async def test_a_broken_answer_is_refused(said: bytes) -> None:
    async with web(lambda path, writer: writer.write(said)) as server:
        assert await refused(server.url()) == "the file could not be downloaded"


async def test_a_server_that_is_not_there_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert await refused(f"http://127.0.0.1:{port}/") == "the file could not be downloaded"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "/etc/passwd",
        "ftp://example.org/x",
        "data:text/plain,x",
        "javascript:x",
        "http://",
        "http:///x",
        "https://",
        "http://[::1",
        "http://x:99999/",
        "http://x:y/",
        "http://exa mple.org/",
        "http://\0/",
        "http://" + "a" * 300 + ".org/",
        "\ud83d",
        "//example.org/x",
    ],
)
async def test_what_cannot_be_fetched_is_refused(url: str) -> None:
    await refused(url)


# -- files of the workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a file, beside another directory with a secret."""
    inside = tmp_path / "workspace"
    (inside / "sub").mkdir(parents=True)
    (inside / "notes.md").write_text("inside")
    (inside / "sub" / "ünï köde.json").write_text("{}")
    (inside / "plain").write_text("plain")
    (tmp_path / "workspace-2").mkdir()
    (tmp_path / "workspace-2" / "secret").write_text("secret")
    return inside


async def test_a_file_of_the_workspace_is_read(root: Path) -> None:
    assert await fetched(f"file://{root}/notes.md", root=root) == (b"inside", "text/markdown")
    assert await fetched(f"file://localhost{root}/plain", root=root) == (b"plain", "text/plain")
    assert await fetched(f"FILE://{root}/sub/../notes.md", root=root) == (
        b"inside",
        "text/markdown",
    )
    name = quote(str(root / "sub" / "ünï köde.json"))
    assert await fetched(f"file://{name}", root=root) == (b"{}", "application/json")


@pytest.mark.parametrize(
    "path",
    [
        "/../workspace-2/secret",
        "/%2e%2e/workspace-2/secret",
        "/%2E%2E%2Fworkspace-2%2Fsecret",
        "/sub/../../workspace-2/secret",
        "/sub/%2e%2e/%2e%2e/workspace-2/secret",
        "-2/secret",
        "/notes.md%00.png",
        "/\0",
        "/../../../../../../etc/passwd",
    ],
)
async def test_nothing_outside_the_workspace_is_read(root: Path, path: str) -> None:
    assert "inside the workspace" in await refused(f"file://{root}{path}", root=root)


async def test_other_ways_out_are_closed_too(root: Path) -> None:
    for url in (
        "file:///etc/passwd",
        "file:////etc/passwd",
        "file:/etc/passwd",
        "file:../workspace-2/secret",
        "file:",
        f"file://example.org{root}/notes.md",
        f"file://127.0.0.1{root}/notes.md",
        f"file://user@example.org{root}/notes.md",
        f"file://{quote(str(root)).replace('/', '%252F')}/notes.md",
        f"file:///proc/self/root{root}/../workspace-2/secret",
    ):
        assert "inside the workspace" in await refused(url, root=root)


async def test_a_link_counts_by_where_it_leads(root: Path) -> None:
    (root / "in").symlink_to("notes.md")
    (root / "out").symlink_to("../workspace-2/secret")
    (root / "outdir").symlink_to(root.parent / "workspace-2")
    (root / "loop").symlink_to("loop")
    assert (await fetched(f"file://{root}/in", root=root))[0] == b"inside"
    for name in ("out", "outdir/secret", "outdir/../workspace-2/secret"):
        assert "inside the workspace" in await refused(f"file://{root}/{name}", root=root)
    assert "does not exist" in await refused(f"file://{root}/loop", root=root)


async def test_a_workspace_may_itself_be_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert (await fetched(f"file://{link}/notes.md", root=link))[0] == b"inside"
    assert (await fetched(f"file://{root}/notes.md", root=link))[0] == b"inside"


async def test_what_is_no_file_is_not_read(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "closed").write_text("x")
    (root / "closed").chmod(0)
    names = ["", "/", "/sub", "/missing", "/notes.md/x", "/pipe", "/" + "n" * 300]
    if os.getuid() != 0:  # root reads everything
        names.append("/closed")
    for name in names:
        assert "does not exist" in await refused(f"file://{root}{name}", root=root)


async def test_a_link_that_is_put_there_after_the_check_is_not_followed(root: Path) -> None:
    (root / "sub" / "plans.txt").write_text("inside")
    (root.parent / "workspace-2" / "plans.txt").write_text("secret")
    swapped = threading.Event()

    def swap(event: str, arguments: tuple[Any, ...]) -> None:
        """The agent is quicker: at the last moment the directory is another."""
        if not swapped.is_set() and event == "open" and str(arguments[0]).endswith("plans.txt"):
            swapped.set()
            (root / "sub").rename(root / "moved")
            (root / "sub").symlink_to(root.parent / "workspace-2")

    sys.addaudithook(swap)  # for good, but it does something only once
    content, _ = await fetched(f"file://{root}/sub/plans.txt", root=root)
    assert (content, swapped.is_set()) == (b"inside", True)
    assert "inside the workspace" in await refused(f"file://{root}/sub/plans.txt", root=root)


async def test_a_file_of_the_workspace_has_a_limit_too(root: Path) -> None:
    (root / "full").write_bytes(b"x" * LIMIT)
    (root / "more").write_bytes(b"x" * (LIMIT + 1))
    assert len((await fetched(f"file://{root}/full", root=root))[0]) == LIMIT
    assert "larger than 1000 bytes" in await refused(f"file://{root}/more", root=root)
