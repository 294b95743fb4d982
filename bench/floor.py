"""The floor: a bare uvicorn server that sends frames it has ready, one write for each.

GET /N        N frames as fast as they can be written
GET /N?RATE   the same, RATE per second, all readers in step
GET /task     what a task cannot do without: a session and a prompt asked of OpenCode, whose events
              are only searched for the first words; a transaction of one row for each thing that
              is stored before it is shown or acted upon, and one for the end; a frame

python -m bench.floor [OPENCODE DATABASE]     prints where it listens
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import orjson
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

# As long as an event of ours with one delta in it.
EVENT = {
    "artifactUpdate": {
        "taskId": "7c9a3b1e-4d7f-4f25-9a51-0d7e2f6a8b11",
        "contextId": "b5e6d1c2-90a4-4c58-8d3f-6a1e7f90c2d4",
        "artifact": {
            "artifactId": "prt_019a5c3e7f1000000000000042",
            "name": "answer",
            "parts": [{"text": "river "}],
        },
        "append": True,
    }
}
FRAME = b"id: 1000\ndata: " + orjson.dumps(EVENT) + b"\n\n"
HEADERS = [(b"content-type", b"text/event-stream")]


class Ticks:
    """Wakes all who wait, so many times per second."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def next(self, rate: float) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if self._next is None or self._next.done():
            self._next = loop.create_future()
        if self._task is None:
            self._task = loop.create_task(self._run(rate))
        return self._next

    async def _run(self, rate: float) -> None:
        while True:
            await asyncio.sleep(1 / rate)
            if self._next is not None and not self._next.done():
                self._next.set_result(None)


class Tasks:
    """Tasks without anything that makes them one."""

    def __init__(self, opencode: str, database: str) -> None:
        self._opencode = opencode
        self._writer = ThreadPoolExecutor(1, "writer")
        self._db = committing(database, check_same_thread=False)
        self._spoken: dict[bytes, asyncio.Future[None]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._listening: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def run(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if self._http is None:
            self._http = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            )
            self._listening = loop.create_task(self._listen(self._http))
        await self._connected.wait()
        made = loop.create_task(self._post(self._http, "/session", {"title": "task"}))
        await self._commit()  # the task
        await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})
        session = orjson.loads(await made)["id"]
        await self._commit()  # the session
        spoken = self._spoken[session.encode()] = loop.create_future()
        prompt = {"parts": [{"type": "text", "text": "[[tokens:1]]"}]}
        await self._post(self._http, f"/session/{session}/prompt_async", prompt)
        await spoken
        await self._commit()  # its words
        await send({"type": "http.response.body", "body": FRAME, "more_body": True})
        await self._commit()  # its end

    async def _commit(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, commit, self._db)

    async def _listen(self, http: aiohttp.ClientSession) -> None:
        async with http.get(f"{self._opencode}/global/event") as answer:
            self._connected.set()
            async for line in answer.content:
                if b'"message.part.delta"' in line:
                    for session in [s for s in self._spoken if s in line]:
                        self._spoken.pop(session).set_result(None)

    async def _post(self, http: aiohttp.ClientSession, path: str, body: object) -> bytes:
        kind = {"content-type": "application/json"}
        data = orjson.dumps(body)
        async with http.post(self._opencode + path, data=data, headers=kind) as answer:
            return await answer.read()


def committing(path: str, **options: bool) -> sqlite3.Connection:
    """A database set up as that of our log is, with one table."""
    db = sqlite3.connect(path, isolation_level=None, **options)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "CREATE TABLE entries (seq INTEGER PRIMARY KEY, body BLOB)",
    ):
        db.execute(statement)
    return db


def commit(db: sqlite3.Connection) -> None:
    """A transaction with one row, with nothing around it."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO entries (body) VALUES (?)", (bytes(150),))
    db.execute("COMMIT")


ticks = Ticks()
tasks: Tasks | None = None


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    rate, path = float(scope["query_string"] or 0), scope["path"][1:]
    if path == "task":
        assert tasks is not None
        await tasks.run(send)
        path = "0"
    for _ in range(int(path)):
        if rate:
            await ticks.next(rate)
        await send({"type": "http.response.body", "body": FRAME, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        app, http="httptools", loop="none", lifespan="off", log_level="critical", access_log=False
    )
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    if sys.argv[1:]:
        tasks = Tasks(*sys.argv[1:])
    uvloop.run(main())
