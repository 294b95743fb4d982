"""Whose work is being done, for the log: request, trace, principal, task, context, session.

structlog has the same, with a context variable for each name. To set several and to find them all
among those of the whole process takes longer than the rest of a line.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_ids: ContextVar[Mapping[str, str]] = ContextVar("ids", default={})  # noqa: B039 (never changed)


def known() -> Mapping[str, str]:
    """The ids of what is done just now, by name."""
    return _ids.get()


def bind(**ids: str) -> None:
    """Add ids, for the rest of this asyncio task and for those that it starts."""
    _ids.set({**_ids.get(), **ids})


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Add ids for a block."""
    token = _ids.set({**_ids.get(), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


def new_hex(digits: int) -> str:
    """An id that nobody has, and that anybody may guess.

    Unguessable ones come from the kernel, and each time another thread may take the interpreter.
    """
    return f"{random.getrandbits(4 * digits):0{digits}x}"
