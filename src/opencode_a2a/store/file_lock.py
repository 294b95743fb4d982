"""Lets one service at a time use an SQLite file.

SQLite itself allows several. But what they do is told to nobody: one finds out by looking what
another has written, or that it wants a task to be stopped. Services that work together share a
server, which tells them.

The lock is on a file beside the database, and the system releases it with the end of the process,
however that comes. Commands such as `backup` do not need it, and `restore` does.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import structlog
from sqlalchemy.engine import make_url

from .database import sqlite_path

logger = structlog.get_logger()

WAIT_SECONDS = 15.0  # for a service that is just being stopped
LOOK_SECONDS = 0.05
MOST_BYTES = 4_096  # that are read of what another process says of itself


class FileInUse(Exception):
    """Another service uses the database file."""


def lock_path(database: Path) -> Path:
    database = database.resolve()  # a file may have several names
    return database.with_name(f"{database.name}.lock")


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def lock_now(database: Path) -> Iterator[None]:
    """Lock an SQLite file for a command. `BlockingIOError`: a service uses it."""
    descriptor = _open(lock_path(database))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def sole_service(url: str, *, root: Path) -> AsyncIterator[bool]:
    """Lock the SQLite file of a database for this process, or raise `FileInUse`.

    Whether it is locked: not a database on a server, nor where the file system has no locks.
    """
    path = sqlite_path(make_url(url))
    if path is None:  # in memory, or a server
        yield False
        return
    lock = lock_path(path)
    try:
        descriptor = _open(lock)
    except OSError as exc:  # what is wrong with the folder is said when the database is opened
        if isinstance(exc, PermissionError) and lock.exists():
            raise FileInUse(
                f"{lock} cannot be opened ({exc.strerror}): another user's service uses, or has "
                f"used, this database. Run this one as the user {_owner(lock)}, or name another "
                "file in A2A_TASK_STORE_DATABASE_URL."
            ) from None
        logger.warning("store.not_locked", file=str(lock), reason=exc.strerror)
        yield False
        return
    try:
        if is_locked := await _locked(descriptor, path):
            said = f"process {os.getpid()} on {socket.gethostname()}, for the workspace {root}"
            with suppress(OSError):  # a full disk: then nobody is told who has the lock
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, said.encode(), 0)
        yield is_locked
    finally:
        os.close(descriptor)


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):  # a user without a name, or the file has gone
        return "that it belongs to"


async def _locked(descriptor: int, path: Path) -> bool:
    """Whether the file system has such locks. Waits for a service that is being stopped."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    waits = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            other = os.pread(descriptor, MOST_BYTES, 0).decode(errors="replace") or "a process"
        except OSError as exc:
            logger.warning("store.not_locked", file=str(path), reason=exc.strerror)
            return False
        if not waits:
            waits = True
            logger.info("store.waits_for_other", file=str(path), used_by=other)
        if asyncio.get_running_loop().time() > deadline:
            raise FileInUse(
                f"{path} is in use by another service ({other}). Only one at a time can use an "
                "SQLite file. Stop that one, name another file in A2A_TASK_STORE_DATABASE_URL or, "
                "if they should work together, a PostgreSQL database (docs/deploy-cluster.md)."
            )
        await asyncio.sleep(LOOK_SECONDS)
