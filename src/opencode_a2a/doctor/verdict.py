"""What a check says about its subject, and how a check is declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Level(StrEnum):
    """How bad it is, from fine to broken."""

    OK = "ok"
    UNKNOWN = "unknown"  # it could not be tried
    WARNING = "warning"  # it works, and something deserves a look
    ERROR = "error"  # it does not work, or is not safe


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that can be wrong. The name is stable: scripts may look for it."""

    name: str
    level: Level
    means: str
    fix: str


@dataclass(frozen=True, slots=True)
class Verdict:
    level: Level
    says: str
    fix: str = ""
    finding: str | None = None  # the name of what was found


class NotTried(Exception):
    """A check cannot be made here; the message says why, the fix how it could be."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


def fine(says: str) -> Verdict:
    return Verdict(Level.OK, says)


def found(finding: Finding, says: str, fix: str | None = None) -> Verdict:
    """A finding with what was seen; `fix` where more can be said than is true everywhere."""
    return Verdict(
        finding.level, says, fix=finding.fix if fix is None else fix, finding=finding.name
    )


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    name: str
    looks_at: str
    look: Callable[[S], Awaitable[Verdict]]
    findings: tuple[Finding, ...]
    seconds: float = 20.0  # it may take
    at_start: bool = False  # also made by a service that starts

    def on(self, subject: S) -> Examination:
        return Examination(self.name, self.seconds, lambda: self.look(subject))


@dataclass(frozen=True, slots=True)
class Examination:
    """A check of a certain subject."""

    name: str
    seconds: float
    look: Callable[[], Awaitable[Verdict]]


class Once(Generic[T]):
    """Work that several checks need: done when the first of them asks, and only once."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Its result, or its error. A check that gives up waiting does not stop the work."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())
        return await asyncio.shield(self._task)
