"""The rows of nodes, and of what they ask each other to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, inspect, select, update

from ..domain.nodes import ALIVE_MS, Node, Whereabouts
from . import statements as sql
from .clock import SERVER_TIME
from .database import Database, make_engine
from .tables import IS_OPEN, OPEN_STATES, commands, contexts, interrupts, nodes, sessions, tasks
from .wakeups import notify

CHANGED = "nodes:changed:0"  # a node has come or gone, or is drained
GONE_MS = 86_400_000  # after which a node that was not seen is no longer listed
LEFT_MS = 600_000  # after which a command that nobody asks about any more is deleted


@dataclass(frozen=True, slots=True)
class Command:
    id: str
    kind: str
    body: bytes


class SqlNodes:
    """Implements `service.cluster.NodeStore`."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self.holder = holder

    @property
    def clock(self) -> Callable[[], int]:
        return self._database.clock

    def on_words(self, listener: Callable[[list[str]], None]) -> Callable[[], None]:
        return self._database.wakeups.subscribe(listener)

    async def beat(self, node: Node) -> Sequence[Node]:
        return await self._database.write(_beat, node, self._database.clock())

    async def leave(self) -> None:
        await self._database.write(_leave, self.holder, self._database.clock())

    async def all(self) -> Sequence[Node]:
        return await self._database.read(all_nodes)

    async def drain(self, node: str, *, draining: bool) -> int:
        return await self._database.write(_drain, node, draining, self._database.clock())

    async def of_task(self, owner: str, task_id: str) -> Whereabouts | None:
        return await self._database.read(_of_task, owner, task_id)

    async def of_context(self, owner: str, context_id: str) -> Whereabouts:
        return await self._database.read(_of_context, owner, context_id)

    async def unbind_context(self, owner: str, context_id: str, opencode: str) -> None:
        await self._database.write(sql.unbind_context, owner, context_id, opencode)

    async def of_session(self, owner: str, session_id: str) -> Whereabouts | None:
        return await self._database.read(_of_session, owner, session_id)

    async def of_request(self, owner: str, request_id: str) -> Whereabouts | None:
        return await self._database.read(_of_request, owner, request_id)

    async def ask(self, command_id: str, kind: str, body: bytes, *, holder: str) -> None:
        command = Command(command_id, kind, body)
        await self._database.write(_ask, command, holder, self._database.clock())

    async def take(self, begun: Collection[str]) -> Sequence[Command]:
        return await self._database.write(_take, self.holder, begun, self._database.clock())

    async def done(self, command_id: str, result: bytes) -> None:
        await self._database.write(_done, command_id, result, self._database.clock())

    async def result(self, command_id: str) -> tuple[bool, bytes | None] | None:
        return await self._database.read(_result, command_id)

    async def withdraw(self, command_id: str) -> bool:
        return await self._database.write(_withdraw, command_id)

    async def forget(self, command_id: str) -> None:
        await self._database.write(_forget, command_id)


def _beat(db: Connection, node: Node, now: int) -> list[Node]:
    """Write the row of a node, and read all. Only others set `draining`."""
    row = {
        "name": node.name,
        "opencode": node.opencode,
        "root": node.root,
        "labels": orjson.dumps(sorted(node.labels)).decode(),
        "version": node.version,
        "opencode_version": node.opencode_version,
        "capacity": node.capacity,
        "load": node.load,
        "seen_at": now,
    }
    own = nodes.c.holder == node.holder
    if not db.execute(update(nodes).where(own).values(row)).rowcount:
        db.execute(insert(nodes), {**row, "holder": node.holder, "started_at": now})
        notify(db, [CHANGED])
    db.execute(delete(nodes).where(nodes.c.seen_at < now - GONE_MS))
    db.execute(delete(commands).where(commands.c.created_at < now - LEFT_MS))
    return all_nodes(db)


def all_nodes(db: Connection) -> list[Node]:
    return [_node(row) for row in db.execute(select(nodes).order_by(nodes.c.name, nodes.c.holder))]


def _node(row: Any) -> Node:
    return Node(
        holder=row.holder,
        name=row.name,
        opencode=row.opencode,
        root=row.root,
        labels=frozenset(orjson.loads(row.labels)),
        version=row.version,
        opencode_version=row.opencode_version,
        capacity=row.capacity,
        load=row.load,
        draining=bool(row.draining),
        started_at=row.started_at,
        seen_at=row.seen_at,
    )


def _leave(db: Connection, holder: str, now: int) -> None:
    """Be dead from now on, as somebody who was here until now."""
    gone = update(nodes).where(nodes.c.holder == holder)
    db.execute(gone.values(seen_at=now - ALIVE_MS - 1, load=0))
    notify(db, [CHANGED])


def _drain(db: Connection, name: str, draining: bool, now: int) -> int:
    """Let running nodes of this name get no new work, or get it again; how many there are."""
    running = nodes.c.seen_at >= now - ALIVE_MS
    named = update(nodes).where((nodes.c.name == name) | (nodes.c.holder == name), running)
    changed = db.execute(named.values(draining=int(draining))).rowcount
    notify(db, [CHANGED])
    return changed


