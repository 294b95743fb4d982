"""Which workspace root a stored session belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select, update

from ..domain.values import Root
from .tables import sessions


def adopt(db: Connection, ids: Sequence[str], root: Root) -> Mapping[str, str | None]:
    """The roots of these sessions. Sessions without a root that lie in this root get it.

    Earlier versions stored a session without its root. If two roots contain its directory, the
    first one to call gets it.
    """
    found = select(sessions.c.session_id, sessions.c.root, sessions.c.directory)
    known: dict[str, str | None] = {}
    for row in db.execute(found.where(sessions.c.session_id.in_(ids)).with_for_update()):
        known[row.session_id] = row.root
        if row.root is None and root.contains(row.directory):
            this = sessions.c.session_id == row.session_id
            db.execute(update(sessions).where(this).values(root=root.path))
            known[row.session_id] = root.path
    return known
