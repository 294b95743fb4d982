"""One check of one subject, and servers that are wrong in one way each."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from opencode_a2a.doctor.examine import examine
from opencode_a2a.doctor.verdict import Check, Verdict

S = TypeVar("S")
Respond = Callable[[str], bytes]  # the answer to a path


async def look(checks: tuple[Check[S], ...], name: str, subject: S) -> Verdict:
    """What the check of this name says; only what it declares may be found."""
    (check,) = (each for each in checks if each.name == name)
    (report,) = await examine([check.on(subject)])
    verdict = report.verdict
    declared = {finding.name: finding.level for finding in check.findings}
    if verdict.finding is not None:
        assert declared[verdict.finding] is verdict.level
        assert verdict.fix, "a finding says what to do"
    assert "The check itself failed" not in verdict.says, verdict.says
    return verdict


def answer(
    body: bytes, *more: str, status: str = "200 OK", kind: str = "application/json"
) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, *more, "Connection: close", "", ""]).encode() + body


@asynccontextmanager
async def serving(respond: Respond, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a server that answers as told; without an answer it hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(respond(head.split()[1].decode()))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"


@contextmanager
def nobody() -> Iterator[str]:
    """An address at which nobody listens: the port is bound, so nobody else can take it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"