_TASK = select(tasks.c.holder, tasks.c.opencode, tasks.c.root, tasks.c.state)


def _of_task(db: Connection, owner: str, task_id: str) -> Whereabouts | None:
    """Where an open task is. What concerns one that has ended is said by whoever is asked."""
    its = (tasks.c.id == task_id, tasks.c.owner == owner, IS_OPEN)
    row = db.execute(_TASK.where(*its)).first()
    return _whereabouts(row) if row is not None else None


def _whereabouts(row: Any) -> Whereabouts:
    return Whereabouts(
        holder=row.holder if row.state in OPEN_STATES else None,
        opencode=row.opencode,
        root=row.root,
    )


def _of_context(db: Connection, owner: str, context_id: str) -> Whereabouts:
    """Where its newest open task is or, if it has none, its session."""
    its = (tasks.c.owner == owner, tasks.c.context_id == context_id, IS_OPEN)
    newest = _TASK.where(*its).order_by(tasks.c.created_at.desc()).limit(1)
    if (row := db.execute(newest).first()) is not None:
        return _whereabouts(row)
    home, opencode = sql.home_of_context(db, owner, context_id)
    return Whereabouts(opencode=opencode, root=home)


def _of_session(db: Connection, owner: str, session_id: str) -> Whereabouts | None:
    its = (sessions.c.session_id == session_id, sessions.c.owner == owner)
    row = db.execute(select(sessions.c.opencode, sessions.c.root).where(*its)).first()
    if row is None:
        return None
    held = _TASK.join(
        contexts,
        (contexts.c.owner == tasks.c.owner) & (contexts.c.context_id == tasks.c.context_id),
    ).where(contexts.c.session_id == session_id, IS_OPEN)
    at_work = db.execute(held.limit(1)).first()
    holder = at_work.holder if at_work is not None else None
    return Whereabouts(holder=holder, opencode=row.opencode, root=row.root)


def _of_request(db: Connection, owner: str, request_id: str) -> Whereabouts | None:
    asked = select(interrupts.c.task_id).where(
        interrupts.c.request_id == request_id, interrupts.c.owner == owner
    )
    task_id = db.execute(asked).scalar()
    return _of_task(db, owner, task_id) if task_id is not None else None


def _ask(db: Connection, command: Command, holder: str, now: int) -> None:
    row = {"id": command.id, "kind": command.kind, "body": command.body}
    db.execute(insert(commands), {**row, "holder": holder, "created_at": now})
    notify(db, [f"ask:{holder}:0"])


def _take(db: Connection, holder: str, begun: Collection[str], now: int) -> list[Command]:
    """Take what this node is to do and has not begun. Each command is for one node."""
    open_ones = (commands.c.holder == holder, commands.c.result.is_(None))
    mine = (*open_ones, commands.c.id.not_in(begun)) if begun else open_ones
    found = select(commands.c.id, commands.c.kind, commands.c.body).where(*mine)
    rows = db.execute(found.order_by(commands.c.created_at).with_for_update(skip_locked=True)).all()
    if rows:
        taken = update(commands).where(commands.c.id.in_([row.id for row in rows]))
        db.execute(taken.values(taken_at=now))
    return [Command(row.id, row.kind, row.body) for row in rows]


def _done(db: Connection, command_id: str, result: bytes, now: int) -> None:
    this = update(commands).where(commands.c.id == command_id)
    db.execute(this.values(done_at=now, result=result))
    notify(db, [f"done:{command_id}:0"])


def _result(db: Connection, command_id: str) -> tuple[bool, bytes | None] | None:
    """Whether somebody has taken it, and what came of it; None if there is no such command."""
    this = select(commands.c.taken_at, commands.c.result).where(commands.c.id == command_id)
    row = db.execute(this).first()
    return (row.taken_at is not None, row.result) if row is not None else None


def _withdraw(db: Connection, command_id: str) -> bool:
    """Delete a command, unless somebody has taken it."""
    this = (commands.c.id == command_id, commands.c.taken_at.is_(None))
    return bool(db.execute(delete(commands).where(*this)).rowcount)


def _forget(db: Connection, command_id: str) -> None:
    db.execute(delete(commands).where(commands.c.id == command_id))


def read_nodes(url: str) -> tuple[int, list[Node]]:
    """What time it is for the nodes of a database, and all that were seen within a day."""
    engine = make_engine(url)
    try:
        with engine.connect() as db:
            now = int(db.exec_driver_sql(SERVER_TIME).scalar_one())
            return now, all_nodes(db) if inspect(db).has_table(nodes.name) else []
    finally:
        engine.dispose()


def change_draining(url: str, name: str, *, draining: bool) -> int:
    """Let a node get no new work, or get it again; how many have this name."""
    engine = make_engine(url)
    try:
        with engine.begin() as db:
            if not inspect(db).has_table(nodes.name):
                return 0
            now = int(db.exec_driver_sql(SERVER_TIME).scalar_one())
            return _drain(db, name, draining=draining, now=now)
    finally:
        engine.dispose()
