"""A database with something in every table, written by the parts that write it in a service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy import Connection, insert

from opencode_a2a.domain.isolation import ContextWorktree
from opencode_a2a.domain.ports import Key, PeerConversation
from opencode_a2a.domain.push import DeadLetter, PushConfig, PushCursor, PushTarget
from opencode_a2a.domain.updates import InterruptAnswered, InterruptOpened, Started
from opencode_a2a.domain.values import (
    ModelRef,
    PermissionAsk,
    PermissionDecision,
    SessionRef,
    WorktreeRef,
)
from opencode_a2a.store.bindings import SqlBindings
from opencode_a2a.store.clock import now_ms
from opencode_a2a.store.conversations import SqlPeerConversations
from opencode_a2a.store.database import Database
from opencode_a2a.store.log import SqlTaskLog
from opencode_a2a.store.push import SqlPush
from opencode_a2a.store.tables import usage_days, usage_steps
from opencode_a2a.store.worktrees import SqlWorktrees
from tests.store.support import DONE, HELLO, delta, head, soon

# Text that sorts differently by bytes, by locale and by case.
IDS = ("Zebra", "apple", "äpfel", "語言", "zebra", "🙂")


@dataclass(frozen=True, slots=True)
class Filled:
    tasks: int
    ended: int


def fill(url: str) -> Filled:
    """Two callers, each with ended tasks and an open one that waits for an answer."""
    return asyncio.run(_fill(url))


async def _fill(url: str) -> Filled:
    async with soon(), Database.open(url) as database, SqlTaskLog.open(database) as log:
        for owner in ("alice", "bob"):
            await _fill_for(owner, database, log)
    return Filled(tasks=2 * (len(IDS) + 1), ended=2 * len(IDS))


def _use(db: Connection, owner: str) -> None:
    db.execute(insert(usage_steps), {"part_id": f"prt_{len(owner)}", "at": now_ms()})
    figures = {c.name: 1 for c in usage_days.c if not c.primary_key}
    db.execute(insert(usage_days), {"day": "2026-01-31", "owner": owner, "model": "", **figures})


async def _fill_for(owner: str, database: Database, log: SqlTaskLog) -> None:
    number = len(owner)  # so that only what names the caller has the name
    bindings, session = SqlBindings(database), f"ses_{number}"
    await bindings.bind(owner, "context", SessionRef(session, f"{owner}'s work", "/w"))
    await bindings.keep_model(session, ModelRef("acme", "large"))
    await bindings.own_locations(owner, [f"/w/{number}"])
    await SqlPeerConversations(database, now_ms).keep(
        owner, "context", "reviewer", PeerConversation("c", "t")
    )
    ref = WorktreeRef(branch=f"a2a/{number}", directory=f"/t/{number}", base="0", base_branch=None)
    await SqlWorktrees(database).add(
        ContextWorktree(owner, "context", f"{owner}'s work", ref, "/w"), at=1
    )
    for name in IDS:
        task_id = f"{name}-{owner}"
        began = head(task_id, owner=owner, created_at=now_ms())
        await log.create(began, [HELLO], [Key(f"key-{task_id}", "d", now_ms())])
        await log.write(task_id, [Started(session), delta("Grüße\0"), delta(" 語言 🙂"), DONE])
    await database.write(_use, owner)
    waits = head(f"open-{owner}", owner=owner, created_at=now_ms())
    asked, still = (PermissionAsk(f"per_{n}_{owner}", session, "bash") for n in (1, 2))
    await log.create(waits, [HELLO, InterruptOpened(asked), InterruptOpened(still)])
    answer = InterruptAnswered(
        asked, PermissionDecision("once"), "always", still_open=1, grants=("git *",)
    )
    await log.write(waits.id, [answer])
    config = PushConfig(waits, "c", target=PushTarget("https://x", token="t"), created_at=1)
    push = SqlPush(database, now_ms)
    await push.put(config, PushCursor.at_start(config), most=1)
    await push.save([], [DeadLetter(config, 1, at=1, attempts=1, error="HTTP 500")])
    await push.release()
