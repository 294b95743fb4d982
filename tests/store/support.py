"""Sample tasks and updates for the tests of the store, and ways to wait for commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opencode_a2a.domain.events import BlockKind
from opencode_a2a.domain.ports import Cursor
from opencode_a2a.domain.task import Block, Task, TaskHead
from opencode_a2a.domain.updates import BlockText, Ended, LogEntry, MessageAdded, Progress
from opencode_a2a.domain.values import (
    FileChange,
    Message,
    OutputModes,
    Role,
    SessionRef,
    TaskState,
    Text,
    Usage,
)
from opencode_a2a.errors import OutcomeUnknown
from opencode_a2a.store.database import Database
from opencode_a2a.store.holder import LEASE
from opencode_a2a.store.log import SqlTaskLog

OWNER = "alice"
HELLO = MessageAdded(Message("m-1", Role.USER, (Text("Hello"),)), "msg_1")
DONE = Ended(TaskState.COMPLETED, "Done.")
FAILED = Ended(TaskState.FAILED, "It broke.")


def soon() -> asyncio.Timeout:
    """The limit for every wait of these tests."""
    return asyncio.timeout(60)


@dataclass(slots=True)
class Clock:
    now: int = 1_000

    def __call__(self) -> int:
        return self.now

    def outlast_leases(self) -> None:
        """Let every lease run out that is not renewed."""
        self.now += LEASE + 1


def head(
    task_id: str,
    context_id: str = "context",
    owner: str = OWNER,
    created_at: int = 1_000,
    modes: tuple[str, ...] = (),
) -> TaskHead:
    return TaskHead(task_id, context_id, owner, created_at, OutputModes(modes))


def delta(text: str, block: str = "b") -> BlockText:
    return BlockText(block, "msg_2", f"part-{block}", BlockKind.TEXT, text, append=True)


def step(number: int) -> Progress:
    """An update that is never merged with its neighbours."""
    return Progress("step-start", f"step {number}")


async def rest(cursor: Cursor) -> list[LogEntry]:
    """All entries that a cursor has not read yet."""
    found: list[LogEntry] = []
    async with soon():
        while entries := await cursor.read():
            found.extend(entries)
    return found


async def claim_all(log: SqlTaskLog) -> Sequence[Task]:
    """Claim everything that nobody holds."""
    return await log.claim(await log.expired())


async def claimed_ids(log: SqlTaskLog) -> list[str]:
    """The ids of the tasks that a log claims."""
    return [task.head.id for task in await claim_all(log)]


async def settled(log: SqlTaskLog, task_id: str) -> None:
    """Wait until a commit that was not answered is settled."""
    async with soon():
        while True:
            try:
                return await log.settled(task_id)
            except OutcomeUnknown:
                continue


def numbers(entries: list[LogEntry]) -> list[int]:
    return [entry.seq for entry in entries]


@asynccontextmanager
async def writer_busy(database: Database) -> AsyncIterator[None]:
    """Keep the writer thread busy: nothing is committed inside the block."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert go_on.wait(60)

    holding = asyncio.create_task(database.write(hold))
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        yield
    finally:
        go_on.set()
        async with soon():
            await holding


async def settle() -> None:
    """Let everything that is ready to run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class VisibleState:
    """Everything of a task that a client can see."""

    head: TaskHead
    state: TaskState
    status_at: int
    last_seq: int
    history: list[LogEntry]
    blocks: list[Block]
    changes: tuple[FileChange, ...]
    changes_seq: int
    session: SessionRef | None
    usage: Usage | None
    ended: Ended | None


def visible_state(task: Task) -> VisibleState:
    blocks = task.visible_blocks()  # joins the pieces of each
    assert all(len(block.pieces) <= 1 for block in blocks)
    return VisibleState(
        task.head,
        task.state,
        task.status_at,
        task.last_seq,
        list(task.history),
        blocks,
        task.changes,
        task.changes_seq if task.changes else 0,
        task.session,
        task.usage,
        task.ended,
    )
