"""Push configs, their cursors into the log, and what receivers have not taken.

A cursor is moved by one process, which holds the config by a lease. It finds out from the row of
the task that another process has changed it. There may be many configs whose receiver is away for
hours, so a look reads and writes what has changed; it reads and renews all of them more rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
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

from ..domain.addresses import origin_of
from ..domain.push import (
    Claimed,
    DeadLetter,
    DuePush,
    PushConfig,
    PushCursor,
    PushTarget,
    ReceiverKey,
    StoredConfig,
    TaskGone,
    TellNews,
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
from ..domain.values import TaskState
from . import statements as sql
from .database import Database
from .following import announce
from .holder import Holder, Lease
from .prepared import Prepared
from .tables import push_configs, push_dead, tasks

DUE_ENTRIES = 64  # that are read at once
LEASE = 30_000  # milliseconds for which a config is held without a sign of life
RENEW_AFTER = 10_000  # milliseconds: then all that are held are read and renewed
RECENT = 60_000  # milliseconds: how old a change is that every look finds, by any clock
ADOPT_AFTER = 60_000  # milliseconds for which no process of a root has held a config of it
CLAIM_ROWS = 200  # in one transaction: the log waits for it
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

    def __init__(self, database: Database, clock: Callable[[], int], root: str = "") -> None:
        self._database = database
        self._clock = clock
        self._root = root
        self._holder = Holder.this_process().name
        self._renewed_at: int | None = None

    def _lease(self) -> Lease:
        return Lease(self._holder, until=self._clock() + LEASE)

    async def put(self, config: PushConfig, cursor: PushCursor, *, most: int) -> StoredConfig:
        return await self._database.write(_put, config, cursor, lease=self._lease(), most=most)

    async def of_task(self, owner: str, task_id: str) -> Sequence[PushConfig]:
        return await self._database.read(_of_task, owner, task_id)

    async def delete(self, owner: str, task_id: str, config_id: str) -> None:
        await self._database.write(_delete, owner, task_id, config_id=config_id)

    async def claim(self, known: Collection[tuple[str, str]]) -> Claimed:
        now, us = self._clock(), self._holder
        renews = self._renewed_at is None or not 0 <= now - self._renewed_at < RENEW_AFTER
        look = _Look(us, now=now, root=self._root, since=0 if renews else now - RECENT)
        changed, free = await self._database.read(_find, look)
        taken = list[PushCursor]()
        if free:
            taken = await self._database.write(_hold, free, lease=self._lease(), now=now)
        lost = set[tuple[str, str]]()
        if renews:
            await self._database.write(_renew, self._lease())
            held = {each.key: each for each in await self._database.read(_held, us)}
            lost = set(known) - held.keys()
            # A request that was cut off may have stored one without telling the sender.
            forgotten = held.keys() - set(known) - {each.key for each in taken}
            taken += [held[key] for key in sorted(forgotten)]
            self._renewed_at = now
        return Claimed(taken=taken, changed=changed, lost=lost, more=len(free) == CLAIM_ROWS)

    async def release(self) -> None:
        await self._database.write(_release, self._holder, self._clock())

    def on_news(self, tell: TellNews) -> Callable[[], None]:
        return self._database.wakeups.subscribe(lambda words: _pass_on(words, tell))

    async def follow(self, task_ids: Sequence[str]) -> None:
        if self._database.is_server:
            await announce(self._database, task_ids)

    async def due(self, cursor: PushCursor) -> DuePush | None:
        return await self._database.read(_due, cursor)

    async def save(
        self, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter]
    ) -> Collection[tuple[str, str]]:
        return await self._database.write(_save, cursors, dead, holder=self._holder)

    async def dead_letters(
        self, owner: str, *, task_id: str | None, config_id: str | None, limit: int
    ) -> Sequence[DeadLetter]:
        where: ColumnElement[bool] = push_dead.c.owner == owner
        if not self._database.is_server:  # there any node answers for all
            where &= tasks.c.root == self._root
        if task_id is not None:
            where &= push_dead.c.task_id == task_id
        if config_id is not None:
            where &= push_dead.c.config_id == config_id
        return await self._database.read(_dead_letters, where, limit=limit)

    async def dead_entry(self, letter: DeadLetter) -> DuePush | None:
        return await self._database.read(_dead_entry, letter)

    async def redelivered(self, letter: DeadLetter) -> None:
        await self._database.write(_forget_letter, letter)

    async def not_redelivered(self, letter: DeadLetter, error: str) -> None:
        await self._database.write(_count_attempt, letter, error)


def _pass_on(words: Sequence[str], tell: TellNews) -> None:
    """What processes notify each other of, as far as receivers are told of it."""
    if not words:
        tell(None, 0, has_state=True)
    for word in words:
        kind, _, where = word.partition(":")
        if kind in ("task", "state"):
            task_id, _, seq = where.rpartition(":")
            tell(task_id, int(seq), has_state=kind == "state")


def _is(task_id: str, config_id: str) -> ColumnElement[bool]:
    return and_(push_configs.c.task_id == task_id, push_configs.c.id == config_id)


def _put(
    db: Connection, config: PushConfig, cursor: PushCursor, *, lease: Lease, most: int
) -> StoredConfig:
    head = config.head
    # Whoever deletes the task waits for this row, and so does another process that adds a config.
    if (
        db.execute(select(tasks.c.id).where(tasks.c.id == head.id).with_for_update()).first()
        is None
    ):
        raise TaskGone
    target = orjson.dumps(asdict(config.target))
    found = select(push_configs).where(_is(head.id, config.id))
    row = db.execute(found.with_for_update()).first()  # whoever deletes it waits
    if row is not None:
        if replaced := row.target != target:  # the new receiver has not failed yet
            again = {"target": target, "attempts": 0, "next_at": 0}
            db.execute(update(push_configs).where(_is(head.id, config.id)).values(again))
        stored = db.execute(found).one()
        is_ours = stored.holder == lease.holder
        return StoredConfig(_cursor(stored) if is_ours else None, replaced=replaced)
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
    return StoredConfig(cursor, replaced=False)


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


@dataclass(frozen=True, slots=True)
class _Look:
    """For what a process looks."""

    holder: str
    now: int
    root: str
    since: int  # only for changes after that


def _find(db: Connection, look: _Look) -> tuple[list[PushCursor], list[tuple[str, str]]]:
    """What this process holds and whose task has changed since; and what nobody holds."""
    us = push_configs.c.holder == look.holder
    found = (
        select(push_configs)
        .join(tasks, tasks.c.id == push_configs.c.task_id)
        .where(push_configs.c.is_over == 0)
    )
    for_us = tasks.c.root == look.root
    if db.dialect.name == "postgresql":  # any node can tell what became of the tasks of another
        was_held = push_configs.c.held_until > 0  # not in a database that was just restored
        for_us |= and_(was_held, push_configs.c.held_until < look.now - ADOPT_AFTER)
    # Not "later than": clocks differ from one machine to the next.
    differs = or_(
        tasks.c.status_at != push_configs.c.status_at, tasks.c.state != push_configs.c.state
    )
    recent = tasks.c.status_at >= look.since
    changed = [_cursor(row) for row in db.execute(found.where(us, recent, differs))]
    over = and_(push_configs.c.holder != look.holder, push_configs.c.held_until < look.now)
    nobodys = or_(push_configs.c.holder.is_(None), over)
    order = (push_configs.c.task_id, push_configs.c.id)  # the same in every process: no deadlock
    free = db.execute(found.where(for_us, nobodys).order_by(*order).limit(CLAIM_ROWS))
    return changed, [(row.task_id, row.id) for row in free]


def _is_free(row: Any, now: int) -> bool:
    return row.holder is None or row.held_until < now


def _cursor(row: Any) -> PushCursor:
    target = PushTarget(**orjson.loads(row.target))
    return PushCursor(
        task_id=row.task_id,
        config_id=row.id,
        receiver=ReceiverKey(row.owner, origin_of(target.url)),
        every_event=target.every_event,
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
    """Hold what is still free, and return it as it is now."""
    held = {"holder": lease.holder, "held_until": lease.until}
    taken: list[PushCursor] = []
    for key in free:
        found = select(push_configs).where(_is(*key), push_configs.c.is_over == 0)
        row = db.execute(found.with_for_update()).first()
        if row is not None and _is_free(row, now):
            db.execute(update(push_configs).where(_is(*key)).values(held))
            taken.append(_cursor(row))
    return taken


def _renew(db: Connection, lease: Lease) -> None:
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == lease.holder)
    db.execute(update(push_configs).where(*ours).values(held_until=lease.until))


def _held(db: Connection, holder: str) -> list[PushCursor]:
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == holder)
    return [_cursor(row) for row in db.execute(select(push_configs).where(*ours))]


def _release(db: Connection, holder: str, now: int) -> None:
    """Let the next process of this root have them at once, and others only if there is none."""
    ours = (push_configs.c.is_over == 0, push_configs.c.holder == holder)
    db.execute(update(push_configs).where(*ours).values(holder=None, held_until=now))


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
    task = sql.load(db, cursor.task_id) if ends else None
    return DuePush(config, found, task=task, more=len(found) == DUE_ENTRIES)


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
        .join(tasks, tasks.c.id == push_dead.c.task_id)
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
    if not found or found[0].seq != letter.seq:
        return None
    ends = isinstance(found[0].update, Ended)
    return DuePush(letter.config, found, task=sql.load(db, task_id) if ends else None)


def _is_letter(letter: DeadLetter) -> ColumnElement[bool]:
    config = letter.config
    return and_(
        push_dead.c.task_id == config.head.id,
        push_dead.c.config_id == config.id,
        push_dead.c.seq == letter.seq,
    )


def _forget_letter(db: Connection, letter: DeadLetter) -> None:
    db.execute(delete(push_dead).where(_is_letter(letter)))


def _count_attempt(db: Connection, letter: DeadLetter, error: str) -> None:
    again = {"attempts": push_dead.c.attempts + 1, "error": error}
    db.execute(update(push_dead).where(_is_letter(letter)).values(again))
