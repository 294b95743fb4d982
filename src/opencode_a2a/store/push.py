"""Push configs, their cursors into the log, and what receivers have not taken.

A cursor is moved by one process, which holds the config by a lease like that of a task. Others
find out from the row of the task that its state has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from ..domain.push import (
    Claimed,
    DeadLetter,
    DuePush,
    PushConfig,
    PushCursor,
    PushTarget,
    TooManyConfigs,
)
from ..domain.task import TaskHead
from ..domain.updates import (
    Continued,
    Ended,
    InterruptAnswered,
    InterruptOpened,
    InterruptResolved,
    InterruptUnclear,
    Queued,
    Started,
)
from ..domain.values import ANY_ROOT, Root, TaskState
from . import statements as sql
from .database import Database
from .holder import LEASE, Holder, Lease
from .prepared import Prepared
from .tables import push_configs, push_dead, tasks

DUE_ENTRIES = 64  # that are read at once
STATE_KINDS = tuple(
    kind.__name__
    for kind in (
        *(Queued, Started, Continued, Ended),
        *(InterruptOpened, InterruptUnclear, InterruptAnswered, InterruptResolved),
    )
)
_POSITION = ("seq", "state", "status_at", "attempts", "next_at", "is_over")


class SqlPush:
    """Implements `domain.push.PushStore`."""

    def __init__(self, database: Database, clock: Callable[[], int], root: Root = ANY_ROOT) -> None:
        self._database = database
        self._clock = clock
        self._root = root.path
        self._holder = Holder.this_process().name

    def _lease(self) -> Lease:
        return Lease(self._holder, until=self._clock() + LEASE)

    async def put(self, config: PushConfig, cursor: PushCursor, *, most: int) -> PushCursor | None:
        return await self._database.write(_put, config, cursor, lease=self._lease(), most=most)

    async def of_task(self, owner: str, task_id: str) -> Sequence[PushConfig]:
        return await self._database.read(_of_task, owner, task_id)

    async def delete(self, owner: str, task_id: str, config_id: str) -> None:
        await self._database.write(_delete, owner, task_id, config_id=config_id)

    async def claim(self, known: Collection[tuple[str, str]]) -> Claimed:
        known, now = set(known), self._clock()
        changed, free = await self._database.read(_changed, self._holder, now=now, root=self._root)
        if not free and not known:
            return Claimed(changed=changed)
        taken = await self._database.write(_hold, free, lease=self._lease(), now=now)
        lost = known and known - await self._database.read(_held, self._holder)
        return Claimed(taken=taken, changed=changed, lost=lost)

    async def release(self) -> None:
        await self._database.write(_release, self._holder)

    async def due(self, cursor: PushCursor) -> DuePush | None:
        return await self._database.read(_due, cursor)

    async def save(
        self, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter]
    ) -> Collection[tuple[str, str]]:
        return await self._database.write(_save, cursors, dead, holder=self._holder)

    async def dead_letters(
        self, owner: str, *, task_id: str | None, config_id: str | None, limit: int
    ) -> Sequence[DeadLetter]:
        where = push_dead.c.owner == owner
        if task_id is not None:
            where &= push_dead.c.task_id == task_id
        if config_id is not None:
            where &= push_dead.c.config_id == config_id
        return await self._database.read(_dead_letters, where, limit=limit)

    async def dead_entry(self, letter: DeadLetter) -> DuePush | None:
        return await self._database.read(_dead_entry, letter)

    async def redelivered(self, letter: DeadLetter) -> None:
        await self._database.write(_forget_letter, letter)


def _is(task_id: str, config_id: str) -> ColumnElement[bool]:
    return and_(push_configs.c.task_id == task_id, push_configs.c.id == config_id)


def _put(
    db: Connection, config: PushConfig, cursor: PushCursor, *, lease: Lease, most: int
) -> PushCursor | None:
    head = config.head
    target = orjson.dumps(asdict(config.target))
    changed = update(push_configs).where(_is(head.id, config.id)).values(target=target)
    if db.execute(changed).rowcount:
        row = db.execute(select(push_configs).where(_is(head.id, config.id))).one()
        return _cursor(row) if row.holder == lease.holder else None
    of_task = select(func.count()).where(push_configs.c.task_id == head.id)
    if db.execute(of_task).scalar_one() >= most:
        raise TooManyConfigs
    new = {
        "task_id": head.id,
        "id": config.id,
        "owner": head.owner,
        "target": target,
        "created_at": config.created_at,
        "holder": lease.holder,
        "held_until": lease.until,
        **_position(cursor),
    }
    db.execute(insert(push_configs), new)
    return cursor


def _position(cursor: PushCursor) -> dict[str, Any]:
    return {
        "seq": cursor.seq,
        "state": cursor.state.value,
        "status_at": cursor.status_at,
        "attempts": cursor.attempts,
        "next_at": cursor.next_at,
        "is_over": int(cursor.over),
    }


def _of_task(db: Connection, owner: str, task_id: str) -> list[PushConfig]:
    head = sql.head(db, task_id)
    if head is None or head.owner != owner:
        return []
    found = select(push_configs).where(push_configs.c.task_id == task_id)
    rows = db.execute(found.order_by(push_configs.c.created_at, push_configs.c.id))
    return [_config(row, head) for row in rows]


def _config(row: Any, head: TaskHead) -> PushConfig:
    target = PushTarget(**orjson.loads(row.target))
    return PushConfig(head, row.id, target=target, created_at=row.created_at)


def _delete(db: Connection, owner: str, task_id: str, *, config_id: str) -> None:
    db.execute(delete(push_configs).where(_is(task_id, config_id), push_configs.c.owner == owner))
    letters = (push_dead.c.task_id == task_id, push_dead.c.config_id == config_id)
    db.execute(delete(push_dead).where(*letters, push_dead.c.owner == owner))


def _changed(
    db: Connection, holder: str, *, now: int, root: str
) -> tuple[list[PushCursor], list[tuple[str, str]]]:
    """What this process holds and whose task has changed since; and what nobody holds."""
    statement = (
        select(push_configs)
        .join(tasks, tasks.c.id == push_configs.c.task_id)
        .where(push_configs.c.is_over == 0, tasks.c.root == root)
        .where(
            or_(
                push_configs.c.holder.is_(None),
                push_configs.c.holder != holder,
                tasks.c.status_at > push_configs.c.status_at,
            )
        )
    )
    changed, free = list[PushCursor](), list[tuple[str, str]]()
    for row in db.execute(statement):
        if row.holder == holder:
            changed.append(_cursor(row))
        elif _is_free(row, now):
            free.append((row.task_id, row.id))
    return changed, free


def _is_free(row: Any, now: int) -> bool:
    return row.holder is None or row.held_until < now or Holder.is_dead(row.holder)


def _cursor(row: Any) -> PushCursor:
    return PushCursor(
        task_id=row.task_id,
        config_id=row.id,
        seq=row.seq,
        state=TaskState(row.state),
        status_at=row.status_at,
        attempts=row.attempts,
        next_at=row.next_at,
        over=bool(row.is_over),
    )


def _hold(
    db: Connection, free: Sequence[tuple[str, str]], *, lease: Lease, now: int
) -> list[PushCursor]:
    """Hold what is still free, and returns it as it is now; renew what this process holds."""
    held = {"holder": lease.holder, "held_until": lease.until}
    taken: list[PushCursor] = []
    for key in free:
        found = select(push_configs).where(_is(*key), push_configs.c.is_over == 0)
        row = db.execute(found.with_for_update()).first()
        if row is not None and _is_free(row, now):
            db.execute(update(push_configs).where(_is(*key)).values(held))
            taken.append(_cursor(row))
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == lease.holder)
    db.execute(update(push_configs).where(*ours).values(held_until=lease.until))
    return taken


def _held(db: Connection, holder: str) -> set[tuple[str, str]]:
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == holder)
    found = select(push_configs.c.task_id, push_configs.c.id).where(*ours)
    return {(row.task_id, row.id) for row in db.execute(found)}


def _release(db: Connection, holder: str) -> None:
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == holder)
    db.execute(update(push_configs).where(*ours).values(holder=None, held_until=0))


_FIND_CONFIG = Prepared(
    select(push_configs.c.id, push_configs.c.target, push_configs.c.created_at).where(
        push_configs.c.task_id == bindparam("task_id"), push_configs.c.id == bindparam("config_id")
    )
)


def _due(db: Connection, cursor: PushCursor) -> DuePush | None:
    row = _FIND_CONFIG.first(db, {"task_id": cursor.task_id, "config_id": cursor.config_id})
    head = sql.head(db, cursor.task_id)
    if row is None or head is None:
        return None
    config = _config(row, head)
    kinds = () if config.target.every_event else STATE_KINDS
    found = sql.entries_of_kinds(
        db, cursor.task_id, kinds=kinds, after=cursor.seq, limit=DUE_ENTRIES
    )
    ends = bool(found) and isinstance(found[-1].update, Ended)
    return DuePush(config, found, task=sql.load(db, cursor.task_id) if ends else None)


_ADVANCE = Prepared(
    update(push_configs).where(
        push_configs.c.task_id == bindparam("of_task"),
        push_configs.c.id == bindparam("of_config"),
        push_configs.c.holder == bindparam("of_holder"),
        push_configs.c.seq <= bindparam("from_seq"),  # never back
    ),
    _POSITION,
)


def _save(
    db: Connection, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter], *, holder: str
) -> set[tuple[str, str]]:
    lost = {each.key for each in cursors if not _advance(db, each, holder)}
    for letter in dead:
        if (letter.config.head.id, letter.config.id) in lost:
            continue
        _forget_letter(db, letter)
        row = {
            "task_id": letter.config.head.id,
            "config_id": letter.config.id,
            "seq": letter.seq,
            "owner": letter.config.head.owner,
            "at": letter.at,
            "attempts": letter.attempts,
            "error": letter.error,
        }
        db.execute(insert(push_dead), row)
    return lost


def _advance(db: Connection, cursor: PushCursor, holder: str) -> bool:
    which = {"of_task": cursor.task_id, "of_config": cursor.config_id, "of_holder": holder}
    return bool(_ADVANCE.change(db, _position(cursor) | which | {"from_seq": cursor.seq}))


def _dead_letters(db: Connection, where: ColumnElement[bool], *, limit: int) -> list[DeadLetter]:
    is_its = and_(
        push_configs.c.task_id == push_dead.c.task_id, push_configs.c.id == push_dead.c.config_id
    )
    statement = (
        select(push_dead, push_configs.c.id, push_configs.c.target, push_configs.c.created_at)
        .join(push_configs, is_its)
        .where(where)
        .order_by(push_dead.c.at, push_dead.c.task_id, push_dead.c.seq)
        .limit(limit)
    )
    found: list[DeadLetter] = []
    for row in db.execute(statement):
        if (head := sql.head(db, row.task_id)) is not None:
            config = _config(row, head)
            found.append(
                DeadLetter(config, row.seq, at=row.at, attempts=row.attempts, error=row.error)
            )
    return found


def _dead_entry(db: Connection, letter: DeadLetter) -> DuePush | None:
    task_id = letter.config.head.id
    found = sql.entries_of_kinds(db, task_id, kinds=(), after=letter.seq - 1, limit=1)
    if not found:
        return None
    ends = isinstance(found[0].update, Ended)
    return DuePush(letter.config, found, task=sql.load(db, task_id) if ends else None)


def _forget_letter(db: Connection, letter: DeadLetter) -> None:
    config = letter.config
    its = (push_dead.c.task_id == config.head.id, push_dead.c.config_id == config.id)
    db.execute(delete(push_dead).where(*its, push_dead.c.seq == letter.seq))
