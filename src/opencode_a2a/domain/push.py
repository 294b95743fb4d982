"""Push notifications: whom to tell about a task, how far they were told, and when to try again.

The log of a task is the outbox. A push config has a durable cursor into it: the number of the last
event that its receiver has taken. So a commit of the log owes the notification in the same moment,
nothing is stored twice, and a process that starts goes on at the cursor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .task import Task, TaskHead
from .updates import Ended, LogEntry
from .values import TaskState

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 600.0
MAX_RETRY_AFTER_SECONDS = 3_600.0  # however long a receiver asks to be left alone
FAILURES_TO_OPEN = 5  # in a row, of one origin: then it is only probed
DEFAULT_ID = "default"  # of a config that comes with a message or from a client of 0.3
HMAC_SCHEMES = frozenset({"hmac", "hmac-sha256"})  # the credentials are a key, and never sent


@dataclass(frozen=True, slots=True)
class PushTarget:
    """What a client registers: where to, and how its receiver knows that it is us."""

    url: str
    id: str | None = None  # None: chosen here
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None  # of the Authorization header
    credentials: str | None = field(default=None, repr=False)
    line: Literal["1.0", "0.3"] = "1.0"  # what the client speaks, and so its receiver
    every_event: bool = False  # also what only adds to an artifact
    hints: bool = False
    hitl: bool = False

    @property
    def signing_secret(self) -> str | None:
        """What the receiver can verify a signature with: a key of its own, or else its token."""
        if (self.scheme or "").lower() in HMAC_SCHEMES:
            return self.credentials
        return self.token


@dataclass(frozen=True, slots=True)
class PushConfig:
    """A target of one task. The owner of the task is the only one who sees it."""

    head: TaskHead  # of the task
    id: str
    target: PushTarget
    created_at: int


@dataclass(slots=True)
class PushCursor:
    """How far a receiver was told, and how often it has not taken the next event."""

    task_id: str
    config_id: str
    seq: int
    state: TaskState  # of the task, there
    status_at: int = 0  # of the last change of state up to there
    attempts: int = 0  # failed ones, of the next event
    next_at: int = 0  # not before
    over: bool = False  # the receiver was told the end, so nothing follows

    @property
    def key(self) -> tuple[str, str]:
        return self.task_id, self.config_id

    def passed(self, entry: LogEntry) -> None:
        """The entry is dealt with: it was taken, is nothing to tell, or is a dead letter."""
        self.seq, self.attempts, self.next_at = entry.seq, 0, 0
        if entry.state is not None:
            self.state, self.status_at = entry.state, entry.at
        self.over = isinstance(entry.update, Ended)


@dataclass(frozen=True, slots=True)
class DuePush:
    """The next entries for a receiver; with the task, where they end it."""

    config: PushConfig
    entries: Sequence[LogEntry]
    task: Task | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a receiver has not taken in time."""

    config: PushConfig
    seq: int
    at: int  # of the event
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Notification:
    """One event as it goes to a receiver. The id is the same for every attempt."""

    id: str
    body: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an attempt: nothing wrong, or what was."""

    error: str | None = None
    retry_after: float | None = None  # seconds, if the receiver has said
    unwell: bool = False  # the receiver as such has a problem, not this request


def event_id(task_id: str, seq: int) -> str:
    return f"{task_id}:{seq}"


def retry_seconds(attempts: int, *, jitter: float, retry_after: float | None) -> float:
    """How long to wait after so many failed attempts; `jitter` is between 0 and 1."""
    pause = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 20), MAX_RETRY_SECONDS)
    pause *= 0.5 + jitter
    return max(pause, min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS))


@dataclass(slots=True)
class Breaker:
    """Whether an origin is asked at all. After some failures in a row one attempt is a probe."""

    failures: int = 0
    closed_until: float = 0.0  # to everybody
    probing: bool = False

    def admit(self, now: float) -> float:
        """Seconds to wait; 0: go ahead, and report the outcome."""
        if self.failures < FAILURES_TO_OPEN:
            return 0.0
        if now < self.closed_until:
            return self.closed_until - now
        if self.probing:
            return FIRST_RETRY_SECONDS
        self.probing = True
        return 0.0

    def worked(self) -> bool:
        """Whether others have waited for this."""
        was_open = self.failures >= FAILURES_TO_OPEN
        self.failures, self.closed_until, self.probing = 0, 0.0, False
        return was_open

    def failed(self, now: float, *, jitter: float) -> None:
        self.failures += 1
        self.probing = False
        if (extra := self.failures - FAILURES_TO_OPEN) >= 0:
            pause = retry_seconds(extra + 2, jitter=jitter, retry_after=None)
            self.closed_until = now + min(pause, 60.0)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a look at the configs has found."""

    taken: Sequence[PushCursor] = ()  # nobody sent these (any more); now this process holds them
    changed: Sequence[PushCursor] = ()  # held before, and another process has written their task
    lost: Collection[tuple[str, str]] = ()  # not held any more, or deleted


class TooManyConfigs(Exception):
    """The task has as many configs as it may have."""


class PushStore(Protocol):
    """The configs and cursors of this workspace root."""

    async def put(self, config: PushConfig, cursor: PushCursor, *, most: int) -> PushCursor | None:
        """Add a config, or change the target of one that is there. `TooManyConfigs` beyond.

        Returns the cursor as it is stored; None if this process does not hold the config.
        """
        ...

    async def of_task(self, owner: str, task_id: str) -> Sequence[PushConfig]: ...

    async def delete(self, owner: str, task_id: str, config_id: str) -> None: ...

    async def claim(self, known: Collection[tuple[str, str]]) -> Claimed:
        """Renew the lease on what this process sends (`known`), and claim what nobody sends."""
        ...

    async def release(self) -> None: ...

    async def due(self, cursor: PushCursor) -> DuePush | None:
        """What comes after the cursor; None if the config is gone."""
        ...

    async def save(
        self, cursors: Sequence[PushCursor], dead: Sequence[DeadLetter]
    ) -> Collection[tuple[str, str]]:
        """Returns what was not saved, because this process does not hold it any more."""
        ...

    async def dead_letters(
        self, owner: str, *, task_id: str | None, config_id: str | None, limit: int
    ) -> Sequence[DeadLetter]:
        """The oldest first."""
        ...

    async def dead_entry(self, letter: DeadLetter) -> DuePush | None: ...

    async def redelivered(self, letter: DeadLetter) -> None: ...


class Receivers(Protocol):
    """The way to receivers, under the egress policy."""

    async def check(self, url: str) -> None:
        """`Refused` if nothing may be sent there."""
        ...

    async def challenge(self, url: str) -> None:
        """`Refused` if who is there does not want this."""
        ...

    async def post(self, config: PushConfig, notification: Notification) -> Answer: ...


class RenderPush(Protocol):
    def __call__(self, due: DuePush, entry: LogEntry, state: TaskState) -> bytes | None:
        """An event in the words of its receiver; None if that is not told about it."""
        ...
