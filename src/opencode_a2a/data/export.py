"""One task as JSON lines: as A2A 1.0 shows it, and as it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from sqlalchemy import Connection, select

from ..domain.task import Task
from ..inbound.dialect import V1
from ..inbound.render import Renderer
from ..store import codec
from ..store.statements import entries_after, head_of, load
from ..store.tables import DELETED_WITH_TASK, entries, tasks


def export_task(db: Connection, task_id: str) -> list[str]:
    """The lines; none if there is no such task."""
    row = db.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None:
        return []
    return [orjson.dumps(each).decode() for each in _objects(db, row)]


def _objects(db: Connection, row: Any) -> Iterator[dict[str, Any]]:
    renderer = Renderer(V1, hints=True)
    try:
        task = load(db, row.id)
        assert task is not None
        yield {"task": renderer.task(task)}
        log = entries_after(db, row.id, after=0) or sorted(task.compacted(), key=lambda e: e.seq)
        so_far = Task(task.head, status_at=task.head.created_at)
        for entry in log:
            so_far.apply(entry)
            if (event := renderer.event(head_of(row), entry, so_far.state)) is not None:
                yield {"event": orjson.loads(event), "number": entry.seq}
    except codec.Unreadable as exc:
        yield {"unreadable": str(exc.__cause__)}
    yield {"row": "tasks", **_values(row)}
    for table in DELETED_WITH_TASK:
        order = table.c.seq if table is entries else list(table.primary_key)[-1]
        for each in db.execute(select(table).where(table.c.task_id == row.id).order_by(order)):
            yield {"row": table.name, **_values(each)}


def _values(row: Any) -> dict[str, Any]:
    """The columns of a row; bytes are JSON, unless they are damaged."""
    return {str(name): _value(value) for name, value in row._mapping.items()}


def _value(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return {"hex": value.hex()}
