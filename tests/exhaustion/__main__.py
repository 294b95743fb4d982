"""Attack a service without a credential, at length, and say what came of it.

    python -m tests.exhaustion [NAME …] [--seconds 60]

Each attack has a service of its own on the fake OpenCode, a known caller's stream that goes on all
the while, and a known caller who opens a new connection ten times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.exhaustion.attacks import (
    HALF_HEAD,
    WRONG,
    Newcomer,
    Socket,
    Stream,
    allow_files,
    connect,
    dial,
    head,
    held,
    memory,
    peak_memory,
    still_open,
)
from tests.running import Service, Upstream, fake_opencode, isolated, running, service

Attack = Callable[[Service, float], Awaitable[str]]
MEGABYTE = 1_000_000


async def pour(socket: Socket, piece: bytes, count: int) -> tuple[int, bytes]:
    """Send a piece again and again until it is refused: how many went, and the answer."""
    sent = 0
    with suppress(ConnectionError):
        for _ in range(count):
            if socket.reader.at_eof():
                break
            await socket.send(piece)
            sent += 1
    with suppress(TimeoutError):
        return sent, (await socket.closed(3))[:200]
    return sent, b""


def first_line(answer: bytes) -> str:
    return answer.partition(b"\r\n")[0].decode() or "nothing"


async def headers(attacked: Service, seconds: float) -> str:
    """64 MB of headers on one connection."""
    piece = b"".join(b"X-%06d: abcdefg\r\n" % n for n in range(52_632))
    async with connect(attacked) as socket:
        await socket.send(b"GET /health HTTP/1.1\r\nHost: [::1]\r\n")
        sent, answer = await pour(socket, piece, 64)
    return f"{sent} MB went out, answered {first_line(answer)!r}"


async def half(attacked: Service, seconds: float, count: int, sends: bytes) -> str:
    began = time.perf_counter()
    async with held(attacked, count, sends) as sockets:
        opened, now = time.perf_counter() - began, await still_open(sockets)
        during = memory(attacked)
        await asyncio.sleep(seconds)
        later = await still_open(sockets)
        return (
            f"{count} opened in {opened:.1f} s, {now} of them open then (memory {during:.0f} MB), "
            f"{later} after {seconds:.0f} s"
        )


async def half_heads(attacked: Service, seconds: float) -> str:
    """1 000 half-sent heads."""
    return await half(attacked, seconds, 1_000, HALF_HEAD)


async def silent(attacked: Service, seconds: float) -> str:
    """1 000 connections on which nothing is said."""
    return await half(attacked, seconds, 1_000, b"")


async def large_half_heads(attacked: Service, seconds: float) -> str:
    """1 000 half-sent heads of 30 kB each."""
    fields = b"".join(b"X-%03d: %s\r\n" % (n, b"a" * 290) for n in range(100))
    return await half(attacked, seconds, 1_000, HALF_HEAD + b"\r\n" + fields)


async def half_bodies(attacked: Service, seconds: float) -> str:
    """900 half-sent bodies with a wrong credential."""
    request = b"POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1000000\r\n" + WRONG + b"\r\n{"
    return await half(attacked, seconds, 900, request)


async def known_half_bodies(attacked: Service, seconds: float) -> str:
    """300 half-sent bodies with a right credential."""
    fields = ("Content-Length: 1000000", "Content-Type: application/json")
    return await half(attacked, seconds, 300, head(attacked, "POST /", *fields) + b"{")


async def refused_body(attacked: Service, seconds: float) -> str:
    """64 MB of body behind a wrong credential, and 64 MB beyond the limit behind a right one."""
    fields = ("Content-Length: 64000000", "Content-Type: application/json")
    wrong = b"POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 64000000\r\n" + WRONG + b"\r\n"
    said = []
    for name, request in (("401", wrong), ("413", head(attacked, "POST /", *fields))):
        async with connect(attacked) as socket:
            await socket.send(request)
            answer = await socket.answer()
            began, sent = time.perf_counter(), 0
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(seconds):
                    for _ in range(64):
                        await socket.send(b" " * MEGABYTE)
                        sent += 1
                        await asyncio.sleep(0.1)  # a client that does not look
            took = time.perf_counter() - began
            said.append(
                f"{name}: answered {answer.status} before the body, closes: {answer.closes}; "
                f"{sent} MB of 64 were taken in {took:.1f} s, open: {await socket.is_open()}"
            )
    return "; ".join(said)


async def flood(attacked: Service, seconds: float) -> str:
    """New connections as fast as possible, each with half a head, never closed by the attacker."""
    sockets, opened, failed = list[Socket](), 0, 0
    until = time.perf_counter() + seconds
    try:
        while time.perf_counter() < until:
            try:
                sockets.append(await dial(attacked))
                sockets[-1].writer.write(HALF_HEAD)
                opened += 1
            except OSError:
                failed += 1
                await asyncio.sleep(0.01)
            if len(sockets) > 8_000:
                for socket in sockets[:4_000]:
                    socket.close()
                del sockets[:4_000]
        return f"{opened} opened in {seconds:.0f} s ({failed} failed)"
    finally:
        for socket in sockets:
            socket.close()


async def few_files(attacked: Service, seconds: float) -> str:
    """400 half-sent heads where the service may have 256 files open."""
    return await half(attacked, seconds, 400, HALF_HEAD)


async def guesses(attacked: Service, seconds: float) -> str:
    """64 connections of another address that try wrong tokens as fast as they are answered."""
    source, statuses = "127.0.0.2", Counter[int]()
    until = time.perf_counter() + seconds

    async def guess() -> None:
        while time.perf_counter() < until:
            async with connect(attacked, source) as socket:
                await socket.send(b"GET /tasks HTTP/1.1\r\nHost: [::1]\r\n" + WRONG + b"\r\n")
                statuses[(await socket.answer()).status] += 1

    await asyncio.gather(*(guess() for _ in range(64)))
    began = time.perf_counter()
    async with connect(attacked, source) as socket:
        await socket.send(head(attacked, "GET /tasks"))
        right = (await socket.answer()).status
    took = time.perf_counter() - began
    return (
        f"{statuses[401]} guesses were answered with 401 and {statuses[429]} with 429; then the "
        f"right token got {right} after {1000 * took:.0f} ms"
    )


ATTACKS: tuple[Attack, ...] = (
    headers,
    silent,
    half_heads,
    large_half_heads,
    half_bodies,
    known_half_bodies,
    refused_body,
    flood,
    few_files,
    guesses,
)


@contextmanager
def attacked_service(upstream: Upstream, folder: Path, attack: Attack) -> Iterator[Service]:
    if attack is not few_files:
        with service(upstream, folder) as found:
            yield found
        return
    env = isolated(
        folder / "home",
        OPENCODE_BASE_URL=upstream.base_url,
        A2A_TASK_STORE_DATABASE_URL=f"sqlite:///{folder / 'tasks.db'}",
        A2A_BEARER_TOKEN="test-token",
        A2A_PORT="0",
    )
    serve = str(Path(sys.executable).parent / "opencode-a2a")
    command = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", serve, "serve"]
    with running(command, env, upstream.workspace) as program:
        yield Service(program.wait_for(r"event=serving url=(\S+)")[1], program)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def report(attack: Attack, attacked: Service, seconds: float) -> None:
    say(f"\n{attack.__name__}: {attack.__doc__}")
    async with Stream(attacked).open() as stream, Newcomer(attacked).open() as newcomer:
        await asyncio.sleep(3)
        usual, before = max(newcomer.waited), memory(attacked)
        newcomer.waited.clear()
        try:
            said = await attack(attacked, seconds)
        except Exception as exc:
            said = f"broke off: {exc!r}"
        with suppress(TimeoutError):
            await stream.goes_on()
        say(f"  {said}")
        after, most = memory(attacked), peak_memory(attacked)
        say(f"  memory {before:.0f} MB before, {most:.0f} MB at most, {after:.0f} MB after")
        waited = max(newcomer.waited, default=0)
        say(
            f"  a new known caller waited {1000 * usual:.0f} ms at most before, "
            f"{1000 * waited:.0f} ms during it; {len(newcomer.waited)} got in, "
            f"{len(newcomer.failed)} not"
        )
        say(f"  the known stream had {stream.events} events, at most {stream.longest:.2f} s apart")
        for problem in sorted(set(newcomer.failed)):
            say(f"    {newcomer.failed.count(problem)} × {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustion", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each holds on")
    given = parser.parse_args()
    allow_files(20_000)
    for attack in ATTACKS:
        if given.names and attack.__name__ not in given.names:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with (
                fake_opencode(folder) as upstream,
                attacked_service(upstream, folder, attack) as attacked,
            ):
                asyncio.run(report(attack, attacked, given.seconds))


if __name__ == "__main__":
    main()
