"""Many readers at a time, slow ones and late ones: everybody gets every byte."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson

from tests.fakes.opencode import expected_text
from tests.load.client import (
    FORMS,
    REST,
    Blocks,
    Client,
    Telling,
    connected,
    last,
    listen,
)
from tests.running import Service, Upstream, fake_opencode, service


async def stats(upstream: Upstream) -> dict[str, int]:
    async with aiohttp.ClientSession() as http, http.get(f"{upstream.base_url}/__stats") as answer:
        counts: dict[str, int] = orjson.loads(await answer.read())
    return counts


def whole(told: Telling, tokens: int, size: int = 6) -> bool:
    """Whether a reader has exactly the text that was said, and one end."""
    assert (told.state, told.problem, told.ends) == ("completed", None, 1)
    assert told.session is not None
    return told.answer == expected_text(told.session, tokens, size)


async def test_two_hundred_streams_at_once_are_complete_and_share_one_event_connection(
    tmp_path: Path,
) -> None:
    with (
        fake_opencode(tmp_path) as upstream,
        service(upstream, tmp_path, OPENCODE_MAX_CONCURRENT_STREAMS="0") as running,
    ):
        async with connected(running) as clients:

            async def read(i: int) -> bool:
                tokens = 60 + i
                return whole(await clients[FORMS[i % 4]].told(f"[[tokens:{tokens}]]"), tokens)

            assert all(await asyncio.gather(*(read(i) for i in range(200))))
        counts = await stats(upstream)
    assert counts["consumers_max"] == counts["consumers"] == 1
    assert counts["deltas"] == sum(60 + i for i in range(200))


async def test_unary_sends_at_once_all_get_their_own_answer(fake_service: Service) -> None:
    async with connected(fake_service) as clients:
        work = iter(range(160))

        async def worker(client: Client) -> bool:
            return all([whole(await client.send(f"[[tokens:{40 + i}]]"), 40 + i) for i in work])

        assert all(await asyncio.gather(*(worker(clients[FORMS[i % 4]]) for i in range(32))))


async def test_whoever_joins_in_the_middle_ends_with_the_same_text(fake_service: Service) -> None:
    tokens, dice = 6_000, random.Random(20)
    # By what was said, not by how many pieces it came in: those depend on the machine.
    joining = sorted(6 * dice.randrange(tokens) for _ in range(20))
    inside = asyncio.Semaphore(0)

    async def join(client: Client, task_id: str) -> tuple[Telling, int]:
        async with client.subscribe(task_id) as telling:
            known = len((await anext(telling)).answer)
            inside.release()
            return await last(telling), known

    async with connected(fake_service) as clients, asyncio.TaskGroup() as group:
        joined: list[asyncio.Task[tuple[Telling, int]]] = []
        prompt = f"[[tokens:{tokens}]] [[rate:3000]] [[hang]]"  # nobody is too late for it
        async with clients[REST].stream(prompt) as telling:
            async for told in telling:
                said = len(told.answer.encode())
                while joining and said >= joining[0]:
                    joining.pop(0)
                    client = clients[FORMS[len(joining) % 4]]
                    joined.append(group.create_task(join(client, told.id)))
                if said == 6 * tokens:
                    break
            for _ in joined:
                await inside.acquire()
            await clients[REST].cancel(told.id)
            told = await last(telling)
    assert len(joined) == 20
    results = [task.result() for task in joined]
    assert told.session is not None
    for each in (told, *(heard for heard, _ in results)):
        assert (each.state, each.ends) == ("canceled", 1)
        assert each.answer == expected_text(told.session, tokens)
    assert len({known for _, known in results}) > 2, "they did not join at different moments"


@asynccontextmanager
async def narrow_connection(
    to: Service,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with hardly any room for what is not read."""
    host, _, port = to.url.removeprefix("http://").partition(":")
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=16_384)
    yield reader, writer
    writer.close()
    await writer.wait_closed()


def request(to: Service, line: str) -> bytes:
    return (
        f"{line} HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 0\r\n"
        f"Authorization: Bearer {to.token}\r\n\r\n"
    ).encode()


async def events(reader: asyncio.StreamReader) -> AsyncIterator[Telling]:
    """What a chunked answer tells, event by event."""
    telling, blocks = Telling(REST), Blocks()
    await reader.readuntil(b"\r\n\r\n")
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = await reader.readexactly(size + 2)
        for block in blocks.feed(chunk[:-2]):
            if not block.startswith(b":"):
                listen(telling, block)
                yield telling


async def test_a_reader_that_pauses_half_a_minute_misses_nothing_and_delays_nobody(
    fake_service: Service,
) -> None:
    """And a connection on which nothing happened all the while is still good."""
    pause, tokens, size = 30.0, 2_000, 16_384  # 32 MB, far more than all buffers hold

    async def slow(task_id: str) -> Telling:
        async with narrow_connection(fake_service) as (reader, writer):
            writer.write(request(fake_service, f"POST /tasks/{task_id}:subscribe"))
            telling = events(reader)
            await anext(telling)
            paused.set()
            await asyncio.sleep(pause)
            await others.wait()
            return await last(telling)

    async def idle() -> bool:
        async with narrow_connection(fake_service) as (reader, writer):
            writer.write(request(fake_service, "HEAD /health"))
            first = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(pause)
            writer.write(request(fake_service, "HEAD /health"))
            second = await reader.readuntil(b"\r\n\r\n")
            return b" 200 OK" in first and b" 200 OK" in second

    async with connected(fake_service) as clients, asyncio.TaskGroup() as group:
        waited = group.create_task(idle())
        paused, others = asyncio.Event(), asyncio.Event()
        prompt = f"[[tokens:{tokens}]] [[size:{size}]] [[rate:250]]"
        async with clients[REST].stream(prompt) as telling:
            told = await anext(telling)
            slowly = group.create_task(slow(told.id))
            await paused.wait()
            assert whole(await last(telling), tokens, size)
        others.set()
    assert whole(slowly.result(), tokens, size)
    assert waited.result()
